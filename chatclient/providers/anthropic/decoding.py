"""Decodes responses and streams of Anthropic's Messages API; no I/O.

The API stops each block before it starts the next. Gateways that translate other APIs may stop a
block before its content, start the next one inside it, or stop none. Blocks are therefore kept
until the message ends, and emit the rest of their content then.
"""

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Protocol

from chatclient._internal.frozen import EMPTY, FrozenDict, frozen
from chatclient._internal.json import loads
from chatclient.chat.messages import (
    AssistantMessage,
    Part,
    ProviderPart,
    Reasoning,
    ToolCall,
    ToolCallChunk,
)
from chatclient.chat.response import (
    ChatResponse,
    ChatResponseMetadata,
    FinishReason,
    Generation,
    RateLimit,
    Usage,
)
from chatclient.errors import InvalidResponseError
from chatclient.providers.anthropic.encoding import CALL_KEYS, PROVIDER, Block
from chatclient.providers.http.auth import Headers
from chatclient.providers.http.errors import (
    error_from_data,
    invalid_response,
    raise_for_error,
    request_id,
    stream_ended_early,
)
from chatclient.providers.http.reader import is_end
from chatclient.providers.wire.fields import (
    MALFORMED,
    arguments_object,
    dump_arguments,
    int_field,
    other_fields,
    parse_count,
    text_field,
)

PAUSED = "pause_turn"
"""The stop reason of a turn that is continued by another request."""

CONTAINER = "anthropic_container"
"""Key in a message's metadata: the id of the container in which the model runs code."""

_FINISH_REASONS: dict[str, FinishReason | None] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_call",
    "refusal": "content_filter",
    PAUSED: None,
}


def decode_response(data: Any, headers: Headers = EMPTY) -> ChatResponse:
    """Return the response in *data*, or raise the error that it reports."""
    raise_for_error(PROVIDER, data, headers)
    try:
        return decode_message(data, headers, data.get("usage") or {})
    except MALFORMED as error:
        raise invalid_response(PROVIDER, data, error) from error


_MESSAGE_KEYS = ("id", "model", "usage", "content", "role", "type", "stop_reason")
GENERATION_KEYS = ("stop_sequence", "stop_details")


def decode_message(
    data: Mapping[str, Any], headers: Headers, usage: Mapping[str, Any]
) -> ChatResponse:
    """Return the response in *data*, a message; its own usage may be outdated in streams."""
    blocks = data["content"] or ()  # null at some gateways
    parts = [part for block in blocks if (part := decode_block(block)) is not None]
    metadata = ChatResponseMetadata(
        id=data.get("id") or "",
        model=data.get("model") or "",
        usage=decode_usage(usage),
        rate_limit=rate_limit(headers),
        request_id=request_id(headers),
        values=other_fields(data, (*_MESSAGE_KEYS, *GENERATION_KEYS)),
    )
    return ChatResponse((generation_of(parts, data),), metadata)


def generation_of(parts: list[Part], end: Mapping[str, Any], *, calls: bool = False) -> Generation:
    """Return the generation of *parts*, after streamed *calls*, with the stop reason in *end*."""
    native = end.get("stop_reason")
    calls = calls or any(isinstance(part, ToolCall) for part in parts)
    metadata = FrozenDict({k: v for k in GENERATION_KEYS if (v := end.get(k)) is not None})
    container = end.get("container")
    id = container.get("id") if isinstance(container, Mapping) else None
    message = AssistantMessage(parts, metadata=FrozenDict({CONTAINER: id}) if id else EMPTY)
    reason = None if native is None else _FINISH_REASONS.get(native, "stop")
    return Generation(
        message, "tool_call" if calls and reason == "stop" else reason, native, metadata=metadata
    )


def decode_block(block: Block) -> Part | None:
    """Return the part of a complete content block, or None if it is empty."""
    match block["type"]:
        case "text":
            text = text_field(block.get("text"))
            if text and block.get("citations"):
                return ProviderPart(PROVIDER, FrozenDict(block), text)
            return text or None
        case "thinking":
            text = text_field(block.get("thinking"))
            signature = text_field(block.get("signature")) or None
            return Reasoning(text, signature, PROVIDER) if text or signature else None
        case "redacted_thinking":
            return Reasoning(provider=PROVIDER, data=FrozenDict(block))
        case "tool_use":
            arguments = dump_arguments(block.get("input"))
            # The tool's result refers to an id.
            id = text_field(block.get("id")) or f"toolu_{uuid.uuid4().hex[:24]}"
            return ToolCall(id, text_field(block["name"]), arguments, call_metadata(block))
        case _:
            return ProviderPart(PROVIDER, FrozenDict(block))


def call_metadata(block: Block) -> Mapping[str, Any]:
    """Return the other fields of a tool call, which are sent back."""
    metadata = {key: block[key] for key in CALL_KEYS if block.get(key) is not None}
    return FrozenDict(metadata) if metadata else EMPTY


def decode_usage(usage: Mapping[str, Any]) -> Usage:
    """Return the usage; the API's `input_tokens` do not include cached tokens."""
    requests = [usage, *_other_requests(usage.get("iterations") or ())]

    def total(name: str) -> int | None:
        numbers = [number for each in requests if (number := int_field(each.get(name))) is not None]
        return sum(numbers) if numbers else None

    read, written = total("cache_read_input_tokens"), total("cache_creation_input_tokens")
    details = usage.get("output_tokens_details") or {}
    listed = {"requests": requests} if len(requests) > 1 else {}
    return Usage(
        (total("input_tokens") or 0) + (read or 0) + (written or 0),
        total("output_tokens") or 0,
        read,
        written,
        int_field(details.get("thinking_tokens")),
        frozen({**usage, **listed}),
    )


def _other_requests(iterations: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the usage of those *iterations* that the other fields do not include.

    These are compactions, advisors, and models whose answer was replaced by that of a fallback: one
    that has written nothing is not billed.
    """
    served = [each.get("model") for each in iterations if each.get("type") == "fallback_message"]
    for each in iterations:
        declined = served and each.get("model") not in (None, *served) and each.get("output_tokens")
        if each.get("type") in ("compaction", "advisor_message") or declined:
            yield each


def rate_limit(headers: Headers) -> RateLimit | None:
    """Return the rate limit in the `anthropic-ratelimit-*` headers, or None."""
    if "anthropic-ratelimit-requests-remaining" not in headers:
        return None

    def number(name: str) -> int | None:
        return parse_count(headers.get(f"anthropic-ratelimit-{name}", ""))

    def seconds(name: str) -> float | None:
        date = headers.get("date")
        try:
            then = datetime.fromisoformat(
                headers.get(f"anthropic-ratelimit-{name}") or ""
            ).timestamp()
            now = parsedate_to_datetime(date).timestamp() if date else time.time()
        except (ValueError, OverflowError):  # such as the year 99999
            return None
        return max(0.0, then - now)

    return RateLimit(
        number("requests-limit"),
        number("requests-remaining"),
        seconds("requests-reset"),
        number("tokens-limit"),
        number("tokens-remaining"),
        seconds("tokens-reset"),
    )


class StreamDecoder:
    """Converts the events of a stream to chunks.

    Attributes:
        complete: Whether the server has marked the end of the answer.
    """

    __slots__ = (
        "_blocks",
        "_has_calls",
        "_headers",
        "_id",
        "_ignores_events",
        "_open_thinking",
        "_usage",
        "complete",
    )

    def __init__(self, headers: Headers = EMPTY) -> None:
        self._headers = headers
        self._blocks: dict[int, _Block] = {}
        self._usage: dict[str, Any] = {}
        self._id: str | None = None
        self._has_calls = False
        self._open_thinking: _ThinkingBlock | None = None
        self._ignores_events = False
        self.complete = False

    def feed(self, data: bytes, _event: str = "") -> ChatResponse | str | None:
        """Return the chunk of an event, or None if the event has no content."""
        if (
            self._ignores_events or not data or is_end(data)
        ):  # gateways may send OpenAI's end marker
            return None
        try:
            event = loads(data)
            if event.get("error"):
                raise error_from_data(PROVIDER, 0, event, self._headers)
            return self._read_event(event)
        except MALFORMED as error:
            raise invalid_response(PROVIDER, data, error) from error

    def finish(self, rest: bytes) -> tuple[ChatResponse | str, ...]:
        """Check that the answer is complete, and return the chunk in *rest*, if any."""
        chunk = None
        with suppress(InvalidResponseError):  # truncated
            chunk = self.feed(rest)  # an event without its blank line, or an error as plain JSON
        if not self.complete:
            raise stream_ended_early(PROVIDER)
        return () if chunk is None else (chunk,)

    def _read_event(self, event: Mapping[str, Any]) -> ChatResponse | str | None:
        match event.get("type"):
            case "content_block_delta":
                index = _index_of(event)
                block = self._blocks.get(index)
                if block is None:
                    block = self._blocks[index] = _block(index, {"type": "text"})
                return _chunk([block.add(event["delta"])])
            case "content_block_start":
                return _chunk(self._start_block(_index_of(event), event["content_block"]))
            case "content_block_stop":
                ended = self._blocks.get(_index_of(event))
                return None if ended is None else _chunk([ended.stop()])
            case "message_start":
                message = event["message"]
                if self._id is not None and message.get("id") == self._id:
                    return None  # some gateways repeat the event
                self._id = message.get("id")
                self._usage.update(other_fields(message.get("usage") or {}, ()))
                return decode_message({"content": (), **message}, self._headers, self._usage)
            case "message_delta":
                delta = event.get("delta") or {}
                self._usage.update(other_fields(event.get("usage") or {}, ()))  # running totals
                known = (*GENERATION_KEYS, "stop_reason")
                values = {**other_fields(event, _DELTA_KEYS), **other_fields(delta, known)}
                metadata = ChatResponseMetadata(usage=decode_usage(self._usage), values=values)
                rest = [part for part in self._end_blocks() if part]
                generation = generation_of(rest, delta, calls=self._has_calls)
                # Some gateways send no `message_stop`.
                self.complete = self.complete or generation.native_finish_reason is not None
                return ChatResponse((generation,), metadata)
            case "message_stop":
                self._ignores_events = self.complete = True
                return _chunk(self._end_blocks())
            case "message" if self._id is None and not self._blocks and not self.complete:
                # A server without support for streams.
                response = decode_response(event, self._headers)
                self._ignores_events = self.complete = True
                return response
        return None  # such as pings, and events of future versions

    def _start_block(self, index: int, content: Block) -> Iterable[Part | None]:
        """Yield the parts that the start of a block completes."""
        if self._open_thinking is not None:
            # The signature separates it from the next thinking block.
            yield self._open_thinking.stop()
        if (previous := self._blocks.pop(index, None)) is not None:
            yield previous.end()  # some gateways give all blocks the same index
        block = self._blocks[index] = _block(index, content)
        self._open_thinking = block if isinstance(block, _ThinkingBlock) else None
        self._has_calls = self._has_calls or isinstance(block, _CallBlock)
        yield block.start()

    def _end_blocks(self) -> list[Part | None]:
        """Return the parts that the end of the message completes."""
        rest = [block.end() for block in self._blocks.values()]
        self._blocks = {}
        return rest


_DELTA_KEYS = ("type", "delta", "usage")


def _chunk(parts: Iterable[Part | None]) -> ChatResponse | str | None:
    content = [part for part in parts if part]
    if len(content) == 1 and isinstance(content[0], str):
        return content[0]
    return ChatResponse((Generation(AssistantMessage(content)),)) if content else None


def _index_of(event: Mapping[str, Any]) -> int:
    # Gateways written in Go may omit zero.
    return int_field(event.get("index")) or 0


def _block(index: int, content: Block) -> "_Block":
    kind = content["type"]
    if kind == "tool_use":
        return _CallBlock(content, index)
    return _KINDS.get(kind, _OtherBlock)(content)


class _Block(Protocol):
    """State of a content block; each method returns the part that can be emitted, if any."""

    def start(self) -> Part | None:
        """Handle the start of the block."""
        ...

    def add(self, delta: Block) -> Part | None:
        """Handle a delta."""
        ...

    def stop(self) -> Part | None:
        """Handle the stop event, after which some gateways still send deltas."""
        ...

    def end(self) -> Part | None:
        """Handle the end of the message."""
        ...


class _Echo:
    """Removes the initial text of a block from deltas that repeat it.

    The API starts blocks with empty text. Some gateways start them with the text; their deltas then
    continue or repeat it.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0  # length of the repeated prefix

    def without(self, delta: str) -> str:
        """Return *delta* without the repetition."""
        text, at = self._text, self._at
        if not text:
            return delta
        if text.startswith(delta, at) and at + len(delta) < len(text):
            self._at += len(delta)
            return ""
        self._text = ""
        if delta.startswith(text[at:]):
            return delta[len(text) - at :]
        return text[:at] + delta

    def end(self) -> str:
        """Return the removed text if it was only a prefix, and therefore no repetition."""
        text, self._text = self._text[: self._at], ""
        return text


class _TextBlock:
    """Text block: text is emitted immediately, text with citations when it is complete."""

    def __init__(self, content: Block) -> None:
        self._content = {"type": "text", **content, "text": ""}
        self._first = text_field(content.get("text"))
        self._echo = _Echo(self._first)
        self._citations: list[Any] = [*(content.get("citations") or ())]
        self._cited_text: list[str] = []

    def start(self) -> Part | None:
        return self._emit(self._first)

    def add(self, delta: Block) -> Part | None:
        match delta["type"]:
            case "text_delta":
                return self._emit(self._echo.without(text_field(delta.get("text"))))
            case "citations_delta":
                self._citations.append(delta["citation"])
        return None

    def stop(self) -> Part | None:
        rest = self._emit(self._echo.end())
        if not self._citations:
            return rest
        # The text is empty if it was emitted before the citations were received.
        text = "".join(self._cited_text)
        block = {**self._content, "text": text, "citations": self._citations}
        self._cited_text, self._citations = [], []
        return ProviderPart(PROVIDER, FrozenDict(block), text)

    end = stop

    def _emit(self, text: str) -> str | None:
        # The API sends the citations of a passage before its text.
        if not self._citations:
            return text
        self._cited_text.append(text)
        return None


class _ThinkingBlock:
    """Thinking block: text is emitted immediately, the signature when it is complete."""

    def __init__(self, content: Block) -> None:
        self._first = text_field(content.get("thinking"))
        self._echo = _Echo(self._first)
        self._signature = [text_field(content.get("signature"))]

    def start(self) -> Part | None:
        return self._emit(self._first)

    def add(self, delta: Block) -> Part | None:
        match delta["type"]:
            case "thinking_delta":
                return self._emit(self._echo.without(text_field(delta.get("thinking"))))
            case "signature_delta":
                self._signature.append(text_field(delta.get("signature")))
        return None

    def stop(self) -> Part | None:
        signature, self._signature = "".join(self._signature), []
        rest = self._echo.end()
        return Reasoning(rest, signature or None, PROVIDER) if rest or signature else None

    end = stop

    def _emit(self, text: str) -> Reasoning | None:
        return Reasoning(text, provider=PROVIDER) if text else None


class _CallBlock:
    """Tool call block: id and name are emitted at the start, then the arguments."""

    def __init__(self, content: Block, index: int) -> None:
        self._content = content
        self._index = index
        self._has_arguments = False

    def start(self) -> Part | None:
        content = self._content
        metadata = call_metadata(content)
        id, name = text_field(content.get("id")), text_field(content["name"])
        return ToolCallChunk(self._index, id, name, "", metadata)

    def add(self, delta: Block) -> Part | None:
        return self._arguments(text_field(delta.get("partial_json")))

    def stop(self) -> Part | None:
        return None

    def end(self) -> Part | None:
        if self._has_arguments:
            return None
        # Without deltas, the arguments are in the start event, if there are any.
        return self._arguments(dump_arguments(self._content.get("input")))

    def _arguments(self, text: str) -> ToolCallChunk | None:
        self._has_arguments = self._has_arguments or bool(text)
        return ToolCallChunk(self._index, arguments=text) if text else None


class _OtherBlock:
    """Any other block: emitted complete, because it is sent back unchanged."""

    def __init__(self, content: Block) -> None:
        self._content = dict(content)
        self._texts: dict[str, list[str]] = {}  # pieces of text fields
        self._input: list[str] = []
        self._is_emitted = False

    def start(self) -> Part | None:
        return None

    def add(self, delta: Block) -> Part | None:
        for key, value in delta.items():
            if key == "partial_json":
                self._input.append(text_field(value))
            elif key != "type" and value is not None:
                old = self._content.get(key)
                if isinstance(old, str) and isinstance(value, str):
                    self._texts.setdefault(key, [old]).append(value)
                else:
                    self._texts.pop(key, None)
                    self._content[key] = value
        return None

    def stop(self) -> Part | None:
        if self._is_emitted:
            return None
        self._is_emitted = True
        self._content.update({key: "".join(pieces) for key, pieces in self._texts.items()})
        if text := "".join(self._input):
            self._content["input"] = arguments_object(text)
        return decode_block(self._content)

    end = stop


_KINDS: dict[str, type[_TextBlock | _ThinkingBlock | _OtherBlock]] = {
    "text": _TextBlock,
    "thinking": _ThinkingBlock,
}
