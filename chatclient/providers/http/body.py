"""Reads response bodies within limits, and cleans up completely even if the task is cancelled.

httpx and httpcore clean up once. If `Task.cancel()` interrupts that attempt, the connection never
returns to its pool, and counts towards its limit for ever.
"""

import asyncio
import time
import types
import zlib
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Mapping,
)
from contextlib import aclosing
from functools import cache
from typing import Any, Literal, TypeVar

import anyio

from chatclient._internal.decompression import Decompressor
from chatclient.errors import InvalidResponseError, RequestTimeoutError, ResponseLimitError
from chatclient.providers.http.auth import Headers
from chatclient.providers.http.limits import ResponseLimits
from chatclient.runtime.cancellation import wait_all
from chatclient.runtime.runtime import Runtime

_Limit = Literal["stream_bytes", "answer_bytes", "error_bytes"]

T = TypeVar("T")


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
            chunks = (
                (response.iter_raw() if runtime.blocking else response.aiter_raw())
                if self._own
                else response.stream
            )
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


async def shielded_send(sending: Coroutine[Any, Any, Any], request: Any) -> Any:
    """Return the response of *sending*, with a body as of `shielded_stream`.

    A cancellation interrupts *sending* once, and a second one does not interrupt its cleanup.

    Args:
        sending: Sends *request*; a coroutine that has not been started.
        request: The request, of httpx or httpx2.
    """
    handshake = _Handshake()
    if request.url.scheme == "https":
        request.extensions.setdefault("trace", handshake)
    try:
        response, cancelled = await _run(sending, cancellable=True)
    except BaseException:
        await handshake.close()
        raise
    response.stream = shielded_stream(response.stream)
    if cancelled is not None:
        await response.aclose()
        raise cancelled
    return response


class _Handshake:
    """Closes a connection whose TLS handshake was cancelled, which httpcore does not."""

    __slots__ = ("_connection",)

    def __init__(self) -> None:
        self._connection: Any = None

    async def __call__(self, event: str, info: Mapping[str, Any]) -> None:
        """Handle an event of httpcore's `trace` extension."""
        if event.endswith("connect_tcp.complete"):
            self._connection = info["return_value"]
        elif event.endswith("start_tls.complete"):
            self._connection = None

    async def close(self) -> None:
        if self._connection is not None:
            await _close(self._connection)


def shielded_stream(stream: Any) -> Any:
    """Return *stream*, an async response body, whose cleanup cannot be interrupted."""
    for kind in type(stream).__mro__:  # of httpx or httpx2
        if kind.__name__ == "AsyncByteStream":
            return _shielded_kind(kind)(stream)
    return stream


@cache
def _shielded_kind(kind: type) -> type:
    class ShieldedStream(kind):  # type: ignore[misc]  # known at run time only
        def __init__(self, stream: Any) -> None:
            self._stream = stream

        def __aiter__(self) -> AsyncIterator[bytes]:
            return _ShieldedIterator(self._stream.__aiter__())

        async def aclose(self) -> None:
            await _close(self._stream)

    return ShieldedStream


class _ShieldedIterator(AsyncIterator[bytes]):
    """Iterates over a body, which cleans up when reading fails or is cancelled."""

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator

    async def __anext__(self) -> bytes:
        piece: bytes
        piece, cancelled = await _run(self._iterator.__anext__(), cancellable=True)
        if cancelled is not None:
            raise cancelled
        return piece


async def _close(stream: Any) -> None:
    cancelled: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        _, cancelled = await _run(stream.aclose(), cancellable=False)
    if cancelled is not None:
        raise cancelled


@types.coroutine
def _run(
    work: Coroutine[Any, Any, T], *, cancellable: bool
) -> Generator[Any, Any, tuple[T, asyncio.CancelledError | None]]:
    """Return the result of *work*, and a cancellation that was not passed on to it.

    *work* runs in the current task, and what it waits for is yielded to the event loop. A separate
    task would cost more than most calls.

    Args:
        work: Has no time-outs if it is not cancellable.
        cancellable: Whether the first cancellation is passed on. It waits until *work* waits for
            something: httpcore loses a connection that is cancelled before it is opened.

    Raises:
        CancelledError: The task was cancelled, and *work* did not return.
    """
    held: asyncio.CancelledError | None = None
    thrown: asyncio.CancelledError | None = None
    try:
        while True:
            try:
                awaited = work.send(None) if thrown is None else work.throw(thrown)
            except StopIteration as stop:
                return stop.value, _unless_of_scope(held)
            except Exception as error:
                if (cancelled := _unless_of_scope(held)) is None:
                    raise
                raise cancelled from error
            thrown = None
            try:
                if cancellable and held is None:
                    yield awaited
                else:
                    yield from _wait_for(awaited, held, cancellable=cancellable).__await__()
            except asyncio.CancelledError as error:
                if not cancellable or (awaited is None and held is None):
                    held = error
                else:
                    thrown, held = error, None
                    cancellable = _unless_of_scope(error) is None
            except Exception:  # noqa: BLE001, S110 - `work` reads it from what it waited for
                pass
    finally:
        work.close()


async def _wait_for(
    awaited: Any, held: asyncio.CancelledError | None, *, cancellable: bool
) -> None:
    """Wait for what a coroutine has yielded: a future, or None for one step of the loop.

    A future is cancelled only if it is *cancellable* and a cancellation was *held* back before.
    """
    if awaited is None:
        await asyncio.sleep(0)
        return
    awaited._asyncio_future_blocking = False  # noqa: SLF001 - as tasks do
    if not cancellable:
        await wait_all([awaited])
        return
    if held is not None:
        awaited.cancel(*held.args)
    await awaited


def _unless_of_scope(error: asyncio.CancelledError | None) -> asyncio.CancelledError | None:
    """Return *error*, or None if it is from a cancelled scope of anyio.

    Scopes cancel for time-outs and races, so the task may continue; if not, they cancel again.
    """
    is_of_scope = error is not None and any("cancel scope" in str(each) for each in error.args)
    return None if is_of_scope else error
