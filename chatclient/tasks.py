"""What asyncio's tasks need to be waited for, and to be forgotten, in every situation."""

import asyncio
import time
from collections.abc import Collection, Coroutine
from typing import Any, TypeVar

import anyio

T = TypeVar("T")


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Await *work* in a task of its own; a cancellation waits until it is done.

    So does the end of the loop, which cancels all tasks that it knows of: of this one it does not.
    It ends before the task that waits for it, which the loop knows.

    Raises:
        CancelledError: (then) it was cancelled; the cause is what *work* failed of, if it did.
    """
    task = asyncio.get_running_loop().create_task(work)
    asyncio._unregister_task(task)  # noqa: SLF001 - documented, for tasks of other makers
    try:
        await ended([task])
    except asyncio.CancelledError as cancelled:
        raise cancelled from error_of(task)
    return task.result()


async def ended(tasks: Collection["asyncio.Future[Any]"], end: float | None = None) -> None:
    """Wait until all of *tasks* are done, however often whoever waits is cancelled meanwhile.

    At the latest until *end*, a time on the clock of `time.monotonic`.

    Also in a cancelled scope of anyio, Starlette's when a client has gone for one: that cancels all
    awaits inside it, not one.

    Raises:
        CancelledError: (then) it was cancelled; nobody is left to be told how the tasks ended.
    """
    cancelled: asyncio.CancelledError | None = None
    left: float | None = None
    while not all(task.done() for task in tasks):
        if end is not None:
            left = end - time.monotonic()
            if left <= 0:
                break
        try:
            with anyio.CancelScope(shield=True):
                await asyncio.wait(tasks, timeout=left)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        for task in tasks:
            look_at_error(task)
        raise cancelled


def error_of(task: "asyncio.Future[Any]") -> BaseException | None:
    """Return what *task* has failed of, if it did."""
    return None if task.cancelled() or not task.done() else task.exception()


def look_at_error(task: "asyncio.Future[Any]") -> None:
    """Keep asyncio from reporting an error that nobody waits for any more."""
    error_of(task)
