"""Parts of an answer as events of the AG-UI protocol."""

from collections.abc import Iterator
from typing import Any, assert_never

from ag_ui.core import (
    AssistantMessage,
    BaseEvent,
    CustomEvent,
    Interrupt,
    MessagesSnapshotEvent,
    ReasoningEndEvent,
    ReasoningMessageContentEvent,
    ReasoningMessageEndEvent,
    ReasoningMessageStartEvent,
    ReasoningStartEvent,
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
    TokenUsage,
    ToolCallArgsEvent,
    ToolCallEndEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
)

from chatclient.chat.pending_turn import PendingTurn
from chatclient.chat.response import ChatResponse
from chatclient.chat.ui_events import UiData, UiState
from chatclient.services.web.ag_ui_messages import ag_ui_messages, tool_message_id
from chatclient.services.web.ai_sdk_stream import json_or_text
from chatclient.services.web.part_reader import PartReader
from chatclient.services.web.parts import (
    BlockBegun,
    BlockEnded,
    BlockPiece,
    CallBegun,
    CallComplete,
    CallFinished,
    CallPiece,
    CallProgress,
    CallsDecided,
    FileMade,
    Part,
    RoundBegun,
    TextRevised,
    TurnEnded,
    TurnWaits,
)

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
            case TextRevised():
                yield self._snapshot(AssistantMessage(id=part.message_id, content=part.text))
            case UiState(value=value):
                yield StateSnapshotEvent(snapshot=value)
            case UiData(name=name, value=value):
                yield CustomEvent(name=name, value=value)
            case FileMade(media=media):
                file = {"url": media.url(), "mimeType": media.mime_type}
                yield CustomEvent(name="file", value=file)
            case TurnWaits() | CallsDecided():
                self._waiting = part.turn if isinstance(part, TurnWaits) else None
            case TurnEnded():
                yield from self._end(part)
            case RoundBegun(replaces=True):
                yield self._snapshot(None)
            case RoundBegun():
                pass  # the events of its parts name the message
            case _:
                yield _call_event(part)

    def _snapshot(self, answer: AssistantMessage | None) -> BaseEvent:
        """Return the event that replaces the messages of the frontend by those of the turn."""
        produced = ag_ui_messages(self._reader.round_messages, self._reader.results, answer)
        known = {message.id for message in self._input.messages}
        new = [message for message in produced if message.id not in known]
        return MessagesSnapshotEvent(messages=[*self._input.messages, *new])

    def _end(self, part: TurnEnded) -> Iterator[BaseEvent]:
        if self._send_trail and part.trail is not None:
            yield CustomEvent(name="trail", value=str(part.trail))
        outcome = _outcome(self._waiting)
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
    part: CallBegun | CallPiece | CallComplete | CallProgress | CallFinished,
) -> BaseEvent:
    match part:
        case CallBegun(id=id, name=name, message_id=parent):
            return ToolCallStartEvent(
                tool_call_id=id, tool_call_name=name, parent_message_id=parent
            )
        case CallPiece(id=id, arguments=arguments):
            return ToolCallArgsEvent(tool_call_id=id, delta=arguments)
        case CallComplete(call=call):
            return ToolCallEndEvent(tool_call_id=call.id)
        case CallProgress(id=id, value=value):
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


def _outcome(turn: PendingTurn | None) -> RunFinishedSuccessOutcome | RunFinishedInterruptOutcome:
    if turn is None:
        return RunFinishedSuccessOutcome()
    external = turn.external_calls
    interrupts = [
        Interrupt(
            id=id,
            reason="tool_call",
            message=f"Allow {call.name}?",
            tool_call_id=id,
            response_schema=_RESPONSE_SCHEMA,
            metadata={"toolName": call.name, "arguments": json_or_text(call.arguments)},
        )
        for id, call in turn.to_decide().items()
        if id not in external
    ]
    if interrupts:
        return RunFinishedInterruptOutcome(interrupts=interrupts)
    return RunFinishedSuccessOutcome(pending_tool_call_ids=list(external))


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
