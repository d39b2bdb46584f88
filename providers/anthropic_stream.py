"""Streams of Anthropic's Messages API: events in, chunks out, no I/O.

The API ends each block before it begins the next. Gateways that translate other APIs may end a
block before what it says, begin the next one inside it, or end none: so a block is kept until the
message ends, and tells then what it has not told yet.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Protocol

from chatclient.errors import InvalidResponseError
from chatclient.json import loads
from chatclient.messages import AssistantMessage, Part, ProviderPart, Reasoning, ToolCallChunk
from chatclient.providers.anthropic_decoding import (
    GENERATION_KEYS,
    call_metadata,
    decode_block,
    decode_message,
    decode_response,
    decode_usage,
    generation_of,
)
from chatclient.providers.anthropic_encoding import PROVIDER, Block
from chatclient.providers.failures import ended_early, error_from, unreadable
from chatclient.providers.fields import (
    MISSHAPEN,
    arguments_in,
    arguments_of,
    beside,
    number_of,
    text_of,
)
from chatclient.providers.keys import Headers
from chatclient.providers.sse import is_end
from chatclient.response import ChatResponse, ChatResponseMetadata, Generation
from chatclient.values import EMPTY, FrozenDict


class StreamDecoder:
    """Makes chunks of the events of a stream; no I/O.

    Attributes:
        complete: Whether the server has said that nothing more comes.

    Raises (from both methods):
        ProviderError: The stream reports an error.
        StreamInterruptedError: It ended before its answer did.
        InvalidResponseError: An event cannot be read.
    """

    __slots__ = ("_blocks", "_calls", "_done", "_headers", "_id", "_usage", "complete")

    def __init__(self, headers: Headers = EMPTY) -> None:
        self._headers = headers
        self._blocks: dict[int, _Block] = {}
        self._usage: dict[str, Any] = {}
        self._id: str | None = None
        self._calls = False
        self._done = False
        self.complete = False

    def feed(self, data: bytes, _event: str = "") -> ChatResponse | str | None:
        """Return the chunk that an event spells, or None when there is nothing in it."""
        if self._done or not data or is_end(data):  # gateways may add the end of another API
            return None
        try:
            event = loads(data)
            if event.get("error"):
                raise error_from(PROVIDER, 0, event, self._headers)
            return self._take(event)
        except MISSHAPEN as error:
            raise unreadable(PROVIDER, data) from error

    def finish(self, rest: bytes) -> tuple[ChatResponse | str, ...]:
        """Make sure that the stream came to its end; return the chunk in its *rest*, if any."""
        chunk = None
        with suppress(InvalidResponseError):  # of which nothing can be made, being cut off
            chunk = self.feed(rest)  # the last event without its blank line, or a bare error
        if not self.complete:
            raise ended_early(PROVIDER)
        return () if chunk is None else (chunk,)

    def _take(self, event: Mapping[str, Any]) -> ChatResponse | str | None:
        match event.get("type"):
            case "content_block_delta":
                index = _index_of(event)
                block = self._blocks.get(index)
                if block is None:
                    block = self._blocks[index] = _block(index, {"type": "text"})
                return _chunk([block.add(event["delta"])])
            case "content_block_start":
                return _chunk(self._start(_index_of(event), event["content_block"]))
            case "content_block_stop":
                ended = self._blocks.get(_index_of(event))
                return None if ended is None else _chunk([ended.stop()])
            case "message_start":
                return self._begin(event["message"])
            case "message_delta":
                return self._end(event)
            case "message_stop":
                self._done = self.complete = True
                return _chunk(self._rest())
            case "message" if self._id is None and not self._blocks and not self.complete:
                # A server that knows no streams.
                whole = decode_response(event, self._headers)
                self._done = self.complete = True
                return whole
        return None  # also for pings, and for what future versions may add

    def _start(self, index: int, content: Block) -> Iterable[Part | None]:
        """Yield what the beginning of a block tells, and what it ends."""
        for block in self._blocks.values():
            if isinstance(block, _ThinkingBlock):
                yield block.stop()  # its signature keeps it apart from the next thoughts
        if (before := self._blocks.pop(index, None)) is not None:
            yield before.end()  # some gateways count no blocks
        block = self._blocks[index] = _block(index, content)
        self._calls = self._calls or isinstance(block, _CallBlock)
        yield block.start()

    def _rest(self) -> list[Part | None]:
        """Return what only the end of the message completes."""
        rest = [block.end() for block in self._blocks.values()]
        self._blocks = {}
        return rest

    def _begin(self, message: Mapping[str, Any]) -> ChatResponse | None:
        if self._id is not None and message.get("id") == self._id:
            return None  # gateways may say it twice
        self._id = message.get("id")
        self._usage.update(beside(message.get("usage") or {}, ()))
        return decode_message({"content": (), **message}, self._headers, self._usage)

    def _end(self, event: Mapping[str, Any]) -> ChatResponse:
        delta = event.get("delta") or {}
        self._usage.update(beside(event.get("usage") or {}, ()))  # running totals
        known = (*GENERATION_KEYS, "stop_reason")
        values = {**beside(event, _DELTA_KEYS), **beside(delta, known)}
        metadata = ChatResponseMetadata(usage=decode_usage(self._usage), values=values)
        rest = [part for part in self._rest() if part]
        generation = generation_of(rest, delta, calls=self._calls)
        # Some gateways leave it at that, and send no `message_stop`.
        self.complete = self.complete or generation.native_finish_reason is not None
        return ChatResponse((generation,), metadata)


_DELTA_KEYS = ("type", "delta", "usage")


def _chunk(parts: Iterable[Part | None]) -> ChatResponse | str | None:
    told = [part for part in parts if part]
    if len(told) == 1 and isinstance(told[0], str):
        return told[0]
    return ChatResponse((Generation(AssistantMessage(told)),)) if told else None


def _index_of(event: Mapping[str, Any]) -> int:
    # Gateways written in Go may leave out what is zero, or empty.
    return number_of(event.get("index")) or 0


def _block(index: int, content: Block) -> "_Block":
    kind = content["type"]
    if kind == "tool_use":
        return _CallBlock(content, index)
    return _KINDS.get(kind, _OtherBlock)(content)


class _Block(Protocol):
    """A content block in the making; each method returns what can be told by then."""

    def start(self) -> Part | None:
        """Take the block's beginning."""
        ...

    def add(self, delta: Block) -> Part | None:
        """Take what comes next."""
        ...

    def stop(self) -> Part | None:
        """Take note that it has been said to end."""
        ...

    def end(self) -> Part | None:
        """Take note that nothing more can come."""
        ...


class _TextBlock:
    """Text is told as it comes; where it is cited, as a whole with its citations."""

    def __init__(self, content: Block) -> None:
        self._content = {"type": "text", **content, "text": ""}
        self._first = text_of(content.get("text"))
        self._citations: list[Any] = [*(content.get("citations") or ())]
        self._held: list[str] = []

    def start(self) -> Part | None:
        return self._tell(self._first)

    def add(self, delta: Block) -> Part | None:
        match delta["type"]:
            case "text_delta":
                return self._tell(text_of(delta.get("text")))
            case "citations_delta":
                self._citations.append(delta["citation"])
        return None

    def stop(self) -> Part | None:
        if not self._citations:
            return None
        # Without text, where all of it had been told before they came.
        text = "".join(self._held)
        block = {**self._content, "text": text, "citations": self._citations}
        self._held, self._citations = [], []
        return ProviderPart(PROVIDER, FrozenDict(block), text)

    end = stop

    def _tell(self, text: str) -> str | None:
        # The API sends a passage's citations ahead of its text.
        if not self._citations:
            return text
        self._held.append(text)
        return None


class _ThinkingBlock:
    """Thoughts are told as they come, their signature when it is complete."""

    def __init__(self, content: Block) -> None:
        self._first = text_of(content.get("thinking"))
        self._signature = [text_of(content.get("signature"))]

    def start(self) -> Part | None:
        return self._tell(self._first)

    def add(self, delta: Block) -> Part | None:
        match delta["type"]:
            case "thinking_delta":
                return self._tell(text_of(delta.get("thinking")))
            case "signature_delta":
                self._signature.append(text_of(delta.get("signature")))
        return None

    def stop(self) -> Part | None:
        signature, self._signature = "".join(self._signature), []
        return Reasoning("", signature, PROVIDER) if signature else None

    end = stop

    def _tell(self, text: str) -> Reasoning | None:
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
        id, name = text_of(content.get("id")), text_of(content["name"])
        return ToolCallChunk(self._index, id, name, "", metadata)

    def add(self, delta: Block) -> Part | None:
        return self._arguments(text_of(delta.get("partial_json")))

    def stop(self) -> Part | None:
        return None

    def end(self) -> Part | None:
        if self._told:
            return None
        # Some calls have their arguments in the beginning, and some have none.
        return self._arguments(arguments_of(self._content.get("input")))

    def _arguments(self, text: str) -> ToolCallChunk | None:
        self._told = self._told or bool(text)
        return ToolCallChunk(self._index, arguments=text) if text else None


class _OtherBlock:
    """Anything else is kept whole, for it is sent back unchanged."""

    def __init__(self, content: Block) -> None:
        self._content = dict(content)
        self._input: list[str] = []
        self._told = False

    def start(self) -> Part | None:
        return None

    def add(self, delta: Block) -> Part | None:
        for key, value in delta.items():
            if key == "partial_json":
                self._input.append(text_of(value))
            elif key != "type" and value is not None:
                old = self._content.get(key)
                joins = isinstance(old, str) and isinstance(value, str)
                self._content[key] = f"{old}{value}" if joins else value
        return None

    def stop(self) -> Part | None:
        if self._told:
            return None
        self._told = True
        if text := "".join(self._input):
            self._content["input"] = arguments_in(text)
        return decode_block(self._content)

    end = stop


_KINDS: dict[str, type[_TextBlock | _ThinkingBlock | _OtherBlock]] = {
    "text": _TextBlock,
    "thinking": _ThinkingBlock,
}
