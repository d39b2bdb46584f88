"""Server-sent events, decoded by the WHATWG rules; bytes in, events out, no I/O.

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html, "9.2.6 Interpreting an
event stream". Data stays bytes, because JSON parsers read UTF-8; characters split between two reads
and Unicode line separators need no handling then. `id` and `retry` are ignored: they serve
reconnecting, which is impossible for the response to a POST.
"""

from typing import TypeAlias

from chatclient.errors import ResponseLimitError
from chatclient.providers.http.limits import LIMITS

_BOM = b"\xef\xbb\xbf"
_MAX_UNKNOWN_LINES = 1000


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
            self._check_size()
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

    def _check_size(self) -> None:
        if self._size > self.limit:
            msg = f"an event of the stream is larger than {self.limit:,} bytes"
            raise ResponseLimitError(msg, limit="event_bytes", maximum=self.limit)
