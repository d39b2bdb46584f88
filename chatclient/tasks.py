"""What asyncio's tasks need to be waited for, and to be forgotten, in every situation."""

import asyncio
from collections.abc import Awaitable, Collection
from typing import Any, TypeVar

import anyio

T = TypeVar("T")


async def to_its_end(awaitable: Awaitable[T]) -> T:
    """Await *awaitable* in a task of its own; a cancellation waits until it is done."""
    work = asyncio.ensure_future(awaitable)
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await ended([work])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return work.result()
    work.exception()  # nobody is left to be told
    raise cancelled


async def ended(tasks: Collection["asyncio.Future[Any]"]) -> None:
    """Wait until all of *tasks* are done, even in a scope of anyio that was cancelled.

    Such a scope, Starlette's when a client has gone for one, cancels all awaits inside it, not one.
    """
    with anyio.CancelScope(shield=True):
        await asyncio.wait(tasks)


def look_at_error(task: "asyncio.Future[Any]") -> None:
    """Keep asyncio from reporting an error that nobody waits for any more."""
    if not task.cancelled():
        task.exception()
