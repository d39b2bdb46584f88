"""How events get from code on another thread to the request that waits for it."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Protocol

Emitter = Callable[[Any], Awaitable[None]]
"""Takes one event of a stream towards the consumer."""

Item = tuple[Any, Emitter | None]
"""An event of code on another thread, and where it goes if not to whoever waits for that code."""


class Inbox(Protocol):
    """Takes events, and None for the end, from another thread."""

    def put(self, item: Item | None, /) -> None:
        """Take *item*, on whichever thread."""


# Where events of code on another thread go while the request's own thread waits for it. Only what
# a stream ends in looks there: emitters of advisors further in see an event first.
INBOX: ContextVar[Inbox | None] = ContextVar("chatclient_inbox", default=None)


class LoopInbox:
    """Hands items from another thread to a task of the loop that is running here."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue[Item | None] = asyncio.Queue()

    def put(self, item: Item | None, /) -> None:
        """Take *item*, on whichever thread."""
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._items.put_nowait, item)

    async def get(self) -> Item | None:
        """Return what came next, None at the end."""
        return await self._items.get()
