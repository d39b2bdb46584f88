"""A turn is suspended for approval, even if an interceptor catches what suspends it."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from chatclient import ChatClient, tool
from chatclient.testing import Ask, ScriptedModel, call
from chatclient.tools import (
    ApprovalRequired,
    ExternalTool,
    NextTool,
    ToolApproval,
    ToolCallingManager,
    ToolDefinition,
    ToolInvocation,
    ToolResult,
)

payments: list[int] = []


@pytest.fixture(autouse=True)
def _no_payments() -> None:
    payments.clear()


@tool
def pay(amount: int) -> str:
    """Pay an amount."""
    payments.append(amount)
    return "paid"


async def returning(invocation: ToolInvocation, call_next: NextTool) -> ToolResult:
    try:
        return await call_next(invocation)
    except Exception:  # noqa: BLE001
        return ToolResult("failed")


async def suppressing(invocation: ToolInvocation, call_next: NextTool) -> ToolResult:
    with contextlib.suppress(Exception):
        return await call_next(invocation)
    return ToolResult("nothing")


async def raising(invocation: ToolInvocation, call_next: NextTool) -> ToolResult:
    try:
        return await call_next(invocation)
    except Exception as error:
        raise LookupError from error


async def retrying(invocation: ToolInvocation, call_next: NextTool) -> ToolResult:
    for _ in range(3):
        with contextlib.suppress(Exception):
            return await call_next(invocation)
    return ToolResult("gave up", is_error=True)


async def grouping(invocation: ToolInvocation, call_next: NextTool) -> ToolResult:
    results: list[ToolResult] = []

    async def run() -> None:
        results.append(await call_next(invocation))

    async with asyncio.TaskGroup() as group:
        group.create_task(run())
    return results[0]


async def asking_in_a_group(invocation: ToolInvocation, call_next: NextTool) -> ToolResult:
    if "tool_approval_decisions" not in invocation.context:
        raise ExceptionGroup("several", [ExceptionGroup("one", [ApprovalRequired()])])
    return await call_next(invocation)


CATCHERS: list[Callable[..., Any]] = [returning, suppressing, raising, retrying]
each_catcher = pytest.mark.parametrize("catcher", CATCHERS)


def client_of(*interceptors: Any, tools: Any = pay, answers: Any = None) -> ChatClient:
    model = ScriptedModel(*(answers or (call("pay", {"amount": 5}), "Done.")))
    manager = ToolCallingManager(interceptors=interceptors)
    return ChatClient.builder(model).default_tools(tools).tool_calling_manager(manager).build()


@each_catcher
def test_a_caught_suspension_suspends_the_turn(catcher: Callable[..., Any], ask: Ask) -> None:
    """The tool does not run before it is approved, and runs once after that."""
    client = client_of(catcher, ToolApproval())

    turn = ask(client.prompt("Pay!")).waiting
    assert payments == []
    assert ask(client.resume(turn, "approve")).text == "Done."

    assert payments == [5]


@pytest.mark.parametrize("interceptors", [(grouping, ToolApproval()), (asking_in_a_group,)])
async def test_a_suspension_in_a_task_group_suspends_the_turn(interceptors: Any) -> None:
    """Exception groups around the suspension do not hide it."""
    client = client_of(*interceptors)

    turn = (await client.prompt("Pay!").acall()).pending_turn()

    assert turn is not None
    assert payments == []
    assert await client.resume(turn, "approve").acall().content() == "Done."


@each_catcher
def test_an_external_tool_suspends_the_turn(catcher: Callable[..., Any], ask: Ask) -> None:
    """A call of an external tool waits for its result."""
    client = client_of(catcher, tools=ExternalTool(ToolDefinition("pay", "Pay.")))

    assert ask(client.prompt("Pay!")).waiting.pending


@each_catcher
def test_an_agent_that_waits_suspends_the_turn(catcher: Callable[..., Any], ask: Ask) -> None:
    """The approval of an agent's tool suspends the turn of the client that called the agent."""
    agent = client_of(ToolApproval()).as_tool("agent", "Pays.")
    client = client_of(catcher, tools=agent, answers=(call("agent", {"request": "x"}), "Done."))

    turn = ask(client.prompt("Pay!")).waiting
    assert ask(client.resume(turn, "approve")).text == "Done."

    assert payments == [5]


def test_an_interceptor_can_retry_an_approved_tool(ask: Ask) -> None:
    """A suspension that was caught does not count once the tool has run."""
    answers = iter([None, True])
    client = client_of(retrying, ToolApproval(ask=lambda _: next(answers)))

    assert ask(client.prompt("Pay!")).text == "Done."

    assert payments == [5]
