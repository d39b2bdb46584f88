"""The runtime: one core, driven with and without a loop."""

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

from chatclient.driving import drive
from chatclient.errors import BlockingCallError
from chatclient.event_streams import AsyncEvents, drive_stream
from chatclient.runtime import BLOCKING, ON_LOOP, Runtime

VAR: contextvars.ContextVar[str] = contextvars.ContextVar("VAR", default="outside")


def run(mode: str, job: Callable[[Runtime], Any]) -> Any:
    """Run a coroutine function of a runtime in either mode."""
    return drive(job(BLOCKING)) if mode == "blocking" else asyncio.run(job(ON_LOOP))


both = pytest.mark.parametrize("mode", ["blocking", "on_loop"])


def test_drive_returns_what_the_coroutine_returns() -> None:
    """A coroutine that never suspends runs to its end on the caller's thread."""

    async def inner() -> int:
        return threading.get_ident()

    async def outer() -> int:
        return await inner()

    assert drive(outer()) == threading.get_ident()


def test_drive_refuses_to_wait_for_a_loop_and_cleans_up() -> None:
    """What needs an event loop gets an error that names the ways out, at the place it waits."""
    cleaned: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.sleep(1)
        finally:
            cleaned.append("yes")

    with pytest.raises(BlockingCallError, match=r"runtime\.invoke"):
        drive(waits())

    assert cleaned == ["yes"]


def test_drive_refuses_a_foreign_future_inside_a_running_loop() -> None:
    """Inside a notebook the foreign `await` suspends; the error is thrown in right there."""
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


def test_drive_refuses_what_looks_for_the_loop_of_its_thread() -> None:
    """So does `asyncio.gather`, and is told in other words than the rest of asyncio."""

    async def makes_a_future() -> None:
        await asyncio.get_event_loop().create_future()

    with ThreadPoolExecutor(1) as pool:
        error = pool.submit(drive, makes_a_future()).exception()

    assert isinstance(error, BlockingCallError)
    assert "runtime.invoke" in str(error)


def test_a_coroutine_that_waits_whatever_it_is_told_is_given_up() -> None:
    """The error is the one that names the ways out, also where cleaning up waits once more."""

    async def insists() -> None:
        try:
            with suppress(BlockingCallError):
                await asyncio.sleep(0)
            await asyncio.sleep(0)
        finally:
            await asyncio.sleep(0)

    with pytest.raises(BlockingCallError, match="acall"):
        drive(insists())


def test_a_coroutine_may_answer_the_refusal() -> None:
    """An advisor that catches the refusal may still come to a result."""

    async def falls_back() -> str:
        try:
            await asyncio.sleep(0)
        except BlockingCallError:
            return "plan B"
        return "never"

    assert drive(falls_back()) == "plan B"


def test_drive_works_inside_a_running_loop() -> None:
    """A notebook's running loop is no obstacle to a blocking call."""

    async def notebook() -> str:
        async def request() -> str:
            return "answered"

        return drive(request())

    assert asyncio.run(notebook()) == "answered"


@both
def test_invoke_calls_plain_and_async_functions(mode: str) -> None:
    """Both kinds of user code are called in both modes, and see the caller's context."""

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


def test_a_plain_function_runs_on_the_callers_thread_when_blocking() -> None:
    """Thread-locals of the application work in tools of blocking calls."""

    async def job(runtime: Runtime) -> int:
        return int(await runtime.invoke(threading.get_ident))

    assert drive(job(BLOCKING)) == threading.get_ident()


def test_a_plain_function_does_not_block_the_loop() -> None:
    """While a plain function runs, the loop goes on with other work."""
    ticks: list[float] = []

    async def tick() -> None:
        while True:
            ticks.append(time.monotonic())
            await asyncio.sleep(0.01)

    async def main() -> None:
        ticker = asyncio.create_task(tick())
        await ON_LOOP.invoke(time.sleep, 0.1)
        ticker.cancel()

    asyncio.run(main())

    assert len(ticks) >= 4


@both
@pytest.mark.parametrize("kind", ["plain", "async"])
def test_invoke_gives_up_after_its_timeout(mode: str, kind: str) -> None:
    """A function that takes too long is abandoned, plain or not."""
    cancelled: list[bool] = []

    async def waits() -> None:
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async def job(runtime: Runtime) -> None:
        function: Any = waits if kind == "async" else partial(time.sleep, 0.3)
        await runtime.invoke(function, timeout=0.05)

    started = time.monotonic()
    with pytest.raises(TimeoutError):
        run(mode, job)

    assert mode == "on_loop" or time.monotonic() - started < 0.25
    assert cancelled == ([True] if kind == "async" else [])


@both
def test_invoke_within_its_timeout_returns_the_result(mode: str) -> None:
    """A timeout that is not reached changes nothing, and errors keep their type."""

    async def answer() -> str:
        return "async"

    def fail() -> None:
        raise TimeoutError("its own")

    async def job(runtime: Runtime) -> list[str]:
        plain = await runtime.invoke(str, 1, timeout=5)
        waited = await runtime.invoke(answer, timeout=5)
        with pytest.raises(TimeoutError, match="its own"):
            await runtime.invoke(fail, timeout=5)
        return [plain, waited]

    assert run(mode, job) == ["1", "async"]


@both
def test_the_timeout_is_for_the_call_and_for_what_it_returns_together(mode: str) -> None:
    """A plain function may return something to be awaited; that has the rest of the time."""

    def returns_more() -> Any:
        time.sleep(0.15)
        return asyncio.sleep(0.25)

    async def job(runtime: Runtime) -> None:
        await runtime.invoke(returns_more, timeout=0.3)

    with pytest.raises(TimeoutError):
        run(mode, job)


def test_a_slow_consumer_costs_no_call_its_result() -> None:
    """What has come in time counts, whoever was busy with an event meanwhile."""

    async def request(runtime: Runtime) -> str:
        async def tool() -> str:
            await runtime.emit("event")
            return "result"

        return str(await runtime.invoke(tool, timeout=0.1))

    stream = drive_stream(request, BLOCKING)
    assert next(stream) == "event"
    time.sleep(0.2)

    with pytest.raises(StopIteration) as stop:
        next(stream)
    assert stop.value.value == "result"


def test_async_code_within_async_code_of_blocking_calls_does_not_deadlock() -> None:
    """An async tool may make a blocking call whose tools are async again."""

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
    """Return what *function* returns; one that waits for ever must not stop all tests."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function()), daemon=True)
    thread.start()
    thread.join(10)
    assert results, "it waits for itself"
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
def test_async_code_in_threads_of_async_code_of_blocking_calls_does_not_deadlock(
    nested: Callable[[Runtime], Any], result: Any
) -> None:
    """The same when the inner calls run in threads, which are none of the loops' own."""

    async def outer_tool() -> Any:
        return drive(nested(BLOCKING))

    assert in_time(lambda: drive(BLOCKING.invoke(outer_tool))) == result


def test_a_blocking_call_in_a_task_without_context_does_not_wait_for_its_own_loop() -> None:
    """A callback of a library, say, runs on the loop and knows nothing of the request."""

    async def blocking() -> Any:
        return drive(BLOCKING.invoke(_leaf))

    async def outer_tool() -> Any:
        loop = asyncio.get_running_loop()
        return await loop.create_task(blocking(), context=contextvars.Context())

    assert in_time(lambda: drive(BLOCKING.invoke(outer_tool))) == "leaf"


def test_interrupting_a_blocking_call_cancels_its_async_part() -> None:
    """Ctrl-C while an async tool runs on the private loop ends that tool."""
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
    # A shell's background jobs begin with the signal ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            drive(job(BLOCKING))
    finally:
        timer.join()
        signal.signal(signal.SIGINT, before)

    assert ended.wait(1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_a_loop_of_its_own() -> None:
    """Nothing hangs after a fork, although the parent's private loop thread is gone there."""

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
def test_finish_returns_what_the_function_returns(mode: str) -> None:
    """With the caller's context; on the caller's thread when it blocks, else on another."""
    token = VAR.set("mine")

    def work(number: int) -> tuple[int, str, bool]:
        return number, VAR.get(), threading.get_ident() == here

    here = threading.get_ident()
    blocking = mode == "blocking"
    assert run(mode, lambda runtime: runtime.finish(work, 3)) == (3, "mine", blocking)
    VAR.reset(token)


@both
def test_finish_raises_what_the_function_raises(mode: str) -> None:
    """The very error."""
    error = LookupError("no such row")

    def work() -> None:
        raise error

    with pytest.raises(LookupError) as caught:
        run(mode, lambda runtime: runtime.finish(work))
    assert caught.value is error


@pytest.mark.parametrize("how", [ON_LOOP.finish, ON_LOOP.invoke])
@pytest.mark.parametrize("outcome", ["returns", "raises"])
async def test_a_cancelled_request_ends_when_its_function_has(
    how: Any, outcome: str, caplog: pytest.LogCaptureFixture
) -> None:
    """However often it is cancelled; what the function came to is nobody's business any more."""
    begun, go_on = threading.Event(), threading.Event()
    ended: list[str] = []

    def work() -> None:
        begun.set()
        go_on.wait(30)
        ended.append("work")
        if outcome == "raises":
            msg = "too late"
            raise LookupError(msg)

    task = asyncio.create_task(how(work))
    task.add_done_callback(lambda _: ended.append("request"))
    await asyncio.to_thread(begun.wait, 30)
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(0.02)
        assert not task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0)
    assert ended == ["work", "request"]
    gc.collect()
    assert caplog.records == []


@pytest.mark.parametrize("how", [ON_LOOP.finish, ON_LOOP.invoke])
@pytest.mark.parametrize("impatient", [False, True])
def test_the_end_of_the_loop_waits_for_a_function(how: Any, *, impatient: bool) -> None:
    """It cancels all tasks, also those that wait; whoever leaves then ends the process."""
    begun, go_on = threading.Event(), threading.Event()
    ended: list[str] = []

    def work() -> None:
        begun.set()
        go_on.wait(30)
        ended.append("work")

    async def main() -> None:
        task = asyncio.create_task(how(work))
        task.add_done_callback(lambda _: ended.append("request"))
        await asyncio.to_thread(begun.wait, 30)
        if impatient:
            task.cancel()
            await asyncio.sleep(0.02)
        asyncio.get_running_loop().call_later(0.05, go_on.set)

    asyncio.run(main())
    assert ended == ["work", "request"]


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5])
def test_the_end_of_the_loop_does_not_keep_a_function_from_beginning(
    steps: int, *, raises: bool
) -> None:
    """There may be no thread for it yet."""
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
def test_the_end_of_the_loop_does_not_cut_off_what_is_shielded(steps: int) -> None:
    """It cancels all tasks; time-outs and scopes inside hold all the same."""
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


async def test_what_fails_while_it_is_shielded_is_the_cause_of_the_cancellation() -> None:
    """Whoever is cancelled knows whether it has been done."""
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
def test_gather_keeps_the_order_and_the_limit(mode: str, limit: int) -> None:
    """Results come in the order of the jobs; no more than the limit run at once."""
    running = 0
    peak = 0

    def counted(value: int) -> Any:
        async def job(runtime: Runtime) -> int:
            nonlocal running, peak
            running += 1
            peak = max(peak, running)
            await runtime.sleep(0.02)
            running -= 1
            return value

        return job

    async def main(runtime: Runtime) -> list[int]:
        return await runtime.gather([counted(i) for i in range(6)], limit=limit)

    assert run(mode, main) == list(range(6))
    assert peak <= limit
    assert limit == 1 or peak > 1


@both
def test_gather_raises_the_first_error_and_ends_the_rest(mode: str) -> None:
    """One failing job ends the others; its error keeps its type."""
    finished: list[int] = []

    async def fails(_runtime: Runtime) -> int:
        raise LookupError("first")

    def slow(value: int) -> Any:
        async def job(runtime: Runtime) -> int:
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
def test_jobs_that_are_cancelled_leave_their_room_to_others(mode: str) -> None:
    """Such as by what they wait for; `asyncio.wait` does not take that for an error."""

    async def cancelled(_runtime: Runtime) -> None:
        raise asyncio.CancelledError

    async def late(_runtime: Runtime) -> None:
        pass

    async def main(runtime: Runtime) -> None:
        await runtime.within(5, runtime.gather([cancelled, cancelled, late], limit=2))

    with pytest.raises(asyncio.CancelledError):
        run(mode, main)


@both
def test_what_has_not_begun_when_a_job_fails_never_begins(mode: str) -> None:
    """There was no room for it."""
    begun: list[str] = []

    async def fails(runtime: Runtime) -> None:
        await runtime.sleep(0.1)
        raise LookupError("first")

    async def late(_runtime: Runtime) -> None:
        begun.append("late")

    with pytest.raises(LookupError, match="first"):
        run(mode, lambda runtime: runtime.gather([waits_soon, fails, late], limit=2))

    assert begun == []


async def waits(runtime: Runtime) -> None:
    await runtime.invoke(asyncio.sleep, 60)


async def waits_soon(runtime: Runtime) -> None:
    await runtime.invoke(time.sleep, 0.2)
    await waits(runtime)


async def waits_after_others(runtime: Runtime) -> None:
    await runtime.gather([lambda beside: beside.invoke(asyncio.sleep, 0)] * 2, limit=2)
    await waits_soon(runtime)


async def wait_side_by_side(runtime: Runtime) -> None:
    await runtime.gather([waits, waits], limit=2)


@both
def test_nobody_is_told_of_the_errors_after_the_first(
    mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor does asyncio report them when they are forgotten."""

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


def test_an_error_in_a_thread_is_seen_at_once() -> None:
    """Not only when the next job ends: the thread may be slow to put down what it ended with."""

    async def fails(_runtime: Runtime) -> None:
        raise LookupError("first")

    async def main(runtime: Runtime) -> None:
        await runtime.gather([fails, waits], limit=2)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    started = time.monotonic()
    try:
        for _ in range(300):
            with pytest.raises(LookupError, match="first"):
                drive(main(BLOCKING))
    finally:
        sys.setswitchinterval(interval)

    assert time.monotonic() - started < 10


@both
def test_what_would_come_next_in_a_job_is_not_called_once_another_has_failed(mode: str) -> None:
    """One that runs already cannot be stopped, but the one behind it does not begin."""
    called: list[str] = []

    async def goes_on(runtime: Runtime) -> None:
        await runtime.invoke(time.sleep, 0.5)
        await runtime.invoke(called.append, "next")

    async def pauses(runtime: Runtime) -> None:
        await runtime.invoke(time.sleep, 0.5)
        await runtime.sleep(60)

    async def fails(runtime: Runtime) -> None:
        await runtime.sleep(0.1)
        raise LookupError("first")

    async def main(runtime: Runtime) -> None:
        await runtime.gather([goes_on, pauses, fails], limit=3)

    started = time.monotonic()
    with pytest.raises(LookupError, match="first"):
        run(mode, main)

    assert called == []
    assert time.monotonic() - started < 10


@both
@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_what_is_shielded_is_done_although_another_job_has_failed(mode: str, when: str) -> None:
    """In a thread as in a task, whether it has begun by then or not."""
    log: list[str] = []

    async def clean(runtime: Runtime) -> None:
        log.append("begun")
        await runtime.invoke(asyncio.sleep, 0.2)
        await runtime.invoke(log.append, "done")

    async def cleans(runtime: Runtime) -> None:
        if when == "before":
            with suppress(asyncio.CancelledError):
                await runtime.invoke(time.sleep, 0.2)
        await runtime.shielded(clean(runtime))

    async def fails(runtime: Runtime) -> None:
        await runtime.sleep(0.1)
        raise LookupError("first")

    async def main(runtime: Runtime) -> None:
        await runtime.gather([cleans, fails], limit=2)

    with pytest.raises(LookupError):
        run(mode, main)

    assert log == ["begun", "done"]


def test_what_a_job_began_for_later_is_not_interrupted_with_it() -> None:
    """A thread that goes on has the job's context, and outlives it."""
    over = threading.Event()
    results: list[Any] = []

    def later() -> None:
        over.wait(10)
        results.append(drive(BLOCKING.invoke(str, 1)))

    def begins(threads: list[threading.Thread]) -> None:
        threads.append(threading.Thread(target=contextvars.copy_context().run, args=(later,)))
        threads[0].start()
        time.sleep(0.2)

    async def fails(runtime: Runtime) -> None:
        await runtime.sleep(0.1)
        raise LookupError("first")

    threads: list[threading.Thread] = []
    with pytest.raises(LookupError):
        drive(BLOCKING.gather([lambda runtime: runtime.invoke(begins, threads), fails], limit=2))
    over.set()
    threads[0].join(10)

    assert results == ["1"]


@both
@pytest.mark.parametrize("other", [waits, waits_soon, waits_after_others, wait_side_by_side])
def test_gather_cancels_what_others_wait_for(
    mode: str, other: Callable[[Runtime], Coroutine[Any, Any, None]]
) -> None:
    """What is asynchronous ends at once, in threads, too; and so does what waits next."""

    async def fails(runtime: Runtime) -> None:
        await runtime.sleep(0.1)
        raise LookupError("first")

    async def main(runtime: Runtime) -> None:
        await runtime.gather([other, other, fails], limit=3)

    started = time.monotonic()
    with pytest.raises(LookupError, match="first"):
        run(mode, main)

    assert time.monotonic() - started < 10


def test_a_job_that_was_interrupted_can_clean_up() -> None:
    """It is told once, as a task is."""
    cleaned: list[str] = []

    async def cleans(runtime: Runtime) -> None:
        try:
            await waits(runtime)
        finally:
            await runtime.invoke(asyncio.sleep, 0.01)
            cleaned.append("up")

    async def fails(runtime: Runtime) -> None:
        await runtime.sleep(0.1)
        raise LookupError("first")

    async def main(runtime: Runtime) -> None:
        await runtime.gather([cleans, fails], limit=2)

    with pytest.raises(LookupError):
        drive(main(BLOCKING))

    assert cleaned == ["up"]


@both
def test_a_job_beside_the_request_has_the_context_it_is_given(mode: str) -> None:
    """Not that of whoever begins it, and what it sets is nobody else's."""

    async def job(_runtime: Runtime) -> str:
        seen = VAR.get()
        VAR.set("changed")
        return seen

    async def main(runtime: Runtime) -> str:
        begun = runtime.begin(job, context)
        return await begun.result(runtime.emit)

    context = contextvars.copy_context()
    context.run(VAR.set, "given")

    assert run(mode, main) == "given"
    assert context[VAR] == "given"


def test_what_several_jobs_wait_for_is_interrupted_once() -> None:
    """So that it can clean up: the jobs around it are interrupted one by one."""
    told: list[int] = []

    async def tool() -> None:
        try:
            await asyncio.sleep(30)
        finally:
            await asyncio.sleep(0.05)
            task = asyncio.current_task()
            told.append(0 if task is None else task.cancelling())

    async def begins(runtime: Runtime) -> None:
        begun = runtime.begin(lambda beside: beside.invoke(tool), contextvars.copy_context())
        await begun.result(runtime.emit)

    async def fails(runtime: Runtime) -> None:
        await runtime.sleep(0.1)
        raise LookupError("first")

    with pytest.raises(LookupError):
        drive(BLOCKING.gather([begins, fails], limit=2))

    assert told == [1]


def test_events_of_jobs_in_threads_reach_the_consumer() -> None:
    """A blocking stream whose tools run in threads hands out their events on its own thread."""

    async def main(runtime: Runtime) -> list[int]:
        return await runtime.gather([job_of(i, 0.01) for i in range(4)], limit=4)

    stream = drive_stream(main, BLOCKING)

    assert sorted(stream) == [0, 1, 2, 3]


async def emit_from_async_code(runtime: Runtime) -> None:
    """With a runtime inside that streams nothing itself."""

    async def tool() -> None:
        await runtime.emit("event")

    await runtime.silent().invoke(tool)


async def emit_from_a_job(runtime: Runtime) -> None:
    async def emits(_runtime: Runtime) -> None:
        await runtime.emit("event")

    async def quiet(_runtime: Runtime) -> None:
        pass

    await runtime.gather([emits, quiet], limit=2)


async def emit_from_what_has_begun(runtime: Runtime) -> None:
    async def emits(_runtime: Runtime) -> None:
        await runtime.emit("event")

    await runtime.begin(emits, contextvars.copy_context()).result(runtime.emit)


@both
@pytest.mark.parametrize(
    "request_", [emit_from_async_code, emit_from_a_job, emit_from_what_has_begun]
)
def test_the_runtime_of_the_request_may_be_emitted_to_from_anywhere(
    mode: str, request_: Callable[[Runtime], Coroutine[Any, Any, None]]
) -> None:
    """Some have only that: a callback that an advisor has made, say."""

    async def main() -> list[str]:
        events: AsyncEvents[str, None] = AsyncEvents(request_, ON_LOOP)
        return [event async for event in events]

    found = list(drive_stream(request_, BLOCKING)) if mode == "blocking" else asyncio.run(main())
    assert found == ["event"]


def test_leaving_a_stream_whose_jobs_run_in_threads_waits_for_them() -> None:
    """No thread is left behind when the consumer leaves in the middle, and no job begins."""
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


def test_a_blocking_stream_yields_events_and_returns_the_result() -> None:
    """Each event reaches the consumer before the request goes on."""
    stream = drive_stream(three_events, BLOCKING)
    seen = [next(stream), next(stream), next(stream)]

    with pytest.raises(StopIteration) as stop:
        next(stream)
    assert (seen, stop.value.value) == ([0, 1, 2], "end")


def test_an_async_stream_yields_events_and_keeps_the_result() -> None:
    """The events come in order, then the result can be asked for."""

    async def main() -> tuple[list[int], str]:
        events: AsyncEvents[int, str] = AsyncEvents(three_events, ON_LOOP)
        return [event async for event in events], events.result()

    assert asyncio.run(main()) == ([0, 1, 2], "end")


def test_without_a_consumer_events_are_dropped() -> None:
    """Emitting costs nothing and goes nowhere in a plain call."""
    assert drive(three_events(BLOCKING)) == "end"


def test_nothing_leaks_into_the_consumer_of_a_blocking_stream() -> None:
    """A context variable set by the request is invisible between two events."""

    async def request(runtime: Runtime) -> str:
        VAR.set("inside")
        await runtime.emit(1)
        await runtime.emit(2)
        return VAR.get()

    stream = drive_stream(request, BLOCKING)
    between = [(event, VAR.get()) for event in stream]

    assert between == [(1, "outside"), (2, "outside")]


def test_a_timeout_around_the_request_never_hits_the_consumer() -> None:
    """A time limit kept open across events ends the request, not the consumer's own waiting."""

    async def request(runtime: Runtime) -> None:
        async with asyncio.timeout(0.05):
            await runtime.emit(1)
            await asyncio.sleep(5)

    async def main() -> str:
        events: AsyncEvents[int, None] = AsyncEvents(request, ON_LOOP)
        assert await anext(events) == 1
        await asyncio.sleep(0.1)  # the consumer is slow and must not be cancelled
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


def test_what_fails_while_a_blocking_stream_is_left_is_raised_as_it_is() -> None:
    """Whoever closes it hears of it."""

    async def request(runtime: Runtime) -> None:
        try:
            await runtime.emit("event")
        finally:
            raise RuntimeError("no room to clean up")

    stream = drive_stream(request, BLOCKING)
    next(stream)
    with pytest.raises(RuntimeError, match="no room"):
        stream.close()


def test_leaving_a_blocking_stream_runs_every_finally() -> None:
    """Breaking out of the loop ends the request at once."""
    log: list[str] = []
    for _event in drive_stream(endless(log), BLOCKING):
        break
    gc.collect()

    assert log == ["cleaned"]


@pytest.mark.parametrize("way", ["close", "drop", "cancel"])
def test_leaving_an_async_stream_ends_its_task(way: str) -> None:
    """Closing, dropping or cancelling the consumer leaves no task behind."""
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
            del task  # its traceback would keep the iterator alive
        events = None
        await asyncio.sleep(0.01)
        gc.collect()
        await asyncio.sleep(0.01)
        return len(asyncio.all_tasks())

    assert asyncio.run(main()) == 1
    assert log == ["cleaned"]


def test_an_async_stream_may_be_dropped_by_any_thread() -> None:
    """Garbage is collected by whichever comes by; asyncio's debug mode minds about threads."""
    log: list[str] = []

    async def main() -> None:
        dropped: list[Any] = [AsyncEvents(endless(log), ON_LOOP)]
        await anext(dropped[0])
        await asyncio.sleep(0.01)  # the request waits for its consumer
        await asyncio.to_thread(dropped.clear)
        await asyncio.sleep(0.01)

    asyncio.run(main(), debug=True)

    assert log == ["cleaned"]


def test_a_cancelled_consumer_that_waits_ends_the_request_first() -> None:
    """When the consumer is cancelled, the request has cleaned up before the error goes on."""
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


def test_a_fast_request_waits_for_a_slow_consumer() -> None:
    """An async stream runs ahead of its consumer by a bounded number of events only."""
    emitted = 0

    async def request(runtime: Runtime) -> None:
        nonlocal emitted
        for number in range(1000):
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
    assert max(ahead) < 100
    assert min(ahead) > 1
    assert rest == 500


@pytest.mark.parametrize("cancelled", [False, True])
async def test_jobs_that_wait_for_a_slow_consumer_do_not_disturb_each_other(
    cancelled: bool,
) -> None:
    """All of them go on once there is room; one of them may have been cancelled by then."""

    async def request(runtime: Runtime) -> None:
        async def job(name: str) -> None:
            for number in range(200):
                await runtime.emit((name, number))

        first, second = asyncio.create_task(job("first")), asyncio.create_task(job("second"))
        await asyncio.sleep(0.01)  # both of them wait
        if cancelled:
            first.cancel()
        await asyncio.wait([first, second])
        await second

    events: AsyncEvents[tuple[str, int], None] = AsyncEvents(request, ON_LOOP)
    async with asyncio.timeout(10):
        seen = [await anext(events)]
        await asyncio.sleep(0.05)
        seen += [event async for event in events]

    assert [number for name, number in seen if name == "second"] == list(range(200))
    assert (("first", 199) in seen) is not cancelled


@pytest.mark.parametrize("shielded", [False, True])
async def test_what_cleans_up_may_emit_although_nobody_listens(shielded: bool) -> None:
    """However much: there is no consumer to wait for."""
    log: list[str] = []

    async def many(runtime: Runtime) -> None:
        for number in range(200):
            await runtime.emit(number)
        log.append("cleaned")

    async def request(runtime: Runtime) -> None:
        if shielded:  # it waits for room when the consumer leaves
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


def test_an_error_reaches_the_consumer_after_the_events_before_it() -> None:
    """What was said before a failure is not lost."""

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


async def test_asyncio_reports_no_error_of_a_stream_that_was_left() -> None:
    """Nobody waits for it any more."""
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


async def test_asyncio_reports_no_error_of_what_has_begun_and_is_ended() -> None:
    """It was not asked for."""
    reports: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, report: reports.append(report))

    async def job(_: Runtime) -> None:
        raise LookupError("broken")

    begun = ON_LOOP.begin(job, contextvars.copy_context())
    await asyncio.sleep(0.01)
    await begun.end()
    del begun
    gc.collect()

    assert reports == []


def test_a_closed_stream_gives_nothing_more() -> None:
    """Closing before the first event means that the request never runs."""

    async def main() -> list[int]:
        events: AsyncEvents[int, str] = AsyncEvents(three_events, ON_LOOP)
        await events.aclose()
        return [event async for event in events]

    assert asyncio.run(main()) == []


def test_the_result_of_a_stream_that_never_began_is_an_error() -> None:
    """There is no result before the request ran."""
    with pytest.raises(RuntimeError, match="not been started"):
        AsyncEvents(three_events, ON_LOOP).result()


# --- runtimes derived from others ---


def test_a_mapped_emitter_changes_what_is_streamed() -> None:
    """An advisor may rewrite events on their way out."""

    async def request(runtime: Runtime) -> None:
        async def doubled(event: Any) -> None:
            await runtime.emit(event * 2)

        await three_events(runtime.with_emitter(doubled))

    assert list(drive_stream(request, BLOCKING)) == [0, 2, 4]


def test_a_silent_runtime_streams_nothing() -> None:
    """Inner calls can be kept out of the user's stream."""

    async def request(runtime: Runtime) -> str:
        return await three_events(runtime.silent())

    assert list(drive_stream(request, BLOCKING)) == []


def test_the_earlier_deadline_holds() -> None:
    """A nested deadline can shorten the time left, never lengthen it."""
    short = BLOCKING.with_deadline(0.5)

    assert BLOCKING.remaining() == float("inf")
    assert short.with_deadline(10).remaining() <= 0.5
    assert short.with_deadline(0.1).remaining() <= 0.1


@both
def test_sleep_pauses_this_request(mode: str) -> None:
    """A pause lasts as long as it says in both modes."""

    async def job(runtime: Runtime) -> float:
        started = time.monotonic()
        await runtime.sleep(0.03)
        return time.monotonic() - started

    assert run(mode, job) >= 0.03


async def test_what_has_not_begun_is_not_begun_for_a_request_that_is_cancelled() -> None:
    """There may be no thread for it yet."""
    begun: list[str] = []
    limiter = anyio.to_thread.current_default_thread_limiter()
    tokens, limiter.total_tokens = limiter.total_tokens, 1
    try:
        running = asyncio.ensure_future(ON_LOOP.invoke(time.sleep, 0.05))
        await asyncio.sleep(0.01)
        waiting = asyncio.ensure_future(ON_LOOP.invoke(begun.append, "second"))
        await asyncio.sleep(0.01)
        waiting.cancel()
        await running
        with pytest.raises(asyncio.CancelledError):
            await waiting
    finally:
        limiter.total_tokens = tokens

    assert begun == []


def test_a_plain_function_that_takes_too_long_is_left_behind() -> None:
    """Nobody waits for its end."""
    gate, over = threading.Event(), threading.Event()

    def slow() -> None:
        gate.wait(10)
        over.set()

    with pytest.raises(TimeoutError):
        asyncio.run(ON_LOOP.invoke(slow, timeout=0.02))
    was_over = over.is_set()
    gate.set()

    assert not was_over
