"""`Runtime`: runs a request on an event loop, or blocking on the caller's thread.

All code between the client and the network is written once, as coroutines. The `Runtime` of a
request is the only object that knows how they are run:

**On an event loop** (`acall`, `astream`), they are awaited as usual. A stream runs in a separate
task and passes events through a bounded queue, so that timeouts and spans of an advisor do not
extend to the consumer's code (`chatclient.runtime.event_stream`).

**Blocking** (`call`, `stream`), `drive` sends `None` to the outermost coroutine on the caller's
thread (`chatclient.runtime.blocking`). No `await` suspends, because I/O, pauses and plain tools
block, so the request returns within the first `send`. Only `emit` suspends, in a blocking stream:
it yields the event to `drive_stream`. Asynchronous user code must be called with `Runtime.invoke`,
which runs it on a private loop in another thread.
"""

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context, ContextVar, Token
from dataclasses import dataclass, replace
from typing import Any, TypeVar, TypeVarTuple, overload

import anyio

from chatclient._internal.exceptions import raise_single
from chatclient.errors import DeadlineExceededError, ProviderError, StreamInterruptedError
from chatclient.runtime.blocking import check_interruption, context_variable, uninterrupted
from chatclient.runtime.cancellation import (
    Cancellation,
    Undoable,
    UndoLog,
    cancel_after,
    run_shielded,
)
from chatclient.runtime.concurrency import (
    BackgroundJob,
    Job,
    TaskJob,
    ThreadJob,
    block_on_thread,
    finish_in_worker,
    gather_in_tasks,
    gather_in_threads,
    invoke_on_loop,
    run_on_thread,
)
from chatclient.runtime.observation import Observer, Operation, Step, last_cancelled
from chatclient.runtime.threads import (
    Emitter,
    LoopThread,
    call_in_thread,
    is_async,
    is_awaitable,
    is_of_library,
)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Wait = Callable[[], Awaitable[None]]


async def _do_nothing(_event: Any = None) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class Runtime:
    """How one request runs: blocking or on a loop, streamed or not, and until when.

    Attributes:
        blocking: Whether the request runs without an event loop.
        streaming: Whether events are consumed; models stream only then.
        deadline: When the request must have ended, on the clock of `time.monotonic`, or None.
        emitter: Receives the events.
        wait_for_consumer: Waits until the consumer of a stream has received all events so far.
        observers: Observe the operations of the request.
        steps: The list of the request's operations, for its trail, or None.
        undo_log: What to undo if the request fails, or None outside of a client's request.
        cancellation: Whether the request was cancelled, or None outside of a client's request.
        state: What models keep during the turn, JSON values by the name of the model; it is stored
            with a turn that waits, and with recorded steps. None outside of a client's request.
        conversation_id: The id of the request's conversation, or None.
    """

    blocking: bool
    streaming: bool = False
    deadline: float | None = None
    emitter: Emitter = _do_nothing
    wait_for_consumer: Wait = _do_nothing
    observers: tuple[Observer, ...] = ()
    steps: list[Step] | None = None
    undo_log: UndoLog | None = None
    cancellation: Cancellation | None = None
    state: dict[str, Any] | None = None
    conversation_id: str | None = None

    async def emit(self, event: Any) -> None:
        """Pass *event* to the consumer of the stream; does nothing without a stream."""
        if self.streaming:
            await self.emitter(event)

    def observe(self, operation: Operation) -> Step:
        """Return a context manager around *operation*, for the trail and the observers.

        Set `result` on the step that it returns.
        """
        return Step(operation, self.steps, self.observers)

    def for_request(
        self,
        steps: list[Step] | None,
        observers: tuple[Observer, ...],
        conversation_id: str | None = None,
        undo_log: UndoLog | None = None,
        state: dict[str, Any] | None = None,
    ) -> "Runtime":
        """Return this runtime for a new request."""
        # For each request, so without `replace`, which takes several times as long.
        return Runtime(
            self.blocking,
            self.streaming,
            self.deadline,
            self.emitter,
            self.wait_for_consumer,
            observers,
            steps,
            undo_log,
            self.cancellation,
            {} if state is None else state,
            conversation_id,
        )

    def with_cancellation(self, cancellation: Cancellation) -> "Runtime":
        """Return this runtime for a request that *cancellation* ends at its next step."""
        return replace(self, cancellation=cancellation)

    def check_cancelled(self) -> None:
        """End a cancelled request whose user code caught the cancellation.

        Called before each model call, before each tool call, and before memory is written.

        Raises:
            CancelledError: The request was cancelled.
            GeneratorExit: The consumer has left the blocking stream.
        """
        if self.blocking:
            check_interruption()
        if self.cancellation is not None and self.cancellation.requested:
            if self.blocking:
                raise GeneratorExit
            msg = "the request was cancelled"
            raise asyncio.CancelledError(msg)

    def with_emitter(self, emitter: Emitter) -> "Runtime":
        """Return this runtime with *emitter* as the receiver of events.

        An advisor that changes, delays or drops events passes such a runtime to the next advisor,
        and emits to the original runtime.
        """
        return replace(self, emitter=emitter)

    def streamed_to(self, emitter: Emitter, wait: Wait = _do_nothing) -> "Runtime":
        """Return this runtime with streaming enabled; see the attributes for the arguments."""
        return replace(self, streaming=True, emitter=emitter, wait_for_consumer=wait)

    def silent(self) -> "Runtime":
        """Return this runtime without streaming, for model calls that the user must not see."""
        return replace(self, streaming=False)

    def with_deadline(self, seconds: float) -> "Runtime":
        """Return this runtime with a deadline in *seconds*, unless the present one is earlier."""
        deadline = time.monotonic() + seconds
        return self if self.remaining() < seconds else replace(self, deadline=deadline)

    def remaining(self) -> float:
        """Return the seconds until the deadline: 0.0 after it, infinity without one."""
        if self.deadline is None:
            return float("inf")
        return max(0.0, self.deadline - time.monotonic())

    async def sleep(self, seconds: float) -> None:
        """Pause this request only.

        Raises:
            DeadlineExceededError: The pause would exceed the deadline; raised without waiting.
        """
        if self.deadline is not None and seconds > self.remaining():
            msg = f"a pause of {seconds:g} s would go beyond the deadline of the call"
            raise DeadlineExceededError(msg)
        if self.blocking:
            check_interruption()
            time.sleep(seconds)  # noqa: ASYNC251 - blocking by design
        else:
            await anyio.sleep(seconds)

    @overload
    async def invoke(
        self,
        function: Callable[[*Ts], Awaitable[T]],
        /,
        *args: *Ts,
        timeout: float | None = None,  # noqa: ASYNC109
        on_late_result: Callable[[Any], None] | None = None,
    ) -> T: ...

    @overload
    async def invoke(
        self,
        function: Callable[[*Ts], Awaitable[T] | T],
        /,
        *args: *Ts,
        timeout: float | None = None,  # noqa: ASYNC109
        on_late_result: Callable[[Any], None] | None = None,
    ) -> T: ...

    async def invoke(
        self,
        function: Callable[[*Ts], Any],
        /,
        *args: *Ts,
        timeout: float | None = None,  # noqa: ASYNC109 - blocking requests need it as a number
        on_late_result: Callable[[Any], None] | None = None,
    ) -> Any:
        """Call user code, plain or asynchronous, and return its result.

        Blocking: a plain function is called on this thread (with a timeout: in a thread that can be
        abandoned), an asynchronous one on a private loop thread. On an event loop: a plain
        function runs in a worker thread, an asynchronous one is awaited. Context variables are
        visible in all four cases.

        Args:
            function: The function; an awaitable result is awaited.
            *args: Its positional arguments.
            timeout: The maximum time in seconds. Then the thread of a plain function is abandoned;
                until then, the cancellation of a request waits for it.
            on_late_result: Called with the result of a plain function that returns after the
                request was cancelled.

        Raises:
            TimeoutError: *timeout* has passed.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            if self.blocking:
                check_interruption()
                if timeout is not None and not is_async(function):
                    result = call_in_thread(function, args, timeout)
                else:
                    result = function(*args)
                if is_awaitable(result):
                    return await block_on_thread(lambda _: result, self.emit, deadline)
                return result
            if deadline is None:
                return await invoke_on_loop(function, args, None, on_late_result)
            async with asyncio.timeout(timeout):
                return await invoke_on_loop(function, args, deadline, on_late_result)
        except ExceptionGroup as group:
            raise_single(group)

    async def call(self, function: Callable[[*Ts], Any], /, *args: *Ts) -> Any:
        """Call a function that may be the application's or this library's; see `invoke`.

        The library's own functions never block, so they are called without a worker thread.
        """
        if is_of_library(function):
            return await self.awaited(function(*args))
        return await self.invoke(function, *args)

    async def awaited(self, value: Any) -> Any:
        """Return *value*, the result of a callback, awaited if it is awaitable.

        For plain callbacks that must be fast, and are called without a thread.
        """
        return await self.invoke(_await, value) if is_awaitable(value) else value

    async def run_on(
        self,
        thread: LoopThread,
        job: Callable[["Runtime"], Coroutine[Any, Any, T]],
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - blocking requests need it as a number
    ) -> T:
        """Run *job* on the loop of another thread and wait for its result.

        For connections that are bound to a loop and shared by several threads. The job is called
        with the runtime to use; its events, also of other tasks, are emitted here.

        Raises:
            TimeoutError: *timeout* has passed; the job is cancelled.
        """
        bound_job = _with_runtime(replace(self, blocking=False), job)
        if self.blocking:
            deadline = None if timeout is None else time.monotonic() + timeout
            return await block_on_thread(bound_job, self.emit, deadline, thread)
        async with asyncio.timeout(timeout):
            return await run_on_thread(bound_job, self.emit, thread)

    async def finish(self, function: Callable[[*Ts], T], /, *args: *Ts) -> T:
        """Call a plain function that must not be abandoned, such as a transaction.

        Like `invoke`, but the cancellation of a request waits until the function has returned.
        """
        if self.blocking:
            return function(*args)
        return await finish_in_worker(functools.partial(function, *args))

    async def shielded(self, work: Coroutine[Any, Any, T]) -> T:
        """Await *work* even if the request is cancelled; for cleanup.

        Like `finish`, for a coroutine: protects it from the cancellation of a task or an anyio
        scope, and from the interruption of a thread, but not tasks that *work* has started.

        Raises:
            CancelledError: The request was cancelled before *work* was done; the cause is the error
                of *work*, if any.
        """
        if not self.blocking:
            return await run_shielded(work)
        with uninterrupted():
            return await work

    def undo_on_failure(self, effect: Undoable) -> None:
        """Undo *effect* if the request fails later, or is cancelled."""
        if self.undo_log is not None:
            self.undo_log.effects.append(effect)

    def settle(self) -> None:
        """Keep the effects of the request so far, even if it fails later."""
        if self.undo_log is not None:
            self.undo_log.settle()

    async def within(self, seconds: float | None, awaitable: Awaitable[T]) -> T:
        """Await for at most *seconds*; in blocking mode, *awaitable* has to limit itself.

        Raises:
            TimeoutError: *seconds* have passed.
        """
        if seconds is None or self.blocking:
            return await awaitable
        async with asyncio.timeout(seconds):
            return await awaitable

    def until_deadline(
        self, awaitable: Awaitable[T], what: str = "what the call was waiting for"
    ) -> Awaitable[T]:
        """Cancel *awaitable* shortly after the deadline; does nothing in blocking mode.

        Code that checks the deadline itself raises a more specific error before that. *what* names
        the awaitable in the error message, unless an observed operation was cancelled.

        Raises:
            DeadlineExceededError: The deadline has passed.
        """
        # Without a deadline there is no extra coroutine, through which every event would pass.
        if self.deadline is None or self.blocking:
            return awaitable
        return cancel_after(self.remaining(), awaitable, lambda: last_cancelled(self.steps) or what)

    async def gather(
        self, jobs: list[Callable[["Runtime"], Coroutine[Any, Any, T]]], *, limit: int
    ) -> list[T]:
        """Run *jobs*, at most *limit* at a time, and return their results in order.

        Each job is called with the runtime to use. On an event loop each job is a task, also a
        single one, so that a cancellation is raised here before user code can catch it. In blocking
        mode the jobs run on this thread if *limit* is 1, else in a thread pool, while this thread
        emits their events. If a job fails, the others are cancelled and the first error is raised.
        Jobs in threads are interrupted at their next wait or call; plain functions are awaited.
        """
        if self.blocking:
            if limit <= 1 or len(jobs) <= 1:
                return [await job(self) for job in jobs]
            bound_jobs = [_with_runtime(self, job) for job in jobs]
            return await gather_in_threads(bound_jobs, self.emit, limit)
        return await gather_in_tasks(jobs, self, limit) if jobs else []

    def begin(
        self, job: Callable[["Runtime"], Coroutine[Any, Any, T]], context: Context
    ) -> BackgroundJob[T]:
        """Start *job* in the background, as a task or a thread, in a copy of *context*.

        Its events are emitted when its result is awaited. The caller must await that or end the job
        before the request ends.
        """
        kind = ThreadJob if self.blocking else TaskJob
        return kind(_with_runtime(self, job), context)


async def _await(value: Any) -> Any:
    return await value


def _with_runtime(runtime: Runtime, job: Callable[[Runtime], Coroutine[Any, Any, T]]) -> Job[T]:
    """Return *job* as a function of the emitter that its *runtime* uses."""
    return lambda emitter: job(runtime.with_emitter(emitter))


BLOCKING = Runtime(blocking=True)
"""Runtime of blocking requests, without streaming and deadline."""
ON_LOOP = Runtime(blocking=False)
"""Runtime of asynchronous requests, without streaming and deadline."""


class CallerDeadline:
    """A context, such as a running tool, whose *deadline* applies to the requests made inside.

    None removes the deadline of an outer caller.
    """

    __slots__ = ("_token", "deadline", "finished")

    _token: Token["CallerDeadline | None"]

    def __init__(self, deadline: float | None) -> None:
        self.deadline = deadline
        self.finished = False  # background tasks that it started are not limited by the deadline

    def __enter__(self) -> None:
        """Set the deadline for requests in this context."""
        self._token = _caller.set(self)

    def __exit__(self, *_error: object) -> None:
        """End the effect of the deadline, in background tasks as well."""
        self.finished = True
        _caller.reset(self._token)
        del self._token  # references the caller's context


_caller: ContextVar[CallerDeadline | None] = context_variable("chatclient_caller", None)


def within_callers_deadline(runtime: Runtime) -> Runtime:
    """Return *runtime* with the deadline of the surrounding request, if that is earlier."""
    caller = _caller.get()
    if caller is None or caller.finished or caller.deadline is None:
        return runtime
    if runtime.deadline is not None and runtime.deadline <= caller.deadline:
        return runtime
    return replace(runtime, deadline=caller.deadline)


_CLOCK_TOLERANCE = 0.02  # seconds that a timeout of a socket may end before the deadline


def is_expired(runtime: Runtime) -> bool:
    """Return whether the deadline of *runtime* has passed, or is about to."""
    return runtime.remaining() <= _CLOCK_TOLERANCE


def deadline_error(error: ProviderError) -> DeadlineExceededError:
    """Return the error for a provider's time-out that is due to a deadline of the application."""
    expired = DeadlineExceededError("the deadline passed before the model's response was complete")
    if isinstance(error, StreamInterruptedError):
        expired.partial = error.partial
    return expired
