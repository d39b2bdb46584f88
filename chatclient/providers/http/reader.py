"""Stream readers: pieces of bytes in, chunks out; no I/O.

A listener gets the raw events of a stream. A request can be retried until its first content chunk.

Server-sent events are decoded by the WHATWG rules,
https://html.spec.whatwg.org/multipage/server-sent-events.html, "9.2.6 Interpreting an event
stream". Data stays bytes, because JSON parsers read UTF-8; characters split between two reads and
Unicode line separators need no handling then. `id` and `retry` are ignored: they serve
reconnecting, which is impossible for the response to a POST.

Gateways that count in UTF-16, as JavaScript does, may send the two surrogates of an emoji in
separate events. A single surrogate cannot be printed, or written to a file or a database.
"""

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Any, Protocol, TypeAlias, TypeVar, cast

from chatclient.chat.aggregator import MessageAggregator
from chatclient.chat.messages import AssistantMessage, Part, Reasoning
from chatclient.chat.response import ChatResponse, Generation
from chatclient.errors import InvalidResponseError, ResponseLimitError
from chatclient.providers.http.limits import LIMITS, ResponseLimits
from chatclient.runtime.observation import WireListener, wire_listener

_BOM = b"\xef\xbb\xbf"
_MAX_UNKNOWN_LINES = 1000

_R = TypeVar("_R")


def is_end(data: bytes) -> bool:
    """Return whether *data* is `[DONE]`, the end marker of OpenAI and many gateways.

    Variants with white space, without brackets or with trailing text are accepted.
    """
    return data[:1] != b"{" and data.lstrip(b' \t"').startswith((b"[DONE]", b"DONE"))


ServerSentEvent: TypeAlias = tuple[bytes, str]
"""The data of an event, lines joined by line feeds, and its type (empty if not given)."""


class ServerSentEventDecoder:
    """Incremental decoder of an event stream."""

    __slots__ = (
        *("_after_cr", "_data", "_event", "_line", "is_event_stream", "limit"),
        *("_size", "_start", "_unknown"),
    )

    def __init__(self, limit: int = LIMITS.event_bytes) -> None:
        self.limit = limit  # bytes of one event
        self._start: bytes | None = b""  # possible start of a BOM; None after the first bytes
        self._after_cr = False
        self._line: list[bytes] = []  # parts of the unfinished line
        self._data: list[bytes] = []
        self._event = ""
        self._size = 0  # of the unfinished event
        self._unknown: list[bytes] = []  # lines with unknown field names
        # Whether an event has started; else the server may have answered with something else.
        self.is_event_stream = False

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """Return the events that *chunk* completes."""
        if self._start is not None:
            chunk = self._without_bom(chunk)
        if self._after_cr or b"\r" in chunk:
            chunk = self._with_line_feeds(chunk)
        events: list[ServerSentEvent] = []
        data = self._data
        for line in self._lines(chunk):
            if line[:6] == b"data: ":
                data.append(line[6:])
            elif line:
                self._read_field(line)
            elif data:
                joined = data[0] if len(data) == 1 else b"\n".join(data)
                events.append((joined, self._event))
                data.clear()
                self._event = ""
            else:
                self._event = ""
        self.is_event_stream = self.is_event_stream or bool(events or data)
        if data or self._line:
            self._size = len(chunk) if events else self._size + len(chunk)
            if self._size > self.limit:
                msg = f"an event of the stream is larger than {self.limit:,} bytes"
                raise ResponseLimitError(msg, limit="event_bytes", maximum=self.limit)
        else:
            self._size = 0
        return events

    def finish(self) -> bytes:
        """Return the data of an unfinished event, else lines without a known field name."""
        if self._line:
            self._read_field(b"".join(self._line))
            self._line = []
        self.is_event_stream = self.is_event_stream or bool(self._data)
        return b"\n".join(self._data or self._unknown)

    def _lines(self, chunk: bytes) -> list[bytes]:
        """Return the lines that *chunk* completes."""
        if b"\n" not in chunk:
            if chunk:
                self._line.append(chunk)
            return []
        if self._line:
            chunk = b"".join((*self._line, chunk))
            self._line = []
        lines = chunk.split(b"\n")
        if rest := lines.pop():
            self._line.append(rest)
        return lines

    def _without_bom(self, chunk: bytes) -> bytes:
        chunk = (self._start or b"") + chunk
        if len(chunk) < len(_BOM) and _BOM.startswith(chunk):
            self._start = chunk
            return b""
        self._start = None
        return chunk.removeprefix(_BOM)

    def _with_line_feeds(self, chunk: bytes) -> bytes:
        # A CR at the end of a chunk ends the line; a LF at the start of the next chunk then belongs
        # to it.
        if self._after_cr and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._after_cr = False
        if chunk.endswith(b"\r"):
            self._after_cr = True
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _read_field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._event = value.decode(errors="replace")
        elif name == b"error":
            # llama.cpp reports errors in a non-standard field.
            self._data.append(b'{"error":' + value + b"}")
        elif name not in (b"", b"id", b"retry") and len(self._unknown) < _MAX_UNKNOWN_LINES:
            self._unknown.append(line)


def with_listener(reader: _R) -> _R:
    """Return *reader*; if an observer listens, wrapped so that it receives each event.

    Args:
        reader: Splits a stream into events or lines, with `feed` for bytes and `finish` for the
            rest.
    """
    notify = wire_listener("received")
    return reader if notify is None else cast("_R", _ListeningReader(reader, notify))


class _ListeningReader:
    """Passes what another reader returns to a listener."""

    def __init__(self, reader: Any, notify: WireListener) -> None:
        self._reader = reader
        self._notify = notify

    def feed(self, chunk: bytes) -> Any:
        return self._report(self._reader.feed(chunk))

    def finish(self) -> Any:
        return self._report(self._reader.finish())

    def _report(self, events: Any) -> Any:
        for event in [events] if isinstance(events, bytes) else events:
            data = event if isinstance(event, bytes) else event[0]
            if data.strip() and not is_end(data):
                self._notify(data)
        return events


Chunk = ChatResponse | str
"""An item of a stream; a string is a piece of the answer's text."""


class Reader(Protocol):
    """Reader of one streamed answer.

    It may have a method `set_limits(limits)`, called with the `ResponseLimits` of the model before
    the first piece, and two boolean attributes. `complete`: the server has marked the end of the
    stream, so reading stops. `is_finished`: the answer is complete, and only metadata may follow;
    reading continues, but a broken connection is not an error.
    """

    def feed(self, piece: bytes) -> Iterable[Chunk]:
        """Return the chunks that *piece* completes."""
        ...

    def finish(self) -> Iterable[Chunk]:
        """Return the chunks that the end of the stream completes.

        Raises:
            StreamInterruptedError: The answer is incomplete.
        """
        ...


class EventDecoder(Protocol):
    """Converts events to chunks; may have the attributes `complete` and `is_finished`.

    Raises (from both methods):
        ProviderError: The stream reports an error.
        StreamInterruptedError: The answer is incomplete.
        InvalidResponseError: An event is malformed.
    """

    def feed(self, data: bytes, event: str, /) -> Chunk | None:
        """Return the chunk of an event, or None if the event has no content."""
        ...

    def finish(self, rest: bytes, /) -> Iterable[Chunk]:
        """Return the last chunks; *rest* is the data of an unfinished event."""
        ...


def is_complete(reader: object) -> bool:
    """Return whether *reader* (or a decoder) has read the end marker of the stream."""
    return bool(getattr(reader, "complete", False))


def is_finished(reader: object) -> bool:
    """Return whether *reader* (or a decoder) has the complete answer."""
    return bool(getattr(reader, "is_finished", False)) or is_complete(reader)


def join_stream(reader: Reader, body: bytes) -> ChatResponse:
    """Return the answer in *body*, a complete stream."""
    answer = MessageAggregator()
    for chunk in reader.feed(body):
        answer.add(chunk)
    for chunk in reader.finish():
        answer.add(chunk)
    return answer.response()


def decode_body(
    body: bytes, decode: Callable[[bytes], ChatResponse], new_reader: Callable[[], Reader]
) -> ChatResponse:
    """Return the response in *body*, the answer to a request without streaming.

    Some gateways always stream.

    Args:
        body: The complete body.
        decode: Decodes a response.
        new_reader: Returns a reader of a stream.
    """
    if body.lstrip()[:6].startswith((b"event:", b"data:", b"id:", b"retry:", b":")):
        return join_stream(new_reader(), body)
    return decode(body)


class EventSplitter(Protocol):
    """Splits the bytes of a stream into events, as `ServerSentEventDecoder` does.

    Attributes:
        limit: Maximum number of bytes of one event.
        is_event_stream: Whether an event has started; else the server may have answered with
            something else.
    """

    limit: int
    is_event_stream: bool

    def feed(self, chunk: bytes, /) -> Iterable[ServerSentEvent]:
        """Return the events that *chunk* completes."""
        ...

    def finish(self) -> bytes:
        """Return what is left: the data of an unfinished event, or what is no event."""
        ...


class EventReader:
    """Reader of events, by default of server-sent ones.

    Texts that arrive in one piece become one chunk: they are available at the same time, and every
    chunk passes through all advisors.

    Args:
        decoder: Decodes single events.
        decode: Decodes a complete response, which some servers send instead of a stream.
        splitter: Splits the stream into events; default: one for server-sent events.
    """

    __slots__ = (
        *("_decode", "_decoder", "_empty_events", "_events", "_lines"),
        "_max_empty_events",
    )

    def __init__(
        self,
        decoder: EventDecoder,
        decode: Callable[[bytes], ChatResponse] | None = None,
        splitter: EventSplitter | None = None,
    ) -> None:
        self._lines: EventSplitter = splitter or ServerSentEventDecoder()
        self._events = with_listener(self._lines)
        self._decoder = decoder
        self._decode = decode
        self._empty_events, self._max_empty_events = 0, LIMITS.empty_events

    def set_limits(self, limits: ResponseLimits) -> None:
        """Use other limits than the default ones."""
        self._lines.limit = limits.event_bytes
        self._max_empty_events = limits.empty_events

    @property
    def complete(self) -> bool:
        """Whether the server has marked the end of the stream."""
        return is_complete(self._decoder)

    @property
    def is_finished(self) -> bool:
        """Whether the answer is complete."""
        return is_finished(self._decoder)

    def feed(self, piece: bytes) -> Iterator[Chunk]:
        """Yield the chunks that *piece* completes."""
        decode = self._decoder.feed
        texts: list[str] = []
        try:
            for data, event in self._events.feed(piece):
                chunk = decode(data, event)
                if type(chunk) is str:
                    texts.append(chunk)
                elif chunk is not None:
                    if texts:
                        yield "".join(texts)
                        texts = []
                    yield chunk
                else:
                    self._count_empty_event()
        except Exception:
            # Text before an error is a part of the answer, and is not lost.
            if texts:
                yield "".join(texts)
            raise
        if texts:
            yield "".join(texts)

    def _count_empty_event(self) -> None:
        self._empty_events += 1
        if self._empty_events > self._max_empty_events:
            maximum = self._max_empty_events
            msg = f"the stream has more than {maximum:,} events without content"
            raise ResponseLimitError(msg, limit="empty_events", maximum=maximum)

    def finish(self) -> Iterable[Chunk]:
        """Return the chunks that the end of the stream completes."""
        rest = self._events.finish()
        if self._decode is not None and rest and not self._lines.is_event_stream:
            with suppress(InvalidResponseError):  # truncated, or no JSON at all
                return (self._decode(rest),)
        return self._decoder.finish(rest)


async def read_until_content(chunks: AsyncGenerator[Chunk, None]) -> list[Chunk]:
    """Return *chunks* up to and including the first with content; others may precede it."""
    first: list[Chunk] = []
    async for chunk in chunks:
        first.append(chunk)
        if _has_content(chunk):
            break
    return first


async def read_first_chunk(
    reader: Reader, pieces: AsyncGenerator[bytes, None]
) -> tuple[Iterator[Chunk], bool]:
    """Return the first chunks of an answer, and whether they are the complete answer.

    Consumes *pieces* up to the one that contains the first content. The returned iterator decodes
    the rest of that piece lazily.
    """
    first: list[Chunk] = []
    async for piece in pieces:
        chunks = iter(reader.feed(piece))
        if _take_until_content(chunks, first):
            return chain(first, chunks), False
    chunks = iter(reader.finish())
    _take_until_content(chunks, first)
    return chain(first, chunks), True


def _take_until_content(chunks: Iterator[Chunk], first: list[Chunk]) -> bool:
    """Move *chunks* to *first* up to the first with content; return whether there was one."""
    for chunk in chunks:
        first.append(chunk)
        if _has_content(chunk):
            return True
    return False


def _has_content(chunk: Chunk) -> bool:
    if isinstance(chunk, ChatResponse):
        return any(generation.output.parts for generation in chunk.generations)
    return chunk != ""  # an invalid chunk is passed on and rejected by the caller


class SurrogateJoiner:
    """Reader that holds a high surrogate at the end of a chunk until the low one arrives."""

    __slots__ = ("_held", "_last_bytes", "_may_have_surrogates", "_reader")

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        # JSON contains surrogates only as escapes; before the first one, chunks are not inspected.
        self._may_have_surrogates = False
        self._last_bytes = b""
        # By index of the answer, and type: text or reasoning.
        self._held: dict[tuple[int, type], str | Reasoning] = {}

    @property
    def complete(self) -> bool:
        """Whether the server has marked the end of the stream."""
        return is_complete(self._reader)

    @property
    def is_finished(self) -> bool:
        """Whether the answer is complete."""
        return is_finished(self._reader)

    def feed(self, piece: bytes) -> Iterable[Chunk]:
        """Return the chunks that *piece* completes."""
        chunks = self._reader.feed(piece)
        if not self._may_have_surrogates:
            seen = self._last_bytes + piece
            self._may_have_surrogates = b"\\ud" in seen or b"\\uD" in seen
            self._last_bytes = seen[-2:]
        return self._join(chunks) if self._may_have_surrogates else chunks

    def finish(self) -> Iterator[Chunk]:
        """Yield the last chunks, and surrogates that never got their second half."""
        yield from self._join(self._reader.finish())
        for (index, _), half in self._held.items():
            yield ChatResponse((Generation(AssistantMessage([half]), index=index),))

    def _join(self, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
        for chunk in chunks:
            if isinstance(chunk, ChatResponse):
                yield self._join_response(chunk)
            elif self._held or not chunk.isascii():
                yield _text_of(self._join_part(0, chunk))
            else:
                yield chunk

    def _join_response(self, chunk: ChatResponse) -> ChatResponse:
        parts = (part for generation in chunk.generations for part in generation.output.parts)
        if not self._held and not any(_is_high_surrogate(_text_of(part)[-1:]) for part in parts):
            return chunk
        return replace(chunk, generations=tuple(map(self._join_generation, chunk.generations)))

    def _join_generation(self, generation: Generation) -> Generation:
        message, index = generation.output, generation.index
        parts = [self._join_part(index, part) for part in message.parts]
        return replace(generation, output=AssistantMessage(parts, metadata=message.metadata))

    def _join_part(self, index: int, part: Part) -> Part:
        """Prepend the held surrogate to *part*, and hold one at its end."""
        if not isinstance(part, str | Reasoning):
            return part
        text = _join_pairs(_text_of(self._held.pop((index, type(part)), "")) + _text_of(part))
        if _is_high_surrogate(text[-1:]):
            text, last = text[:-1], text[-1:]
            held = last if isinstance(part, str) else Reasoning(last, provider=part.provider)
            self._held[index, type(part)] = held
        return text if isinstance(part, str) else replace(part, text=text)


def _is_high_surrogate(character: str) -> bool:
    return "\ud800" <= character <= "\udbff"


def _join_pairs(text: str) -> str:
    """Return *text* with adjacent surrogates combined to characters."""
    if not any("\ud800" <= character <= "\udbff" for character in text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def _text_of(part: Part) -> str:
    if isinstance(part, str):
        return part
    return part.text if isinstance(part, Reasoning) else ""
