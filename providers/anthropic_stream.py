"""Streams of Anthropic's Messages API: events in, chunks out, no I/O."""

from collections.abc import Mapping
from typing import Any, Protocol

from chatclient.errors import InvalidResponseError, StreamInterruptedError
from chatclient.json import dumps, loads
from chatclient.messages import AssistantMessage, Part, Reasoning, ToolCallChunk
from chatclient.providers.anthropic_decoding import (
    GENERATION_KEYS,
    beside,
    call_metadata,
    decode_block,
    decode_message,
    decode_usage,
    error_in,
    generation_of,
)
from chatclient.providers.anthropic_encoding import PROVIDER, Block, input_of
from chatclient.providers.keys import Headers
from chatclient.response import ChatResponse, ChatResponseMetadata, Generation
from chatclient.values import EMPTY


class StreamDecoder:
    """Makes chunks of the events of a stream; no I/O.

    Raises (from both methods):
        ProviderError: The stream reports an error.
        StreamInterruptedError: It ended before its answer did.
        InvalidResponseError: An event cannot be read.
    """

    __slots__ = ("_blocks", "_calls", "_done", "_headers", "_id", "_usage")

    def __init__(self, headers: Headers = EMPTY) -> None:
        self._headers = headers
        self._blocks: dict[int, _Block] = {}
        self._usage: dict[str, Any] = {}
        self._id: str | None = None
        self._calls = False
        self._done = False

    def feed(self, data: bytes) -> ChatResponse | str | None:
        """Return the chunk that an event spells, or None when there is nothing in it."""
        if self._done or data == b"[DONE]":  # gateways may add the end of another API
            return None
        try:
            event = loads(data)
            if event.get("error"):
                raise error_in(event, self._headers)
            return self._take(event)
        except (ValueError, AttributeError, KeyError, TypeError) as error:
            shown = data[:200].decode(errors="replace")
            msg = f"{PROVIDER} streamed something that cannot be read: {shown!r}"
            raise InvalidResponseError(msg, provider=PROVIDER) from error

    def finish(self, rest: bytes) -> None:
        """Make sure that the stream came to its end."""
        if self._done:
            return
        try:  # some gateways report a failure without the stream's form
            data = loads(rest.strip().removeprefix(b"data:"))
        except ValueError:
            data = None
        if isinstance(data, Mapping) and data.get("error"):
            raise error_in(data, self._headers)
        msg = f"{PROVIDER}'s stream ended before its answer did"
        raise StreamInterruptedError(msg, provider=PROVIDER)

    def _take(self, event: Mapping[str, Any]) -> ChatResponse | str | None:
        match event.get("type"):
            case "content_block_delta":
                index = event["index"]
                block = self._blocks.get(index)
                if block is None:
                    block = self._open(index, {"type": "text"})
                return _chunk(block.add(event["delta"]))
            case "content_block_start":
                return _chunk(self._open(event["index"], event["content_block"]).start())
            case "content_block_stop":
                ended = self._blocks.pop(event["index"], None)
                return None if ended is None else _chunk(ended.stop())
            case "message_start":
                return self._begin(event["message"])
            case "message_delta":
                return self._end(event)
            case "message_stop":
                self._done = True
        return None  # also for pings, and for what future versions may add

    def _open(self, index: int, content: Block) -> "_Block":
        kind = content["type"]
        if kind == "tool_use":
            self._calls = True
            block: _Block = _CallBlock(content, index)
        else:
            block = _KINDS.get(kind, _OtherBlock)(content)
        self._blocks[index] = block
        return block

    def _begin(self, message: Mapping[str, Any]) -> ChatResponse | None:
        if self._id is not None and message.get("id") == self._id:
            return None  # gateways may say it twice
        self._id = message.get("id")
        self._usage.update(beside(message.get("usage") or {}, ()))
        whole = {**message, "content": message.get("content") or ()}
        return decode_message(whole, self._headers, self._usage)

    def _end(self, event: Mapping[str, Any]) -> ChatResponse:
        delta = event.get("delta") or {}
        self._usage.update(beside(event.get("usage") or {}, ()))  # running totals
        known = (*GENERATION_KEYS, "stop_reason")
        metadata = ChatResponseMetadata(
            usage=decode_usage(self._usage), values=beside(delta, known)
        )
        return ChatResponse((generation_of([], delta, calls=self._calls),), metadata)


def _chunk(part: Part | None) -> ChatResponse | str | None:
    if part is None or isinstance(part, str):
        return part or None
    return ChatResponse((Generation(AssistantMessage([part])),))


class _Block(Protocol):
    """A content block in the making; each method returns what can be told by then."""

    def start(self) -> Part | None:
        """Take the block's beginning."""
        ...

    def add(self, delta: Block) -> Part | None:
        """Take what comes next."""
        ...

    def stop(self) -> Part | None:
        """Take note of its end."""
        ...


class _TextBlock:
    """Text is told as it comes; where it is cited, as a whole with its citations."""

    def __init__(self, content: Block) -> None:
        self._content = {"type": "text", **content, "text": ""}
        self._first = content.get("text") or ""
        self._citations: list[Any] = [*(content.get("citations") or ())]
        self._held: list[str] = []

    def start(self) -> Part | None:
        return self._told(self._first)

    def add(self, delta: Block) -> Part | None:
        match delta["type"]:
            case "text_delta":
                return self._told(delta["text"])
            case "citations_delta":
                self._citations.append(delta["citation"])
        return None

    def stop(self) -> Part | None:
        if not self._citations:
            return None
        block = {**self._content, "text": "".join(self._held), "citations": self._citations}
        return decode_block(block)

    def _told(self, text: str) -> str | None:
        # The API sends a passage's citations ahead of its text.
        if not self._citations:
            return text
        self._held.append(text)
        return None


class _ThinkingBlock:
    """Thoughts are told as they come, their signature when it is complete."""

    def __init__(self, content: Block) -> None:
        self._first = content.get("thinking") or ""
        self._signature = [content.get("signature") or ""]

    def start(self) -> Part | None:
        return self._told(self._first)

    def add(self, delta: Block) -> Part | None:
        match delta["type"]:
            case "thinking_delta":
                return self._told(delta["thinking"])
            case "signature_delta":
                self._signature.append(delta["signature"])
        return None

    def stop(self) -> Part | None:
        signature = "".join(self._signature)
        return Reasoning("", signature, PROVIDER) if signature else None

    def _told(self, text: str) -> Reasoning | None:
        return Reasoning(text, provider=PROVIDER) if text else None


class _CallBlock:
    """A call of a tool of ours: its beginning, then its arguments as they come."""

    def __init__(self, content: Block, index: int) -> None:
        self._content = content
        self._index = index
        self._told = False

    def start(self) -> Part | None:
        content = self._content
        metadata = call_metadata(content)
        return ToolCallChunk(self._index, content["id"], content["name"], "", metadata)

    def add(self, delta: Block) -> Part | None:
        return self._arguments(delta.get("partial_json") or "")

    def stop(self) -> Part | None:
        if self._told:
            return None
        # Some calls have their arguments in the beginning, and some have none.
        return self._arguments(dumps(self._content.get("input") or {}).decode())

    def _arguments(self, text: str) -> ToolCallChunk | None:
        self._told = self._told or bool(text)
        return ToolCallChunk(self._index, arguments=text) if text else None


class _OtherBlock:
    """Anything else is kept whole, for it is sent back unchanged."""

    def __init__(self, content: Block) -> None:
        self._content = dict(content)
        self._input: list[str] = []

    def start(self) -> Part | None:
        return None

    def add(self, delta: Block) -> Part | None:
        for key, value in delta.items():
            if key == "partial_json":
                self._input.append(value)
            elif key != "type":
                old = self._content.get(key)
                joins = isinstance(old, str) and isinstance(value, str)
                self._content[key] = f"{old}{value}" if joins else value
        return None

    def stop(self) -> Part | None:
        if text := "".join(self._input):
            self._content["input"] = input_of(text)
        return decode_block(self._content)


_KINDS: dict[str, type[_TextBlock | _ThinkingBlock | _OtherBlock]] = {
    "text": _TextBlock,
    "thinking": _ThinkingBlock,
}
