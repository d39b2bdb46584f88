"""Server-sent events, decoded by the WHATWG rules; bytes in, events out, no I/O.

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html, "9.2.6 Interpreting an
event stream". The data stays bytes: it is JSON, whose parser reads UTF-8 itself, so a character
that is split between two reads, or a line separator that only exists in Unicode, is no concern.
"""

from dataclasses import dataclass

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One event of a stream.

    Attributes:
        data: The lines of data, joined by line feeds.
        event: The event's type; empty when the stream names none.
    """

    data: bytes
    event: str = ""


class ServerSentEventDecoder:
    """Takes the bytes of a stream as they come and gives the events they complete."""

    __slots__ = ("_after_cr", "_data", "_event", "_rest", "_started")

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._event = ""
        self._started = False
        self._after_cr = False

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """Return the events that *chunk* completes."""
        text = self._rest + chunk if self._rest else chunk
        if not self._started:
            if len(text) < len(_BOM) and _BOM.startswith(text):
                self._rest = text
                return []
            self._started = True
            text = text.removeprefix(_BOM)
        if self._after_cr or b"\r" in text:
            text = self._unify_line_ends(text)
        lines = text.split(b"\n")
        self._rest = lines.pop()
        events: list[ServerSentEvent] = []
        for line in lines:
            if line:
                self._take(line)
            elif self._data:
                data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
                events.append(ServerSentEvent(data, self._event))
                self._data = []
                self._event = ""
            else:
                self._event = ""
        return events

    def finish(self) -> bytes:
        """Return what never became an event: a stream cut short leaves something behind."""
        return b"\n".join([*self._data, *([self._rest] if self._rest else [])])

    def _unify_line_ends(self, text: bytes) -> bytes:
        # A CR at the very end may be the first half of a CRLF: it ends its line now, and a line
        # feed that follows is not another end.
        if self._after_cr and text:
            text = text.removeprefix(b"\n")
            self._after_cr = False
        if text.endswith(b"\r"):
            self._after_cr = True
        return text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _take(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._event = value.decode(errors="replace")
        elif name == b"error":
            # llama.cpp writes a failure inside a stream as a field of its own making.
            self._data.append(b'{"error":' + value + b"}")
