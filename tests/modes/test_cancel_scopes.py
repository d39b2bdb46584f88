"""Cancel scopes of anyio, as Starlette has one around each request."""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

import anyio
import pytest

from chatclient import ChatClient, tool
from chatclient.chat.tool import ToolContext, ToolProgress
from chatclient.runtime.runtime import ON_LOOP
from chatclient.testing import ScriptedModel, call

MOMENT = 0.02  # seconds that cleaning up takes


class Work:
    """Tools that record when they start, and when their cleanup ends."""

    def __init__(self, moments: int = 1) -> None:
        self.cleaning = moments * MOMENT
        self.log: list[str] = []
        self.begun = asyncio.Event()

    @tool(compensation="unbook")
    def book(self, city: str) -> str:
        """Book."""
        self.log.append(city)
        return "booked"

    async def unbook(self, city: str) -> None:
        await anyio.sleep(MOMENT)
        self.log.append(f"no {city}")

    @tool
    async def wait(self, context: ToolContext) -> str:
        """Wait."""
        try:
            self.begun.set()
            await context.progress("waiting")
            await anyio.sleep(60)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(self.cleaning)
            self.log.append("cleaned up")
        return "done"


BOOK = call("book", '{"city": "Rome"}')


def client_of(work: Work, *turns: Any) -> ChatClient:
    return ChatClient.builder(ScriptedModel(*turns)).default_tools(work).build()


@pytest.mark.feature("wish-cleaning-up-cut-short")
async def test_a_turn_in_a_cancelled_scope_is_undone() -> None:
    """Its calls are undone before the scope ends."""
    work = Work()
    client = client_of(work, BOOK, call("wait"))
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(client.prompt("x").acall().content)
            await work.begun.wait()
            scope.cancel()

    assert work.log == ["Rome", "cleaned up", "no Rome"]


@pytest.mark.feature("wish-cleaning-up-cut-short")
async def test_a_stream_in_a_cancelled_scope_is_cleaned_up() -> None:
    """The request runs in a separate task, which ends before the scope."""
    work = Work()
    client = client_of(work, BOOK, call("wait"))
    with anyio.CancelScope() as scope:
        async for event in client.prompt("x").astream().events():
            if isinstance(event, ToolProgress):
                scope.cancel()

    assert work.log == ["Rome", "cleaned up", "no Rome"]


@pytest.mark.feature("wish-cleaning-up-cut-short")
async def test_tools_side_by_side_are_cleaned_up() -> None:
    """All parallel tools have cleaned up before the scope ends."""
    work = Work()
    client = client_of(work, [call("wait", id="a"), call("wait", id="b")])
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(client.prompt("x").acall().content)
            await work.begun.wait()
            scope.cancel()

    assert work.log == ["cleaned up", "cleaned up"]


async def cancelled_twice(awaitable: Coroutine[Any, Any, Any], work: Work) -> None:
    """Await it until tools wait, then cancel it, and again while they clean up."""
    task = asyncio.ensure_future(awaitable)
    await work.begun.wait()
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(MOMENT / 10)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.feature("compensation-not-undone-memory-stored")
@pytest.mark.parametrize("streamed", [False, True])
async def test_calls_are_undone_after_the_last_tool(streamed: bool) -> None:
    """A second cancellation does not start compensations while tools run."""
    work = Work(moments=3)
    client = client_of(work, BOOK, [call("wait", id="a"), call("wait", id="b")])

    async def consume() -> None:
        async for _ in client.prompt("x").astream().events():
            pass

    await cancelled_twice(consume() if streamed else client.prompt("x").acall().content(), work)

    assert work.log == ["Rome", "cleaned up", "cleaned up", "no Rome"]


async def test_waiting_in_a_cancelled_scope_is_idle() -> None:
    """A cancelled scope cancels each await in it again, so the wait is outside of it."""
    finished = []

    def transaction() -> None:
        time.sleep(0.3)
        finished.append(True)

    started = time.thread_time()
    with anyio.CancelScope() as scope:
        asyncio.get_running_loop().call_later(MOMENT, scope.cancel)
        await ON_LOOP.finish(transaction)

    assert finished == [True]
    assert time.thread_time() - started < 0.15


async def test_a_cancelled_scope_is_no_failure_of_a_tool() -> None:
    """The request ends, also if the tool is the first to see the cancellation."""
    work = Work()
    model = ScriptedModel(call("wait"), "done")
    client = ChatClient.builder(model).default_tools(work).build()
    with anyio.CancelScope() as scope:
        asyncio.get_running_loop().call_soon(scope.cancel)
        await client.prompt("x").acall()

    assert scope.cancelled_caught
    assert len(model.prompts) == 1


async def test_undoing_that_is_cancelled_is_done_once() -> None:
    """Several cancellations during a compensation do not repeat it."""
    work, undoing = Work(), asyncio.Event()

    async def unbook(city: str) -> None:
        undoing.set()
        await asyncio.sleep(MOMENT)
        work.log.append(f"no {city}")

    @tool(compensation=unbook)
    def book(city: str) -> str:
        """Book."""
        work.log.append(city)
        return "booked"

    @tool
    def pay() -> None:
        """Pay."""
        raise ValueError

    model = ScriptedModel(BOOK, call("pay"), "sorry")
    client = ChatClient.builder(model).default_tools(book, pay).build()

    async def ask() -> None:
        await client.prompt("x").acall()

    task = asyncio.ensure_future(ask())
    await undoing.wait()
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task

    assert work.log == ["Rome", "no Rome"]
