"""One asynchronous core, driven two ways.

Everything between the fluent client and the network is written once, as coroutines. A `Runtime`
travels with each request and is the only thing that knows how they are driven:

**On an event loop** (`acall`, `astream`) they are awaited as usual.

**Blocking** (`call`, `stream`) there is no loop: `drive` (see `chatclient.driving`) sends `None` to
the outermost coroutine on the caller's own thread. Nothing in it ever suspends, because every leaf
blocks instead: HTTP goes through a blocking client, a plain tool is called in place, a pause is
`time.sleep`. So the first `send` runs the request to its end and the answer arrives as
`StopIteration.value`. Tracebacks stay whole, thread-locals and Ctrl-C work, and it does not matter
whether the caller's thread happens to run a loop (a notebook) or is itself inside a tool of another
request.

The one thing that does suspend is `emit`, in a blocking stream: it leaves the event in the channel
and yields a token through all the `await`s above it up to `drive_stream`, which hands the event to
the `for` loop and then resumes. On a loop, a stream runs in a task of its own and hands its events
over through a short queue: a time-out or a span that an advisor keeps open can therefore never
spill into the consumer's code between two events. Both are in `chatclient.event_streams`.

A coroutine that awaits anything else under `drive` wants an event loop that is not there. It gets a
`BlockingCallError` thrown in at that very `await`, so its `finally` blocks run and the traceback
shows the place. Code that is asynchronous by nature (an `async def` tool, say) goes through
`Runtime.invoke`, which runs it on a private loop in a thread kept for that purpose.
"""

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar, TypeVarTuple, overload

import anyio

from chatclient.errors import DeadlineExceededError
from chatclient.inbox import Emitter
from chatclient.interruption import check_interruption, uninterrupted
from chatclient.jobs import (
    Begun,
    BegunInTask,
    BegunInThread,
    Job,
    finish_in_worker,
    gather_in_tasks,
    gather_in_threads,
    invoke_on_loop,
    wait_on_loop,
    wait_on_thread,
)
from chatclient.observation import Observer, Operation, Step
from chatclient.tasks import to_its_end
from chatclient.threads import LoopThread, call_in_thread, is_async, is_awaitable

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_GRACE = 0.1  # seconds after the deadline for what ends at it by itself


async def _discard(_event: Any) -> None:
    """Take an event nobody asked for."""


@dataclass(frozen=True, slots=True, eq=False)
class Runtime:
    """How one request runs: blocking or on a loop, streamed or not, and until when.

    Attributes:
        blocking: Whether the request is driven on the caller's thread without an event loop.
            Application code has no reason to ask; use the methods, which do the right thing.
        streaming: Whether events are consumed. Models stream only then.
        deadline: When the whole call must be over, on the clock of `time.monotonic`, or None.
        emitter: Where events go.
        observers: They hear of the request's operations.
        steps: Where they are noted, for the request's trail, or None.
        unsettled: What the request has done and would undo if it failed, or None where it is not
            known when the request ends.
    """

    blocking: bool
    streaming: bool = False
    deadline: float | None = None
    emitter: Emitter = _discard
    observers: tuple[Observer, ...] = ()
    steps: list[Step] | None = None
    unsettled: list["Unsettled"] | None = None

    async def emit(self, event: Any) -> None:
        """Pass *event* to the consumer of the stream; without a stream this does nothing."""
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
        """Return this runtime for a request of its own.

        Its operations are noted in *steps* and told to *observers*; it has nothing to undo yet.
        """
        return Runtime(
            self.blocking, self.streaming, self.deadline, self.emitter, observers, steps, []
        )

    def with_emitter(self, emitter: Emitter) -> "Runtime":
        """Return this runtime with events going to *emitter* instead.

        An advisor that rewrites, holds back or swallows what is streamed passes the request on
        with such a runtime, and calls the original's `emit` for what may go out.
        """
        return replace(self, emitter=emitter)

    def streamed_to(self, emitter: Emitter) -> "Runtime":
        """Return this runtime with everything streamed, and events going to *emitter*."""
        return replace(self, streaming=True, emitter=emitter)

    def silent(self) -> "Runtime":
        """Return this runtime with nothing streamed: for model calls the user must not see."""
        return replace(self, streaming=False)

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
            check_interruption()
            time.sleep(seconds)  # noqa: ASYNC251 - blocking is what this runtime is for
        else:
            await anyio.sleep(seconds)

    @overload
    async def invoke(
        self,
        function: Callable[[*Ts], Awaitable[T]],
        /,
        *args: *Ts,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> T: ...

    @overload
    async def invoke(
        self,
        function: Callable[[*Ts], Awaitable[T] | T],
        /,
        *args: *Ts,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> T: ...

    async def invoke(
        self,
        function: Callable[[*Ts], Any],
        /,
        *args: *Ts,
        timeout: float | None = None,  # noqa: ASYNC109 - blocking requests need it as a number
    ) -> Any:
        """Call user code, plain or asynchronous, without blocking anyone else.

        Blocking: a plain function is called right here (with a timeout: in a thread that can be
        left behind), an asynchronous one on a private loop thread. On an event loop: a plain
        function runs in a worker thread, an asynchronous one is awaited. Context variables are
        visible in all four cases.

        Args:
            function: What to call; whatever awaitable it returns is awaited.
            *args: Its positional arguments.
            timeout: Seconds it may take. A plain function cannot be stopped: past its time it is
                abandoned to its thread and its result dropped. Until then, a request that is
                cancelled waits for it.

        Raises:
            TimeoutError: *timeout* has passed.
        """
        end = None if timeout is None else time.monotonic() + timeout
        if self.blocking:
            check_interruption()
            if timeout is not None and not is_async(function):
                result = call_in_thread(function, args, timeout)
            else:
                result = function(*args)
            if is_awaitable(result):
                return await wait_on_thread(lambda _: result, self.emit, end)
            return result
        if end is None:
            return await invoke_on_loop(function, args, None)
        async with asyncio.timeout(timeout):
            return await invoke_on_loop(function, args, end)

    async def run_on(
        self,
        thread: LoopThread,
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
        there = _emitting(replace(self, blocking=False), job)
        if self.blocking:
            end = None if timeout is None else time.monotonic() + timeout
            return await wait_on_thread(there, self.emit, end, thread)
        async with asyncio.timeout(timeout):
            return await wait_on_loop(there, self.emit, thread)

    async def finish(self, function: Callable[[*Ts], T], /, *args: *Ts) -> T:
        """Call a plain function that nothing may leave behind unfinished, such as a transaction.

        Like `invoke`, but a request that is cancelled on an event loop ends only when the function
        has. What is done after it then really comes after it.
        """
        if self.blocking:
            return function(*args)
        return await finish_in_worker(functools.partial(function, *args))

    async def shielded(self, work: Coroutine[Any, Any, T]) -> T:
        """Await what has to be done although the request is being cancelled, such as cleaning up.

        Like `finish`, for a coroutine. Neither a task that is cancelled nor a cancelled scope of
        anyio, which would cancel whatever is awaited in it, gets in its way; nor does whoever
        interrupts a thread. The end of the event loop waits, too, but cancels tasks that *work*
        itself has begun.

        Raises:
            CancelledError: (at the end) the request was cancelled; the cause of it is what *work*
                has failed of, if it did.
        """
        if not self.blocking:
            return await to_its_end(work)
        with uninterrupted():
            return await work

    def undo_on_failure(self, done: "Unsettled") -> None:
        """See that *done* is undone if the request fails from here on, or is cancelled."""
        if self.unsettled is not None:
            self.unsettled.append(done)

    def settle(self) -> None:
        """Let what the request has done so far stand, whatever becomes of the request."""
        if self.unsettled:
            self.unsettled.clear()

    async def undo(self) -> None:
        """Undo what the request has done so far and nobody has settled, the last first."""
        if self.unsettled:
            await self.shielded(_undone(self.unsettled))

    async def within(self, seconds: float | None, awaitable: Awaitable[T]) -> T:
        """Await for at most *seconds*; a blocking request leaves that to what it calls.

        Raises:
            TimeoutError: They have passed.
        """
        if seconds is None or self.blocking:
            return await awaitable
        async with asyncio.timeout(seconds):
            return await awaitable

    def until_deadline(
        self, awaitable: Awaitable[T], what: str = "what the call was waiting for"
    ) -> Awaitable[T]:
        """Await until a little after the deadline; nothing cancels a blocking request.

        Whatever knows the deadline ends at it by itself, with an error of its own; the rest is
        cancelled here. *what* names it in the error if it was no observed operation.

        Raises:
            DeadlineExceededError: It has passed.
        """
        # Without one, no coroutine of its own: each event of a stream passes all there are.
        if self.deadline is None or self.blocking:
            return awaitable
        return self._until_end(awaitable, what)

    async def _until_end(self, awaitable: Awaitable[T], what: str) -> T:
        scope = asyncio.timeout(self.remaining() + _GRACE)
        try:
            async with scope:
                return await awaitable
        except TimeoutError as error:
            if not scope.expired():
                raise
            waited_for = _cancelled_last(self.steps) or what
            msg = f"the deadline passed, and {waited_for} was cancelled"
            raise DeadlineExceededError(msg) from error

    async def gather(
        self, jobs: list[Callable[["Runtime"], Coroutine[Any, Any, T]]], *, limit: int
    ) -> list[T]:
        """Run *jobs*, at most *limit* at a time, and return their results in order.

        Each job is called with the runtime it is to use. With a limit of 1 they run one after
        another right here. Otherwise a loop runs them as tasks; a blocking request runs them in a
        pool of threads while the caller's thread passes their events on. When one raises, the
        others are cancelled (in threads what is asynchronous, and whatever would come next: the
        rest is awaited, for a thread cannot be stopped) and the first error is raised.
        """
        if limit <= 1 or len(jobs) <= 1:
            return [await job(self) for job in jobs]
        if self.blocking:
            return await gather_in_threads([_emitting(self, job) for job in jobs], self.emit, limit)
        return await gather_in_tasks(jobs, self, limit)

    def begin(
        self, job: Callable[["Runtime"], Coroutine[Any, Any, T]], context: Context
    ) -> Begun[T]:
        """Run *job* beside this request from now on, in a copy of *context*.

        A task on a loop, a thread for a blocking request. Whoever calls this asks for the result or
        ends it before the request is over.
        """
        if self.blocking:
            return BegunInThread(_emitting(self, job), context)
        return BegunInTask(job(self), context)


class Unsettled(Protocol):
    """Something that a request has done, such as a turn of its tools."""

    async def undo(self) -> None:
        """Undo it, as far as that is possible; raises nothing."""
        ...


def _cancelled_last(steps: list[Step] | None) -> str | None:
    """Return the name of the innermost of *steps* that was cancelled."""
    cancelled = (s for s in reversed(steps or ()) if isinstance(s.error, asyncio.CancelledError))
    innermost = next(cancelled, None)
    return None if innermost is None else repr(innermost.operation.name)


async def _undone(unsettled: list[Unsettled]) -> None:
    while unsettled:
        await unsettled.pop().undo()


def _emitting(runtime: Runtime, job: Callable[[Runtime], Coroutine[Any, Any, T]]) -> Job[T]:
    """Return *job* with *runtime*, for wherever its events are to go."""
    return lambda emitter: job(runtime.with_emitter(emitter))


BLOCKING = Runtime(blocking=True)
"""How a blocking request without a stream and without a deadline runs."""
ON_LOOP = Runtime(blocking=False)
"""How an asynchronous request without a stream and without a deadline runs."""
