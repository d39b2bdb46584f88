"""Server-sent events, decoded by the WHATWG rules; bytes in, events out, no I/O.

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html, "9.2.6 Interpreting an
event stream". The data stays bytes: it is JSON, whose parser reads UTF-8 itself, so a character
that is split between two reads, or a line separator that only exists in Unicode, is no concern.
`id` and `retry` serve reconnecting, which no answer to a POST allows; they are passed over.
"""

from typing import TypeAlias

from chatclient.errors import InvalidResponseError

_BOM = b"\xef\xbb\xbf"
LARGEST_EVENT = 64 * 2**20
"""How many bytes of a stream one event may take."""
_MOST_OTHERS = 1000  # lines of no known kind that are kept


def is_end(data: bytes) -> bool:
    """Return whether *data* is the word with which OpenAI's streams end, and others' at gateways.

    Some put white space or brackets of their own around it, or something behind.
    """
    return data[:1] != b"{" and data.lstrip(b' \t"').startswith((b"[DONE]", b"DONE"))


ServerSentEvent: TypeAlias = tuple[bytes, str]
"""One event of a stream: its lines of data, joined by line feeds, and its type, empty when the
stream names none."""


class ServerSentEventDecoder:
    """Takes the bytes of a stream as they come and gives the events they complete.

    Args:
        limit: How many bytes one event may take, so that a server gone wild cannot fill the
            memory; checked after each chunk.
    """

    __slots__ = ("_after_cr", "_data", "_event", "_head", "_limit", "_line", "_other", "_size")

    def __init__(self, limit: int = LARGEST_EVENT) -> None:
        self._limit = limit
        self._head: bytes | None = b""  # what may become a BOM; None once the stream has begun
        self._after_cr = False
        self._line: list[bytes] = []  # the line that has not ended yet, as it came
        self._data: list[bytes] = []
        self._event = ""
        self._size = 0  # of the event that has not ended yet
        self._other: list[bytes] = []  # lines of no known kind

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """Return the events that *chunk* completes.

        Raises:
            InvalidResponseError: An event is larger than the limit.
        """
        if self._head is not None:
            chunk = self._without_bom(chunk)
        if self._after_cr or b"\r" in chunk:
            chunk = self._with_line_feeds(chunk)
        events: list[ServerSentEvent] = []
        data = self._data
        for line in self._lines(chunk):
            if line[:6] == b"data: ":
                data.append(line[6:])
            elif line:
                self._take(line)
            elif data:
                joined = data[0] if len(data) == 1 else b"\n".join(data)
                events.append((joined, self._event))
                data.clear()
                self._event = ""
            else:
                self._event = ""
        if data or self._line:
            self._count(len(chunk), anew=bool(events))
        else:
            self._size = 0
        return events

    def finish(self) -> bytes:
        """Return what never became an event: a stream cut short leaves something behind.

        That is the data of an event that was not closed; without one, whatever lines the stream
        had that are none of an event stream, such as an error in plain JSON.
        """
        if self._line:
            self._take(b"".join(self._line))
            self._line = []
        return b"\n".join(self._data or self._other)

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
        chunk = (self._head or b"") + chunk
        if len(chunk) < len(_BOM) and _BOM.startswith(chunk):
            self._head = chunk
            return b""
        self._head = None
        return chunk.removeprefix(_BOM)

    def _with_line_feeds(self, chunk: bytes) -> bytes:
        # A CR at the very end may be the first half of a CRLF: it ends its line now, and a line
        # feed that follows is not another end.
        if self._after_cr and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._after_cr = False
        if chunk.endswith(b"\r"):
            self._after_cr = True
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

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
        elif name not in (b"", b"id", b"retry") and len(self._other) < _MOST_OTHERS:
            self._other.append(line)

    def _count(self, size: int, *, anew: bool) -> None:
        self._size = size if anew else self._size + size
        if self._size > self._limit:
            msg = f"an event of the stream is larger than {self._limit:,} bytes"
            raise InvalidResponseError(msg)
