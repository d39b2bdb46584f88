"""Jobs that run beside a request: what it waits for on other threads, and its parallel work.

A request on a loop has tasks for them, and worker threads for plain functions. A blocking one has
threads, and waits on its own for them while it passes their events on.
"""

import asyncio
import functools
import queue
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import Context, copy_context
from typing import Any, Generic, Protocol, TypeVar

import anyio
import anyio.to_thread

from chatclient.driving import drive
from chatclient.inbox import INBOX, Emitter, Inbox, Item, LoopInbox
from chatclient.interruption import Interruption, interruptible, waiting_for
from chatclient.tasks import ended, look_at_error
from chatclient.threads import LoopThread, Work, is_async, is_awaitable, private_loop

R = TypeVar("R")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Job = Callable[[Emitter], Coroutine[Any, Any, T]]
"""Something to be done beside a request, whose events go where it is told."""


class Begun(Protocol[T_co]):
    """A job that has begun."""

    async def result(self, emit: Emitter, /) -> T_co:
        """Wait for what it comes to; its events go on to *emit*."""
        ...

    async def end(self) -> None:
        """Cancel it, and wait for its end; what is not asynchronous can only be awaited."""
        ...


# --- of a request on a loop -----------------------------------------------------------------


async def invoke_on_loop(
    function: Callable[..., Any], args: tuple[Any, ...], end: float | None
) -> Any:
    """Await *function*, or call it in a worker thread if it is plain, until *end* at the latest."""
    if is_async(function):
        return await function(*args)
    result = await in_worker(functools.partial(function, *args), end)
    return await result if is_awaitable(result) else result


async def in_worker(call: Callable[[], T], end: float | None = None) -> T:
    """Call a plain function in a worker thread; who is cancelled waits for it, until *end*."""
    over: Future[None] = Future()

    def run() -> T:
        if not over.set_running_or_notify_cancel():  # cancelled before there was a thread
            raise asyncio.CancelledError
        try:
            return call()
        finally:
            over.set_result(None)

    try:
        return await anyio.to_thread.run_sync(run, abandon_on_cancel=True)
    except asyncio.CancelledError:
        if not over.cancel():
            waiting = asyncio.wrap_future(over)  # no task: the end of the loop cancels all of them
            try:
                await ended([waiting], end)
            finally:
                waiting.cancel()  # an abandoned thread outlives the loop
        raise


async def finish_in_worker(call: Callable[[], T]) -> T:
    """Call a plain function in a worker thread, to its end, however often this is cancelled.

    Not in a task, which the end of the loop would cancel before there is a thread.
    """
    begun = False
    cancelled: asyncio.CancelledError | None = None

    def run() -> T:
        nonlocal begun
        begun = True
        return call()

    while True:
        try:
            with anyio.CancelScope(shield=True):
                return await in_worker(run)
        except asyncio.CancelledError as error:
            cancelled = error
        finally:
            if begun and cancelled is not None:
                raise cancelled


async def gather_in_tasks(
    jobs: list[Callable[[R], Coroutine[Any, Any, T]]], runtime: R, limit: int
) -> list[T]:
    """Run *jobs* with *runtime* as tasks, at most *limit* at a time, and return their results."""
    room = asyncio.Semaphore(limit)

    async def run(job: Callable[[R], Coroutine[Any, Any, T]]) -> T:
        await room.acquire()
        try:
            result = await job(runtime)
        except asyncio.CancelledError:  # ends nothing but itself, and the rest would wait for ever
            room.release()
            raise
        room.release()  # not after an error: nothing else is to begin
        return result

    crowded = limit < len(jobs)
    tasks = [asyncio.create_task(run(job) if crowded else job(runtime)) for job in jobs]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        return [task.result() for task in tasks if task.done()]  # all are, unless one has failed
    except BaseException:
        for task in tasks:
            task.cancel()
        await ended(tasks)
        for task in tasks:
            look_at_error(task)
        raise


class BegunInTask(Generic[T]):
    """A job that runs in a task, and emits its events itself."""

    def __init__(self, job: Coroutine[Any, Any, T], context: Context) -> None:
        self._task = asyncio.create_task(job, context=context.copy())

    async def result(self, _emit: Emitter, /) -> T:
        """Wait for what it comes to."""
        try:
            await asyncio.wait([self._task])
        except BaseException:  # cancelled once, whoever is cancelled here again and again
            await self.end()
            raise
        return self._task.result()

    async def end(self) -> None:
        """Cancel it, and wait for its end."""
        self._task.cancel()
        await ended([self._task])
        look_at_error(self._task)


async def wait_on_loop(job: Job[T], emit: Emitter, thread: LoopThread) -> T:
    """Wait in this task for *job* on another *thread*, passing its events on meanwhile."""
    inbox = LoopInbox()
    context = copy_context()
    context.run(INBOX.set, inbox)
    work = Work(thread, job(_posting(inbox)), context, lambda: inbox.put(None))
    try:
        while (item := await inbox.get()) is not None:
            await _pass_on(item, emit)
    except BaseException:
        work.interrupt()
        raise
    return work.result()


# --- of a blocking request ------------------------------------------------------------------


async def wait_on_thread(
    job: Callable[[Emitter], Awaitable[T]],
    emit: Emitter,
    end: float | None,
    thread: LoopThread | None = None,
) -> T:
    """Wait on this thread for *job* on another one, passing its events on meanwhile.

    Being interrupted here, or leaving the stream, cancels it there; so does its *end*, a time on
    the clock of `time.monotonic`. Without a *thread*, it runs on a private loop.
    """
    inbox: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
    context = copy_context()
    context.run(INBOX.set, inbox)
    loop = thread or private_loop(context)
    work = Work(loop, job(_posting(inbox)), context, lambda: inbox.put(None))
    try:
        with waiting_for(work):
            while (item := _next_item(inbox, end)) is not None:
                await _pass_on(item, emit)
    except BaseException:
        work.cancel()
        raise
    return work.result()


def _next_item(inbox: "queue.SimpleQueue[Item | None]", end: float | None) -> Item | None:
    """Return what comes next, or is there already: a slow consumer may have taken all the time.

    Raises:
        TimeoutError: Nothing came until *end*.
    """
    try:
        return inbox.get(timeout=None if end is None else max(0.0, end - time.monotonic()))
    except queue.Empty:
        msg = "no result in time"
        raise TimeoutError(msg) from None


async def gather_in_threads(jobs: list[Job[T]], emit: Emitter, limit: int) -> list[T]:
    """Run *jobs* in threads, at most *limit* at a time, and return their results."""
    inbox: queue.SimpleQueue[Item | None] = queue.SimpleQueue()  # None: one of them has ended
    contexts = [copy_context() for _ in jobs]
    interruptions = [interruptible(context) for context in contexts]
    errors: list[BaseException] = []

    def run(job: Job[T], interruption: Interruption) -> T:
        if errors:  # the pool goes on whatever happens
            raise asyncio.CancelledError
        try:
            return _run_beside(job, inbox, interruption)
        except BaseException as error:
            errors.append(error)
            raise

    with ThreadPoolExecutor(min(limit, len(jobs)), "chatclient-tool") as pool:
        futures = [
            pool.submit(context.run, run, job, interruption)
            for context, job, interruption in zip(contexts, jobs, interruptions, strict=True)
        ]
        for future in futures:
            future.add_done_callback(lambda _: inbox.put(None))
        try:
            await _until_over(len(futures), errors, inbox, emit)
        except BaseException as error:  # noqa: BLE001 - raised below; whoever consumes may leave
            errors.insert(0, error)
        if errors:
            for interruption in interruptions:
                interruption.interrupt()
            raise errors[0]
        return [future.result() for future in futures]


async def _until_over(
    running: int,
    errors: list[BaseException],
    inbox: "queue.SimpleQueue[Item | None]",
    emit: Emitter,
) -> None:
    """Pass on the events of jobs that are running, until all are over or one has failed."""
    while running:
        item = inbox.get()
        if item is not None:
            await _pass_on(item, emit)
        elif errors:
            return
        else:
            running -= 1


def _run_beside(job: Job[T], inbox: Inbox, interruption: Interruption) -> T:
    """Run *job* on a thread of its own, in its own context, while *inbox* takes its events."""
    INBOX.set(inbox)
    try:
        return drive(job(_posting(inbox)))
    finally:
        interruption.end()


class BegunInThread(Generic[T]):
    """A job that runs in a thread; its events wait until its result is asked for."""

    def __init__(self, job: Job[T], context: Context) -> None:
        self._inbox: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._future: Future[T] = Future()
        context = context.copy()
        self._interruption = interruption = interruptible(context)

        def run() -> None:
            try:
                self._future.set_result(_run_beside(job, self._inbox, interruption))
            except BaseException as error:  # noqa: BLE001 - it belongs to who asks for the result
                self._future.set_exception(error)
            finally:
                self._inbox.put(None)

        threading.Thread(target=context.run, args=(run,), daemon=True).start()

    async def result(self, emit: Emitter, /) -> T:
        """Wait for what it comes to; its events go on to *emit*."""
        try:
            with waiting_for(self._interruption):
                while (item := self._inbox.get()) is not None:
                    await _pass_on(item, emit)
        except BaseException:  # whoever consumes the events may leave
            await self.end()
            raise
        return self._future.result()

    async def end(self) -> None:
        """Interrupt it, and wait for its end."""
        self._interruption.interrupt()
        self._future.exception()


# --- events on the way ----------------------------------------------------------------------


def _posting(inbox: Inbox) -> Emitter:
    """Return what puts events into *inbox*, for whoever waits there."""

    async def post(event: Any) -> None:
        inbox.put((event, None))

    return post


async def _pass_on(item: Item, emit: Emitter) -> None:
    event, emitter = item
    await (emit if emitter is None else emitter)(event)
