"""Work on the loop of another thread, for requests that come from anywhere."""

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar, copy_context
from typing import Any

import pytest
from test_runtime import in_time

from chatclient.driving import drive
from chatclient.event_streams import AsyncEvents, drive_stream
from chatclient.runtime import BLOCKING, ON_LOOP, Runtime
from chatclient.threads import LoopThread


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    thread = LoopThread("of-the-test")
    yield thread
    thread.close()


@pytest.fixture(params=["blocking", "asynchronous"])
def run(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Run a coroutine function with a runtime, in each of the two ways."""
    if request.param == "blocking":
        return lambda start: drive(start(BLOCKING))
    return lambda start: asyncio.run(start(ON_LOOP))


Run = Callable[..., Any]


def test_a_job_runs_on_the_other_thread(run: Run, thread: LoopThread) -> None:
    """Its result comes back, and it is told that it does not block."""

    async def job(runtime: Runtime) -> tuple[str, bool]:
        await asyncio.sleep(0)
        return threading.current_thread().name, runtime.blocking

    assert run(lambda runtime: runtime.run_on(thread, job)) == ("of-the-test", False)


def test_a_thread_keeps_nothing_of_whoever_began_it() -> None:
    """The first request that needs one is not kept alive by it."""

    class Token:
        pass

    variable: ContextVar[Token] = ContextVar("variable")

    def begin() -> tuple[LoopThread, weakref.ref[Token]]:
        token = Token()
        variable.set(token)
        return LoopThread(), weakref.ref(token)

    begun, gone = copy_context().run(begin)
    gc.collect()

    assert gone() is None
    begun.close()


def test_an_error_of_a_job_is_raised_here(run: Run, thread: LoopThread) -> None:
    """As if it had happened here."""

    async def job(_runtime: Runtime) -> None:
        raise LookupError("there")

    with pytest.raises(LookupError, match="there"):
        run(lambda runtime: runtime.run_on(thread, job))


def test_a_job_that_takes_too_long_is_cancelled(run: Run, thread: LoopThread) -> None:
    """Whoever waits gives up in time, and the job hears of it."""
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
    """Emit from the job itself, and from a task that has nothing of its context."""
    await runtime.emit("own")

    async def other() -> None:
        await runtime.emit("other")

    import contextvars

    await asyncio.get_running_loop().create_task(other(), context=contextvars.Context())
    return "result"


def test_events_reach_a_blocking_stream(thread: LoopThread) -> None:
    """In order, and all of them before the result."""
    seen = []
    events = drive_stream(lambda runtime: runtime.run_on(thread, emitting), BLOCKING)
    with pytest.raises(StopIteration) as stop:
        while True:
            seen.append(next(events))

    assert seen == ["own", "other"]
    assert stop.value.value == "result"


async def test_events_reach_an_asynchronous_stream(thread: LoopThread) -> None:
    """The same on a loop."""
    events: AsyncEvents[Any, str] = AsyncEvents(
        lambda runtime: runtime.run_on(thread, emitting), ON_LOOP
    )

    assert [event async for event in events] == ["own", "other"]
    assert events.result() == "result"


@pytest.mark.parametrize("blocking", [True, False])
def test_an_error_of_who_takes_an_event_is_raised_as_it_is(
    blocking: bool, thread: LoopThread
) -> None:
    """It is no time-out, of whichever kind it is."""

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
def test_events_for_the_runtime_of_the_request_reach_it(blocking: bool, thread: LoopThread) -> None:
    """Where the job's own streams nothing, too."""

    async def request(runtime: Runtime) -> None:
        async def job(_runtime: Runtime) -> None:
            await runtime.emit("event")

        await runtime.silent().run_on(thread, job)

    async def consume() -> list[str]:
        events: AsyncEvents[str, None] = AsyncEvents(request, ON_LOOP)
        return [event async for event in events]

    # In debug mode asyncio minds about threads.
    found = in_time(
        lambda: (
            list(drive_stream(request, BLOCKING))
            if blocking
            else asyncio.run(consume(), debug=True)
        )
    )
    assert found == ["event"]


async def test_without_a_stream_events_are_nothing(thread: LoopThread) -> None:
    """A job may emit in any case."""
    assert await ON_LOOP.run_on(thread, emitting) == "result"


async def test_cancelling_the_request_cancels_the_job(thread: LoopThread) -> None:
    """Nothing goes on for nobody."""
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


def test_a_job_may_outlive_the_loop_that_asked(thread: LoopThread) -> None:
    """Its end finds nobody, and says nothing."""
    ended = threading.Event()

    async def job(_runtime: Runtime) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.1)
            ended.set()
            raise

    async def leave() -> None:
        with pytest.raises(TimeoutError):
            await ON_LOOP.run_on(thread, job, timeout=0.02)

    asyncio.run(leave())

    assert ended.wait(10)
    time.sleep(0.02)  # for the callback that comes after
    assert thread.alive


def test_who_waits_for_a_job_on_a_closed_thread_is_let_go(run: Run) -> None:
    """The job is cancelled, and has the time to clean up."""
    thread = LoopThread("of-the-test")
    cleaned: list[str] = []

    async def job(_runtime: Runtime) -> None:
        threading.Thread(target=thread.close).start()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            cleaned.append("up")

    def wait() -> None:
        with pytest.raises(asyncio.CancelledError):
            run(lambda runtime: runtime.run_on(thread, job))

    in_time(lambda: wait() or True)
    assert cleaned == ["up"]


def test_a_closed_thread_is_gone() -> None:
    """Closing twice does no harm."""
    thread = LoopThread("of-the-test")

    thread.close()
    thread.close()

    assert thread.thread not in threading.enumerate()
    assert thread.alive is False
