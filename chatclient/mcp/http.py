"""A transport for servers over streamable HTTP, which counts what they send."""

import zlib
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any

import httpx2
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client  # the SDK has no other place for it

from chatclient._internal.decompression import Decompressor
from chatclient.mcp.login import Login
from chatclient.mcp.oauth import McpOAuth

_ENCODINGS = "gzip, deflate"
_REFUSALS = (401, 403)  # of the user, not of the request
_GRACE = 10.0  # seconds after which the call's own timeout has ended it


class HttpTransport:
    """A streamable HTTP transport with its own HTTP client, which is closed with it.

    Args:
        url: The URL of the server.
        headers: Sent with every request.
        auth: An `httpx2.Auth`, the settings of a login, or None.
        most: Bytes of a message of the server, unpacked.
    """

    def __init__(self, url: str, headers: dict[str, str], auth: Any, most: int) -> None:
        self._url = url
        self._most = most
        self.login = Login(url, auth) if isinstance(auth, McpOAuth) else None
        auth = auth if self.login is None else self.login.auth
        self._http = create_mcp_http_client(headers=headers, auth=auth)
        self._http.headers["accept-encoding"] = _ENCODINGS
        self._http.event_hooks = {"response": [self._record_refusal, self._limit]}
        self._open = AsyncExitStack()
        self.refusal: int | None = None
        """The status of the last response if it rejects the user, or None."""

    def set_read_timeout(self, seconds: float | None) -> None:
        """Allow *seconds* for a response, or any time with None.

        Servers need not send anything until then, and on a timeout the SDK would close the
        connection with all pending calls.
        """
        usual = self._http.timeout
        least = usual.read or 0.0  # also for idle streams
        read = None if seconds is None else max(least, seconds + _GRACE)
        self._http.timeout = (usual.connect, read, usual.write, usual.pool)

    async def __aenter__(self) -> Any:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._http)
            streams = await stack.enter_async_context(
                streamable_http_client(
                    self._url, http_client=self._http, max_sse_event_size=self._most
                )
            )
            self._open = stack.pop_all()
        return streams

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> Any:
        return await self._open.__aexit__(kind, error, traceback)

    async def _record_refusal(self, response: Any) -> None:
        self.refusal = response.status_code if response.status_code in _REFUSALS else None

    async def _limit(self, response: httpx2.Response) -> None:
        """Unpack and count the body of *response* while it is read.

        The HTTP library may unpack several encodings, and the SDK reads a body completely.
        """
        names = response.headers.get("content-encoding", "").lower().split(",")
        encodings = [name for each in names if (name := each.strip()) not in ("", "identity")]
        unpack: Callable[[bytes], Iterable[bytes]] = lambda chunk: (chunk,)  # noqa: E731
        if encodings:
            if len(encodings) > 1 or encodings[0] not in (*_ENCODINGS.split(", "), "x-gzip"):
                msg = f"the encoding {', '.join(encodings)!r} was not asked for"
                raise httpx2.StreamError(msg)
            unpack = Decompressor(encodings[0]).feed
            del response.headers["content-encoding"]
        # A stream has no end; the SDK counts its events.
        is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
        most = float("inf") if is_stream else self._most
        response.stream = _CountedStream(response.stream, unpack, most)


class _CountedStream(httpx2.AsyncByteStream):
    """A body that is unpacked, up to a number of bytes."""

    def __init__(
        self, stream: Any, unpack: Callable[[bytes], Iterable[bytes]], most: float
    ) -> None:
        self._stream = stream
        self._unpack = unpack
        self._most = most

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        try:
            async for chunk in self._stream:
                for piece in self._unpack(chunk):
                    size += len(piece)
                    if size > self._most:
                        msg = f"the message exceeded the {self._most} byte limit"
                        raise httpx2.StreamError(msg)
                    yield piece
        except zlib.error as error:
            msg = f"the message cannot be unpacked: {error}"
            raise httpx2.StreamError(msg) from error

    async def aclose(self) -> None:
        await self._stream.aclose()
