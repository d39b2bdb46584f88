"""How streamed answers are read: pieces of bytes in, chunks out; no I/O."""

from collections.abc import Iterable, Iterator
from typing import Protocol

from chatclient.aggregator import MessageAggregator
from chatclient.providers.listening import overheard
from chatclient.providers.sse import ServerSentEventDecoder
from chatclient.response import ChatResponse

Chunk = ChatResponse | str
"""A piece of a stream; a string is the next piece of the answer's text."""


class Reader(Protocol):
    """Reads one streamed answer.

    It may have an attribute `complete`: whether the server has said that nothing more comes. What
    becomes of the connection after that is no matter. With `is_over` it may say sooner that the
    answer has ended, and only figures can follow: then a connection may break, but is not closed.
    """

    def feed(self, piece: bytes) -> Iterable[Chunk]:
        """Return the chunks that *piece* completes."""
        ...

    def finish(self) -> Iterable[Chunk]:
        """Return what only the end completes.

        Raises:
            StreamInterruptedError: It is not the end of the answer.
        """
        ...


class EventDecoder(Protocol):
    """Makes chunks of the events of a stream; it may have what a reader may have."""

    def feed(self, data: bytes, event: str, /) -> Chunk | None:
        """Return the chunk that an event spells, or None when there is nothing in it."""
        ...

    def finish(self, rest: bytes, /) -> Iterable[Chunk]:
        """Return what the end still tells, with the *rest* that is not a whole event."""
        ...


def is_complete(reader: object) -> bool:
    """Return whether the server has said to *reader*, or a decoder, that nothing more comes."""
    return bool(getattr(reader, "complete", False))


def is_over(reader: object) -> bool:
    """Return whether *reader*, or a decoder, has the whole answer."""
    return bool(getattr(reader, "is_over", False)) or is_complete(reader)


def whole_answer(reader: Reader, body: bytes) -> ChatResponse:
    """Return the answer that *body*, a whole stream, spells.

    Raises:
        StreamInterruptedError: It ends before its answer does.
    """
    whole = MessageAggregator()
    for chunk in reader.feed(body):
        whole.add(chunk)
    for chunk in reader.finish():
        whole.add(chunk)
    return whole.response()


class EventReader:
    """Reads an answer of server-sent events."""

    __slots__ = ("_decoder", "_events")

    def __init__(self, decoder: EventDecoder) -> None:
        self._events = overheard(ServerSentEventDecoder())
        self._decoder = decoder

    @property
    def complete(self) -> bool:
        """Whether the server has said that nothing more comes."""
        return bool(getattr(self._decoder, "complete", False))

    @property
    def is_over(self) -> bool:
        """Whether the answer has ended."""
        return is_over(self._decoder)

    def feed(self, piece: bytes) -> Iterator[Chunk]:
        """Yield the chunks that *piece* completes."""
        decode = self._decoder.feed
        for data, event in self._events.feed(piece):
            chunk = decode(data, event)
            if chunk is not None:
                yield chunk

    def finish(self) -> Iterable[Chunk]:
        """Return what only the end completes."""
        return self._decoder.finish(self._events.finish())
