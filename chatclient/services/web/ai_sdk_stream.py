"""Parts of an answer as chunks of the UI message stream of the Vercel AI SDK."""

from collections.abc import Iterator, Mapping
from typing import Any, assert_never

from chatclient._internal.json import dumps, loads
from chatclient.chat.messages import ToolCall, ToolResponse
from chatclient.chat.pending_turn import PendingTurn
from chatclient.chat.response import FinishReason
from chatclient.chat.resumption import Decision
from chatclient.chat.ui_events import UiData, UiState
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
            case TurnEnded():
                yield from self._end(part)
            case CallBegun() | CallPiece() | CallComplete() | CallProgress() | CallFinished():
                yield _call_chunk(part)
            case UiState(value=value):
                yield {"type": "data-state", "id": "state", "data": value}
            case UiData():
                yield _data(part)
            case TurnWaits(turn=turn):
                yield from _approvals(turn)
            case CallsDecided(decisions=decisions):
                yield from _decided(decisions)
            case _:
                yield from _content_chunks(part)

    def _end_step(self) -> Iterator[Chunk]:
        if self._in_step:
            self._in_step = False
            yield {"type": "finish-step"}

    def _end(self, part: TurnEnded) -> Iterator[Chunk]:
        yield from self._end_step()
        if self._send_trail and part.trail is not None:
            yield {"type": "data-trail", "id": "trail", "data": str(part.trail)}
        result = part.response.result
        reason = _FINISH_REASONS.get(result.finish_reason if result else None, "other")
        yield {"type": "finish", "finishReason": reason}


def _content_chunks(
    part: BlockBegun | BlockPiece | BlockEnded | TextRevised | FileMade,
) -> Iterator[Chunk]:
    match part:
        case BlockBegun(kind=kind, id=id):
            yield {"type": f"{kind}-start", "id": id}
        case BlockPiece(kind=kind, id=id, text=text):
            yield {"type": f"{kind}-delta", "id": id, "delta": text}
        case BlockEnded(kind=kind, id=id):
            yield {"type": f"{kind}-end", "id": id}
        case TextRevised(text=text):
            yield from _revised(text)
        case FileMade(media=media):
            yield {"type": "file", "url": media.url(), "mediaType": media.mime_type}
        case _:
            assert_never(part)


def _call_chunk(
    part: CallBegun | CallPiece | CallComplete | CallProgress | CallFinished,
) -> Chunk:
    match part:
        case CallBegun(id=id, name=name):
            return {"type": "tool-input-start", "toolCallId": id, "toolName": name}
        case CallPiece(id=id, arguments=arguments):
            return {"type": "tool-input-delta", "toolCallId": id, "inputTextDelta": arguments}
        case CallComplete(call=call):
            return _input(call)
        case CallProgress(id=id, value=value):
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


def _revised(text: str) -> Iterator[Chunk]:
    """Yield the chunks that replace the text of the last step."""
    yield {"type": "reset-step"}
    if text:
        yield {"type": "text-start", "id": "revised"}
        yield {"type": "text-delta", "id": "revised", "delta": text}
        yield {"type": "text-end", "id": "revised"}


def _approvals(turn: PendingTurn) -> Iterator[Chunk]:
    """Yield a request for each call that waits for approval; the frontend runs the others."""
    external = turn.external_calls
    for id in turn.to_decide():
        if id not in external:
            yield {"type": "tool-approval-request", "approvalId": id, "toolCallId": id}


def _decided(decisions: Mapping[str, Decision]) -> Iterator[Chunk]:
    for id, decision in decisions.items():
        if decision.result is None:  # the result of a tool of the frontend follows
            yield {
                "type": "tool-approval-response",
                "approvalId": id,
                "approved": decision.approved,
            }


def _sent(chunk: Chunk) -> bytes:
    return b"data: " + dumps(chunk) + b"\n\n"
