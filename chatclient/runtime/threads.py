"""Threads for blocking requests: event loops, calls with a timeout, and events from a thread."""

import asyncio
import functools
import inspect
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from types import GeneratorType
from typing import Any, Generic, Protocol, TypeGuard, TypeVar, cast

from chatclient.runtime.fork_safety import in_forked_children

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


T = TypeVar("T")

_CLEANUP_SECONDS = 5.0  # maximum time for the cleanup of a cancelled coroutine on a private loop


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether *function*, which may be a partial or a callable object, is `async def`."""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - the method is wanted, not the fact
    )


def is_of_library(function: object) -> bool:
    """Return whether *function* is this library's own, which never blocks."""
    module = getattr(function, "__module__", None) or type(function).__module__
    return module.partition(".")[0] == __name__.partition(".")[0]


def is_awaitable(value: object) -> TypeGuard[Awaitable[Any]]:
    """Return whether *value* is awaitable.

    Faster than `inspect.isawaitable`, whose check against an abstract class is slow.
    """
    may_be = hasattr(value, "__await__") or isinstance(value, GeneratorType)
    return may_be and inspect.isawaitable(value)


def call_in_thread(function: Callable[..., Any], args: tuple[Any, ...], timeout: float) -> Any:
    """Call *function* in a thread, which is abandoned after *timeout* seconds."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(function(*args))
        except BaseException as error:  # noqa: BLE001 - re-raised to the caller
            future.set_exception(error)

    threading.Thread(target=copy_context().run, args=(run,), daemon=True).start()
    return future.result(timeout)


class LoopThread:
    """An event loop in a daemon thread.

    The private loops, which run the asynchronous parts of blocking requests, live as long as the
    process, so that connection pools of asynchronous tools stay usable from one call to the next.
    """

    def __init__(self, name: str = "chatclient-loop") -> None:
        # In a new context: the loop would keep that of the first request alive.
        context = Context()
        self._loop = context.run(asyncio.new_event_loop)
        self.thread = threading.Thread(
            target=context.run, args=(self._run,), name=name, daemon=True
        )
        self.thread.start()

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.run_until_complete(_cancel_other_tasks())
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    @property
    def alive(self) -> bool:
        """Whether the thread runs; it does not in a forked child."""
        return self.thread.is_alive()

    def close(self) -> None:
        """Stop the loop and its thread; running tasks are cancelled."""
        if self.alive:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self.thread.join()

    def soon(self, function: Callable[[], object], context: Context | None = None) -> None:
        """Schedule *function* on the loop; may be called on any thread."""
        self._loop.call_soon_threadsafe(function, context=context)

    def create_task(self, coroutine: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Start *coroutine* as a task; must be called on the loop's thread."""
        return self._loop.create_task(coroutine)


async def _cancel_other_tasks() -> None:
    """Cancel all other tasks of this loop, so that threads waiting for them are released."""
    end = time.monotonic() + _CLEANUP_SECONDS
    while (others := asyncio.all_tasks() - {asyncio.current_task()}) and time.monotonic() < end:
        for task in others:
            task.cancel()
        await asyncio.wait(others, timeout=end - time.monotonic())


class Work(Generic[T]):
    """An awaitable that runs on another thread's loop while this thread waits for it."""

    def __init__(
        self,
        loop: LoopThread,
        awaitable: Awaitable[T],
        context: Context,
        notify: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._awaitable = awaitable
        self._notify = notify
        self._done = threading.Event()
        self._task: asyncio.Task[T] | None = None
        self._interrupt: BaseException | None = None
        self._interrupted = False
        loop.soon(self._start, context)

    def interrupt(self) -> None:
        """Cancel the work without waiting for its cleanup; repeated calls have no effect."""
        if not self._interrupted:
            self._interrupted = True
            self._loop.soon(self._cancel)

    def cancel(self) -> None:
        """Cancel the work and wait for its cleanup, for a few seconds at most."""
        self._loop.soon(self._cancel)
        self._done.wait(_CLEANUP_SECONDS)

    def result(self) -> T:
        """Return the result of the finished work, or raise its error."""
        if self._interrupt is not None:
            raise self._interrupt
        return cast("asyncio.Task[T]", self._task).result()

    def _start(self) -> None:
        self._task = self._loop.create_task(self._run())
        self._task.add_done_callback(self._finish)

    async def _run(self) -> T:
        try:
            return await self._awaitable
        except (KeyboardInterrupt, SystemExit) as error:
            # Raised in a task, they would stop the loop, which later requests use.
            self._interrupt = error
            raise asyncio.CancelledError from error

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _finish(self, _task: "asyncio.Task[T]") -> None:
        if inspect.iscoroutine(self._awaitable):
            self._awaitable.close()  # it may have been cancelled before it was started
        self._done.set()
        self._notify()


_lock = threading.Lock()
_loops: list[LoopThread] = []


# How many private loops may wait for the present code, which may run in a thread of a tool.
_depth: ContextVar[int] = ContextVar("chatclient_private_loops", default=0)


def private_loop(context: Context) -> LoopThread:
    """Return the private loop for work in *context*, and record its depth there.

    An asynchronous tool may make a blocking call, which blocks its loop; the asynchronous tools of
    that call would deadlock on the same loop. Therefore each level of nesting has its own loop.
    """
    here = threading.current_thread()
    with _lock:
        on_loop = next((i + 1 for i, loop in enumerate(_loops) if loop.thread is here), 0)
        depth = max(_depth.get(), on_loop)  # code on a loop may run in another context
        while depth >= len(_loops):
            _loops.append(LoopThread())
        loop = _loops[depth]
    context.run(_depth.set, depth + 1)
    return loop


def _forget_loops() -> None:
    """Drop the loops in a forked child, where their threads do not run."""
    global _lock  # noqa: PLW0603 - the parent may have held the lock while forking
    _lock = threading.Lock()
    _loops.clear()


in_forked_children(_forget_loops)
