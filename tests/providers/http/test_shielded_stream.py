"""Cancellation of requests and response bodies, step by step."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import httpx
import pytest

from chatclient.providers.http.body import shielded_send, shielded_stream
from tests.support.waiting import LONG

REQUEST = httpx.Request("POST", "http://127.0.0.1")


class Body(httpx.AsyncByteStream):
    """A body that records whether it was closed."""

    def __init__(self, read: Callable[[], Awaitable[None]] | None = None) -> None:
        self.closed = False
        self._read = read

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._read is not None:
            await self._read()
        yield b"x"

    async def aclose(self) -> None:
        self.closed = True


async def cancelled_after(work: Any, *steps: int) -> BaseException | None:
    """Cancel *work* after so many steps of the loop, each; return the error that it raised."""
    task = asyncio.ensure_future(work)
    for count in steps:
        for _ in range(count):
            await asyncio.sleep(0)
        task.cancel()
    await asyncio.wait([task])
    return asyncio.CancelledError() if task.cancelled() else task.exception()


async def test_cleanup_is_cancelled_once() -> None:
    """The second cancellation waits until the first one has been handled."""
    steps: list[str] = []

    async def send() -> httpx.Response:
        try:
            await asyncio.sleep(10)
        finally:
            await asyncio.sleep(0)
            await asyncio.sleep(0.001)
            steps.append("cleaned up")
        raise AssertionError

    error = await cancelled_after(shielded_send(send(), REQUEST), 2, 1, 1)

    assert isinstance(error, asyncio.CancelledError)
    assert steps == ["cleaned up"]


async def test_cancellation_at_a_checkpoint_is_delivered_at_the_next_wait() -> None:
    """A connection that is assigned but not opened would be lost."""
    steps: list[str] = []

    async def send() -> httpx.Response:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        steps.append("opened")
        await asyncio.sleep(10)
        raise AssertionError

    error = await cancelled_after(shielded_send(send(), REQUEST), 1)

    assert isinstance(error, asyncio.CancelledError)
    assert steps == ["opened"]


async def test_response_of_a_cancelled_request_is_closed() -> None:
    """The headers may arrive in the step of the cancellation."""
    body = Body()

    async def send() -> httpx.Response:
        await asyncio.sleep(0)
        return httpx.Response(200, stream=body)

    error = await cancelled_after(shielded_send(send(), REQUEST), 1)

    assert isinstance(error, asyncio.CancelledError)
    assert body.closed


async def test_failure_is_the_cause_of_the_cancellation() -> None:
    """A request that fails in the step of its cancellation was cancelled."""

    async def send() -> httpx.Response:
        await asyncio.sleep(0)
        raise OSError

    task = asyncio.ensure_future(shielded_send(send(), REQUEST))
    await asyncio.sleep(0)
    task.cancel()

    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert isinstance(caught.value.__cause__, OSError)


async def test_timeouts_do_not_use_up_the_cancellation() -> None:
    """Timeouts and races of anyio cancel the task, and the request continues."""
    timed_out = asyncio.Event()

    async def send() -> httpx.Response:
        with anyio.move_on_after(0.001):
            await asyncio.sleep(10)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await anyio.lowlevel.checkpoint()
        timed_out.set()
        await asyncio.sleep(10)
        raise AssertionError

    task = asyncio.ensure_future(shielded_send(send(), REQUEST))
    await timed_out.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, LONG)


async def test_cancelled_scope_ends_the_request() -> None:
    """Starlette cancels a scope around the request when its client disconnects."""

    async def send() -> httpx.Response:
        await anyio.lowlevel.checkpoint()
        await asyncio.sleep(10)
        raise AssertionError

    with anyio.fail_after(LONG), anyio.CancelScope() as scope:
        scope.cancel()
        await shielded_send(send(), REQUEST)

    assert scope.cancelled_caught


async def test_errors_of_awaited_futures_are_passed_on() -> None:
    """The request handles the error of what it waits for."""
    body = Body()

    async def send() -> httpx.Response:
        future = asyncio.get_running_loop().create_future()
        future.set_exception(OSError())
        with pytest.raises(OSError):  # noqa: PT011
            await asyncio.shield(future)
        return httpx.Response(200, stream=body)

    response = await shielded_send(send(), REQUEST)

    assert [piece async for piece in response.stream] == [b"x"]


async def test_reading_can_be_cancelled_at_a_checkpoint() -> None:
    """The piece that has been read is dropped with the body."""

    async def read() -> None:
        await asyncio.sleep(0)

    iterator = shielded_stream(Body(read)).__aiter__()

    error = await cancelled_after(iterator.__anext__(), 1)

    assert isinstance(error, asyncio.CancelledError)
