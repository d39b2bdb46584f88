"""Passes the raw events of a stream to observers."""

from typing import Any, TypeVar, cast

from chatclient.providers.http.sse import is_end
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

    def _report(self, found: Any) -> Any:
        for event in [found] if isinstance(found, bytes) else found:
            data = event if isinstance(event, bytes) else event[0]
            if data.strip() and not is_end(data):
                self._notify(data)
        return found
