"""How Gemini's streams are framed; bytes in, JSON values out, no I/O."""

from pydantic_core import from_json

from chatclient.errors import InvalidResponseError
from chatclient.json import dumps
from chatclient.providers.fields import object_in
from chatclient.providers.sse import LARGEST_EVENT, ServerSentEventDecoder, is_end


class StreamReader:
    """Takes the bytes of a stream as they come and gives the JSON values they hold.

    A stream consists of server-sent events as a rule, but of the elements of an array where
    `alt=sse` was lost on the way; and a stream that fails ends with a bare object.

    Args:
        limit: How many bytes an event, or the array, may have.
    """

    __slots__ = ("_events", "_is_json", "_limit", "_whole")

    def __init__(self, limit: int = LARGEST_EVENT) -> None:
        self._limit = limit
        self._events = ServerSentEventDecoder(limit)
        self._is_json: bool | None = None  # until the first bytes tell
        self._whole = bytearray()  # of an array

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the values that *chunk* completes.

        Raises:
            InvalidResponseError: There is more of one than the limit allows.
        """
        if self._is_json is None and (begun := chunk.lstrip(b"\xef\xbb\xbf \t\r\n")):
            self._is_json = begun[0] in b"[{"
            chunk = begun if self._is_json else chunk
        if self._is_json:
            self._whole += chunk
            if len(self._whole) > self._limit:
                msg = f"the answer in place of a stream is larger than {self._limit:,} bytes"
                raise InvalidResponseError(msg)
            return []
        events = self._events.feed(chunk)
        return [data for data, _ in events if data and not is_end(data)]

    def finish(self) -> list[bytes]:
        """Return the values that only the end of the stream completes."""
        if self._is_json:
            return self._elements()
        # An event that lacks the blank line after it, or an error that lacks the form of an event.
        rest = self._events.finish().strip()
        return [] if object_in(rest) is None else [rest]

    def _elements(self) -> list[bytes]:
        try:
            value = from_json(bytes(self._whole), allow_partial=True)
        except ValueError:
            return [bytes(self._whole)]
        return [dumps(element) for element in (value if isinstance(value, list) else [value])]
