"""Threads that a blocking request needs: loops for what is asynchronous, and time-outs."""

import asyncio
import functools
import inspect
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextvars import Context, ContextVar, copy_context
from types import GeneratorType
from typing import Any, Generic, TypeGuard, TypeVar, cast

from chatclient.forks import in_forked_children

T = TypeVar("T")

_GRACE = 5.0  # seconds a cancelled coroutine on a private loop gets to clean up


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether calling *function* gives a coroutine, also for partials and callables."""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - the method is wanted, not the fact
    )


def is_awaitable(value: object) -> TypeGuard[Awaitable[Any]]:
    """Return whether *value*, which some function has returned, is to be awaited.

    As `inspect.isawaitable`, but without its abstract class for what cannot be: to ask that takes
    longer than many a function.
    """
    may_be = hasattr(value, "__await__") or isinstance(value, GeneratorType)
    return may_be and inspect.isawaitable(value)


def call_in_thread(function: Callable[..., Any], args: tuple[Any, ...], timeout: float) -> Any:
    """Call *function* in a thread that is abandoned when *timeout* has passed."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(function(*args))
        except BaseException as error:  # noqa: BLE001 - it belongs to the caller
            future.set_exception(error)

    threading.Thread(target=copy_context().run, args=(run,), daemon=True).start()
    return future.result(timeout)


class LoopThread:
    """An event loop in a daemon thread, for what is asynchronous while its callers may block.

    The private ones, for the asynchronous parts of blocking requests, live as long as the process:
    connection pools that a user's tools open on them stay usable from one call to the next.
    """

    def __init__(self, name: str = "chatclient-loop") -> None:
        # In a context of its own: that of the request that happens to need it first would be kept
        # alive, with all that it holds.
        context = Context()
        self._loop = context.run(asyncio.new_event_loop)
        self.thread = threading.Thread(
            target=context.run, args=(self._run,), name=name, daemon=True
        )
        self.thread.start()

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.run_until_complete(_cancel_the_rest())
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    @property
    def alive(self) -> bool:
        """Whether it runs; the copy in a forked child does not."""
        return self.thread.is_alive()

    def close(self) -> None:
        """End the loop and its thread; what still runs on it is cancelled."""
        if self.alive:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self.thread.join()

    def soon(self, function: Callable[[], object], context: Context | None = None) -> None:
        """Call *function* on the loop's thread."""
        self._loop.call_soon_threadsafe(function, context=context)

    def create_task(self, coroutine: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Begin *coroutine*; to be called on the loop's thread."""
        return self._loop.create_task(coroutine)


async def _cancel_the_rest() -> None:
    """Cancel all other tasks of this loop, so that nobody waits for them for ever."""
    end = time.monotonic() + _GRACE
    while (rest := asyncio.all_tasks() - {asyncio.current_task()}) and time.monotonic() < end:
        for task in rest:
            task.cancel()
        await asyncio.wait(rest, timeout=end - time.monotonic())


class Work(Generic[T]):
    """Something that runs on a private loop while another thread waits for it."""

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
        """Cancel it, without waiting for it to clean up: once, however many jobs say so."""
        if not self._interrupted:
            self._interrupted = True
            self._loop.soon(self._cancel)

    def cancel(self) -> None:
        """Cancel it, and wait a while for it to clean up."""
        self._loop.soon(self._cancel)
        self._done.wait(_GRACE)

    def result(self) -> T:
        """Return what it came to, once it is done."""
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
            # Raised in a task they would end the loop, on which later requests count.
            self._interrupt = error
            raise asyncio.CancelledError from error

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _finish(self, _task: "asyncio.Task[T]") -> None:
        if inspect.iscoroutine(self._awaitable):
            self._awaitable.close()  # it may have been cancelled before it began
        self._done.set()
        self._notify()


_lock = threading.Lock()
_loops: list[LoopThread] = []


# How many of the loops may be waiting for the code that runs here, also in threads of a tool's own.
_depth: ContextVar[int] = ContextVar("chatclient_private_loops", default=0)


def private_loop(context: Context) -> LoopThread:
    """Return the private loop for work in *context*, which is marked as being on it.

    An asynchronous tool may make a blocking call whose tools are asynchronous again, and run in
    threads: waiting for them on the loop that waits would never end. So each such level has a loop
    of its own, and a loop only ever waits for deeper ones.
    """
    here = threading.current_thread()
    with _lock:
        on_loop = next((i + 1 for i, loop in enumerate(_loops) if loop.thread is here), 0)
        depth = max(_depth.get(), on_loop)  # code on the loop may have brought another context
        while depth >= len(_loops):
            _loops.append(LoopThread())
        loop = _loops[depth]
    context.run(_depth.set, depth + 1)
    return loop


def _forget_loops() -> None:
    """Start anew in a forked child, whose copy of the threads does not run."""
    global _lock  # noqa: PLW0603 - the parent may have held it while forking
    _lock = threading.Lock()
    _loops.clear()


in_forked_children(_forget_loops)
