"""AG-UI: reads the messages of a run, and writes its events."""

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, assert_never

from ag_ui.core import (
    AssistantMessage as AgUiAssistantMessage,
    BaseEvent,
    CustomEvent,
    FunctionCall,
    Interrupt,
    Message as AgUiMessage,
    MessagesSnapshotEvent,
    ReasoningEndEvent,
    ReasoningMessageContentEvent,
    ReasoningMessageEndEvent,
    ReasoningMessageStartEvent,
    ReasoningStartEvent,
    ResumeEntry,
    RunAgentInput,
    RunErrorEvent,
    RunFinishedEvent,
    RunFinishedInterruptOutcome,
    RunFinishedSuccessOutcome,
    RunStartedEvent,
    StateSnapshotEvent,
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
    TextPart,
    TokenUsage,
    ToolCall as AgUiToolCall,
    ToolCallArgsEvent,
    ToolCallEndEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
    ToolMessage as AgUiToolMessage,
    UserMessage as AgUiUserMessage,
)
from pydantic import ValidationError

from chatclient.chat.events import (
    ApprovalNeeded,
    Done,
    TextReplaced,
    ToolCallDelta,
    TurnDecided,
    UiData,
    UiState,
)
from chatclient.chat.messages import (
    AssistantMessage,
    Media,
    Message,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
)
from chatclient.chat.pending_turn import Decision, PendingTurn
from chatclient.chat.response import ChatResponse
from chatclient.chat.tool import ToolProgress
from chatclient.chat.tool_definition import ToolDefinition
from chatclient.extend import dumps
from chatclient.tools.function.data_tool import ExternalTool
from chatclient.web.ai_sdk import json_or_text
from chatclient.web.parts import (
    BlockBegun,
    BlockEnded,
    BlockPiece,
    CallBegun,
    CallComplete,
    CallFinished,
    FileMade,
    Part,
    PartReader,
    RoundBegun,
)
from chatclient.web.requests import Incoming, InvalidInputError, media_of


def parse_input(body: Any) -> RunAgentInput:
    """Return the request in *body*, a JSON value.

    Raises:
        InvalidInputError: It is not one.
    """
    try:
        return RunAgentInput.model_validate(body)
    except ValidationError as error:
        raise InvalidInputError.of(error) from error


def incoming_of(input: RunAgentInput) -> Incoming:
    """Return *input* in the form that both protocols have.

    Raises:
        InvalidInputError: A message, a tool or an answer is invalid.
    """
    messages = tuple(_messages(input.messages))
    last = input.messages[-1] if input.messages else None
    resume = input.resume or []
    return Incoming(
        conversation_id=input.thread_id,
        messages=messages,
        continues=bool(resume) or isinstance(last, AgUiToolMessage),
        replaces=True,  # AG-UI does not mark messages that are sent again
        decisions={entry.interrupt_id: _decision(entry) for entry in resume},
        results=_results(input.messages),
        tools=tuple(
            ExternalTool(ToolDefinition(tool.name, tool.description, tool.parameters or {}))
            for tool in input.tools or ()
        ),
        context=tuple((each.description, each.value) for each in input.context or ()),
        state=input.state,
        properties=input.forwarded_props if isinstance(input.forwarded_props, dict) else {},
    )


def tool_message_id(message_id: str, call_id: str) -> str:
    """Return the id for the result of one call; here, one message has the results of all."""
    return f"{message_id}/{call_id}"


def ag_ui_messages(
    messages: Sequence[Message],
    results: Mapping[str, ToolResponse],
    answer: AgUiAssistantMessage | None,
) -> Iterator[AgUiMessage]:
    """Yield the messages of rounds, with the *results* as they are shown, and the answer if any."""
    for message in messages:
        match message:
            case AssistantMessage():
                calls = [
                    AgUiToolCall(id=c.id, function=FunctionCall(name=c.name, arguments=c.arguments))
                    for c in message.tool_calls
                ]
                yield AgUiAssistantMessage(
                    id=message.id or "", content=message.text or None, tool_calls=calls or None
                )
            case ToolResponseMessage():
                for response in message.responses:
                    yield AgUiToolMessage(
                        id=tool_message_id(message.id or "", response.id),
                        content=results.get(response.id, response).data,
                        tool_call_id=response.id,
                    )
            case _:
                pass  # the frontend's own
    if answer is not None:
        yield answer


def _messages(given: Sequence[AgUiMessage]) -> Iterator[Message]:
    """Yield the messages of user, model and tools; instructions are the application's."""
    names: dict[str, str] = {}
    results: list[AgUiToolMessage] = []
    for message in given:
        if isinstance(message, AgUiToolMessage):
            results.append(message)
            continue
        if results:
            yield _results_message(results, names)
            results = []
        match message:
            case AgUiUserMessage(id=id, content=content):
                yield UserMessage(list(_user_parts(content)), id=id)
            case AgUiAssistantMessage(id=id, content=text, tool_calls=calls):
                names |= {call.id: call.function.name for call in calls or ()}
                made = [ToolCall(c.id, c.function.name, c.function.arguments) for c in calls or ()]
                yield AssistantMessage(text or None, made, id=id)
            case _:
                pass  # system, developer, reasoning and activity
    if results:
        yield _results_message(results, names)


def _results_message(
    results: Sequence[AgUiToolMessage], names: Mapping[str, str]
) -> ToolResponseMessage:
    first = results[0]
    responses = [
        ToolResponse(
            result.tool_call_id,
            names.get(result.tool_call_id, ""),
            _text(result),
            is_error=result.error is not None,
        )
        for result in results
    ]
    return ToolResponseMessage(responses, id=first.id.removesuffix(f"/{first.tool_call_id}"))


def _text(result: AgUiToolMessage) -> str:
    if result.error is not None:
        return result.error
    if isinstance(result.content, str):
        return result.content
    return "\n".join(part.text for part in result.content if isinstance(part, TextPart))


def _user_parts(content: Any) -> Iterator[str | Media]:
    if isinstance(content, str):
        yield content
        return
    for part in content:
        if isinstance(part, TextPart):
            yield part.text
        else:
            yield _media(part)


def _media(part: Any) -> Media:
    """Return the content of an image, sound, video or document part.

    Raises:
        InvalidInputError: It is not Base64, not a web address, or a file of another service.
    """
    source = part.source
    if source.type == "data":
        try:
            return Media(source.mime_type, base64.b64decode(source.value, validate=True))
        except binascii.Error as error:
            msg = f"the content of the {part.type} part is not Base64"
            raise InvalidInputError(msg) from error
    return media_of(source.value, source.mime_type)


def _results(messages: Sequence[AgUiMessage]) -> dict[str, Decision]:
    """Return the results of tool calls that the frontend carried out, by the ids of the calls."""
    return {
        each.tool_call_id: Decision.answered(_text(each))
        if each.error is None
        else Decision(approved=False, message=each.error)
        for each in messages
        if isinstance(each, AgUiToolMessage)
    }


def _decision(entry: ResumeEntry) -> Decision:
    """Return the decision of an answer to an interrupt.

    Raises:
        InvalidInputError: The answer is neither a bool nor an object with a bool `approved`.
    """
    if entry.status == "cancelled":
        return Decision(approved=False)
    payload = entry.payload
    answer = payload if isinstance(payload, dict) else {"approved": payload}
    approved, arguments = answer.get("approved"), answer.get("arguments")
    message = answer.get("message", "")
    if not isinstance(approved, bool) or not isinstance(message, str):
        msg = f"the answer to interrupt {entry.interrupt_id!r} needs a bool 'approved'"
        raise InvalidInputError(msg)
    changed = dumps(arguments).decode() if isinstance(arguments, dict) else None
    return Decision(approved, message, changed)


_RESPONSE_SCHEMA = {
    "type": "object",
    "properties": {
        "approved": {"type": "boolean"},
        "message": {"type": "string"},
        "arguments": {"type": "object"},
    },
    "required": ["approved"],
}


class AgUiEncoder:
    """Encodes one run as server-sent events.

    Args:
        reader: Reads the events of the answer.
        input: The request of the frontend.
        trail: Whether the trail is sent, as the custom event `trail`.
    """

    headers: dict[str, str] = {}  # noqa: RUF012 - constant

    def __init__(self, reader: PartReader, input: RunAgentInput, *, trail: bool = False) -> None:
        self._reader = reader
        self._input = input
        self._send_trail = trail
        self._waiting: PendingTurn | None = None

    def begin(self) -> Iterator[bytes]:
        """Yield the event that begins the run."""
        started = RunStartedEvent(thread_id=self._input.thread_id, run_id=self._input.run_id)
        yield _sent(started)

    def encode(self, event: Any) -> Iterator[bytes]:
        """Yield the events of AG-UI for an event of the stream."""
        for part in self._reader.parts(event):
            yield from map(_sent, self._events(part))

    def fail(self, text: str) -> Iterator[bytes]:
        """Yield the event of an error, which ends the run."""
        yield _sent(RunErrorEvent(message=text))

    def end(self) -> Iterator[bytes]:
        """Yield nothing: the last event has ended the run."""
        yield from ()

    def _events(self, part: Part) -> Iterator[BaseEvent]:
        match part:
            case BlockBegun() | BlockPiece() | BlockEnded():
                yield from _block_events(part)
            case TextReplaced(text=text):
                id = self._reader.last_message_id
                yield self._snapshot(AgUiAssistantMessage(id=id, content=text))
            case UiState(value=value):
                yield StateSnapshotEvent(snapshot=value)
            case UiData(name=name, value=value):
                yield CustomEvent(name=name, value=value)
            case FileMade(media=media):
                file = {"url": media.url(), "mimeType": media.mime_type}
                yield CustomEvent(name="file", value=file)
            case ApprovalNeeded() | TurnDecided():
                self._waiting = part.turn if isinstance(part, ApprovalNeeded) else None
            case Done():
                yield from self._end(part)
            case RoundBegun(replaces=True):
                yield self._snapshot(None)
            case RoundBegun():
                pass  # the events of its parts name the message
            case _:
                yield _call_event(part)

    def _snapshot(self, answer: AgUiAssistantMessage | None) -> BaseEvent:
        """Return the event that replaces the messages of the frontend by those of the turn."""
        produced = ag_ui_messages(self._reader.round_messages, self._reader.results, answer)
        known = {message.id for message in self._input.messages}
        new = [message for message in produced if message.id not in known]
        return MessagesSnapshotEvent(messages=[*self._input.messages, *new])

    def _end(self, part: Done) -> Iterator[BaseEvent]:
        if self._send_trail and part.trail is not None:
            yield CustomEvent(name="trail", value=str(part.trail))
        outcome: RunFinishedSuccessOutcome | RunFinishedInterruptOutcome
        if self._waiting is None:
            outcome = RunFinishedSuccessOutcome()
        else:
            external = self._waiting.external_calls
            interrupts = [
                Interrupt(
                    id=id,
                    reason="tool_call",
                    message=f"Allow {call.name}?",
                    tool_call_id=id,
                    response_schema=_RESPONSE_SCHEMA,
                    metadata={"toolName": call.name, "arguments": json_or_text(call.arguments)},
                )
                for id, call in self._waiting.to_decide().items()
                if id not in external
            ]
            if interrupts:
                outcome = RunFinishedInterruptOutcome(interrupts=interrupts)
            else:
                outcome = RunFinishedSuccessOutcome(pending_tool_call_ids=list(external))
        yield RunFinishedEvent(
            thread_id=self._input.thread_id,
            run_id=self._input.run_id,
            outcome=outcome,
            usage=_usage(part.response),
        )


def _block_events(part: BlockBegun | BlockPiece | BlockEnded) -> Iterator[BaseEvent]:
    match part:
        case BlockBegun(kind="text", message_id=id):
            yield TextMessageStartEvent(message_id=id, role="assistant")
        case BlockPiece(kind="text", message_id=id, text=text):
            yield TextMessageContentEvent(message_id=id, delta=text)
        case BlockEnded(kind="text", message_id=id):
            yield TextMessageEndEvent(message_id=id)
        case BlockBegun(id=id):
            yield ReasoningStartEvent(message_id=id)
            yield ReasoningMessageStartEvent(message_id=id, role="reasoning")
        case BlockPiece(id=id, text=text):
            yield ReasoningMessageContentEvent(message_id=id, delta=text)
        case BlockEnded(id=id):
            yield ReasoningMessageEndEvent(message_id=id)
            yield ReasoningEndEvent(message_id=id)
        case _:
            assert_never(part)


def _call_event(
    part: CallBegun | ToolCallDelta | CallComplete | ToolProgress | CallFinished,
) -> BaseEvent:
    match part:
        case CallBegun(id=id, name=name, message_id=parent):
            return ToolCallStartEvent(
                tool_call_id=id, tool_call_name=name, parent_message_id=parent
            )
        case ToolCallDelta(id=id, arguments=arguments):
            return ToolCallArgsEvent(tool_call_id=id, delta=arguments)
        case CallComplete(call=call):
            return ToolCallEndEvent(tool_call_id=call.id)
        case ToolProgress(tool_call_id=id, event=value):
            return CustomEvent(name="tool_progress", value={"toolCallId": id, "value": value})
        case CallFinished(undone=True):
            data = {"toolCallId": part.id, "content": part.response.data}
            return CustomEvent(name="tool_call_undone", value=data)
        case CallFinished(id=id):
            return ToolCallResultEvent(
                message_id=tool_message_id(part.message_id, id),
                tool_call_id=id,
                content=part.response.data,
                role="tool",
            )
        case _:
            assert_never(part)


def _usage(response: ChatResponse) -> list[TokenUsage] | None:
    usage = response.usage
    if not usage.total_tokens:
        return None
    return [
        TokenUsage(
            model=response.metadata.model or None,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            total_tokens=usage.total_tokens,
            reasoning_tokens=usage.reasoning_tokens,
            cached_input_tokens=usage.cache_read_tokens,
            cache_write_input_tokens=usage.cache_write_tokens,
        )
    ]


def _sent(event: BaseEvent) -> bytes:
    return f"data: {event.model_dump_json(by_alias=True)}\n\n".encode()
