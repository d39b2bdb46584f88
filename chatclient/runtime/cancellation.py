"""Cancellation of requests: waiting for tasks despite it, deadlines, and effects to undo."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import anyio
import sniffio

from chatclient.errors import DeadlineExceededError, UsageError

T = TypeVar("T")

_GRACE = 0.1  # seconds after the deadline for code that raises its own error at the deadline


class Cancellation:
    """Whether a request was cancelled, or the consumer has left its stream.

    A tool, an advisor or a model may catch `CancelledError` and return; asyncio then continues the
    task. The request checks this flag before each step, so that nothing starts after that.
    """

    __slots__ = ("requested",)

    def __init__(self) -> None:
        self.requested = False


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the running event loop.

    Raises:
        UsageError: The loop is not asyncio's, but that of trio, for example.
        RuntimeError: No loop is running.
    """
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        with suppress(sniffio.AsyncLibraryNotFoundError):
            library = sniffio.current_async_library()
            msg = (
                f"asynchronous requests need asyncio, and this code runs under {library}; use the "
                f"blocking methods in a thread there, such as with {library}.to_thread.run_sync()"
            )
            raise UsageError(msg) from None
        raise


async def run_request(work: Coroutine[Any, Any, T], cancellation: Cancellation) -> T:
    """Await *work* in a new task and record a cancellation of the present one in *cancellation*.

    This happens before *work*, which may catch it, is cancelled. Returns when *work* has ended.

    Raises:
        CancelledError: The waiting task was cancelled.
    """
    try:
        task = running_loop().create_task(work)
    except BaseException:
        work.close()
        raise
    try:
        # Without the shield, *work* would be cancelled before this task could record it.
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            cancellation.requested = True
            task.cancel()
            await wait_all([task])
            task.result()  # raises its error, or the CancelledError with its cause
        raise


async def run_shielded(work: Coroutine[Any, Any, T]) -> T:
    """Await *work* in a new task, and delay a cancellation until it is done.

    `asyncio.run` cancels all registered tasks at its end; the new task is unregistered, and the
    waiting one, which is registered, ends after it.

    Raises:
        CancelledError: The waiting task was cancelled; the cause is the error of *work*, if any.
    """
    task = asyncio.get_running_loop().create_task(work)
    asyncio._unregister_task(task)  # noqa: SLF001 - documented, for other task implementations
    try:
        await wait_all([task])
    except asyncio.CancelledError as cancelled:
        raise cancelled from error_of(task)
    return task.result()


async def wait_all(tasks: Collection["asyncio.Future[Any]"], end: float | None = None) -> None:
    """Wait until all *tasks* are done, even if the waiting task is cancelled several times.

    A shielded scope protects the wait from a cancelled scope of anyio, which cancels every await
    inside it; Starlette cancels one when a client disconnects.

    Args:
        tasks: Tasks and futures.
        end: The latest time to wait until, on the clock of `time.monotonic`; None for no limit.

    Raises:
        CancelledError: The waiting task was cancelled; the errors of *tasks* are dropped.
    """
    cancelled: asyncio.CancelledError | None = None
    left: float | None = None
    while not all(task.done() for task in tasks):
        if end is not None:
            left = end - time.monotonic()
            if left <= 0:
                break
        try:
            # In a loop, because the waiting task may be cancelled several times.
            with anyio.CancelScope(shield=True):
                await asyncio.wait(tasks, timeout=left)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        for task in tasks:
            consume_error(task)
        raise cancelled


def error_of(task: "asyncio.Future[Any]") -> BaseException | None:
    """Return the error that *task* failed with, or None."""
    return None if task.cancelled() or not task.done() else task.exception()


def consume_error(task: "asyncio.Future[Any]") -> None:
    """Keep asyncio from logging that the error of *task* was never retrieved."""
    error_of(task)


async def cancel_after(seconds: float, awaitable: Awaitable[T], waited_for: Callable[[], str]) -> T:
    """Await *awaitable*, and cancel it shortly after *seconds*.

    Raises:
        DeadlineExceededError: The time has passed; the message contains *waited_for*.
    """
    scope = asyncio.timeout(seconds + _GRACE)
    try:
        async with scope:
            return await awaitable
    except TimeoutError as error:
        if not scope.expired():
            raise
        msg = f"the deadline passed, and {waited_for()} was cancelled"
        raise DeadlineExceededError(msg) from error


class Undoable(Protocol):
    """An effect of a request that can be undone, such as the tool calls of a turn."""

    async def undo(self) -> None:
        """Undo the effect as far as possible, without raising errors."""
        ...


class UndoLog:
    """The effects of a request since it last kept some; undone if the request fails.

    Attributes:
        effects: The effects, in their order; a log is one if its request was part of another one.
    """

    def __init__(self, effects: Iterable[Undoable] = ()) -> None:
        self.effects = [*effects]

    def settle(self) -> None:
        """Keep the effects so far, even if the request fails later."""
        self.effects.clear()

    def hand_over(self, outer: "UndoLog | None") -> None:
        """Let the request of *outer*, which this one is part of, undo the effects if it fails.

        Without such a request they are kept.
        """
        if self.effects and outer is not None:
            outer.effects.append(UndoLog(self.effects))
        self.settle()  # also breaks the reference cycle of the undo records

    async def undo(self) -> None:
        """Undo the effects in reverse order, even if the request is cancelled during that."""
        while self.effects:
            # Removed first, so that an effect whose undoing is interrupted is not undone twice.
            await self.effects.pop().undo()
