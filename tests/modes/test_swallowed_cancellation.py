"""A cancelled request ends, even if user code catches the `CancelledError` and returns."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import anyio
import pytest

from chatclient import (
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    ChatResponse,
    Next,
    Prompt,
    ToolContext,
    tool,
)
from chatclient.advisors.memory.advisors import MessageChatMemoryAdvisor
from chatclient.memory import ENDED_EARLY, MessageWindowChatMemory
from chatclient.runtime.runtime import Runtime
from chatclient.testing import Answer, ScriptedModel, call
from chatclient.tools import NextTool, ToolCallingManager, ToolInvocation, ToolResult
from tests.support.clock import Clock

Work = Callable[[], Awaitable[None]]


class Turn:
    """A client whose first round is cancelled, and what it does after that."""

    def __init__(self, catcher: str) -> None:
        self.writes = 0
        self.memory = MessageWindowChatMemory()
        self.waiting = asyncio.Event()

        @tool
        def write() -> str:
            """Write."""
            self.writes += 1
            return "written"

        @tool
        async def wait() -> str:
            """Wait."""
            if catcher == "tool":
                await self.catching("cancelled")
            return "done"

        async def interceptor(invocation: ToolInvocation, call_next: NextTool) -> ToolResult:
            result = await call_next(invocation)
            return await self.catching(result) if catcher == "interceptor" else result

        async def advisor(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
            response = await call_next(request)
            return await self.catching(response) if catcher == "advisor" else response

        turn = self

        class Model(ScriptedModel):
            async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
                answer = await super().generate(prompt, runtime)
                return await turn.catching(answer) if catcher == "model" else answer

            async def generate_stream(
                self, prompt: Prompt, runtime: Runtime
            ) -> AsyncGenerator[ChatResponse | str, None]:
                async for chunk in super().generate_stream(prompt, runtime):
                    yield await turn.catching(chunk) if catcher == "model" else chunk

        asked = {"request": "x"} if catcher == "agent" else {}
        answers: list[Answer] = [call("wait", asked), call("write", {}), call("write", {}), "done"]
        tools: list[Any] = [wait, write]
        if catcher == "agent":
            agent = ChatClient.builder(ScriptedModel(call("wait", {}), call("write", {}), "done"))
            catcher = "tool"
            tools = [agent.default_tools(wait, write).build().as_tool("wait", "Wait."), write]
        self.model = Model(*answers)
        manager = ToolCallingManager(interceptors=[interceptor])
        self.client = (
            ChatClient.builder(self.model)
            .default_tools(*tools)
            .default_advisors(MessageChatMemoryAdvisor(self.memory), advisor)
            .tool_calling_manager(manager)
            .build()
        )

    async def catching(self, result: Any) -> Any:
        """Return *result* after a while, or when cancelled."""
        self.waiting.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(600)
        return result

    def ended_early(self) -> bool:
        return ENDED_EARLY in self.memory.get("c")[-1].metadata

    async def ask(self, *, streamed: bool) -> None:
        request = self.client.prompt("x").conversation("c")
        if streamed:
            async for _ in request.astream().events():
                pass
        else:
            await request.acall().content()


async def by_task(work: Work, waiting: asyncio.Event, _clock: Clock) -> None:
    task = asyncio.ensure_future(work())
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@contextlib.asynccontextmanager
async def passing_time(waiting: asyncio.Event, clock: Clock) -> AsyncGenerator[None]:
    """Let a minute pass as soon as the turn waits."""

    async def pass_time() -> None:
        await waiting.wait()
        clock.advance(60)

    task = asyncio.create_task(pass_time())
    yield
    await task


async def by_timeout(work: Work, waiting: asyncio.Event, clock: Clock) -> None:
    async with passing_time(waiting, clock):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(50):
                await work()


async def by_wait_for(work: Work, waiting: asyncio.Event, clock: Clock) -> None:
    async with passing_time(waiting, clock):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(work(), 50)


async def by_scope(work: Work, waiting: asyncio.Event, clock: Clock) -> None:
    async with passing_time(waiting, clock):
        with anyio.move_on_after(50) as scope:
            await work()
        assert scope.cancelled_caught


async def by_group(work: Work, waiting: asyncio.Event, _clock: Clock) -> None:
    async def fail() -> None:
        await waiting.wait()
        raise LookupError

    with pytest.raises(ExceptionGroup):
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
            group.create_task(work())  # type: ignore[arg-type]


@pytest.mark.parametrize("streamed", [False, True], ids=["acall", "astream"])
@pytest.mark.parametrize("cancel", [by_task, by_timeout, by_wait_for, by_scope, by_group])
@pytest.mark.parametrize("catcher", ["tool", "interceptor", "advisor", "model", "agent"])
async def test_nothing_starts_after_a_caught_cancellation(
    catcher: str, cancel: Callable[..., Awaitable[None]], clock: Clock, *, streamed: bool
) -> None:
    """No model call and no tool follows, and the caller sees the cancellation.

    Memory has what a stream has shown.
    """
    turn = Turn(catcher)

    await cancel(lambda: turn.ask(streamed=streamed), turn.waiting, clock)

    assert (len(turn.model.prompts), turn.writes) == (1, 0)
    assert turn.ended_early() if streamed and catcher != "model" else turn.memory.get("c") == []


async def test_an_abandoned_stream_ends_despite_a_tool() -> None:
    """Closing the iterator is a cancellation, which a tool may catch."""
    turn = Turn("tool")
    events = turn.client.prompt("x").conversation("c").astream().events()

    async def consume() -> None:
        async for _ in events:
            pass

    consumer = asyncio.ensure_future(consume())
    await turn.waiting.wait()

    await events.aclose()
    await consumer

    assert (len(turn.model.prompts), turn.writes) == (1, 0)
    assert turn.ended_early()


def test_a_tool_that_catches_generator_exit() -> None:
    """It does not keep the request running."""
    writes: list[int] = []

    @tool
    def write() -> str:
        """Write."""
        writes.append(1)
        return "written"

    async def report(invocation: ToolInvocation, call_next: NextTool) -> ToolResult:
        with contextlib.suppress(BaseException):
            await invocation.context.progress("half")
        return await call_next(invocation)

    model = ScriptedModel(call("write", {}), call("write", {}), "done")
    memory = MessageWindowChatMemory()
    client = (
        ChatClient.builder(model)
        .default_tools(write)
        .default_advisors(MessageChatMemoryAdvisor(memory))
        .tool_calling_manager(ToolCallingManager(interceptors=[report]))
        .build()
    )
    events = client.prompt("x").conversation("c").stream().events()
    while type(next(events)).__name__ != "ToolProgress":
        pass

    events.close()

    assert len(model.prompts) == 1
    assert ENDED_EARLY in memory.get("c")[-1].metadata


async def test_a_task_group_in_a_tool_is_no_cancellation() -> None:
    """A group that fails inside a tool, and is handled there, does not end the turn."""

    @tool
    async def groups(context: ToolContext) -> str:
        """Fail in a group."""

        async def fail() -> None:
            raise LookupError

        with contextlib.suppress(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(fail())
        return "handled"

    client = ChatClient.builder(ScriptedModel(call("groups", {}), "done")).default_tools(groups)

    assert await client.build().prompt("x").acall().content() == "done"
