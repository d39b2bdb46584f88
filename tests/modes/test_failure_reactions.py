"""Reactions of a failure policy to single kinds of failure."""

from typing import Any

import pytest

from chatclient import ChatClient, tool
from chatclient.errors import (
    McpServerError,
    ToolError,
    ToolExecutionError,
    ToolTimeoutError,
    UsageError,
)
from chatclient.testing import Ask, ScriptedModel, call
from chatclient.tools import (
    ToolCallingManager,
    ToolFailure,
    ToolFailurePolicy,
    ToolMetadata,
    ToolResult,
)
from tests.modes.test_tool_calling import results

PATH = "/srv/secret/server.py"


@tool
def fail(kind: str, number: int = 0) -> str:
    """Fail in some way."""
    match kind:
        case "meant":
            raise ToolError("No such city.")
        case "server":
            raise McpServerError(f"cannot start {PATH}", server="crm")
        case "timeout":
            raise TimeoutError
        case _:
            raise RuntimeError(f"at {PATH}")


def client_with(policy: ToolFailurePolicy, model: ScriptedModel) -> ChatClient:
    manager = ToolCallingManager(exception_processor=policy)
    return ChatClient.builder(model).default_tools(fail).tool_calling_manager(manager).build()


UNEXPECTED = ToolFailurePolicy(
    reactions={"exception": "raise_unexpected", "timeout": "raise_unexpected"}
)


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("bug", ToolExecutionError),
        ("server", ToolExecutionError),
        ("timeout", ToolTimeoutError),
    ],
)
def test_unexpected_failure_is_raised(ask: Ask, kind: str, error: type[Exception]) -> None:
    model = ScriptedModel(call("fail", {"kind": kind}), "done")

    with pytest.raises(error):
        ask(client_with(UNEXPECTED, model).prompt("x"))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"kind": "meant"}, "No such city."),
        ({"kind": "x", "number": "many"}, "do not fit"),
        ({}, "do not fit"),
    ],
)
def test_error_for_the_model_is_sent(ask: Ask, arguments: dict[str, Any], text: str) -> None:
    model = ScriptedModel(call("fail", arguments), "done")

    ask(client_with(UNEXPECTED, model).prompt("x"))

    assert text in results(model.prompts[1])[0]


def test_reaction_of_one_tool(ask: Ask) -> None:
    policy = ToolFailurePolicy(tools={"fail": "raise_unexpected"})
    model = ScriptedModel([call("fail", {"kind": "meant"}), call("unknown")], "done")

    ask(client_with(policy, model).prompt("x"))

    assert results(model.prompts[1])[0] == "No such city."


@pytest.mark.parametrize("asynchronous", [False, True])
def test_function_as_reaction(ask: Ask, asynchronous: bool) -> None:
    """The function returns what the model gets instead of the error."""
    seen: list[str] = []

    def describe(failure: ToolFailure) -> ToolResult:
        seen.append(failure.kind)
        return ToolResult("Ask somebody else.", is_error=True)

    async def describe_later(failure: ToolFailure) -> str:
        return describe(failure).text

    reaction = describe_later if asynchronous else describe
    policy = ToolFailurePolicy(reactions={"exception": reaction})
    model = ScriptedModel([call("fail", {"kind": "bug"}), call("unknown")], "done")

    executions = ask(client_with(policy, model).prompt("x")).executions

    first, second = results(model.prompts[1])
    assert (first, seen) == ("Ask somebody else.", ["exception"])
    assert "no tool 'unknown'" in second
    assert executions[0].is_error


def test_function_is_not_called_after_the_last_failure(ask: Ask) -> None:
    policy = ToolFailurePolicy(reactions={"exception": lambda _: "again"}, max_failures=1)
    model = ScriptedModel(call("fail", {"kind": "bug"}), call("fail", {"kind": "bug"}), "done")

    with pytest.raises(ToolExecutionError):
        ask(client_with(policy, model).prompt("x"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nothing", "The tool 'fail' failed."),
        ("class", "Exception occurred in tool: fail (McpServerError)"),
        ("message", f"cannot start {PATH}"),
    ],
)
def test_text_of_server_error(ask: Ask, text: Any, expected: str) -> None:
    """Errors of MCP servers contain paths and addresses, as those of tools do."""
    model = ScriptedModel(call("fail", {"kind": "server"}), "done")

    ask(client_with(ToolFailurePolicy(exception_text=text), model).prompt("x"))

    assert results(model.prompts[1]) == [expected]


@pytest.mark.parametrize("reaction", ["ignore", lambda: "x", ToolMetadata, 1])
def test_invalid_reaction(reaction: Any) -> None:
    with pytest.raises(UsageError):
        ToolFailurePolicy(reactions={"exception": reaction})
