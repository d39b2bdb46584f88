"""The runtime: one core, driven with and without an event loop."""

import asyncio
import contextvars
import gc
import os
import signal
import sys
import threading
import time
import types
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import anyio.to_thread
import pytest

from chatclient.errors import BlockingCallError
from chatclient.runtime.blocking import drive
from chatclient.runtime.event_stream import AsyncEvents, drive_stream
from chatclient.runtime.runtime import BLOCKING, ON_LOOP, Runtime
from tests.support.clock import Clock
from tests.support.waiting import LONG, asettled, longer_and_longer, settled

VAR: contextvars.ContextVar[str] = contextvars.ContextVar("VAR", default="outside")


def run(mode: str, job: Callable[[Runtime], Any]) -> Any:
    """Run a coroutine function with a runtime in either mode."""
    return drive(job(BLOCKING)) if mode == "blocking" else asyncio.run(job(ON_LOOP))


both = pytest.mark.parametrize("mode", ["blocking", "on_loop"])


def test_drive_returns_the_result() -> None:
    """A coroutine that never suspends runs on the caller's thread."""

    async def inner() -> int:
        return threading.get_ident()

    async def outer() -> int:
        return await inner()

    assert drive(outer()) == threading.get_ident()


@pytest.mark.feature("advisor-blocking-code-needs-loop")
def test_drive_rejects_awaiting_a_loop() -> None:
    """The error names the alternatives and is raised at the `await`."""
    cleaned: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.sleep(1)
        finally:
            cleaned.append("yes")

    with pytest.raises(BlockingCallError, match=r"runtime\.invoke"):
        drive(waits())

    assert cleaned == ["yes"]


def test_drive_rejects_foreign_futures() -> None:
    """Inside a running loop the error is raised at the foreign `await`."""
    places: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.sleep(1)
        except BlockingCallError:
            places.append("at the await")
            raise

    async def notebook() -> None:
        drive(waits())

    with pytest.raises(BlockingCallError, match="acall"):
        asyncio.run(notebook())

    assert places == ["at the await"]


def test_drive_rejects_asyncio_gather() -> None:
    """`asyncio.gather` requires a running loop, and its error is replaced."""

    async def makes_a_future() -> None:
        await asyncio.get_event_loop().create_future()

    with ThreadPoolExecutor(1) as pool:
        error = pool.submit(drive, makes_a_future()).exception()

    assert isinstance(error, BlockingCallError)
    assert "runtime.invoke" in str(error)


def test_drive_closes_persistent_coroutine() -> None:
    """The same error is raised if the coroutine awaits again in its cleanup."""

    async def insists() -> None:
        try:
            with suppress(BlockingCallError):
                await asyncio.sleep(0)
            await asyncio.sleep(0)
        finally:
            await asyncio.sleep(0)

    with pytest.raises(BlockingCallError, match="acall"):
        drive(insists())


def test_drive_error_can_be_handled() -> None:
    """A coroutine may catch the error and return a result."""

    async def falls_back() -> str:
        try:
            await asyncio.sleep(0)
        except BlockingCallError:
            return "plan B"
        return "never"

    assert drive(falls_back()) == "plan B"


def test_drive_works_inside_a_running_loop() -> None:
    """A blocking call works inside a running loop, as in notebooks."""

    async def notebook() -> str:
        async def request() -> str:
            return "answered"

        return drive(request())

    assert asyncio.run(notebook()) == "answered"


@pytest.mark.feature("advisor-base-advisor-get-scheduler")
@both
def test_invoke(mode: str) -> None:
    """Plain and async functions are called in both modes with the caller's context."""

    def plain(value: str) -> str:
        return f"{value} {VAR.get()}"

    async def waits(value: str) -> str:
        await asyncio.sleep(0)
        return f"{value} {VAR.get()}"

    @types.coroutine
    def by_generator(value: str) -> Generator[Any, None, str]:
        return (yield from waits(value).__await__())

    async def job(runtime: Runtime) -> list[str]:
        VAR.set("inside")
        return [
            await runtime.invoke(plain, "plain"),
            await runtime.invoke(waits, "async"),
            await runtime.invoke(partial(waits, "partial")),
            await runtime.invoke(lambda: waits("lambda")),
            await runtime.invoke(by_generator, "generator"),
        ]

    token = VAR.set("test")
    try:
        assert run(mode, job) == [
            "plain inside",
            "async inside",
            "partial inside",
            "lambda inside",
            "generator inside",
        ]
    finally:
        VAR.reset(token)


def test_blocking_invoke_uses_the_caller_thread() -> None:
    """Thread-locals are available to tools of blocking calls."""

    async def job(runtime: Runtime) -> int:
        return int(await runtime.invoke(threading.get_ident))

    assert drive(job(BLOCKING)) == threading.get_ident()


@pytest.mark.feature("stream-tools-run-another-thread")
def test_plain_function_does_not_block_the_loop() -> None:
    """Other tasks run during a plain function."""
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.001)

    async def main() -> bool:
        ticker = asyncio.create_task(tick())
        ticked: bool = await ON_LOOP.invoke(settled, lambda: ticks >= 4)
        ticker.cancel()
        return ticked

    assert asyncio.run(main())


@both
@pytest.mark.parametrize("kind", ["plain", "async"])
def test_invoke_timeout(mode: str, kind: str) -> None:
    """A function that exceeds the time-out is abandoned."""
    gate, ended = threading.Event(), list[str]()
    begun = threading.Event()

    async def waits() -> None:
        begun.set()
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    def blocks() -> None:
        begun.set()
        gate.wait(LONG)
        ended.append("returned")

    async def job(timeout: float, runtime: Runtime) -> None:  # noqa: ASYNC109
        function: Any = waits if kind == "async" else blocks
        await runtime.invoke(function, timeout=timeout)

    for seconds in longer_and_longer():
        with pytest.raises(TimeoutError):
            run(mode, partial(job, seconds))
        if begun.is_set():
            break

    assert ended == (["cancelled"] if kind == "async" else [])
    gate.set()


@both
def test_invoke_within_timeout(mode: str) -> None:
    """Results and errors are unchanged."""

    async def answer() -> str:
        return "async"

    def fail() -> None:
        raise TimeoutError("its own")

    async def job(runtime: Runtime) -> list[str]:
        plain = await runtime.invoke(str, 1, timeout=LONG)
        waited = await runtime.invoke(answer, timeout=LONG)
        with pytest.raises(TimeoutError, match="its own"):
            await runtime.invoke(fail, timeout=LONG)
        return [plain, waited]

    assert run(mode, job) == ["1", "async"]


@both
def test_invoke_timeout_includes_returned_awaitable(mode: str) -> None:
    """The time-out covers the call and the awaitable it returns."""

    def returns_more() -> Any:
        time.sleep(0.15)
        return asyncio.sleep(0.25)

    async def job(runtime: Runtime) -> None:
        await runtime.invoke(returns_more, timeout=0.3)

    with pytest.raises(TimeoutError):
        run(mode, job)


def test_slow_consumer_does_not_expire_a_call(clock: Clock) -> None:
    """A result in time counts although a consumer delayed it."""
    ended = threading.Event()

    async def request(runtime: Runtime) -> str:
        async def tool() -> str:
            if (task := asyncio.current_task()) is not None:
                task.add_done_callback(lambda _: ended.set())
            await runtime.emit("event")
            return "result"

        return str(await runtime.invoke(tool, timeout=LONG))

    stream = drive_stream(request, BLOCKING)
    assert next(stream) == "event"
    assert ended.wait(LONG)
    clock.advance(2 * LONG)

    with pytest.raises(StopIteration) as stop:
        next(stream)
    assert stop.value.value == "result"


def test_nested_blocking_calls_in_async_tools() -> None:
    """A blocking call in an async tool may have async tools."""

    async def innermost() -> str:
        await asyncio.sleep(0)
        return "innermost"

    async def outer_tool() -> str:
        async def nested(runtime: Runtime) -> str:
            return str(await runtime.invoke(innermost))

        return drive(nested(BLOCKING))

    async def job(runtime: Runtime) -> str:
        return str(await runtime.invoke(outer_tool))

    assert drive(job(BLOCKING)) == "innermost"


def in_time(function: Callable[[], Any]) -> Any:
    """Return the result of *function*, which fails if it takes ten seconds."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function()), daemon=True)
    thread.start()
    thread.join(10)
    assert results, "deadlock"
    return results[0]


async def _leaf() -> str:
    await asyncio.sleep(0)
    return "leaf"


async def _several(runtime: Runtime) -> list[str]:
    jobs: list[Any] = [lambda runtime: runtime.invoke(_leaf)] * 2
    return await runtime.gather(jobs, limit=2)


async def _limited(runtime: Runtime) -> str:
    def plain() -> str:
        return str(drive(BLOCKING.invoke(_leaf)))

    return str(await runtime.invoke(plain, timeout=30))


@pytest.mark.parametrize(("nested", "result"), [(_several, ["leaf", "leaf"]), (_limited, "leaf")])
def test_nested_blocking_calls_in_threads(nested: Callable[[Runtime], Any], result: Any) -> None:
    """The nested calls run in threads without a loop."""

    async def outer_tool() -> Any:
        return drive(nested(BLOCKING))

    assert in_time(lambda: drive(BLOCKING.invoke(outer_tool))) == result


def test_blocking_call_in_a_callback_of_the_loop() -> None:
    """A callback without the request's context does not wait for its own loop."""

    async def blocking() -> Any:
        return drive(BLOCKING.invoke(_leaf))

    async def outer_tool() -> Any:
        loop = asyncio.get_running_loop()
        return await loop.create_task(blocking(), context=contextvars.Context())

    assert in_time(lambda: drive(BLOCKING.invoke(outer_tool))) == "leaf"


def test_interrupt_cancels_async_tools() -> None:
    """Ctrl-C cancels an async tool on the private loop."""
    ended = threading.Event()

    async def long_tool() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            ended.set()

    async def job(runtime: Runtime) -> None:
        await runtime.invoke(long_tool)

    main_thread = threading.main_thread().ident
    assert main_thread is not None
    timer = threading.Timer(0.1, signal.pthread_kill, (main_thread, signal.SIGINT))
    # Background jobs of a shell ignore the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            drive(job(BLOCKING))
    finally:
        timer.join()
        signal.signal(signal.SIGINT, before)

    assert ended.wait(LONG)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_child_has_its_own_loop() -> None:
    """A child does not use the parent's private loop thread."""

    async def answer() -> str:
        return "answered"

    async def job(runtime: Runtime) -> str:
        return str(await runtime.invoke(answer))

    assert drive(job(BLOCKING)) == "answered"
    child = os.fork()
    if child == 0:
        os._exit(0 if drive(job(BLOCKING)) == "answered" else 1)
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0


# --- finish ---


@both
def test_finish_returns_the_result(mode: str) -> None:
    """The function has the caller's context, and its thread if blocking."""
    token = VAR.set("mine")

    def work(number: int) -> tuple[int, str, bool]:
        return number, VAR.get(), threading.get_ident() == here

    here = threading.get_ident()
    blocking = mode == "blocking"
    assert run(mode, lambda runtime: runtime.finish(work, 3)) == (3, "mine", blocking)
    VAR.reset(token)


@both
def test_finish_raises_the_error(mode: str) -> None:
    """The same error is raised."""
    error = LookupError("no such row")

    def work() -> None:
        raise error

    with pytest.raises(LookupError) as caught:
        run(mode, lambda runtime: runtime.finish(work))
    assert caught.value is error


@pytest.mark.parametrize("how", [ON_LOOP.finish, ON_LOOP.invoke])
@pytest.mark.parametrize("outcome", ["returns", "raises"])
async def test_cancellation_waits_for_finish(
    how: Any, outcome: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The request ends after the function, also with several cancellations."""
    started, proceed = threading.Event(), threading.Event()
    ended: list[str] = []

    def work() -> None:
        started.set()
        proceed.wait(30)
        ended.append("work")
        if outcome == "raises":
            msg = "too late"
            raise LookupError(msg)

    task = asyncio.create_task(how(work))
    task.add_done_callback(lambda _: ended.append("request"))
    await asyncio.to_thread(started.wait, 30)
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(0.02)
        assert not task.done()
    proceed.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0)
    assert ended == ["work", "request"]
    gc.collect()
    assert caplog.records == []


@pytest.mark.parametrize("how", [ON_LOOP.finish, ON_LOOP.invoke])
@pytest.mark.parametrize("impatient", [False, True])
def test_loop_shutdown_waits_for_finish(how: Any, *, impatient: bool) -> None:
    """Shutdown cancels all tasks but does not abandon the function."""
    started, proceed = threading.Event(), threading.Event()
    ended: list[str] = []

    def work() -> None:
        started.set()
        proceed.wait(30)
        ended.append("work")

    async def main() -> None:
        task = asyncio.create_task(how(work))
        task.add_done_callback(lambda _: ended.append("request"))
        await asyncio.to_thread(started.wait, 30)
        if impatient:
            task.cancel()
            await asyncio.sleep(0.02)
        asyncio.get_running_loop().call_later(0.05, proceed.set)

    asyncio.run(main())
    assert ended == ["work", "request"]


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5])
def test_loop_shutdown_before_finish_has_a_thread(steps: int, *, raises: bool) -> None:
    """A function that waits for a thread is run."""
    ended: list[str] = []

    def work() -> None:
        time.sleep(0.05)
        ended.append("work")
        if raises:
            raise LookupError

    async def main() -> "asyncio.Task[None]":
        task = asyncio.create_task(ON_LOOP.finish(work))
        for _ in range(steps):
            await asyncio.sleep(0)
        return task

    task = asyncio.run(main())
    assert ended == ["work"]
    assert task.cancelled()


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5])
def test_loop_shutdown_waits_for_shielded_code(steps: int) -> None:
    """Time-outs and cancel scopes inside shielded code still apply."""
    done: list[str] = []

    async def work() -> None:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(60)
        except TimeoutError:
            done.append("timeout")
        with anyio.move_on_after(0.01):
            await asyncio.sleep(60)
        done.append("scope")
        await anyio.to_thread.run_sync(done.append, "thread")
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep, 0.01)
        await ON_LOOP.shielded(asyncio.sleep(0.01))
        done.append("end")

    async def main() -> "asyncio.Task[None]":
        task = asyncio.create_task(ON_LOOP.shielded(work()))
        for _ in range(steps):
            await asyncio.sleep(0)
        return task

    task = asyncio.run(main())
    assert done == ["timeout", "scope", "thread", "end"]
    assert task.cancelled()


async def test_shielded_failure_is_the_cause() -> None:
    """The failure is the cause of the cancellation."""
    cancelled = asyncio.Event()

    async def work() -> None:
        await cancelled.wait()
        raise LookupError

    async def outer() -> None:
        await ON_LOOP.shielded(work())

    task = asyncio.ensure_future(outer())
    await asyncio.sleep(0)
    task.cancel()
    asyncio.get_running_loop().call_soon(cancelled.set)
    with pytest.raises(asyncio.CancelledError) as caught:
        await task

    assert isinstance(caught.value.__cause__, LookupError)


# --- gather ---


def job_of(value: int, seconds: float = 0.0, log: list[str] | None = None) -> Any:
    async def job(runtime: Runtime) -> int:
        if log is not None:
            log.append(f"start {value}")
        if seconds:
            await runtime.sleep(seconds)
        await runtime.emit(value)
        if log is not None:
            log.append(f"end {value}")
        return value

    return job


@both
@pytest.mark.parametrize("limit", [1, 2, 10])
def test_gather_order_and_limit(mode: str, limit: int) -> None:
    """Results have the order of the jobs, with a limited number running."""
    running = 0
    peak = 0

    def counted(value: int) -> Any:
        async def job(runtime: Runtime) -> int:
            nonlocal running, peak
            running += 1
            peak = max(peak, running)
            await runtime.invoke(settled, lambda: limit == 1 or peak > 1)
            running -= 1
            return value

        return job

    async def main(runtime: Runtime) -> list[int]:
        return await runtime.gather([counted(i) for i in range(6)], limit=limit)

    assert run(mode, main) == list(range(6))
    assert peak <= limit
    assert limit == 1 or peak > 1


@pytest.mark.feature("lc4j-tool-siblings-run-after-failure")
@both
def test_gather_raises_the_first_error(mode: str) -> None:
    """A failing job cancels the others."""
    finished: list[int] = []
    failed = threading.Event()

    async def fails(_runtime: Runtime) -> int:
        failed.set()
        raise LookupError("first")

    def slow(value: int) -> Any:
        async def job(runtime: Runtime) -> int:
            await runtime.invoke(failed.wait, LONG)
            await runtime.sleep(0.05)
            finished.append(value)
            return value

        return job

    async def main(runtime: Runtime) -> None:
        await runtime.gather([slow(1), fails, slow(2), slow(3), slow(4)], limit=2)

    with pytest.raises(LookupError, match="first"):
        run(mode, main)

    assert 4 not in finished


@both
def test_cancelled_job_frees_its_slot(mode: str) -> None:
    """A job cancelled from inside frees its slot."""

    async def cancelled(_runtime: Runtime) -> None:
        raise asyncio.CancelledError

    async def late(_runtime: Runtime) -> None:
        pass

    async def main(runtime: Runtime) -> None:
        await runtime.within(5, runtime.gather([cancelled, cancelled, late], limit=2))

    with pytest.raises(asyncio.CancelledError):
        run(mode, main)


@both
def test_failure_prevents_waiting_jobs(mode: str) -> None:
    """Jobs without a slot are not started after a failure."""
    started: list[str] = []

    async def fails(runtime: Runtime) -> None:
        await runtime.sleep(0.1)
        raise LookupError("first")

    async def late(_runtime: Runtime) -> None:
        started.append("late")

    with pytest.raises(LookupError, match="first"):
        run(mode, lambda runtime: runtime.gather([waits_soon, fails, late], limit=2))

    assert started == []


async def waits(runtime: Runtime) -> None:
    await runtime.invoke(asyncio.sleep, 60)


async def waits_soon(runtime: Runtime) -> None:
    await runtime.invoke(time.sleep, 0.2)
    await waits(runtime)


async def waits_after_others(runtime: Runtime) -> None:
    await runtime.gather([lambda inner: inner.invoke(asyncio.sleep, 0)] * 2, limit=2)
    await waits_soon(runtime)


async def wait_in_parallel(runtime: Runtime) -> None:
    await runtime.gather([waits, waits], limit=2)


@both
def test_later_errors_are_not_reported(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    """Errors after the first one are not logged by asyncio."""

    async def fails(runtime: Runtime) -> None:
        await runtime.sleep(0.1)
        raise LookupError("first")

    async def fails_to_clean_up(runtime: Runtime) -> None:
        try:
            await waits(runtime)
        finally:
            raise LookupError("second")

    with pytest.raises(LookupError, match="first"):
        run(mode, lambda runtime: runtime.gather([fails_to_clean_up, fails], limit=2))
    gc.collect()

    assert caplog.records == []


def test_error_in_a_thread_is_seen_immediately() -> None:
    """An error does not wait for the next job to end."""

    async def fails(_runtime: Runtime) -> None:
        raise LookupError("first")

    async def main(runtime: Runtime) -> None:
        await runtime.gather([fails, waits], limit=2)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    started = time.monotonic()
    try:
        for _ in range(100):
            with pytest.raises(LookupError, match="first"):
                drive(main(BLOCKING))
    finally:
        sys.setswitchinterval(interval)

    assert time.monotonic() - started < 50  # the other job waits for 60 seconds


@both
def test_failure_stops_the_next_step_of_a_job(mode: str) -> None:
    """The running step completes, but the next one is not called."""
    called: list[str] = []
    running: list[int] = []
    failed = threading.Event()

    def step() -> None:
        running.append(1)
        failed.wait(LONG)
        time.sleep(0.5)  # until the others have heard of it

    async def continues(runtime: Runtime) -> None:
        await runtime.invoke(step)
        await runtime.invoke(called.append, "next")

    async def pauses(runtime: Runtime) -> None:
        await runtime.invoke(step)
        await runtime.sleep(60)

    async def fails(runtime: Runtime) -> None:
        await runtime.invoke(settled, lambda: len(running) == 2)
        failed.set()
        raise LookupError("first")

    async def main(runtime: Runtime) -> None:
        await runtime.gather([continues, pauses, fails], limit=3)

    started = time.monotonic()
    with pytest.raises(LookupError, match="first"):
        run(mode, main)

    assert called == []
    assert time.monotonic() - started < 50


@both
@pytest.mark.parametrize("when", ["before", "during"])
def test_shielded_code_completes_after_a_failure(mode: str, when: str) -> None:
    """In threads and tasks, started before or after the failure."""
    log: list[str] = []
    begun, failed = threading.Event(), threading.Event()

    async def clean(runtime: Runtime) -> None:
        log.append("started")
        begun.set()
        await runtime.invoke(asyncio.sleep, 0.1)
        await runtime.invoke(log.append, "done")

    def step() -> None:
        begun.set()
        failed.wait(LONG)
        time.sleep(0.05)

    async def cleans(runtime: Runtime) -> None:
        if when == "before":
            with suppress(asyncio.CancelledError):
                await runtime.invoke(step)
        await runtime.shielded(clean(runtime))

    async def fails(runtime: Runtime) -> None:
        await runtime.invoke(begun.wait, LONG)
        failed.set()
        raise LookupError("first")

    async def main(runtime: Runtime) -> None:
        await runtime.gather([cleans, fails], limit=2)

    with pytest.raises(LookupError):
        run(mode, main)

    assert log == ["started", "done"]


def test_thread_of_a_job_is_not_interrupted() -> None:
    """A thread with the job's context outlives the job."""
    over = threading.Event()
    results: list[Any] = []

    def later() -> None:
        over.wait(LONG)
        results.append(drive(BLOCKING.invoke(str, 1)))

    def begins(threads: list[threading.Thread]) -> None:
        threads.append(threading.Thread(target=contextvars.copy_context().run, args=(later,)))
        threads[0].start()
        begun.set()

    async def fails(runtime: Runtime) -> None:
        await runtime.invoke(begun.wait, LONG)
        raise LookupError("first")

    threads: list[threading.Thread] = []
    begun = threading.Event()
    with pytest.raises(LookupError):
        drive(BLOCKING.gather([lambda runtime: runtime.invoke(begins, threads), fails], limit=2))
    over.set()
    threads[0].join(LONG)

    assert results == ["1"]


@both
@pytest.mark.parametrize("other", [waits, waits_soon, waits_after_others, wait_in_parallel])
def test_gather_cancels_async_work(
    mode: str, other: Callable[[Runtime], Coroutine[Any, Any, None]]
) -> None:
    """Async work of other jobs is cancelled, in threads too."""

    async def fails(runtime: Runtime) -> None:
        await runtime.sleep(0.1)
        raise LookupError("first")

    async def main(runtime: Runtime) -> None:
        await runtime.gather([other, other, fails], limit=3)

    started = time.monotonic()
    with pytest.raises(LookupError, match="first"):
        run(mode, main)

    assert time.monotonic() - started < 50


def test_cancelled_job_can_clean_up() -> None:
    """A job is cancelled once, so that its cleanup can await."""
    cleaned: list[str] = []
    begun = threading.Event()

    async def wait() -> None:
        begun.set()
        await asyncio.sleep(600)

    async def cleans(runtime: Runtime) -> None:
        try:
            await runtime.invoke(wait)
        finally:
            await runtime.invoke(asyncio.sleep, 0.01)
            cleaned.append("up")

    async def fails(runtime: Runtime) -> None:
        await runtime.invoke(begun.wait, LONG)
        raise LookupError("first")

    async def main(runtime: Runtime) -> None:
        await runtime.gather([cleans, fails], limit=2)

    with pytest.raises(LookupError):
        drive(main(BLOCKING))

    assert cleaned == ["up"]


@both
def test_background_job_context(mode: str) -> None:
    """A background job runs in the given context, isolated from the request."""

    async def job(_runtime: Runtime) -> str:
        seen = VAR.get()
        VAR.set("changed")
        return seen

    async def main(runtime: Runtime) -> str:
        started = runtime.begin(job, context)
        return await started.result(runtime.emit)

    context = contextvars.copy_context()
    context.run(VAR.set, "given")

    assert run(mode, main) == "given"
    assert context[VAR] == "given"


def test_shared_work_is_cancelled_once() -> None:
    """Work below several jobs is cancelled once, so that it can clean up."""
    cancellations: list[int] = []
    begun = threading.Event()

    async def tool() -> None:
        begun.set()
        try:
            await asyncio.sleep(600)
        finally:
            await asyncio.sleep(0.05)
            task = asyncio.current_task()
            cancellations.append(0 if task is None else task.cancelling())

    async def begins(runtime: Runtime) -> None:
        started = runtime.begin(lambda inner: inner.invoke(tool), contextvars.copy_context())
        await started.result(runtime.emit)

    async def fails(runtime: Runtime) -> None:
        await runtime.invoke(begun.wait, LONG)
        raise LookupError("first")

    with pytest.raises(LookupError):
        drive(BLOCKING.gather([begins, fails], limit=2))

    assert cancellations == [1]


def test_events_of_jobs_in_threads() -> None:
    """Events of threads are yielded on the thread of a blocking stream."""

    async def main(runtime: Runtime) -> list[int]:
        return await runtime.gather([job_of(i, 0.01) for i in range(4)], limit=4)

    stream = drive_stream(main, BLOCKING)

    assert sorted(stream) == [0, 1, 2, 3]


async def emit_from_async_code(runtime: Runtime) -> None:
    """Emit with a silent runtime in between."""

    async def tool() -> None:
        await runtime.emit("event")

    await runtime.silent().invoke(tool)


async def emit_from_a_job(runtime: Runtime) -> None:
    async def emits(_runtime: Runtime) -> None:
        await runtime.emit("event")

    async def quiet(_runtime: Runtime) -> None:
        pass

    await runtime.gather([emits, quiet], limit=2)


async def emit_from_a_background_job(runtime: Runtime) -> None:
    async def emits(_runtime: Runtime) -> None:
        await runtime.emit("event")

    await runtime.begin(emits, contextvars.copy_context()).result(runtime.emit)


@both
@pytest.mark.parametrize(
    "request_", [emit_from_async_code, emit_from_a_job, emit_from_a_background_job]
)
def test_emit_to_the_request_runtime(
    mode: str, request_: Callable[[Runtime], Coroutine[Any, Any, None]]
) -> None:
    """Callbacks may emit with the request's runtime from any job."""

    async def main() -> list[str]:
        events: AsyncEvents[str, None] = AsyncEvents(request_, ON_LOOP)
        return [event async for event in events]

    found = list(drive_stream(request_, BLOCKING)) if mode == "blocking" else asyncio.run(main())
    assert found == ["event"]


@pytest.mark.feature("lc4j-streaming-handle-cancel")
def test_closed_stream_waits_for_its_threads() -> None:
    """Closing a stream leaves no thread and starts no further job."""
    log: list[str] = []

    async def main(runtime: Runtime) -> list[int]:
        return await runtime.gather([job_of(i, 0.1 * i, log) for i in range(6)], limit=3)

    stream = drive_stream(main, BLOCKING)
    next(stream)
    stream.close()

    assert not [t for t in threading.enumerate() if t.name.startswith("chatclient-tool")]
    assert "start 4" not in log


# --- streams ---


async def three_events(runtime: Runtime) -> str:
    for number in range(3):
        await runtime.emit(number)
    return "end"


def test_blocking_stream() -> None:
    """Each event is consumed before the request continues."""
    stream = drive_stream(three_events, BLOCKING)
    seen = [next(stream), next(stream), next(stream)]

    with pytest.raises(StopIteration) as stop:
        next(stream)
    assert (seen, stop.value.value) == ([0, 1, 2], "end")


def test_async_stream() -> None:
    """Events are in order, followed by the result."""

    async def main() -> tuple[list[int], str]:
        events: AsyncEvents[int, str] = AsyncEvents(three_events, ON_LOOP)
        return [event async for event in events], events.result()

    assert asyncio.run(main()) == ([0, 1, 2], "end")


def test_emit_without_consumer() -> None:
    """In a plain call events are dropped."""
    assert drive(three_events(BLOCKING)) == "end"


@pytest.mark.feature("advisor-thread-locals-reactive-context")
def test_stream_context_is_isolated() -> None:
    """Context variables of the request are invisible to the consumer."""

    async def request(runtime: Runtime) -> str:
        VAR.set("inside")
        await runtime.emit(1)
        await runtime.emit(2)
        return VAR.get()

    stream = drive_stream(request, BLOCKING)
    between = [(event, VAR.get()) for event in stream]

    assert between == [(1, "outside"), (2, "outside")]


def test_timeout_of_request_spares_the_consumer(clock: Clock) -> None:
    """A time-out across events cancels the request, not the consumer."""

    async def request(runtime: Runtime) -> None:
        async with asyncio.timeout(50):
            await runtime.emit(1)
            await asyncio.sleep(600)

    async def main() -> str:
        events: AsyncEvents[int, None] = AsyncEvents(request, ON_LOOP)
        assert await anext(events) == 1
        clock.advance(60)
        await asyncio.sleep(0.01)  # the slow consumer must not be cancelled
        with pytest.raises(TimeoutError):
            await anext(events)
        return "unharmed"

    assert asyncio.run(main()) == "unharmed"


def endless(log: list[str]) -> Callable[[Runtime], Any]:
    async def request(runtime: Runtime) -> None:
        try:
            while True:
                await runtime.emit("tick")
        finally:
            await runtime.emit("after the end")
            log.append("cleaned")

    return request


def test_error_during_close_of_a_stream() -> None:
    """An error during close is raised to the caller."""

    async def request(runtime: Runtime) -> None:
        try:
            await runtime.emit("event")
        finally:
            raise RuntimeError("no room to clean up")

    stream = drive_stream(request, BLOCKING)
    next(stream)
    with pytest.raises(RuntimeError, match="no room"):
        stream.close()


@pytest.mark.feature("answer-cancelling-subscription")
def test_closed_blocking_stream_runs_finally() -> None:
    """Leaving the loop ends the request immediately."""
    log: list[str] = []
    for _event in drive_stream(endless(log), BLOCKING):
        break
    gc.collect()

    assert log == ["cleaned"]


@pytest.mark.feature("answer-cancelling-subscription", "wish-cancelling-must-stop-tool")
@pytest.mark.parametrize("way", ["close", "drop", "cancel"])
def test_closed_async_stream_ends_its_task(way: str) -> None:
    """Closing, dropping or cancelling leaves no task."""
    log: list[str] = []

    async def consume(events: AsyncIterator[Any]) -> None:
        async for _event in events:
            await asyncio.sleep(0.001)

    async def main() -> int:
        events: AsyncEvents[int, None] | None = AsyncEvents(endless(log), ON_LOOP)
        assert events is not None
        await anext(events)
        if way == "close":
            await events.aclose()
            assert log == ["cleaned"]
        elif way == "cancel":
            task = asyncio.create_task(consume(events))
            await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.wait([task])
            del task  # the traceback references the iterator
        events = None
        await asyncio.sleep(0.01)
        gc.collect()
        await asettled(lambda: len(asyncio.all_tasks()) == 1)
        return len(asyncio.all_tasks())

    assert asyncio.run(main()) == 1
    assert log == ["cleaned"]


def test_async_stream_dropped_by_any_thread() -> None:
    """Garbage collection may run on any thread."""
    log: list[str] = []

    async def main() -> None:
        dropped: list[Any] = [AsyncEvents(endless(log), ON_LOOP)]
        await anext(dropped[0])
        await asyncio.sleep(0.01)  # until the request waits for its consumer
        await asyncio.to_thread(dropped.clear)
        await asettled(lambda: log)

    asyncio.run(main(), debug=True)

    assert log == ["cleaned"]


def test_cancelled_consumer_ends_the_request_first() -> None:
    """The request is cleaned up before the cancellation propagates."""
    log: list[str] = []

    async def request(runtime: Runtime) -> None:
        try:
            await asyncio.sleep(10)
        finally:
            log.append("cleaned")

    async def main() -> list[str]:
        events: AsyncEvents[int, None] = AsyncEvents(request, ON_LOOP)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await anext(events)
        at_once = list(log)
        with pytest.raises(StopAsyncIteration):
            await anext(events)
        return at_once

    assert asyncio.run(main()) == ["cleaned"]


@pytest.mark.feature("advisor-back-pressure")
def test_backpressure() -> None:
    """The buffer between request and consumer is bounded."""
    emitted = 0

    async def request(runtime: Runtime) -> None:
        nonlocal emitted
        for number in range(2000):
            await runtime.emit(number)
            emitted += 1

    async def main() -> tuple[list[int], int]:
        events: AsyncEvents[int, None] = AsyncEvents(request, ON_LOOP)
        ahead = []
        for number in range(500):
            assert await anext(events) == number
            if number % 100 == 0:
                await asyncio.sleep(0.01)
                ahead.append(emitted - number)
        rest = [event async for event in events]
        return ahead, len(rest)

    ahead, rest = asyncio.run(main())
    assert max(ahead) < 300
    assert min(ahead) > 1
    assert rest == 1500


@pytest.mark.parametrize("cancelled", [False, True])
async def test_backpressure_of_several_jobs(
    cancelled: bool,
) -> None:
    """All waiting jobs continue, also if one has been cancelled."""

    async def request(runtime: Runtime) -> None:
        async def job(name: str) -> None:
            for number in range(600):
                await runtime.emit((name, number))

        first, second = asyncio.create_task(job("first")), asyncio.create_task(job("second"))
        await asyncio.sleep(0.01)  # until both wait
        if cancelled:
            first.cancel()
        await asyncio.wait([first, second])
        await second

    events: AsyncEvents[tuple[str, int], None] = AsyncEvents(request, ON_LOOP)
    async with asyncio.timeout(10):
        seen = [await anext(events)]
        await asyncio.sleep(0.05)
        seen += [event async for event in events]

    assert [number for name, number in seen if name == "second"] == list(range(600))
    assert (("first", 599) in seen) is not cancelled


@pytest.mark.parametrize("shielded", [False, True])
async def test_emit_during_cleanup(shielded: bool) -> None:
    """Cleanup may emit any number of events without a consumer."""
    log: list[str] = []

    async def many(runtime: Runtime) -> None:
        for number in range(600):
            await runtime.emit(number)
        log.append("cleaned")

    async def request(runtime: Runtime) -> None:
        if shielded:  # until it waits for buffer space
            await runtime.shielded(many(runtime))
        try:
            await runtime.emit(0)
            await asyncio.sleep(60)
        finally:
            await many(runtime)

    events: AsyncEvents[int, None] = AsyncEvents(request, ON_LOOP)
    await anext(events)
    async with asyncio.timeout(10):
        await events.aclose()

    assert log
    assert [event async for event in events] == []


@pytest.mark.feature("stream-errors-flux-error", "lc4j-error")
def test_error_follows_its_events() -> None:
    """Events before a failure are delivered."""

    async def request(runtime: Runtime) -> None:
        await runtime.emit(1)
        raise LookupError("broken")

    async def main() -> list[int]:
        seen: list[int] = []
        events: AsyncEvents[int, None] = AsyncEvents(request, ON_LOOP)
        with pytest.raises(LookupError, match="broken"):
            async for event in events:
                seen.append(event)  # noqa: PERF401 - what came before the error is kept
        return [*seen, *[event async for event in events]]

    assert asyncio.run(main()) == [1]


async def test_abandoned_stream_error_is_not_reported() -> None:
    """Asyncio logs no error of an abandoned stream."""
    reports: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, report: reports.append(report))

    async def request(runtime: Runtime) -> None:
        await runtime.emit(1)
        raise LookupError("broken")

    events: AsyncEvents[int, None] = AsyncEvents(request, ON_LOOP)
    await anext(events)
    await asyncio.sleep(0.01)
    await events.aclose()
    del events
    gc.collect()

    assert reports == []


async def test_ended_background_error_is_not_reported() -> None:
    """Asyncio logs no error of a cancelled background job."""
    reports: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, report: reports.append(report))

    async def job(_: Runtime) -> None:
        raise LookupError("broken")

    started = ON_LOOP.begin(job, contextvars.copy_context())
    await asyncio.sleep(0.01)
    await started.stop()
    del started
    gc.collect()

    assert reports == []


def test_closed_stream_yields_nothing() -> None:
    """A stream closed before its first event never runs."""

    async def main() -> list[int]:
        events: AsyncEvents[int, str] = AsyncEvents(three_events, ON_LOOP)
        await events.aclose()
        return [event async for event in events]

    assert asyncio.run(main()) == []


def test_result_of_an_unstarted_stream() -> None:
    """Reading the result before the request has run raises."""
    with pytest.raises(RuntimeError, match="not been started"):
        AsyncEvents(three_events, ON_LOOP).result()


# --- derived runtimes ---


@pytest.mark.feature("advisor-changing-streamed")
def test_mapped_emitter() -> None:
    """An advisor may rewrite events."""

    async def request(runtime: Runtime) -> None:
        async def doubled(event: Any) -> None:
            await runtime.emit(event * 2)

        await three_events(runtime.with_emitter(doubled))

    assert list(drive_stream(request, BLOCKING)) == [0, 2, 4]


@pytest.mark.feature("advisor-holding-stream-back")
def test_silent_runtime() -> None:
    """Inner calls can be excluded from the stream."""

    async def request(runtime: Runtime) -> str:
        return await three_events(runtime.silent())

    assert list(drive_stream(request, BLOCKING)) == []


def test_earlier_deadline_wins() -> None:
    """A nested deadline can only shorten the time."""
    short = BLOCKING.with_deadline(0.5)

    assert BLOCKING.remaining() == float("inf")
    assert short.with_deadline(10).remaining() <= 0.5
    assert short.with_deadline(0.1).remaining() <= 0.1


@pytest.mark.feature("advisor-base-advisor-get-scheduler")
@both
def test_sleep(mode: str) -> None:
    """A pause has its duration in both modes."""

    async def job(runtime: Runtime) -> float:
        started = time.monotonic()
        await runtime.sleep(0.03)
        return time.monotonic() - started

    assert run(mode, job) >= 0.03


async def test_cancelled_request_starts_no_function() -> None:
    """A function that waits for a thread is not started."""
    started: list[str] = []
    gate = threading.Event()
    limiter = anyio.to_thread.current_default_thread_limiter()
    tokens, limiter.total_tokens = limiter.total_tokens, 1
    try:
        running = asyncio.ensure_future(ON_LOOP.invoke(gate.wait, LONG))
        await asyncio.sleep(0.01)
        waiting = asyncio.ensure_future(ON_LOOP.invoke(started.append, "second"))
        await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.sleep(0.01)
        gate.set()
        await running
        with pytest.raises(asyncio.CancelledError):
            await waiting
    finally:
        limiter.total_tokens = tokens

    assert started == []


def test_slow_plain_function_is_abandoned() -> None:
    """The end of an abandoned function is not awaited."""
    gate, over = threading.Event(), threading.Event()

    def slow() -> None:
        gate.wait(10)
        over.set()

    with pytest.raises(TimeoutError):
        asyncio.run(ON_LOOP.invoke(slow, timeout=0.02))
    was_over = over.is_set()
    gate.set()

    assert not was_over
