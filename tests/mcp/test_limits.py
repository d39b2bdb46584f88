"""Test the limits on what an MCP server may send."""

import json
import sys
from typing import Any

import pytest

from chatclient.errors import McpServerError, UsageError
from chatclient.mcp import McpLimits, McpServer, McpToolCallbackProvider
from chatclient.mcp.limits import MessageCounter
from chatclient.testing import Ask, call
from tests.support.mcp_setup import ask_with_tools, offered_names, peer
from tests.support.paths import SUPPORT


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("echo", '{"text": "tomatoes"}'),
        ("echo", '{"text": "a", "times": 8}'),
        ("fail", "{}"),
        ("read_resource", '{"server": "peer", "uri": "file:///a"}'),
    ],
)
def test_large_result(ask: Ask, name: str, arguments: str) -> None:
    """A result above the limit is a failure of the server, and does not reach the model."""
    server = peer(fault="resources", limits=McpLimits(result_size=7))
    with McpToolCallbackProvider(server, resources=True) as provider:
        answers = [call(name, arguments), call("echo", '{"text": "radish."}')]
        result, _ = ask_with_tools(ask, provider, answers, "done")

    large, allowed = result.executions
    assert isinstance(large.error, McpServerError)
    assert "too large" in str(large.error)
    assert "limits=McpLimits(result_size=...)" in str(large.error)
    assert (large.is_error, allowed.response.data) == (True, "radish.")
    assert all(text not in large.response.data for text in ("tomatoes", "a\na", "whole"))


def test_too_many_tools(ask: Ask) -> None:
    """A required server with too many tools fails the request; an optional one is left out."""
    limits = McpLimits(tools=15)
    with (
        McpToolCallbackProvider(peer(limits=limits)) as provider,
        pytest.raises(McpServerError, match=r"lists more than 15 tools.*McpLimits\(tools=\.\.\.\)"),
    ):
        ask_with_tools(ask, provider, "done")
    with McpToolCallbackProvider(peer(limits=limits, required=False)) as provider:
        _, model = ask_with_tools(ask, provider, "done")
    assert offered_names(model) == []


def test_long_definition(ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    """A tool whose definition is too long is left out, and the others are offered."""
    with McpToolCallbackProvider(peer(limits=McpLimits(definition_length=300))) as provider:
        _, model = ask_with_tools(ask, provider, "done")

    assert "echo" not in offered_names(model)
    assert len(offered_names(model)) == 15
    assert "definition of the tool 'echo' is longer than 300 characters" in caplog.text


@pytest.mark.parametrize("kind", ["resources", "prompts"])
def test_endless_listing(ask: Ask, kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A listing that never ends is a failure, or ends after some pages with a high limit."""

    def listed(**limits: int) -> Any:
        server = peer(fault=f"endless-{kind}", limits=McpLimits(**limits))
        with McpToolCallbackProvider(server, resources=True, prompts=True) as provider:
            result, _ = ask_with_tools(ask, provider, call(f"list_{kind}"), "done")
        return json.loads(result.executions[0].response.data)

    (failed,) = listed(**{kind: 50})
    assert failed["server"] == "peer"
    assert f"lists more than 50 {kind}" in failed["error"]
    assert f"limits=McpLimits({kind}=...)" in failed["error"]

    (failed,) = listed(result_size=10_000)
    assert "too large" in failed["error"]

    short = listed(definition_length=500)
    assert len(short) == {"resources": 400, "prompts": 200}[kind]
    assert all("description" not in item for item in short)
    assert "mcp definitions left out, which are too long" in caplog.text


@pytest.mark.process("MCP server of the SDK")
def test_log_messages(ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    """Messages above the limit are dropped, with one warning."""
    caplog.set_level("INFO", "chatclient")
    script = str(SUPPORT / "mcp_inquirer.py")
    server = McpServer.stdio(
        "inquirer", sys.executable, script, log_level="info", limits=McpLimits(log_messages=1)
    )
    with McpToolCallbackProvider(server) as provider:
        ask_with_tools(ask, provider, [call("grumble"), call("grumble")], "done")

    written = [r.message for r in caplog.records if r.message.startswith("mcp server log")]
    assert [message.partition(" server=")[0] for message in written] == [
        "mcp server log",
        "mcp server logs too much, dropped for a minute",
    ]


def test_count_per_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each minute begins with a count of zero."""
    counter = MessageCounter(2)
    seen = []
    for now in (0.0, 1.0, 59.0, 59.9, 60.0, 61.0, 62.0):
        monkeypatch.setattr("time.monotonic", lambda now=now: now)
        counter.add()
        seen.append(counter.excess)
    assert seen == [0, 0, 1, 2, 0, 0, 1]


@pytest.mark.parametrize(
    "name",
    [
        "tools",
        "resources",
        "prompts",
        "definition_length",
        "result_size",
        "message_size",
        "log_messages",
    ],
)
@pytest.mark.parametrize("value", [0, -1, "many", True])
def test_invalid_limits(name: str, value: Any) -> None:
    """A limit is a number greater than 0."""
    with pytest.raises(UsageError, match=f"the limit {name}"):
        McpLimits(**{name: value})


def test_wrong_type() -> None:
    """The limits of a server are `McpLimits`."""
    with pytest.raises(UsageError, match="limits"):
        peer(limits={"tools": 3})
