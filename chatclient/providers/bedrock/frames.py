"""Splits streams of AWS into messages; no I/O.

Source: https://docs.aws.amazon.com/transcribe/latest/dg/streaming-setting-up.html, "Event stream
encoding". botocore checks and decodes the messages; it would copy a large one with every piece.
"""

import struct
from typing import Any

from chatclient._internal.json import dumps
from chatclient.errors import InvalidResponseError, ResponseLimitError
from chatclient.providers.bedrock.encoding import PROVIDER
from chatclient.providers.http.limits import LIMITS
from chatclient.providers.http.sse import ServerSentEvent

_PRELUDE = 12  # bytes: lengths of message and headers, and their checksum
_TEXT = b"\t"  # Text begins with this byte or a later one; lengths of 144 MiB and more do, too.

ERROR = "error:"
"""The start of the name of an event that reports an error."""


def is_text(data: bytes | bytearray) -> bool:
    """Return whether *data* is text, such as JSON, and not the beginning of a message."""
    return data[:1] >= _TEXT


class MessageSplitter:
    """Splits a stream of AWS into events, whose data is JSON; an `EventSplitter`."""

    __slots__ = ("_rest", "is_event_stream", "limit")

    def __init__(self, limit: int = LIMITS.event_bytes) -> None:
        self.limit = limit
        self.is_event_stream = False
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """Return the events that *chunk* completes.

        Raises:
            InvalidResponseError: The stream is damaged.
            ResponseLimitError: A message is longer than the limit.
        """
        self._rest += chunk
        events: list[ServerSentEvent] = []
        start = 0
        while len(self._rest) - start >= _PRELUDE:
            size = int.from_bytes(self._rest[start : start + 4])
            if is_text(self._rest) and not self.is_event_stream:
                break  # the server has answered with something else
            if size > self.limit:
                msg = f"a message of the stream is larger than {self.limit:,} bytes"
                raise ResponseLimitError(
                    msg, limit="event_bytes", maximum=self.limit, provider=PROVIDER
                )
            self.is_event_stream = True
            if len(self._rest) - start < size:
                break
            # At least the prelude, with whose checksum botocore refuses a wrong length.
            end = start + max(size, _PRELUDE)
            events.append(_decoded(bytes(self._rest[start:end])))
            start = end
        del self._rest[:start]
        return events

    def finish(self) -> bytes:
        """Return the bytes of an unfinished message, or of what is no event stream."""
        return bytes(self._rest)


def _decoded(message: bytes) -> ServerSentEvent:
    """Return the event in the bytes of a message.

    Raises:
        InvalidResponseError: A checksum, a length or a header is wrong.
    """
    from botocore.eventstream import EventStreamBuffer, ParserError  # noqa: PLC0415 - an extra

    buffer: Any = EventStreamBuffer()
    try:
        buffer.add_data(message)
        found = next(buffer)
    # After valid checksums, botocore expects valid headers.
    except (ParserError, struct.error, ValueError, LookupError, StopIteration) as error:
        msg = f"{PROVIDER} sent a damaged stream: {error}"
        raise InvalidResponseError(msg, provider=PROVIDER) from error
    return _event(found.headers, found.payload)


def _event(headers: dict[str, Any], payload: bytes) -> ServerSentEvent:
    match headers.get(":message-type"):
        case "error":
            message = {"message": headers.get(":error-message", "")}
            return dumps(message), f"{ERROR}{headers.get(':error-code', '')}"
        case "exception":
            return payload, f"{ERROR}{headers.get(':exception-type', '')}"
        case _:
            return payload, str(headers.get(":event-type", ""))
