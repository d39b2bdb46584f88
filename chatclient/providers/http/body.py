"""Reads response bodies, within size limits and deadlines."""

import time
import zlib
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from typing import Any, Literal

import anyio

from chatclient._internal.decompression import Decompressor
from chatclient.errors import InvalidResponseError, RequestTimeoutError, ResponseLimitError
from chatclient.providers.http.auth import Headers
from chatclient.providers.http.limits import ResponseLimits
from chatclient.runtime.runtime import Runtime

_Limit = Literal["stream_bytes", "answer_bytes", "error_bytes"]


def received_headers(headers: Any) -> dict[str, str]:
    """Return *headers* of a response as a dict; lookups in httpx's class decode each time."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in headers.raw}


class BodyReader:
    """Reads the bodies of responses from one provider.

    If *own*, the responses are from a client of the application, whose mock transport may return
    content that is already decoded.
    """

    def __init__(self, provider: str, limits: ResponseLimits, *, own: bool) -> None:
        self._provider = provider
        self._limits = limits
        self._own = own

    def check_encoding(self, response: Any, request: Any) -> Headers:
        """Return the headers of *response* after a check of its content encoding.

        `content-encoding` is among them only if the content is encoded.

        Raises:
            InvalidResponseError: The encoding was not requested, so it may not be decodable; or
                there are several, which allow extreme compression.
        """
        received = received_headers(response.headers)
        if "content-encoding" not in received:
            return received
        encodings = response.headers.get_list("content-encoding", split_commas=True)
        used = [name for each in encodings if (name := each.strip().lower()) != "identity"]
        accepted = f"x-gzip, {request.headers.get('accept-encoding', '')}"
        requested = {name.partition(";")[0].strip() for name in accepted.split(",")}
        if len(used) <= 1 and requested.issuperset(used):
            del received["content-encoding"]
            return {**received, "content-encoding": used[0]} if used else received
        encoding = ", ".join(used)
        msg = f"{self._provider} answered in the encoding {encoding!r}, which was not asked for"
        raise InvalidResponseError(msg, provider=self._provider)

    async def read(self, response: Any, headers: Headers, runtime: Runtime, limit: _Limit) -> bytes:
        """Return the complete body; see `stream`."""
        async with aclosing(self.stream(response, headers, runtime, limit)) as pieces:
            return b"".join([piece async for piece in pieces])

    async def stream(
        self, response: Any, headers: Headers, runtime: Runtime, limit: _Limit
    ) -> AsyncGenerator[bytes, None]:
        """Yield the decoded body of *response* as it arrives, up to the *limit* of that name.

        *headers* are those of the response, from `check_encoding`.

        The body of our own transport is read directly; the methods of the response would cost more
        than the rest of this method.
        """
        size, maximum = 0, getattr(self._limits, limit)
        encoding = headers.get("content-encoding")
        unpack: Callable[[bytes], Iterable[bytes]] = _as_it_is
        if encoding in _UNPACKED and not response.is_stream_consumed:
            unpack = Decompressor(encoding).feed
            chunks = _raw(response, runtime) if self._own else response.stream
        elif self._own or encoding is not None:
            chunks = response.iter_bytes() if runtime.blocking else response.aiter_bytes()
        else:
            chunks = response.stream
        try:
            if runtime.blocking:
                for chunk in chunks:
                    for piece in unpack(chunk):
                        size += len(piece)
                        self._check_limits(runtime, size, maximum, limit)
                        yield piece
            else:
                async for chunk in chunks:
                    for piece in unpack(chunk):
                        size += len(piece)
                        self._check_limits(runtime, size, maximum, limit)
                        yield piece
        except zlib.error as error:
            msg = f"the answer of {self._provider} cannot be read: {error}"
            raise InvalidResponseError(msg, provider=self._provider) from error

    def _check_limits(self, runtime: Runtime, size: int, maximum: int, limit: _Limit) -> None:
        if size > maximum:
            msg = f"the answer of {self._provider} is larger than {maximum:,} bytes"
            raise ResponseLimitError(msg, limit=limit, maximum=maximum, provider=self._provider)
        if runtime.deadline is not None and not runtime.remaining():
            msg = f"{self._provider} did not finish in time"
            raise RequestTimeoutError(msg, provider=self._provider)


_UNPACKED = ("gzip", "x-gzip", "deflate")


def _as_it_is(chunk: bytes) -> tuple[bytes]:
    return (chunk,)


def _raw(response: Any, runtime: Runtime) -> Any:
    return response.iter_raw() if runtime.blocking else response.aiter_raw()


async def trailing_piece(
    pieces: AsyncGenerator[bytes, None], end: float, runtime: Runtime
) -> bytes | None:
    """Return the next piece after a complete answer, or None if none arrives before *end*.

    Some gateways keep the connection open after the answer, with or without sending keep-alive
    comments. A blocking request can only wait for the next piece or its read time-out.
    """
    left = end - time.monotonic()
    if left <= 0:
        return None
    if runtime.blocking:
        return await anext(pieces, None)
    with anyio.move_on_after(left):
        return await anext(pieces, None)
    return None
