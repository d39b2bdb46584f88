"""The AI SDK: reads the messages of a chat, and writes the chunks of an answer."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, assert_never

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

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
from chatclient.chat.response import FinishReason
from chatclient.chat.tool import ToolProgress
from chatclient.extend import dumps, loads
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

_DENIED = "The user did not allow this call."


class _Model(BaseModel):
    """Reads what this module needs; newer versions of the SDK may send more."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, strict=True)


class Approval(_Model):
    """The approval of a tool call."""

    id: str
    approved: bool | None = None
    reason: str | None = None


class UiPart(_Model):
    """A part of a message; which fields it has depends on its type."""

    type: str
    text: str = ""
    url: str | None = None
    media_type: str | None = None
    filename: str | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None
    state: str | None = None
    input: Any = None
    output: Any = None
    error_text: str | None = None
    approval: Approval | None = None

    @property
    def tool(self) -> str | None:
        """The name of the tool, if the part is a tool call."""
        if self.type == "dynamic-tool":
            return self.tool_name
        return self.type.removeprefix("tool-") if self.type.startswith("tool-") else None


class UiMessage(_Model):
    """A message of the frontend."""

    id: str
    role: Literal["system", "user", "assistant"]
    parts: list[UiPart]


class ChatRequest(_Model):
    """What `DefaultChatTransport` sends; other fields are the application's."""

    model_config = ConfigDict(extra="allow")

    id: Annotated[str, Field(min_length=1)]
    messages: Annotated[list[UiMessage], Field(min_length=1)]
    state: Any = None
    trigger: str | None = None
    message_id: str | None = None


def parse_chat_request(body: Any) -> Incoming:
    """Return the request in *body*, a JSON value.

    Raises:
        InvalidInputError: It is not one.
    """
    try:
        request = ChatRequest.model_validate(body)
    except ValidationError as error:
        raise InvalidInputError.of(error) from error
    last = request.messages[-1]
    calls = [part for part in last.parts if part.tool] if last.role == "assistant" else []
    return Incoming(
        conversation_id=request.id,
        messages=tuple(message for each in request.messages for message in _messages(each)),
        continues=last.role == "assistant",
        # An edited message has its id here; one that is new has none.
        replaces=request.trigger == "regenerate-message" or request.message_id == last.id,
        decisions=dict(_decisions(calls)),
        results=dict(_results(calls)),
        state=request.state,
        properties={
            **(request.model_extra or {}),
            **request.model_dump(
                by_alias=True, exclude_none=True, include={"trigger", "message_id"}
            ),
        },
    )


def _decisions(calls: Sequence[UiPart]) -> Iterator[tuple[str, Decision]]:
    for part in calls:
        approval = part.approval
        if approval is not None and approval.approved is not None:
            yield approval.id, Decision(approval.approved, approval.reason or "")


def _results(calls: Sequence[UiPart]) -> Iterator[tuple[str, Decision]]:
    """Yield what the frontend's own tools returned, by the ids of the calls."""
    for part in calls:
        if part.state == "output-available":
            yield part.tool_call_id or "", Decision.answered(_text(part.output))
        elif part.state == "output-error":
            yield part.tool_call_id or "", Decision(approved=False, message=part.error_text or "")


def _messages(message: UiMessage) -> Iterator[Message]:
    """Yield the messages in one of the frontend; instructions are the application's."""
    if message.role == "user":
        yield UserMessage(list(_content(message.parts)), id=message.id)
    elif message.role == "assistant":
        id: str | None = message.id
        for step in _steps(message.parts):
            yield AssistantMessage([*_content(step), *_calls(step)], id=id)
            id = None  # the others belong to the same turn
            if responses := list(_responses(step)):
                yield ToolResponseMessage(responses)


def _steps(parts: Sequence[UiPart]) -> Iterator[list[UiPart]]:
    step: list[UiPart] = []
    for part in parts:
        if part.type == "step-start":
            if step:
                yield step
            step = []
        else:
            step.append(part)
    yield step


def _content(parts: Sequence[UiPart]) -> Iterator[str | Media]:
    """Yield texts and files; reasoning without its signature is of no use for the model."""
    for part in parts:
        if part.type == "text" and part.text:
            yield part.text
        elif part.type == "file" and part.url is not None:
            yield media_of(part.url, part.media_type, part.filename)


def _calls(parts: Sequence[UiPart]) -> Iterator[ToolCall]:
    for part in parts:
        if (name := part.tool) and part.tool_call_id:
            yield ToolCall(part.tool_call_id, name, dumps(part.input or {}).decode())


def _responses(parts: Sequence[UiPart]) -> Iterator[ToolResponse]:
    for part in parts:
        id, name = part.tool_call_id or "", part.tool or ""
        match part.state if name else None:
            case "output-available":
                yield ToolResponse(id, name, _text(part.output))
            case "output-error":
                yield ToolResponse(id, name, part.error_text or "", is_error=True)
            case "output-denied":
                reason = part.approval.reason if part.approval else None
                yield ToolResponse(id, name, reason or _DENIED, is_error=True)
            case _:
                pass


def _text(output: Any) -> str:
    return output if isinstance(output, str) else dumps(output).decode()


HEADERS = {"x-vercel-ai-ui-message-stream": "v1"}

Chunk = dict[str, Any]

_FINISH_REASONS: dict[FinishReason | None, str] = {
    "stop": "stop",
    "length": "length",
    "tool_call": "tool-calls",
    "content_filter": "content-filter",
    "error": "error",
}


class AiSdkEncoder:
    """Encodes one answer as server-sent events.

    Args:
        reader: Reads the events of the answer.
        trail: Whether the trail is sent, as the data part `trail`.
    """

    headers = HEADERS

    def __init__(self, reader: PartReader, *, trail: bool = False) -> None:
        self._reader = reader
        self._send_trail = trail
        self._started = self._in_step = False

    def begin(self) -> Iterator[bytes]:
        """Yield nothing: an answer begins with its first part, which has the id."""
        yield from ()

    def encode(self, event: Any) -> Iterator[bytes]:
        """Yield the chunks of an event of the stream."""
        for part in self._reader.parts(event):
            yield from map(_sent, self._chunks(part))

    def fail(self, text: str) -> Iterator[bytes]:
        """Yield the chunk of an error."""
        yield _sent({"type": "error", "errorText": text})

    def end(self) -> Iterator[bytes]:
        """Yield the end of the stream."""
        yield b"data: [DONE]\n\n"

    def _chunks(self, part: Part) -> Iterator[Chunk]:
        if not self._started:
            self._started = True
            yield {"type": "start", "messageId": self._reader.first_message_id}
        match part:
            case RoundBegun(replaces=True):
                yield {"type": "reset-step"}
            case RoundBegun():
                yield from self._end_step()
                self._in_step = True
                yield {"type": "start-step"}
            case Done():
                yield from self._end(part)
            case CallBegun() | ToolCallDelta() | CallComplete() | ToolProgress() | CallFinished():
                yield _call_chunk(part)
            case UiState(value=value):
                yield {"type": "data-state", "id": "state", "data": value}
            case UiData():
                yield _data(part)
            case ApprovalNeeded(turn=turn):
                yield from _approvals(turn)
            case TurnDecided(decisions=decisions):
                for id, decision in decisions.items():
                    if decision.result is None:  # the result of a tool of the frontend follows
                        yield {
                            "type": "tool-approval-response",
                            "approvalId": id,
                            "approved": decision.approved,
                        }
            case _:
                yield from _content_chunks(part)

    def _end_step(self) -> Iterator[Chunk]:
        if self._in_step:
            self._in_step = False
            yield {"type": "finish-step"}

    def _end(self, part: Done) -> Iterator[Chunk]:
        yield from self._end_step()
        if self._send_trail and part.trail is not None:
            yield {"type": "data-trail", "id": "trail", "data": str(part.trail)}
        result = part.response.result
        reason = _FINISH_REASONS.get(result.finish_reason if result else None, "other")
        yield {"type": "finish", "finishReason": reason}


def _content_chunks(
    part: BlockBegun | BlockPiece | BlockEnded | TextReplaced | FileMade,
) -> Iterator[Chunk]:
    match part:
        case BlockBegun(kind=kind, id=id):
            yield {"type": f"{kind}-start", "id": id}
        case BlockPiece(kind=kind, id=id, text=text):
            yield {"type": f"{kind}-delta", "id": id, "delta": text}
        case BlockEnded(kind=kind, id=id):
            yield {"type": f"{kind}-end", "id": id}
        case TextReplaced(text=text):
            yield {"type": "reset-step"}
            if text:
                yield {"type": "text-start", "id": "revised"}
                yield {"type": "text-delta", "id": "revised", "delta": text}
                yield {"type": "text-end", "id": "revised"}
        case FileMade(media=media):
            yield {"type": "file", "url": media.url(), "mediaType": media.mime_type}
        case _:
            assert_never(part)


def _call_chunk(
    part: CallBegun | ToolCallDelta | CallComplete | ToolProgress | CallFinished,
) -> Chunk:
    match part:
        case CallBegun(id=id, name=name):
            return {"type": "tool-input-start", "toolCallId": id, "toolName": name}
        case ToolCallDelta(id=id, arguments=arguments):
            return {"type": "tool-input-delta", "toolCallId": id, "inputTextDelta": arguments}
        case CallComplete(call=call):
            return _input(call)
        case ToolProgress(tool_call_id=id, event=value):
            data = {"toolCallId": id, "value": value}
            return {"type": "data-tool-progress", "data": data, "transient": True}
        case CallFinished():
            return _output(part)
        case _:
            assert_never(part)


def _input(call: ToolCall) -> Chunk:
    return {
        "type": "tool-input-available",
        "toolCallId": call.id,
        "toolName": call.name,
        "input": json_or_text(call.arguments) if call.arguments else {},
    }


def _output(part: CallFinished) -> Chunk:
    if part.denied:
        return {"type": "tool-output-denied", "toolCallId": part.id}
    response = part.response
    if response.is_error or part.undone:
        return {"type": "tool-output-error", "toolCallId": part.id, "errorText": response.data}
    return {"type": "tool-output-available", "toolCallId": part.id, "output": output_of(response)}


def output_of(response: ToolResponse) -> Any:
    """Return the result of a tool as a JSON value."""
    return json_or_text(response.data)


def json_or_text(text: str) -> Any:
    """Return the value of the JSON in *text*, or *text* itself."""
    try:
        return loads(text)
    except ValueError:
        return text


def _data(part: UiData) -> Chunk:
    chunk: Chunk = {"type": f"data-{part.name}", "data": part.value}
    if part.id is not None:
        chunk["id"] = part.id
    if part.transient:
        chunk["transient"] = True
    return chunk


def _approvals(turn: PendingTurn) -> Iterator[Chunk]:
    """Yield a request for each call that waits for approval; the frontend runs the others."""
    external = turn.external_calls
    for id in turn.to_decide():
        if id not in external:
            yield {"type": "tool-approval-request", "approvalId": id, "toolCallId": id}


def _sent(chunk: Chunk) -> bytes:
    return b"data: " + dumps(chunk) + b"\n\n"
