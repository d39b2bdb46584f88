"""How Gemini's streams are framed; bytes in, JSON values out, no I/O."""

from pydantic_core import from_json

from chatclient.errors import InvalidResponseError
from chatclient.json import dumps, loads
from chatclient.providers.sse import LARGEST_EVENT, ServerSentEventDecoder, is_end


class StreamReader:
    """Takes the bytes of a stream as they come and gives the JSON values they hold.

    A stream consists of server-sent events as a rule, but of the elements of an array where
    `alt=sse` was lost on the way; and a stream that fails ends with a bare object.

    Args:
        limit: How many bytes an event, or the array, may have.
    """

    __slots__ = ("_events", "_is_json", "_limit", "_tail")

    def __init__(self, limit: int = LARGEST_EVENT) -> None:
        self._limit = limit
        self._events = ServerSentEventDecoder(limit)
        self._is_json: bool | None = None
        self._tail = bytearray()  # the whole array, or what came since the last event

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the values that *chunk* completes.

        Raises:
            InvalidResponseError: There is more of one than the limit allows.
        """
        self._tail += chunk
        if self._is_json is None and (start := self._tail.lstrip(b"\xef\xbb\xbf \t\r\n")):
            self._is_json = start[0] in b"[{"
        if self._is_json:
            if len(self._tail) > self._limit:
                msg = f"the answer in place of a stream is larger than {self._limit:,} bytes"
                raise InvalidResponseError(msg)
            return []
        events = self._events.feed(chunk)
        if events:
            # The last event ended with the last blank line, of which the first half may have
            # come before.
            lines = _with_line_feeds(chunk)
            _, whole, rest = lines.rpartition(b"\n\n")
            self._tail = bytearray(rest if whole else lines.partition(b"\n")[2])
        return [event.data for event in events if event.data and not is_end(event.data)]

    def finish(self) -> list[bytes]:
        """Return the values that only the end of the stream completes."""
        if self._is_json:
            return self._elements()
        # An event lacks the blank line after it; or an error lacks the form of an event.
        bare = _with_line_feeds(bytes(self._tail)).strip().rpartition(b"\n\n")[2]
        unfinished = self._events.finish().removeprefix(b"data:").strip()
        return [text for text in {unfinished, bare} if _is_object(text)]

    def _elements(self) -> list[bytes]:
        try:
            value = from_json(bytes(self._tail), allow_partial=True)
        except ValueError:
            return [bytes(self._tail)]
        return [dumps(element) for element in (value if isinstance(value, list) else [value])]


def _with_line_feeds(text: bytes) -> bytes:
    return text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _is_object(text: bytes) -> bool:
    try:
        return isinstance(loads(text), dict)
    except ValueError:
        return False
