"""One asynchronous core, driven two ways.

Everything between the fluent client and the network is written once, as coroutines. A `Runtime`
travels with each request and is the only thing that knows how they are driven:

**On an event loop** (`acall`, `astream`) they are awaited as usual.

**Blocking** (`call`, `stream`) there is no loop. `drive` sends `None` into the outermost coroutine
on the caller's own thread. Nothing in it ever suspends, because every leaf blocks instead: HTTP
goes through a blocking client, a plain tool is called in place, a pause is `time.sleep`. So the
first `send` runs the request to its end and the answer arrives as `StopIteration.value`. Tracebacks
stay whole, thread-locals and Ctrl-C work, and it does not matter whether the caller's thread
happens to run a loop (a notebook) or is itself inside a tool of another request.

The one thing that does suspend is `emit`, in a blocking stream: it leaves the event in the channel
and yields a token through all the `await`s above it up to `drive_stream`, which hands the event to
the `for` loop and then resumes. On a loop, a stream runs in a task of its own and hands its events
over through a short queue: a time-out or a span that an advisor keeps open can therefore never
spill into the consumer's code between two events.

A coroutine that awaits anything else under `drive` wants an event loop that is not there. It gets a
`BlockingCallError` thrown in at that very `await`, so its `finally` blocks run and the traceback
shows the place. Code that is asynchronous by nature (an `async def` tool, say) goes through
`Runtime.invoke`, which runs it on a private loop in a thread kept for that purpose.
"""

import asyncio
import functools
import inspect
import queue
import time
import types
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar, cast

import anyio
import anyio.to_thread

from chatclient.errors import BlockingCallError, DeadlineExceededError, UsageError
from chatclient.observation import Observer, Operation, Step
from chatclient.threads import LoopThread, Work, call_in_thread, is_async, private_loop

T = TypeVar("T")
E = TypeVar("E")

Emitter = Callable[[Any], Awaitable[None]]
"""Takes one event of a stream towards the consumer."""

_GRACE = 0.1  # seconds after the deadline for what ends at it by itself
_QUEUE_LENGTH = 64  # events an asynchronous stream may run ahead of its consumer


async def _discard(_event: Any) -> None:
    """Take an event nobody asked for."""


@dataclass(frozen=True, slots=True, eq=False)
class Runtime:
    """How one request runs: blocking or on a loop, streamed or not, and until when.

    Attributes:
        blocking: Whether the request is driven on the caller's thread without an event loop.
            Application code has no reason to ask; use the methods, which do the right thing.
        streaming: Whether somebody consumes events. Models stream only then.
        deadline: When the whole call must be over, on the clock of `time.monotonic`, or None.
        emitter: Where events go.
        observers: Who is told of the request's operations.
        steps: Where they are noted, for the request's trail, or None.
    """

    blocking: bool
    streaming: bool = False
    deadline: float | None = None
    emitter: Emitter = _discard
    observers: tuple[Observer, ...] = ()
    steps: list[Step] | None = None

    async def emit(self, event: Any) -> None:
        """Hand *event* to whoever consumes the stream; without a stream this does nothing."""
        if self.streaming:
            await self.emitter(event)

    def observe(self, operation: Operation) -> Step:
        """Return a context manager around *operation*, for the trail and the observers.

        ```python
        with request.runtime.observe(Lookup("prices")) as step:
            step.result = await find(...)
        ```
        """
        return Step(operation, self.steps, self.observers)

    def watched_by(self, steps: list[Step] | None, observers: tuple[Observer, ...]) -> "Runtime":
        """Return this runtime with its operations noted in *steps* and told to *observers*."""
        return Runtime(self.blocking, self.streaming, self.deadline, self.emitter, observers, steps)

    def with_emitter(self, emitter: Emitter) -> "Runtime":
        """Return this runtime with events going to *emitter* instead.

        An advisor that rewrites, holds back or swallows what is streamed passes the request on
        with such a runtime, and calls the original's `emit` for what may go out.
        """
        return replace(self, emitter=emitter)

    def silent(self) -> "Runtime":
        """Return this runtime with nothing streamed: for model calls the user must not see."""
        return replace(self, streaming=False, emitter=_discard)

    def with_deadline(self, seconds: float) -> "Runtime":
        """Return this runtime with at most *seconds* left; an earlier deadline stays."""
        deadline = time.monotonic() + seconds
        return self if self.remaining() < seconds else replace(self, deadline=deadline)

    def remaining(self) -> float:
        """Return the seconds left until the deadline (0.0 when passed), infinite without one."""
        if self.deadline is None:
            return float("inf")
        return max(0.0, self.deadline - time.monotonic())

    async def sleep(self, seconds: float) -> None:
        """Pause this request only.

        Raises:
            DeadlineExceededError: The pause would go beyond the deadline; it is not begun.
        """
        if self.deadline is not None and seconds > self.remaining():
            msg = f"a pause of {seconds:g} s would go beyond the deadline of the call"
            raise DeadlineExceededError(msg)
        if self.blocking:
            time.sleep(seconds)  # noqa: ASYNC251 - blocking is what this runtime is for
        else:
            await anyio.sleep(seconds)

    async def invoke(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        timeout: float | None = None,  # noqa: ASYNC109 - blocking requests need it as a number
    ) -> Any:
        """Call user code, plain or asynchronous, without blocking anyone else.

        Blocking: a plain function is called right here, an asynchronous one on a private loop
        thread. On an event loop: a plain function runs in a worker thread, an asynchronous one
        is awaited. Context variables are visible in all four cases.

        Args:
            function: What to call; whatever awaitable it returns is awaited.
            *args: Its positional arguments.
            timeout: Seconds it may take. A plain function cannot be stopped: past its time it is
                abandoned to its thread and its result dropped.

        Raises:
            TimeoutError: *timeout* has passed.
        """
        if self.blocking:
            if timeout is not None and not is_async(function):
                result = call_in_thread(function, args, timeout)
            else:
                result = function(*args)
            if inspect.isawaitable(result):
                return await _wait_for(self, result, timeout)
            return result
        if timeout is None:
            return await _invoke_on_loop(function, args, abandon=False)
        async with asyncio.timeout(timeout):
            return await _invoke_on_loop(function, args, abandon=True)

    async def run_on(
        self,
        thread: "LoopThread",
        job: Callable[["Runtime"], Coroutine[Any, Any, T]],
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - blocking requests need it as a number
    ) -> T:
        """Run *job* on the loop of another thread and wait for it here.

        For what is bound to one loop while requests come from anywhere, such as a connection that
        several requests share. The job is called with the runtime it is to use; what it emits,
        also from tasks that it did not begin itself, reaches the stream of this request.

        Raises:
            TimeoutError: *timeout* has passed; the job is cancelled.
        """
        if self.blocking:
            inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
            work = job(_elsewhere(self, inbox))
            return await _wait_for(self, work, timeout, thread, inbox)
        async with asyncio.timeout(timeout):
            return await _wait_on_loop(self, job, thread)

    async def finish(self, function: Callable[..., T], /, *args: Any) -> T:
        """Call a plain function that nothing may leave behind unfinished, such as a transaction.

        Like `invoke`, but a request that is cancelled on an event loop ends only when the function
        has. What is done after it then really comes after it.
        """
        if self.blocking:
            return function(*args)
        return await _to_its_end(anyio.to_thread.run_sync(functools.partial(function, *args)))

    async def shielded(self, work: Coroutine[Any, Any, T]) -> T:
        """Await what has to be done although the request is being cancelled, such as cleaning up.

        Like `finish`, for a coroutine. Neither a task that is cancelled nor a cancelled scope of
        anyio, which would cancel whatever is awaited in it, gets in its way.
        """
        return await (work if self.blocking else _to_its_end(work))

    async def within(self, seconds: float | None, awaitable: Awaitable[T]) -> T:
        """Await for at most *seconds*; a blocking request can only be as good as its leaves.

        Raises:
            TimeoutError: They have passed.
        """
        if seconds is None or self.blocking:
            return await awaitable
        async with asyncio.timeout(seconds):
            return await awaitable

    async def until_deadline(self, awaitable: Awaitable[T]) -> T:
        """Await until a little after the deadline; a blocking request is as good as its leaves.

        Those that know the deadline end at it, and say what they were about. This is for the
        others.

        Raises:
            DeadlineExceededError: It has passed.
        """
        if self.deadline is None or self.blocking:
            return await awaitable
        scope = asyncio.timeout(self.remaining() + _GRACE)
        try:
            async with scope:
                return await awaitable
        except TimeoutError as error:
            if not scope.expired():
                raise
            msg = "the deadline passed, and what the call was waiting for was cancelled"
            raise DeadlineExceededError(msg) from error

    async def gather(
        self, jobs: list[Callable[["Runtime"], Coroutine[Any, Any, T]]], *, limit: int
    ) -> list[T]:
        """Run *jobs*, at most *limit* at a time, and return their results in order.

        Each job is called with the runtime it is to use. With a limit of 1 they run one after
        another right here. Otherwise a loop runs them as tasks; a blocking request runs them in a
        pool of threads while the caller's thread passes their events on. When one raises, the
        others are cancelled (those in threads are awaited, for a thread cannot be stopped) and
        the first error is raised.
        """
        if limit <= 1 or len(jobs) <= 1:
            return [await job(self) for job in jobs]
        if self.blocking:
            return await _gather_in_threads(self, jobs, limit)
        return await _gather_in_tasks(self, jobs, limit)


_Item = tuple[Any, Emitter | None]
"""An event of code on another thread, and where it goes if not to whoever waits for that code."""


class _Inbox(Protocol):
    """Takes events, and None for the end, from another thread."""

    def put(self, item: _Item | None, /) -> None: ...


# Where events of code on another thread go while the request's own thread waits for it. Only what
# a stream ends in looks there: emitters of advisors further in see an event first.
_inbox: ContextVar[_Inbox | None] = ContextVar("chatclient_inbox", default=None)


class _Caller:
    """Somebody who makes requests, and has a deadline for it."""

    __slots__ = ("deadline", "gone")

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.gone = False  # what it has begun for later goes on without the deadline


_caller: ContextVar[_Caller | None] = ContextVar("chatclient_caller", default=None)


@contextmanager
def caller_deadline(deadline: float) -> Generator[None, None, None]:
    """Let requests made inside (by a tool, as a rule) end by *deadline* as well."""
    caller = _Caller(deadline)
    token = _caller.set(caller)
    try:
        yield
    finally:
        caller.gone = True
        _caller.reset(token)


def within_callers_deadline(runtime: Runtime) -> Runtime:
    """Return *runtime*, ending by the deadline of the request that it is made in, if any."""
    caller = _caller.get()
    if caller is None or caller.gone:
        return runtime
    if runtime.deadline is not None and runtime.deadline <= caller.deadline:
        return runtime
    return replace(runtime, deadline=caller.deadline)


BLOCKING = Runtime(blocking=True)
"""How a blocking request without a stream and without a deadline runs."""
ON_LOOP = Runtime(blocking=False)
"""How an asynchronous request without a stream and without a deadline runs."""


# --- driving without a loop -----------------------------------------------------------------

_EVENT = object()  # what a suspended `emit` yields to `drive_stream`


@types.coroutine
def _suspend() -> Generator[object, None, None]:
    yield _EVENT


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run *coroutine* to its end on this thread, without an event loop.

    Raises:
        BlockingCallError: It awaited something that only an event loop can provide.
    """
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return cast("T", stop.value)
    except RuntimeError as error:
        if _wants_a_loop(error):
            raise BlockingCallError(_NEEDS_A_LOOP) from error
        raise
    return _refuse_to_wait(coroutine)


_NEEDS_A_LOOP = (
    "a blocking call reached an `await` that needs an event loop; call user code through "
    "`await request.runtime.invoke(function, ...)`, or use `acall()` / `astream()`"
)


def _wants_a_loop(error: RuntimeError) -> bool:
    """Return whether asyncio, anyio or sniffio complains that no loop runs on this thread."""
    kind = type(error).__name__
    return str(error) == "no running event loop" or kind in (
        "NoEventLoopError",
        "AsyncLibraryNotFoundError",
    )


def _refuse_to_wait(coroutine: Coroutine[Any, Any, T]) -> T:
    """Throw a `BlockingCallError` into *coroutine* where it waits for a loop."""
    error = BlockingCallError(_NEEDS_A_LOOP)
    try:
        coroutine.throw(error)
    except StopIteration as stop:
        return cast("T", stop.value)
    coroutine.close()
    raise error


class _Channel(Generic[E]):
    """Carries one event at a time from a suspended `emit` to `drive_stream`."""

    __slots__ = ("closed", "event")

    event: E

    def __init__(self) -> None:
        self.closed = False

    async def emit(self, event: E) -> None:
        inbox = _inbox.get()
        if inbox is not None:
            inbox.put((event, self.emit))
        # Once the consumer has left, `finally` blocks still run, and may still emit.
        elif not self.closed:
            self.event = event
            await _suspend()


def drive_stream(
    start: Callable[[Runtime], Coroutine[Any, Any, T]], runtime: Runtime
) -> Generator[Any, None, T]:
    """Run a request on this thread, yielding its events; the generator's value is its result.

    The request runs in a copy of the caller's context, so that a context variable set inside is
    never visible to the code between two events. Closing the generator closes the request where
    it stands.
    """
    channel: _Channel[Any] = _Channel()
    coroutine = start(replace(runtime, streaming=True, emitter=channel.emit))
    context = copy_context()
    context.run(_inbox.set, None)  # that of a request around this one
    try:
        while True:
            try:
                token = context.run(coroutine.send, None)
            except StopIteration as stop:
                return cast("T", stop.value)
            except RuntimeError as error:
                if _wants_a_loop(error):
                    raise BlockingCallError(_NEEDS_A_LOOP) from error
                raise
            if token is not _EVENT:
                return context.run(_refuse_to_wait, coroutine)
            yield channel.event
    finally:
        channel.closed = True
        context.run(coroutine.close)


# --- driving on a loop ----------------------------------------------------------------------


class _Queue:
    """A short queue between the task that runs a request and the one that consumes its events."""

    __slots__ = ("arrived", "closed", "drained", "events")

    def __init__(self) -> None:
        self.events: deque[Any] = deque()
        self.arrived: asyncio.Future[None] | None = None
        self.drained: asyncio.Future[None] | None = None
        self.closed = False

    async def emit(self, event: Any) -> None:
        inbox = _inbox.get()
        if inbox is not None:
            inbox.put((event, self.emit))
            return
        if self.closed:
            return
        self.events.append(event)
        _wake(self.arrived)
        if len(self.events) >= _QUEUE_LENGTH:
            if self.drained is None or self.drained.done():
                self.drained = asyncio.get_running_loop().create_future()
            # Shielded: several tools may wait for room, and one of them may be cancelled.
            await asyncio.shield(self.drained)

    def take(self) -> Any:
        event = self.events.popleft()
        if not self.events:
            _wake(self.drained)
        return event

    def close(self) -> None:
        self.closed = True
        self.events.clear()
        _wake(self.drained)


def _wake(future: "asyncio.Future[None] | None") -> None:
    if future is not None and not future.done():
        future.set_result(None)


class AsyncEvents(AsyncIterator[Any], Generic[T]):
    """The events of a request that runs in a task of its own.

    The task starts with the first `__anext__` and is gone, with everything it holds, once the
    iterator is exhausted, closed, cancelled or dropped.
    """

    def __init__(
        self, start: Callable[[Runtime], Coroutine[Any, Any, T]], runtime: Runtime
    ) -> None:
        self._start = start
        self._runtime = runtime
        # The task knows the queue and not this object, so that dropping this object ends it.
        self._queue = _Queue()
        self._task: asyncio.Task[T] | None = None
        self._cut_off = False

    async def __anext__(self) -> Any:
        queue = self._queue
        if queue.arrived is not None:
            msg = "another task waits for the next event already; a stream has one consumer"
            raise RuntimeError(msg)
        if self._task is None:
            if queue.closed:
                raise StopAsyncIteration
            runtime = replace(self._runtime, streaming=True, emitter=queue.emit)
            context = copy_context()
            context.run(_inbox.set, None)  # that of a request around this one
            self._task = asyncio.get_running_loop().create_task(
                self._start(runtime), context=context
            )
        while not queue.events:
            if queue.closed:
                raise StopAsyncIteration
            if self._task.done():
                queue.closed = True
                self._task.result()
                raise StopAsyncIteration
            await self._wait_for_event(self._task)
        return queue.take()

    def result(self) -> T:
        """Return what the request came to; valid once the iterator is exhausted.

        Raises:
            UsageError: The request was ended, because a consumer that waited was cancelled.
        """
        if self._cut_off:
            msg = (
                "the request ended when waiting for its next event was cancelled; to wait for some "
                "time only, wait for a task: asyncio.wait({task}, timeout=...)"
            )
            raise UsageError(msg)
        if self._task is None:
            msg = "the stream has not been started"
            raise RuntimeError(msg)
        return self._task.result()

    async def aclose(self) -> None:
        """Cancel the request and wait until it has cleaned up."""
        self._queue.close()
        task = self._task
        if task is not None and not task.done():
            task.cancel()
            await _ended([task])
        if task is not None:
            _look_at_error(task)

    async def _wait_for_event(self, task: "asyncio.Task[T]") -> None:
        queue = self._queue
        queue.arrived = asyncio.get_running_loop().create_future()

        def wake(_task: "asyncio.Task[T]") -> None:
            _wake(queue.arrived)

        task.add_done_callback(wake)
        try:
            await queue.arrived
        except BaseException:
            # The consumer was cancelled: nobody will come back for the rest.
            self._cut_off = True
            await self.aclose()
            raise
        finally:
            queue.arrived = None
            task.remove_done_callback(wake)

    def __del__(self) -> None:
        task = self._task
        if task is not None and not task.done() and not task.get_loop().is_closed():
            self._queue.close()
            task.get_loop().call_soon_threadsafe(task.cancel)


async def _invoke_on_loop(
    function: Callable[..., Any], args: tuple[Any, ...], *, abandon: bool
) -> Any:
    if is_async(function):
        return await function(*args)
    call = functools.partial(function, *args)
    result = await anyio.to_thread.run_sync(call, abandon_on_cancel=abandon)
    return await result if inspect.isawaitable(result) else result


async def _to_its_end(awaitable: Awaitable[T]) -> T:
    """Await *awaitable* in a task of its own; a cancellation waits until it is done."""
    work = asyncio.ensure_future(awaitable)
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await _ended([work])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return work.result()
    work.exception()  # nobody is left to be told
    raise cancelled


async def _ended(tasks: Collection["asyncio.Future[Any]"]) -> None:
    """Wait until all of *tasks* are done, even in a scope of anyio that was cancelled.

    Such a scope, Starlette's when a client has gone for one, cancels all awaits inside it, not one.
    """
    with anyio.CancelScope(shield=True):
        await asyncio.wait(tasks)


async def _gather_in_tasks(
    runtime: Runtime, jobs: list[Callable[[Runtime], Coroutine[Any, Any, T]]], limit: int
) -> list[T]:
    room = asyncio.Semaphore(limit)

    async def run(job: Callable[[Runtime], Coroutine[Any, Any, T]]) -> T:
        async with room:
            return await job(runtime)

    crowded = limit < len(jobs)
    tasks = [asyncio.create_task(run(job) if crowded else job(runtime)) for job in jobs]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            if task.done():
                task.result()
        return [task.result() for task in tasks]
    finally:
        unfinished = [task for task in tasks if not task.done()]
        for task in unfinished:
            task.cancel()
        if unfinished:
            await _ended(unfinished)
        for task in tasks:
            _look_at_error(task)


def _look_at_error(task: "asyncio.Task[Any]") -> None:
    """Keep asyncio from reporting an error that nobody waits for any more."""
    if not task.cancelled():
        task.exception()


# --- what a blocking request needs threads for ----------------------------------------------


async def _wait_for(
    runtime: Runtime,
    awaitable: Awaitable[T],
    timeout: float | None,  # noqa: ASYNC109
    thread: "LoopThread | None" = None,
    inbox: "queue.SimpleQueue[Any] | None" = None,
) -> T:
    """Wait on this thread for what runs on another one, passing its events on meanwhile.

    Being interrupted here, or leaving the stream, cancels it there.
    """
    inbox = inbox or queue.SimpleQueue()
    context = copy_context()
    if runtime.streaming:
        context.run(_inbox.set, inbox)
    end = None if timeout is None else time.monotonic() + timeout
    work = Work(thread or private_loop(context), awaitable, context, lambda: inbox.put(None))
    try:
        while (
            item := inbox.get(timeout=None if end is None else end - time.monotonic())
        ) is not None:
            await _pass_on(runtime, item)
    except (queue.Empty, ValueError):  # ValueError: the time was over before the wait began
        work.cancel()
        msg = f"no result within {timeout:g} s"
        raise TimeoutError(msg) from None
    except BaseException:
        work.cancel()
        raise
    return work.result()


async def _pass_on(runtime: Runtime, item: _Item) -> None:
    event, emitter = item
    await (runtime.emit(event) if emitter is None else emitter(event))


class _LoopInbox:
    """Hands items from another thread to a task of the loop that is running here."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue[_Item | None] = asyncio.Queue()

    def put(self, item: _Item | None, /) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._items.put_nowait, item)

    async def get(self) -> _Item | None:
        return await self._items.get()


async def _wait_on_loop(
    runtime: Runtime, job: Callable[[Runtime], Coroutine[Any, Any, T]], thread: "LoopThread"
) -> T:
    """Wait in this task for what runs on another thread, passing its events on meanwhile."""
    inbox = _LoopInbox()
    context = copy_context()
    context.run(_inbox.set, inbox if runtime.streaming else None)
    work = Work(thread, job(_elsewhere(runtime, inbox)), context, lambda: inbox.put(None))
    try:
        while (item := await inbox.get()) is not None:
            await _pass_on(runtime, item)
    except BaseException:
        work.interrupt()
        raise
    return work.result()


def _elsewhere(runtime: Runtime, inbox: _Inbox) -> Runtime:
    """Return *runtime* as it is for a job on the loop of another thread."""

    async def post(event: Any) -> None:
        inbox.put((event, None))

    return replace(runtime, blocking=False, emitter=post)


async def _gather_in_threads(
    runtime: Runtime, jobs: list[Callable[[Runtime], Coroutine[Any, Any, T]]], limit: int
) -> list[T]:
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    finished = object()

    async def post(event: Any) -> None:
        inbox.put((event,))

    def run(job: Callable[[Runtime], Coroutine[Any, Any, T]]) -> T:
        try:
            return drive(job(runtime.with_emitter(post)))
        finally:
            inbox.put(finished)

    with ThreadPoolExecutor(min(limit, len(jobs)), "chatclient-tool") as pool:
        futures = [pool.submit(copy_context().run, run, job) for job in jobs]
        try:
            running = len(futures)
            while running:
                item = inbox.get()
                if item is finished:
                    running -= 1
                    _raise_first_error(futures)
                else:
                    await runtime.emit(item[0])
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        return [future.result() for future in futures]


def _raise_first_error(futures: "list[Future[T]]") -> None:
    for future in futures:
        if future.done():
            future.result()
