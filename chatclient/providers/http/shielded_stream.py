"""Requests and response bodies that clean up completely even if the task is cancelled.

httpx and httpcore clean up once. If `Task.cancel()` interrupts that attempt, the connection never
returns to its pool, and counts towards its limit for ever.
"""

import asyncio
import types
from collections.abc import AsyncIterator, Coroutine, Generator, Mapping
from functools import cache
from typing import Any, TypeVar

import anyio

from chatclient.runtime.cancellation import wait_all

T = TypeVar("T")


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
