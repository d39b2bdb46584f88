"""User code that uses a task group has the same effect as code without one."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Never

import pytest

from chatclient import (
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    ChatModel,
    ChatResponse,
    Message,
    Next,
    Prompt,
    Runtime,
    tool,
)
from chatclient.advisors import MessageChatMemoryAdvisor
from chatclient.errors import ChatMemoryError, GuardrailError, RateLimitedError, ToolDeniedError
from chatclient.memory import ChatMemory
from chatclient.providers import FallbackChatModel
from chatclient.testing import Ask, ScriptedModel, call
from chatclient.tools import (
    ExternalTool,
    NextTool,
    ToolApproval,
    ToolCallingManager,
    ToolDefinition,
    ToolInvocation,
    ToolResult,
)


async def in_groups(function: Callable[[], Awaitable[Any]]) -> Any:
    """Await *function* in a task group within another one."""
    results = []

    async def inner() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(outcome())

    async def outcome() -> None:
        results.append(await function())

    async with asyncio.TaskGroup() as group:
        group.create_task(inner())
    return results[0]


def failing(error: Exception) -> Callable[[], Awaitable[Never]]:
    async def fail() -> Never:
        raise error

    return fail


def guardrail_error() -> GuardrailError:
    return GuardrailError("not this", guardrail="g")


async def guard(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
    """Refuse every request."""

    async def check() -> None:
        raise guardrail_error()

    # On an event loop of its own in blocking modes.
    await request.runtime.invoke(in_groups, check)
    return await call_next(request)


async def group_error(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
    raise ExceptionGroup("group", [ExceptionGroup("inner", [guardrail_error()])])


@pytest.mark.parametrize("advisor", [guard, group_error])
def test_error_of_an_advisor(ask: Ask, advisor: Any) -> None:
    client = ChatClient.builder(ScriptedModel("x")).default_advisors(advisor).build()

    with pytest.raises(GuardrailError, match="not this"):
        ask(client.prompt("x"))


class Limited(ChatModel):
    """A model whose server refuses all requests."""

    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        msg = "too many"
        return await runtime.invoke(
            in_groups, failing(RateLimitedError(msg, provider="p", retry_after=None))
        )

    async def generate_stream(
        self, prompt: Prompt, runtime: Runtime
    ) -> AsyncGenerator[ChatResponse | str, None]:
        yield ""  # held back, because it has no content
        error = RateLimitedError("too many", provider="p")
        raise ExceptionGroup("group", [error])


def test_error_of_a_model(ask: Ask) -> None:
    with pytest.raises(RateLimitedError):
        ask(ChatClient.create(Limited()).prompt("x"))


def test_fallback_after_the_error_of_a_model(ask: Ask) -> None:
    model = FallbackChatModel(Limited(), ScriptedModel("other"))

    assert ask(ChatClient.create(model).prompt("x")).text == "other"


@tool
def pay(amount: int) -> str:
    """Pay an amount."""
    return "paid"


async def grouping(invocation: ToolInvocation, call_next: NextTool) -> ToolResult:
    """Call the tool in a task group, where there is an event loop."""
    try:
        return await call_next(invocation)
    except Exception as error:
        raise ExceptionGroup("group", [error]) from error


async def denying(invocation: ToolInvocation, call_next: NextTool) -> ToolResult:
    denied = ToolDeniedError("not today", tool_name="pay")
    raise ExceptionGroup("group", [denied])


def client_of(model: ChatModel, *interceptors: Any, tools: Any = pay) -> ChatClient:
    manager = ToolCallingManager(interceptors=interceptors)
    return ChatClient.builder(model).tool_calling_manager(manager).default_tools(tools).build()


def test_denial_of_an_interceptor(ask: Ask) -> None:
    """The model receives the reason only."""
    model = ScriptedModel(call("pay", {"amount": 1}), "ok")
    asked = ask(client_of(model, denying).prompt("x"))

    assert "not today" in asked.executions[0].response.data
    assert "group" not in asked.executions[0].response.data


EXTERNAL = ExternalTool(ToolDefinition("pay", "Pay.", {"type": "object"}))


@pytest.mark.parametrize("tools", [pay, EXTERNAL], ids=["approval", "external"])
def test_suspension(ask: Ask, tools: Any) -> None:
    model = ScriptedModel(call("pay", {"amount": 1}), "done")
    client = client_of(model, grouping, ToolApproval(lambda call: True), grouping, tools=tools)
    pending = ask(client.prompt("x")).answer.pending_turn()

    assert [each.name for each in pending.to_decide().values()] == ["pay"]


def test_suspension_of_nested_agents(ask: Ask) -> None:
    """A call of an agent of an agent waits for approval, and the complete turn is resumed."""
    inner = client_of(
        ScriptedModel(call("pay", {"amount": 1}), "paid"), grouping, ToolApproval(lambda call: True)
    )
    agent = ScriptedModel(call("inner", {"request": "pay"}), "asked")
    middle = client_of(agent, grouping, tools=inner.as_tool("inner", "Pays."))
    model = ScriptedModel(call("middle", {"request": "pay"}), "all done")
    client = client_of(model, grouping, tools=middle.as_tool("middle", "Asks."))
    pending = ask(client.prompt("x")).answer.pending_turn()

    assert [each.name for each in pending.to_decide().values()] == ["pay"]
    assert ask(client.resume(pending.to_json(), "approve")).text == "all done"


class BrokenMemory(ChatMemory):
    """A memory whose store cannot be reached."""

    async def load(self, conversation_id: str, runtime: Runtime) -> tuple[Message, ...]:
        error = ChatMemoryError("unreachable")
        raise ExceptionGroup("group", [error])

    async def append(self, *_args: Any, **_values: Any) -> None:
        """Store nothing."""

    async def delete(self, conversation_id: str, runtime: Runtime) -> None:
        """Delete nothing."""


def test_error_of_a_memory(ask: Ask) -> None:
    memory = MessageChatMemoryAdvisor(BrokenMemory())
    client = ChatClient.builder(ScriptedModel("x")).default_advisors(memory).build()

    with pytest.raises(ChatMemoryError, match="unreachable"):
        ask(client.prompt("x").conversation("c"))


def test_error_of_a_system_function(ask: Ask) -> None:
    async def text() -> str:
        return str(await in_groups(failing(LookupError("no prompt"))))

    client = ChatClient.builder(ScriptedModel("x")).default_system(text).build()
    with pytest.raises(LookupError, match="no prompt"):
        ask(client.prompt("x"))
