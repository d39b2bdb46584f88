"""Carries events from another thread to the request that waits for it."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Protocol

Emitter = Callable[[Any], Awaitable[None]]
"""Passes one event of a stream on to its consumer."""

Item = tuple[Any, Emitter | None]
"""An event from another thread, and its emitter; None stands for that of the waiting request."""


class Inbox(Protocol):
    """A queue of events from another thread; None marks the end."""

    def put(self, item: Item | None, /) -> None:
        """Append *item*; may be called on any thread."""


# The inbox of the thread that waits for the code running here. Only the outermost emitter of a
# stream reads it, so that emitters of advisors receive an event first.
INBOX: ContextVar[Inbox | None] = ContextVar("chatclient_inbox", default=None)


class LoopInbox:
    """Passes items from another thread to a task of the running loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue[Item | None] = asyncio.Queue()

    def put(self, item: Item | None, /) -> None:
        """Append *item*; may be called on any thread."""
        with suppress(RuntimeError):  # the loop is closed: there is no waiting task
            self._loop.call_soon_threadsafe(self._items.put_nowait, item)

    async def get(self) -> Item | None:
        """Wait for the next item; None at the end."""
        return await self._items.get()


def emitter_to(inbox: Inbox) -> Emitter:
    """Return an emitter that puts events into *inbox*."""

    async def put(event: Any) -> None:
        inbox.put((event, None))

    return put


async def emit_item(item: Item, emit: Emitter) -> None:
    """Pass the event of *item* to its emitter, or to *emit* if it has none."""
    event, emitter = item
    await (emit if emitter is None else emitter)(event)
