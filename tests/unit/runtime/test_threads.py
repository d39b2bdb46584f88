"""Jobs on the loop of another thread."""

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar, copy_context
from typing import Any

import pytest

from chatclient.runtime.blocking import drive
from chatclient.runtime.event_stream import AsyncEvents, drive_stream
from chatclient.runtime.runtime import BLOCKING, ON_LOOP, Runtime
from chatclient.runtime.threads import LoopThread
from tests.support.waiting import LONG, longer_and_longer
from tests.unit.runtime.test_runtime import in_time


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    thread = LoopThread("of-the-test")
    yield thread
    thread.close()


@pytest.fixture(params=["blocking", "asynchronous"])
def run(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Run a coroutine function with a runtime in both modes."""
    if request.param == "blocking":
        return lambda start: drive(start(BLOCKING))
    return lambda start: asyncio.run(start(ON_LOOP))


Run = Callable[..., Any]


def test_job_runs_on_the_loop_thread(run: Run, thread: LoopThread) -> None:
    """The result is returned, and the job's runtime is not blocking."""

    async def job(runtime: Runtime) -> tuple[str, bool]:
        await asyncio.sleep(0)
        return threading.current_thread().name, runtime.blocking

    assert run(lambda runtime: runtime.run_on(thread, job)) == ("of-the-test", False)


def test_thread_does_not_keep_the_context() -> None:
    """The context of the first request is not kept alive."""

    class Token:
        pass

    variable: ContextVar[Token] = ContextVar("variable")

    def begin() -> tuple[LoopThread, weakref.ref[Token]]:
        token = Token()
        variable.set(token)
        return LoopThread(), weakref.ref(token)

    loop_thread, token_reference = copy_context().run(begin)
    gc.collect()

    assert token_reference() is None
    loop_thread.close()


def test_job_error_is_raised(run: Run, thread: LoopThread) -> None:
    """The error of a job is raised to the caller."""

    async def job(_runtime: Runtime) -> None:
        raise LookupError("there")

    with pytest.raises(LookupError, match="there"):
        run(lambda runtime: runtime.run_on(thread, job))


def test_job_timeout(run: Run, thread: LoopThread) -> None:
    """The caller gets the time-out, and the job is cancelled."""
    cancelled = threading.Event()

    async def job(_runtime: Runtime) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()

    with pytest.raises(TimeoutError):
        run(lambda runtime: runtime.run_on(thread, job, timeout=0.05))
    assert cancelled.wait(10)


async def emitting(runtime: Runtime) -> str:
    """Emit from the job and from a task without its context."""
    await runtime.emit("own")

    async def other() -> None:
        await runtime.emit("other")

    import contextvars

    await asyncio.get_running_loop().create_task(other(), context=contextvars.Context())
    return "result"


def test_events_reach_a_blocking_stream(thread: LoopThread) -> None:
    """Events are in order, before the result."""
    seen = []
    events = drive_stream(lambda runtime: runtime.run_on(thread, emitting), BLOCKING)
    with pytest.raises(StopIteration) as stop:
        while True:
            seen.append(next(events))

    assert seen == ["own", "other"]
    assert stop.value.value == "result"


async def test_events_reach_an_asynchronous_stream(thread: LoopThread) -> None:
    """Events are in order, before the result."""
    events: AsyncEvents[Any, str] = AsyncEvents(
        lambda runtime: runtime.run_on(thread, emitting), ON_LOOP
    )

    assert [event async for event in events] == ["own", "other"]
    assert events.result() == "result"


@pytest.mark.parametrize("blocking", [True, False])
def test_consumer_error_is_raised(blocking: bool, thread: LoopThread) -> None:
    """An error of the consumer is raised unchanged, not as a time-out."""

    async def refuse(_event: Any) -> None:
        msg = "not this one"
        raise ValueError(msg)

    async def request(runtime: Runtime) -> str:
        return await runtime.with_emitter(refuse).run_on(thread, emitting)

    async def consume() -> None:
        await anext(AsyncEvents(request, ON_LOOP))

    with pytest.raises(ValueError, match="not this one"):
        next(drive_stream(request, BLOCKING)) if blocking else asyncio.run(consume())


@pytest.mark.parametrize("blocking", [True, False])
def test_events_of_the_request_runtime(blocking: bool, thread: LoopThread) -> None:
    """Events emitted with the request's runtime are delivered from a silent job."""

    async def request(runtime: Runtime) -> None:
        async def job(_runtime: Runtime) -> None:
            await runtime.emit("event")

        await runtime.silent().run_on(thread, job)

    async def consume() -> list[str]:
        events: AsyncEvents[str, None] = AsyncEvents(request, ON_LOOP)
        return [event async for event in events]

    # In debug mode asyncio checks threads.
    found = in_time(
        lambda: (
            list(drive_stream(request, BLOCKING))
            if blocking
            else asyncio.run(consume(), debug=True)
        )
    )
    assert found == ["event"]


async def test_emit_without_stream(thread: LoopThread) -> None:
    """Without a stream events are dropped."""
    assert await ON_LOOP.run_on(thread, emitting) == "result"


async def test_request_cancellation_cancels_the_job(thread: LoopThread) -> None:
    """A cancelled request leaves no running job."""
    started, cancelled = threading.Event(), threading.Event()

    async def job(_runtime: Runtime) -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()

    task = asyncio.create_task(ON_LOOP.run_on(thread, job))
    assert await asyncio.to_thread(started.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert await asyncio.to_thread(cancelled.wait, 10)


def test_job_outlives_its_caller_loop(thread: LoopThread) -> None:
    """A job may end after the loop of its caller, without a report."""
    begun, ended = threading.Event(), threading.Event()

    async def job(_runtime: Runtime) -> None:
        begun.set()
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            await asyncio.sleep(0.1)
            ended.set()
            raise

    async def leave() -> None:
        for seconds in longer_and_longer():
            with pytest.raises(TimeoutError):
                await ON_LOOP.run_on(thread, job, timeout=seconds)
            if begun.is_set():
                break

    asyncio.run(leave())

    assert ended.wait(LONG)
    time.sleep(0.02)  # for the callback
    assert thread.alive


def test_closing_the_thread_cancels_jobs(run: Run) -> None:
    """Callers are released, and jobs can clean up."""
    thread = LoopThread("of-the-test")
    cleaned: list[str] = []

    async def job(_runtime: Runtime) -> None:
        threading.Thread(target=thread.close).start()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            cleaned.append("up")

    def wait() -> list[str]:
        with pytest.raises(asyncio.CancelledError):
            run(lambda runtime: runtime.run_on(thread, job))
        return cleaned

    assert in_time(wait) == ["up"]


def test_close_twice() -> None:
    """A closed thread has ended, and may be closed again."""
    thread = LoopThread("of-the-test")

    thread.close()
    thread.close()

    assert thread.thread not in threading.enumerate()
    assert thread.alive is False
