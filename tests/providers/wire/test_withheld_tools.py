"""Tools that are sent, but may not be called: in the requests of providers that have a field."""

import json
from typing import Any

import httpx
import pytest

from chatclient import ChatClient, tool
from chatclient.chat.tool import ToolCallback, ToolRequest
from chatclient.chat.withheld_tool import WithheldTool
from chatclient.errors import ProviderError
from chatclient.providers import AnthropicChatModel, GeminiChatModel, OpenAIChatModel, WebSearch
from chatclient.providers.openai.responses import OpenAIResponsesChatModel
from chatclient.tools import tool_callbacks


@tool
def add(a: int) -> int:
    """Add a number."""
    return a


@tool
def remove(a: int) -> int:
    """Remove a number."""
    return a


class Provider:
    """Offers some of its tools."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def tool_callbacks(self, request: ToolRequest) -> list[ToolCallback]:
        tools = tool_callbacks(add, remove)
        return [t if t.definition.name in self.names else WithheldTool(t) for t in tools]


def sent(make: Any, model: str, allowed: Any, *more: Any, **options: Any) -> dict[str, Any]:
    """Return the body of a request in which only the *allowed* tools may be called."""
    bodies: list[dict[str, Any]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        return httpx.Response(400, json={"error": {"message": "no"}})

    with httpx.Client(transport=httpx.MockTransport(answer)) as http:
        given = {"api_key": "k", "http_client": http, **options.pop("settings", {})}
        request = ChatClient.create(make(model, **given)).prompt("Hi")
        with pytest.raises(ProviderError, match="no"):
            request.tools(Provider(*allowed), *more).options(**options).call().content()
    return bodies[0]


def names(body: dict[str, Any]) -> list[str]:
    """Return the names of the tools in *body*."""
    tools = body["tools"]
    tools = tools[0].get("functionDeclarations", tools)
    return [each.get("function", each)["name"] for each in tools]


ONE = [{"type": "function", "function": {"name": "add"}}]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": ONE}}),
        ("auto", {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": ONE}}),
        (
            "required",
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": ONE}},
        ),
        ("none", "none"),
    ],
)
def test_chat_completions(choice: str | None, expected: Any) -> None:
    """The tools stay the same; the tool choice says which may be called."""
    body = sent(OpenAIChatModel, "gpt-5-mini", ["add"], tool_choice=choice)

    assert names(body) == ["add", "remove"]
    assert body["tool_choice"] == expected


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (
            None,
            {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "function", "name": "add"}],
            },
        ),
        (
            "required",
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "add"}],
            },
        ),
        ("none", "none"),
    ],
)
def test_responses(choice: str | None, expected: Any) -> None:
    """The same in the API's own form."""
    body = sent(OpenAIResponsesChatModel, "gpt-5-mini", ["add"], tool_choice=choice)

    assert names(body) == ["add", "remove"]
    assert body["tool_choice"] == expected


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, {"mode": "VALIDATED", "allowedFunctionNames": ["add"]}),
        ("auto", {"mode": "VALIDATED", "allowedFunctionNames": ["add"]}),
        ("required", {"mode": "ANY", "allowedFunctionNames": ["add"]}),
        ("none", {"mode": "NONE"}),
    ],
)
def test_gemini(choice: str | None, expected: Any) -> None:
    """Names may be given with two modes only."""
    body = sent(GeminiChatModel, "gemini-2.5-flash", ["add"], tool_choice=choice)

    assert names(body) == ["add", "remove"]
    assert body["toolConfig"] == {"functionCallingConfig": expected}


@pytest.mark.parametrize(
    ("make", "model", "where"),
    [
        (OpenAIChatModel, "gpt-5-mini", "tool_choice"),
        (OpenAIResponsesChatModel, "gpt-5-mini", "tool_choice"),
    ],
)
def test_no_tool_may_be_called(make: Any, model: str, where: str) -> None:
    """A list without names is refused by the providers."""
    body = sent(make, model, [])

    assert names(body) == ["add", "remove"]
    assert body[where] == "none"


@pytest.mark.parametrize(
    ("make", "model", "more", "options"),
    [
        (AnthropicChatModel, "claude-sonnet-4-5", (), {}),
        (OpenAIChatModel, "gpt-4o", (), {}),
        (OpenAIChatModel, "gpt-5-chat-latest", (), {}),
        (OpenAIChatModel, "gpt-5", (), {"settings": {"base_url": "https://gate.test/v1"}}),
        (OpenAIResponsesChatModel, "gpt-5", (), {"settings": {"base_url": "https://gate.test/v1"}}),
        (OpenAIResponsesChatModel, "gpt-5", (WebSearch(),), {}),
        (GeminiChatModel, "gemini-2.0-flash", (), {}),
    ],
)
def test_others_are_sent_the_allowed_tools(
    make: Any, model: str, more: Any, options: dict[str, Any]
) -> None:
    """Providers, models and servers that do not have the field, and mixtures that are refused."""
    body = sent(make, model, ["add"], *more, **options)
    tools = [each for each in body["tools"] if "search" not in each.get("type", "")]

    assert names({"tools": tools}) == ["add"]
    assert "allowed" not in json.dumps(body)


def test_options_without_withheld_tools_are_unchanged() -> None:
    """There is no tool choice that nobody asked for."""
    body = sent(OpenAIChatModel, "gpt-5-mini", ["add", "remove"])

    assert "tool_choice" not in body
