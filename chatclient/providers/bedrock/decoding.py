"""Decodes responses and streams of the Converse API; no I/O.

Source: https://docs.aws.amazon.com/transcribe/latest/dg/streaming-setting-up.html, "Event stream
encoding". botocore checks and decodes the messages; it would copy a large one with every piece.
"""

import struct
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from chatclient._internal.frozen import EMPTY, FrozenDict, frozen
from chatclient._internal.json import dumps, loads
from chatclient.chat.messages import (
    AssistantMessage,
    Part,
    ProviderPart,
    Reasoning,
    ToolCall,
    ToolCallChunk,
)
from chatclient.chat.parts import generate_call_id
from chatclient.chat.response import (
    ChatResponse,
    ChatResponseMetadata,
    FinishReason,
    Generation,
    Usage,
)
from chatclient.errors import InvalidResponseError, ResponseLimitError
from chatclient.providers.bedrock.encoding import PROVIDER, Block, decode_media
from chatclient.providers.http.auth import Headers
from chatclient.providers.http.errors import (
    error_from_data,
    invalid_response,
    message_in,
    raise_for_error,
    request_id,
    stream_ended_early,
)
from chatclient.providers.http.limits import LIMITS
from chatclient.providers.http.reader import ServerSentEvent
from chatclient.providers.wire.fields import (
    MALFORMED,
    arguments_object,
    dump_arguments,
    int_field,
    join_base64,
    other_fields,
    text_field,
)

_PRELUDE = 12  # bytes: lengths of message and headers, and their checksum
_TEXT = b"\t"  # Text begins with this byte or a later one; lengths of 144 MiB and more do, too.

ERROR = "error:"
"""The start of the name of an event that reports an error."""

SERVER_TOOL = "server_tool_use"
"""The type of a call that Bedrock answers itself."""

_FINISH_REASONS: dict[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_call",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "guardrail_intervened": "content_filter",
    "content_filtered": "content_filter",
    "malformed_model_output": "error",
    "malformed_tool_use": "error",
}

# docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_ConverseStream.html; a
# `modelStreamErrorException` has the status 424, but another attempt may succeed.
_STATUS = {
    "validationException": 400,
    "accessDeniedException": 403,
    "resourceNotFoundException": 404,
    "modelTimeoutException": 408,
    "throttlingException": 429,
    "internalServerException": 500,
    "serviceUnavailableException": 503,
}


def is_text(data: bytes | bytearray) -> bool:
    """Return whether *data* is text, such as JSON, and not the beginning of a message."""
    return data[:1] >= _TEXT


class MessageSplitter:
    """Splits a stream of AWS into events, whose data is JSON; an `EventSplitter`."""

    __slots__ = ("_rest", "is_event_stream", "limit")

    def __init__(self, limit: int = LIMITS.event_bytes) -> None:
        self.limit = limit
        self.is_event_stream = False
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """Return the events that *chunk* completes.

        Raises:
            InvalidResponseError: The stream is damaged.
            ResponseLimitError: A message is longer than the limit.
        """
        self._rest += chunk
        events: list[ServerSentEvent] = []
        start = 0
        while len(self._rest) - start >= _PRELUDE:
            size = int.from_bytes(self._rest[start : start + 4])
            if is_text(self._rest) and not self.is_event_stream:
                break  # the server has answered with something else
            if size > self.limit:
                msg = f"a message of the stream is larger than {self.limit:,} bytes"
                raise ResponseLimitError(
                    msg, limit="event_bytes", maximum=self.limit, provider=PROVIDER
                )
            self.is_event_stream = True
            if len(self._rest) - start < size:
                break
            # At least the prelude, with whose checksum botocore refuses a wrong length.
            end = start + max(size, _PRELUDE)
            events.append(_decoded(bytes(self._rest[start:end])))
            start = end
        del self._rest[:start]
        return events

    def finish(self) -> bytes:
        """Return the bytes of an unfinished message, or of what is no event stream."""
        return bytes(self._rest)


def _decoded(message: bytes) -> ServerSentEvent:
    """Return the event in the bytes of a message.

    Raises:
        InvalidResponseError: A checksum, a length or a header is wrong.
    """
    from botocore.eventstream import EventStreamBuffer, ParserError  # noqa: PLC0415 - an extra

    buffer: Any = EventStreamBuffer()
    try:
        buffer.add_data(message)
        found = next(buffer)
    # After valid checksums, botocore expects valid headers.
    except (ParserError, struct.error, ValueError, LookupError, StopIteration) as error:
        msg = f"{PROVIDER} sent a damaged stream: {error}"
        raise InvalidResponseError(msg, provider=PROVIDER) from error
    return _event(found.headers, found.payload)


def _event(headers: dict[str, Any], payload: bytes) -> ServerSentEvent:
    match headers.get(":message-type"):
        case "error":
            message = {"message": headers.get(":error-message", "")}
            return dumps(message), f"{ERROR}{headers.get(':error-code', '')}"
        case "exception":
            return payload, f"{ERROR}{headers.get(':exception-type', '')}"
        case _:
            return payload, str(headers.get(":event-type", ""))


def decode_response(data: Any, headers: Headers = EMPTY) -> ChatResponse:
    """Return the response in *data*, or raise the error that it reports."""
    raise_for_error(PROVIDER, data, headers)
    try:
        blocks = data["output"]["message"]["content"]
        parts = [part for block in blocks if (part := decode_block(block)) is not None]
        metadata = ChatResponseMetadata(
            usage=decode_usage(data.get("usage") or {}),
            request_id=request_id(headers),
            values=other_fields(data, ("output", "stopReason", "usage")),
        )
        return ChatResponse((generation_of(parts, data.get("stopReason")),), metadata)
    except MALFORMED as error:
        raise invalid_response(PROVIDER, data, error) from error


def generation_of(parts: list[Part], native: Any, *, calls: bool = False) -> Generation:
    """Return the generation of *parts*, after streamed *calls*, with its stop reason."""
    native = text_field(native) or None
    reason = None if native is None else _FINISH_REASONS.get(native, "stop")
    # `tool_use` is also sent for tools of Bedrock, and `end_turn` with calls by some models.
    calls = calls or any(isinstance(part, ToolCall) for part in parts)
    if reason in ("stop", "tool_call"):
        reason = "tool_call" if calls else "stop"
    return Generation(AssistantMessage(parts), reason, native)


def decode_block(block: Block) -> Part | None:
    """Return the part of a complete content block, or None if it is empty."""
    match block:
        case {"text": text}:
            return text_field(text) or None
        case {"toolUse": {"type": str(kind)}} if kind == SERVER_TOOL:
            return ProviderPart(PROVIDER, FrozenDict(block))
        case {"toolUse": call}:
            id = text_field(call.get("toolUseId")) or generate_call_id()
            return ToolCall(id, text_field(call["name"]), dump_arguments(call.get("input")))
        case {"reasoningContent": reasoning}:
            shown = reasoning.get("reasoningText")
            if shown is None:
                return Reasoning(provider=PROVIDER, data=FrozenDict(block))
            text, signature = text_field(shown.get("text")), text_field(shown.get("signature"))
            return Reasoning(text, signature or None, PROVIDER) if text or signature else None
        case {"citationsContent": {"content": content}}:
            text = "".join(text_field(each.get("text")) for each in content)
            return ProviderPart(PROVIDER, FrozenDict(block), text)
        case {"image": image} if (media := decode_media("image", image)) is not None:
            return media
        case _:
            return ProviderPart(PROVIDER, FrozenDict(block))


def decode_usage(usage: Mapping[str, Any]) -> Usage:
    """Return the usage; the API's `inputTokens` do not include cached tokens."""
    read = int_field(usage.get("cacheReadInputTokens"))
    written = int_field(usage.get("cacheWriteInputTokens"))
    return Usage(
        (int_field(usage.get("inputTokens")) or 0) + (read or 0) + (written or 0),
        int_field(usage.get("outputTokens")) or 0,
        read,
        written,
        native=frozen(usage),
    )


class StreamDecoder:
    """Converts the events of a stream to chunks.

    Attributes:
        complete: Whether the server has sent the last event.
        is_finished: Whether the answer is complete; usage may follow.
    """

    __slots__ = ("_blocks", "_calls", "_headers", "complete", "is_finished")

    def __init__(self, headers: Headers = EMPTY) -> None:
        self._headers = headers
        self._blocks: dict[int, _Block] = {}
        self._calls = False
        self.complete = self.is_finished = False

    def feed(self, data: bytes, event: str) -> ChatResponse | str | None:
        """Return the chunk of an event, or None if the event has no content."""
        try:
            if event.startswith(ERROR):
                kind = event.removeprefix(ERROR)
                content: Any = data.decode(errors="replace")
                with suppress(ValueError):
                    content = loads(data)
                kind = kind[:1].lower() + kind[1:]
                described = {"message": message_in(content), "code": kind}
                if kind in _STATUS:
                    described["status_code"] = str(_STATUS[kind])
                raise error_from_data(PROVIDER, 0, described, self._headers)
            return self._read_event(loads(data), event)
        except MALFORMED as error:
            raise invalid_response(PROVIDER, data, error) from error

    def finish(self, rest: bytes) -> tuple[ChatResponse | str, ...]:
        """Check that the answer is complete; *rest* is an unfinished message or something else.

        Raises:
            InvalidResponseError: *rest* is no message.
            StreamInterruptedError: The answer is incomplete.
        """
        if is_text(rest):
            raise invalid_response(PROVIDER, rest)
        if not self.is_finished:
            raise stream_ended_early(PROVIDER)
        return ()

    def _read_event(self, event: Mapping[str, Any], kind: str) -> ChatResponse | str | None:
        match kind:
            case "contentBlockDelta":
                return self._delta(_index_of(event), event["delta"])
            case "contentBlockStart":
                return self._start_block(_index_of(event), event["start"])
            case "contentBlockStop":
                block = self._blocks.pop(_index_of(event), None)
                return _chunk(None if block is None else block.end())
            case "messageStart":
                metadata = ChatResponseMetadata(request_id=request_id(self._headers))
                return ChatResponse((Generation(AssistantMessage("")),), metadata)
            case "messageStop":
                rest = [
                    part for block in self._blocks.values() if (part := block.end()) is not None
                ]
                self._blocks = {}
                self.is_finished = True
                generation = generation_of(rest, event["stopReason"], calls=self._calls)
                values = other_fields(event, ("stopReason", "p"))
                return ChatResponse((generation,), ChatResponseMetadata(values=values))
            case "metadata":
                self.complete = self.is_finished
                usage = decode_usage(event.get("usage") or {})
                values = other_fields(event, ("usage", "p"))
                return ChatResponse((), ChatResponseMetadata(usage=usage, values=values))
        return None  # events of future versions

    def _start_block(self, index: int, start: Block) -> ChatResponse | str | None:
        call = start.get("toolUse")
        if call is None or call.get("type") == SERVER_TOOL:
            if start:  # text needs no block
                self._blocks[index] = _Block(start)
            return None
        self._calls = True
        id, name = text_field(call.get("toolUseId")), text_field(call["name"])
        return _chunk(ToolCallChunk(index, id, name))

    def _delta(self, index: int, delta: Block) -> ChatResponse | str | None:
        block = self._blocks.get(index)
        match delta:
            case {"text": text} if block is None:
                return text_field(text)
            case {"toolUse": {"input": text}} if block is None:
                return _chunk(ToolCallChunk(index, arguments=_arguments(text)))
            case {"reasoningContent": {"text": text}}:
                return _chunk(Reasoning(text_field(text), provider=PROVIDER))
        if block is None:
            block = self._blocks[index] = _Block({})
        block.add(delta)
        return None


def _index_of(event: Block) -> int:
    return int_field(event.get("contentBlockIndex")) or 0


def _arguments(value: Any) -> str:
    # Gateways may send an object.
    return dump_arguments(value) if value and isinstance(value, Mapping) else text_field(value)


def _chunk(part: Part | None) -> ChatResponse | str | None:
    if part is None or isinstance(part, str):
        return part
    return ChatResponse((Generation(AssistantMessage([part])),))


class _Block:
    """A block that is emitted when it is complete, because it is sent back unchanged."""

    def __init__(self, start: Block) -> None:
        self._start = start
        self._texts: list[str] = []
        self._results: list[Any] = []
        self._citations: list[Any] = []
        self._signature: list[str] = []
        self._content: list[str] = []  # base64
        self._other: dict[str, Any] = {}

    def add(self, delta: Block) -> None:
        """Add a delta of the block."""
        match delta:
            case {"toolUse": {"input": text}} | {"text": text}:
                self._texts.append(text_field(text))
            case {"toolResult": [*results]}:
                self._results += results
            case {"citation": citation}:
                self._citations.append(citation)
            case {"reasoningContent": {"signature": text}}:
                self._signature.append(text_field(text))
            case {"reasoningContent": {"redactedContent": content}}:
                self._content.append(text_field(content))
            case {"image": {"source": {"bytes": content}}}:
                self._content.append(text_field(content))
            case _:
                self._other.update(delta)

    def end(self) -> Part | None:
        """Return the part of the complete block, or None if it is empty."""
        text, encoded = "".join(self._texts), join_base64(self._content)
        match self._start:
            case {"toolUse": call}:
                return _own({"toolUse": {**call, "input": arguments_object(text)}})
            case {"toolResult": result}:
                return _own({"toolResult": {**result, "content": self._results}})
            case {"image": image}:
                source = {"source": {"bytes": encoded}} if encoded else self._other.get("image", {})
                return decode_block({"image": {**image, **source}})
        if encoded:
            return decode_block({"reasoningContent": {"redactedContent": encoded}})
        if self._signature:
            return Reasoning("", "".join(self._signature), PROVIDER)
        if self._citations:
            # The text is empty if it was emitted before the citations were received.
            content = {"content": [{"text": text}]} if text else {}
            return decode_block({"citationsContent": {**content, "citations": self._citations}})
        return decode_block(self._other) if self._other else None


def _own(block: Block) -> ProviderPart:
    return ProviderPart(PROVIDER, FrozenDict(block))
