"""Lets observers hear what a stream says, event by event, before anything is made of it."""

from typing import Any, TypeVar, cast

from chatclient.observation import Tell, present_listener
from chatclient.providers.sse import is_end

_R = TypeVar("_R")


def overheard(reader: _R) -> _R:
    """Return *reader*, and where an observer listens, one like it that tells what it gives.

    Args:
        reader: Takes the bytes of a stream with `feed`, and gives the events or lines in them; also
            with `finish`, which gives what is left.
    """
    tell = present_listener("received")
    return reader if tell is None else cast("_R", _Overheard(reader, tell))


class _Overheard:
    """Tells what another reader gives."""

    def __init__(self, reader: Any, tell: Tell) -> None:
        self._reader = reader
        self._tell = tell

    def feed(self, chunk: bytes) -> Any:
        return self._told(self._reader.feed(chunk))

    def finish(self) -> Any:
        return self._told(self._reader.finish())

    def _told(self, found: Any) -> Any:
        for each in [found] if isinstance(found, bytes) else found:
            data = each if isinstance(each, bytes) else each[0]
            if data.strip() and not is_end(data):
                self._tell(data)
        return found
