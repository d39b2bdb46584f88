"""What servers mark as not for the model: tools, resources and content."""

import json
from typing import Any

import pytest

from chatclient.mcp import McpServer, McpToolCallbackProvider
from chatclient.mcp.content import USER_CONTENT
from chatclient.testing import Ask, call
from tests.support.mcp_setup import ask_with_tools, offered_names, peer


def given(tools: Any, resources: Any = ()) -> McpServer:
    """Return a server with these tools, which return their arguments, and resources."""
    env = {"TOOLS": json.dumps(tools), "RESOURCES": json.dumps(resources)}
    return peer(fault="given-resources", env=env)


def a_tool(name: str, meta: Any = None, **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}, "_meta": meta or {}, **more}


def test_tools(ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    """Tools for the page of a server only, and ones that only run as tasks, are not offered."""
    hidden = [
        a_tool("app", {"ui": {"visibility": ["app"]}}),
        a_tool("flat", {"ui/visibility": ["app"]}),
        a_tool("private", {"openai/visibility": "private"}),
        a_tool("task", execution={"taskSupport": "required"}),
    ]
    shown = [
        a_tool("plain"),
        a_tool("both", {"ui": {"visibility": ["app", "model"], "resourceUri": "ui://a"}}),
        a_tool("model", {"ui": {"visibility": ["model"]}}),
        a_tool("unset", {"ui": {"visibility": []}}),
        a_tool("odd", {"ui": "app", "ui/visibility": "host", "openai/visibility": "public"}),
        a_tool("optional", execution={"taskSupport": "optional"}),
    ]
    with McpToolCallbackProvider(given([*hidden, *shown])) as provider:
        result, model = ask_with_tools(ask, provider, call("app"), "done")

    assert offered_names(model) == [tool["name"] for tool in shown]
    assert "there is no tool" in result.executions[0].response.data.lower()
    assert "mcp tools left out: they only run as tasks" in caplog.text


def test_hidden_tool_of_another_server(ask: Ask) -> None:
    """A tool that no model sees does not change the names of others."""
    hidden, shown = a_tool("find", {"ui": {"visibility": ["app"]}}), a_tool("find")
    env = {"TOOLS": json.dumps([hidden]), "RESOURCES": "[]"}
    other = peer("other", fault="given-resources", env=env)
    with McpToolCallbackProvider(other, given([shown])) as provider:
        _, model = ask_with_tools(ask, provider, "done")

    assert offered_names(model) == ["find"]


def block(text: str, *audience: str) -> dict[str, Any]:
    return {"type": "text", "text": text, "annotations": {"audience": list(audience)}}


PAGE = {"type": "resource", "resource": {"uri": "ui://page", "text": "<p>"}}


@pytest.mark.parametrize(
    ("content", "told", "kept"),
    [
        ([block("a", "user"), block("b", "assistant")], "b", ["a"]),
        ([block("a", "user", "assistant"), block("b")], "a\nb", []),
        ([block("a", "user")], "The result is shown to the user.", ["a"]),
        ([block("a"), PAGE], "a", [None]),
    ],
)
def test_content(ask: Ask, content: list[Any], told: str, kept: list[Any]) -> None:
    """Content for the user is not sent to the model, and is available to the application."""
    with McpToolCallbackProvider(given([a_tool("say")])) as provider:
        answer = call("say", json.dumps({"content": content}))
        result, _ = ask_with_tools(ask, provider, answer, "done")

    (execution,) = result.executions
    assert execution.response.data == told
    assert [item.get("text") for item in execution.metadata.get(USER_CONTENT, ())] == kept


@pytest.mark.parametrize(
    ("meta", "text", "told"),
    [
        ({"ui": {"resourceUri": "ui://page"}}, "two rows", "two rows"),
        ({"ui/resourceUri": "ui://page"}, "two rows", "two rows"),
        ({"openai/outputTemplate": "ui://page"}, "two rows", "two rows"),
        ({"ui": {"resourceUri": "ui://page"}}, "", '{"rows": 2}'),
        ({}, "two rows", 'two rows\n{"rows": 2}'),
    ],
)
def test_structured_content(ask: Ask, meta: Any, text: str, told: str) -> None:
    """For a tool with a page, the model receives the text; the value is always available."""
    returned = {"content": [{"type": "text", "text": text}], "structuredContent": {"rows": 2}}
    with McpToolCallbackProvider(given([a_tool("rows", meta)])) as provider:
        result, _ = ask_with_tools(ask, provider, call("rows", json.dumps(returned)), "done")

    (execution,) = result.executions
    assert execution.response.data.strip() == told
    assert execution.value == {"rows": 2}


def test_resources(ask: Ask) -> None:
    """Pages, and resources for the user only, are not listed for the model."""
    resources = [
        {"name": "page", "uri": "ui://page"},
        {"name": "photo", "uri": "file:///photo", "annotations": {"audience": ["user"]}},
        {"name": "notes", "uri": "file:///notes", "annotations": {"audience": ["assistant"]}},
        {"name": "plain", "uri": "file:///plain"},
    ]
    with McpToolCallbackProvider(given([], resources), resources=True) as provider:
        result, _ = ask_with_tools(ask, provider, call("list_resources"), "done")

    listed = json.loads(result.executions[0].response.data)
    assert [item["name"] for item in listed] == ["notes", "plain"]
