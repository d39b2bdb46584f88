"""Stream readers: pieces of bytes in, chunks out; no I/O.

A listener gets the raw events of a stream. A request can be retried until its first content chunk.
"""

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Any, Protocol, TypeVar, cast

from chatclient.chat.aggregator import MessageAggregator
from chatclient.chat.response import ChatResponse
from chatclient.errors import InvalidResponseError, ResponseLimitError
from chatclient.providers.http.limits import LIMITS, ResponseLimits
from chatclient.providers.http.sse import ServerSentEvent, ServerSentEventDecoder, is_end
from chatclient.runtime.observation import WireListener, wire_listener

_R = TypeVar("_R")


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
