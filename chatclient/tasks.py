"""What asyncio's tasks need to be waited for, and to be forgotten, in every situation."""

import asyncio
import time
from collections.abc import Awaitable, Collection
from typing import Any, TypeVar

import anyio

T = TypeVar("T")


async def to_its_end(awaitable: Awaitable[T]) -> T:
    """Await *awaitable* in a task of its own; a cancellation waits until it is done."""
    work = asyncio.ensure_future(awaitable)
    await ended([work])
    return work.result()


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


def look_at_error(task: "asyncio.Future[Any]") -> None:
    """Keep asyncio from reporting an error that nobody waits for any more."""
    if task.done() and not task.cancelled():
        task.exception()
