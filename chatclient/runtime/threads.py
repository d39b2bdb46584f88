"""Threads: locks that survive a fork, loops in threads, and events that pass between threads."""

import asyncio
import functools
import inspect
import os
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from operator import attrgetter
from types import GeneratorType
from typing import Any, Generic, Protocol, TypeGuard, TypeVar, cast
from weakref import WeakSet

_WAIT_SECONDS = 5.0  # maximum time that a fork waits for code inside the barrier


class AfterFork(Protocol):
    """An object that must be reset in a forked child."""

    def after_fork(self) -> None:
        """Reset the object, in the child."""
        ...


class BeforeFork(Protocol):
    """An object with resources that a parent must release before it forks."""

    def before_fork(self) -> None:
        """Release them, in the parent; normally no thread is inside the `fork_barrier` then."""
        ...


class ForkBarrier:
    """A context manager; code inside it and forks of the process wait for each other.

    A fork waits for five seconds at most.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget the threads inside: a child has none of the parent's other threads."""
        # Acquired directly: `Condition.__enter__` is written in Python, see `ForkSafeLock`.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._inside: set[int] = set()  # threads
        self._forks = 0

    def __enter__(self) -> None:
        with self._lock:
            while self._forks:
                self._changed.wait()
            self._inside.add(threading.get_ident())

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside.discard(threading.get_ident())
            if self._forks:
                self._changed.notify_all()

    def begin_fork(self) -> None:
        """Wait until no other thread is inside, and let none in."""
        here = {threading.get_ident()}  # left in the set if Ctrl-C interrupted `__exit__`
        with self._lock:
            self._forks += 1
            self._changed.wait_for(lambda: self._inside <= here, _WAIT_SECONDS)

    def end_fork(self) -> None:
        """Let waiting threads in."""
        with self._lock:
            self._forks = max(0, self._forks - 1)  # Ctrl-C may have interrupted `begin_fork`
            self._changed.notify_all()


fork_barrier = ForkBarrier()
"""The barrier of this process."""

_after_fork: "WeakSet[AfterFork]" = WeakSet()
_before_fork: "WeakSet[BeforeFork]" = WeakSet()
_kept: list[Any] = []


def in_forked_children(function: Callable[[], None]) -> None:
    """Call *function* in every child that is forked later; does nothing on Windows."""
    if hasattr(os, "register_at_fork"):  # pragma: no branch
        os.register_at_fork(after_in_child=function)


def register_after_fork(target: AfterFork) -> None:
    """Call `after_fork` of *target*, which is referenced weakly, in every forked child."""
    _after_fork.add(target)


def register_before_fork(target: BeforeFork) -> None:
    """Call `before_fork` of *target*, which is referenced weakly, before each fork."""
    _before_fork.add(target)


class _LockMethod(property):
    """A method that delegates to the lock without executing Python code."""

    def __call__(self, holder: object, *args: object) -> Any:
        """Call the method as an attribute of the class, like `contextlib.ExitStack` does."""
        return self.__get__(holder)(*args)


class ForkSafeLock:
    """A lock that is free in every forked child, even if a thread of the parent held it.

    For data that is consistent after every single change: the child uses or recreates it.
    """

    # With methods in Python, Ctrl-C between acquiring the lock and entering the `with` block would
    # leave it locked.
    __enter__: Any = _LockMethod(attrgetter("_lock.__enter__"))
    __exit__: Any = _LockMethod(attrgetter("_lock.__exit__"))

    def __init__(self) -> None:
        self._lock = threading.Lock()
        register_after_fork(self)

    def after_fork(self) -> None:
        """Replace the lock: the thread that holds it does not exist in the child."""
        self._lock = threading.Lock()


def keep(inherited: object) -> None:
    """Keep *inherited* alive in a child: its finalizer would close resources of the parent."""
    _kept.append(inherited)


def _run_before_fork() -> None:
    fork_barrier.begin_fork()
    for target in list(_before_fork):
        target.before_fork()


def _run_after_fork() -> None:
    fork_barrier.reset()
    for target in list(_after_fork):
        target.after_fork()


if hasattr(os, "register_at_fork"):  # pragma: no branch - missing on Windows
    os.register_at_fork(before=_run_before_fork, after_in_parent=fork_barrier.end_fork)
in_forked_children(_run_after_fork)


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

    @property
    def is_current(self) -> bool:
        """Whether the current thread is that of the loop."""
        return self.thread is threading.current_thread()

    def close(self) -> None:
        """Stop the loop and its thread; running tasks are cancelled."""
        if self.alive:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self.thread.join()

    def soon(self, function: Callable[[], object], context: Context | None = None) -> None:
        """Schedule *function* on the loop; may be called on any thread."""
        self._loop.call_soon_threadsafe(function, context=context)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run *coroutine* on the loop, and return its result; blocks the calling thread."""
        context = Context()  # not that of the caller, as for the loop
        return context.run(asyncio.run_coroutine_threadsafe, coroutine, self._loop).result()

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
