"""Parallel and background work of a request.

A request on a loop uses tasks, and worker threads for plain functions. A blocking request uses
threads; its own thread waits for them and emits their events.
"""

import asyncio
import functools
import queue
import threading
import time
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import Context, copy_context
from typing import Any, Generic, Protocol, TypeVar

import anyio
import anyio.to_thread

from chatclient.runtime.blocking import Interruption, drive, interruptible, waiting_for
from chatclient.runtime.cancellation import consume_error, wait_all
from chatclient.runtime.threads import (
    INBOX,
    Emitter,
    Inbox,
    Item,
    LoopInbox,
    LoopThread,
    Work,
    emit_item,
    emitter_to,
    is_async,
    is_awaitable,
    private_loop,
)

R = TypeVar("R")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Job = Callable[[Emitter], Coroutine[Any, Any, T]]
"""Work of a request; it passes its events to the given emitter."""


BEGAN = object()
"""An event with which a job says that it has begun its work; see `BackgroundJob.began`."""
_SO_FAR = object()


class BackgroundJob(Protocol[T_co]):
    """A running job."""

    async def result(self, emit: Emitter, /) -> T_co:
        """Wait for the result, and pass the events of the job to *emit*."""
        ...

    async def began(self, emit: Emitter, /) -> bool:
        """Wait until the job emits `BEGAN`, and pass its events so far to *emit*.

        Returns:
            Whether it has done so; False if it has ended without.
        """
        ...

    async def pass_events(self, emit: Emitter, /) -> bool:
        """Pass the events so far to *emit*, without waiting for more.

        Returns:
            Whether the job has ended.
        """
        ...

    async def stop(self) -> None:
        """Cancel the job and wait for its end; plain functions cannot be stopped."""
        ...

    def outcome(self) -> T_co | None:
        """Return the result, or None if the job runs, has failed or was cancelled."""
        ...


# --- requests on an event loop --------------------------------------------------------------


async def invoke_on_loop(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    deadline: float | None,
    on_late_result: Callable[[Any], None] | None = None,
) -> Any:
    """Await *function*, or call it in a worker thread if it is plain; see `in_worker`."""
    if is_async(function):
        return await function(*args)
    result = await in_worker(functools.partial(function, *args), deadline, on_late_result)
    return await result if is_awaitable(result) else result


async def in_worker(
    call: Callable[[], T],
    deadline: float | None = None,
    on_late_result: Callable[[T], None] | None = None,
) -> T:
    """Call a plain function in a worker thread.

    A cancellation waits until the function has returned, and calls *on_late_result* with its
    result; or until *deadline*, on the clock of `time.monotonic`. Then the thread is abandoned.
    """
    finished: Future[None] = Future()
    results: list[T] = []

    def run() -> T:
        if not finished.set_running_or_notify_cancel():  # cancelled before the thread started
            raise asyncio.CancelledError
        try:
            results.append(call())
            return results[0]
        finally:
            finished.set_result(None)

    try:
        return await anyio.to_thread.run_sync(run, abandon_on_cancel=True)
    except asyncio.CancelledError:
        try:
            if not finished.cancel():
                waiting = asyncio.wrap_future(finished)  # not a task: `asyncio.run` cancels those
                try:
                    await wait_all([waiting], deadline)
                finally:
                    waiting.cancel()  # an abandoned thread outlives the loop
        finally:  # also if the wait was cancelled
            if on_late_result is not None and results:
                on_late_result(results[0])
        raise


async def finish_in_worker(call: Callable[[], T]) -> T:
    """Call a plain function in a worker thread, and delay cancellations until it has returned.

    Not in a task: `asyncio.run` would cancel it at its end before the thread starts.
    """
    started = False
    cancelled: asyncio.CancelledError | None = None

    def run() -> T:
        nonlocal started
        started = True
        return call()

    while True:
        try:
            with anyio.CancelScope(shield=True):
                return await in_worker(run)
        except asyncio.CancelledError as error:
            cancelled = error
        finally:
            if started and cancelled is not None:
                raise cancelled


async def gather_in_tasks(
    jobs: list[Callable[[R], Coroutine[Any, Any, T]]], runtime: R, limit: int
) -> list[T]:
    """Run *jobs* with *runtime* as tasks, at most *limit* at a time, and return their results."""
    slots = asyncio.Semaphore(limit)

    async def run(job: Callable[[R], Coroutine[Any, Any, T]]) -> T:
        await slots.acquire()
        try:
            result = await job(runtime)
        except asyncio.CancelledError:  # cancels this job only; the others continue
            slots.release()
            raise
        slots.release()  # not after an error: no other job may start
        return result

    limited = limit < len(jobs)
    tasks = [asyncio.create_task(run(job) if limited else job(runtime)) for job in jobs]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        return [task.result() for task in tasks if task.done()]  # all, unless one has failed
    except BaseException:
        for task in tasks:
            task.cancel()
        await wait_all(tasks)
        for task in tasks:
            consume_error(task)
        raise


class _Job(Generic[T]):
    """A job whose events are buffered until somebody waits for it."""

    _ended = False

    def __init__(self, inbox: Inbox) -> None:
        self._events = inbox

    @abstractmethod
    async def _next(self) -> Item | None:
        """Wait for the next event; None at the end."""

    @abstractmethod
    async def stop(self) -> None:
        """Cancel the job and wait for its end."""

    async def began(self, emit: Emitter, /) -> bool:
        """Wait until the job emits `BEGAN`, and return whether it did; see `BackgroundJob`."""
        return await self._pass_until(BEGAN, emit)

    async def pass_events(self, emit: Emitter, /) -> bool:
        """Pass the events so far to *emit*, and return whether the job has ended."""
        self._events.put((_SO_FAR, None))
        return not await self._pass_until(_SO_FAR, emit)

    async def _pass_until(self, mark: object, emit: Emitter) -> bool:
        """Pass events to *emit* until *mark* is one, and return False if the job ends before."""
        try:
            while not self._ended:
                item = await self._next()
                if item is None:
                    self._ended = True
                elif item[0] is mark:
                    return True
                else:
                    await emit_item(item, emit)
        # The consumer of the events may have left. The job is cancelled once, even if the waiting
        # task is repeatedly.
        except BaseException:
            await self.stop()
            raise
        return False


class TaskJob(_Job[T]):
    """A job in a task; its events are buffered until `result` is called."""

    def __init__(self, job: Job[T], context: Context) -> None:
        self._inbox = inbox = LoopInbox()
        super().__init__(inbox)
        self._task = asyncio.create_task(job(emitter_to(inbox)), context=context.copy())
        self._task.add_done_callback(lambda _: inbox.put(None))

    async def _next(self) -> Item | None:
        return await self._inbox.get()

    async def result(self, emit: Emitter, /) -> T:
        """Wait for the result, and pass the events of the job to *emit*."""
        await self._pass_until(None, emit)
        return self._task.result()

    async def stop(self) -> None:
        """Cancel the job and wait for its end."""
        self._task.cancel()
        await wait_all([self._task])
        consume_error(self._task)

    def outcome(self) -> T | None:
        """Return the result, or None if the job runs, has failed or was cancelled."""
        task = self._task
        failed = not task.done() or task.cancelled() or task.exception() is not None
        return None if failed else task.result()


async def run_on_thread(job: Job[T], emit: Emitter, thread: LoopThread) -> T:
    """Run *job* on the loop of *thread*, await its result, and pass its events to *emit*."""
    inbox = LoopInbox()
    context = copy_context()
    context.run(INBOX.set, inbox)
    work = Work(thread, job(emitter_to(inbox)), context, lambda: inbox.put(None))
    try:
        while (item := await inbox.get()) is not None:
            await emit_item(item, emit)
    except BaseException:
        work.interrupt()
        raise
    return work.result()


# --- blocking requests ----------------------------------------------------------------------


async def block_on_thread(
    job: Callable[[Emitter], Awaitable[T]],
    emit: Emitter,
    deadline: float | None,
    thread: LoopThread | None = None,
) -> T:
    """Run *job* on another thread's loop, block until its result, and pass its events to *emit*.

    An interruption of this thread cancels the job, as does leaving the stream.

    Args:
        job: The work.
        emit: Receives the events of the job.
        deadline: When the job is cancelled, on the clock of `time.monotonic`; None for no limit.
        thread: The loop to use; default: a private loop.

    Raises:
        TimeoutError: *deadline* has passed.
    """
    inbox: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
    context = copy_context()
    context.run(INBOX.set, inbox)
    loop = thread or private_loop(context)
    work = Work(loop, job(emitter_to(inbox)), context, lambda: inbox.put(None))
    try:
        with waiting_for(work):
            while (item := _next_item(inbox, deadline)) is not None:
                await emit_item(item, emit)
    except BaseException:
        work.cancel()
        raise
    return work.result()


def _next_item(inbox: "queue.SimpleQueue[Item | None]", deadline: float | None) -> Item | None:
    """Return the next item; one that has arrived is returned even after *deadline*.

    Raises:
        TimeoutError: No item arrived until *deadline*.
    """
    try:
        return inbox.get(
            timeout=None if deadline is None else max(0.0, deadline - time.monotonic())
        )
    except queue.Empty:
        msg = "no result in time"
        raise TimeoutError(msg) from None


async def gather_in_threads(jobs: list[Job[T]], emit: Emitter, limit: int) -> list[T]:
    """Run *jobs* in threads, at most *limit* at a time, and return their results."""
    inbox: queue.SimpleQueue[Item | None] = queue.SimpleQueue()  # None: a job has ended
    contexts = [copy_context() for _ in jobs]
    interruptions = [interruptible(context) for context in contexts]
    errors: list[BaseException] = []

    def run(job: Job[T], interruption: Interruption) -> T:
        if errors:  # the pool still runs queued jobs
            raise asyncio.CancelledError
        try:
            return _run_in_thread(job, inbox, interruption)
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
            await _emit_until_done(len(futures), errors, inbox, emit)
        except BaseException as error:  # noqa: BLE001 - raised below; the consumer may have left
            errors.insert(0, error)
        if errors:
            for interruption in interruptions:
                interruption.interrupt()
            raise errors[0]
        return [future.result() for future in futures]


async def _emit_until_done(
    running: int,
    errors: list[BaseException],
    inbox: "queue.SimpleQueue[Item | None]",
    emit: Emitter,
) -> None:
    """Pass the events of the *running* jobs to *emit* until all have ended or one has failed."""
    while running:
        item = inbox.get()
        if item is not None:
            await emit_item(item, emit)
        elif errors:
            return
        else:
            running -= 1


def _run_in_thread(job: Job[T], inbox: Inbox, interruption: Interruption) -> T:
    """Run *job* on the present thread, and put its events into *inbox*."""
    INBOX.set(inbox)
    try:
        return drive(job(emitter_to(inbox)))
    finally:
        interruption.end()


class ThreadJob(_Job[T]):
    """A job in a thread; its events are buffered until `result` is called."""

    def __init__(self, job: Job[T], context: Context) -> None:
        self._inbox: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        super().__init__(self._inbox)
        self._future: Future[T] = Future()
        context = context.copy()
        self._interruption = interruption = interruptible(context)

        def run() -> None:
            try:
                self._future.set_result(_run_in_thread(job, self._inbox, interruption))
            except BaseException as error:  # noqa: BLE001 - raised by `result`
                self._future.set_exception(error)
            finally:
                self._inbox.put(None)

        threading.Thread(target=context.run, args=(run,), daemon=True).start()

    async def _next(self) -> Item | None:
        with waiting_for(self._interruption):
            return self._inbox.get()

    async def result(self, emit: Emitter, /) -> T:
        """Wait for the result, and pass the events of the job to *emit*."""
        await self._pass_until(None, emit)
        return self._future.result()

    async def stop(self) -> None:
        """Interrupt the job and wait for its end."""
        self._interruption.interrupt()
        self._future.exception()

    def outcome(self) -> T | None:
        """Return the result, or None if the job runs, has failed or was interrupted."""
        future = self._future
        failed = not future.done() or future.exception() is not None
        return None if failed else future.result()
