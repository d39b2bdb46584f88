"""Fields of tools for single providers: each is sent to its provider only."""

import json
from typing import Any

import httpx
import pytest

from chatclient import ChatOptions, Prompt, tool
from chatclient.chat.tool import ToolDefinition
from chatclient.errors import ProviderError, ToolDefinitionError, WrongTypeError
from chatclient.providers import (
    AnthropicChatModel,
    GeminiChatModel,
    OllamaChatModel,
    OpenAIChatModel,
    OpenAIResponsesChatModel,
)
from chatclient.tools import FunctionToolCallback

OPTIONS: dict[str, dict[str, Any]] = {
    "anthropic": {"defer_loading": True, "input_examples": [{"city": "Rome"}], "strict": True},
    "openai": {"strict": True, "x": 1},
    "gemini": {"behavior": "BLOCKING"},
    "ollama": {"y": 2},
}


@tool(provider_options=OPTIONS)
def weather(city: str) -> str:
    """Return the weather."""
    return city


def sent(make: Any, callback: Any, url: str = "https://api.openai.com/v1") -> dict[str, Any]:
    """Return the fields of the tool in a request."""
    requests: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        requests.append(json.loads(request.content))
        return httpx.Response(400, json={"error": {"message": "no"}})

    client = httpx.Client(transport=httpx.MockTransport(answer))
    model = make("m", api_key="k", base_url=url, http_client=client)
    with client, pytest.raises(ProviderError, match="no"):
        model.call(Prompt("Hi", ChatOptions(tool_callbacks=[callback])))
    [found] = requests[0]["tools"]
    found = found.get("functionDeclarations", [found])[0]
    return {"type": "", **found.get("function", found)}


@pytest.mark.feature("provider-tool-metadata-keys-send")
@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (AnthropicChatModel, OPTIONS["anthropic"]),
        (OpenAIResponsesChatModel, OPTIONS["openai"]),
        (GeminiChatModel, OPTIONS["gemini"]),
        (OllamaChatModel, OPTIONS["ollama"]),
        (OpenAIChatModel, OPTIONS["openai"]),
    ],
)
def test_own_fields(make: Any, expected: dict[str, Any]) -> None:
    """The tool keeps its name and schema, and has the fields of the provider."""
    fields = sent(make, FunctionToolCallback(weather))
    known = {"type", "name", "description", "parameters", "input_schema", "parametersJsonSchema"}

    assert fields["name"] == "weather"
    assert {key: value for key, value in fields.items() if key not in known} == expected


def test_other_servers_do_not_get_them() -> None:
    """Compatible servers have names of their own."""
    fields = sent(OpenAIChatModel, FunctionToolCallback(weather), "http://x")

    assert "strict" not in fields
    assert "x" not in fields


@pytest.mark.parametrize("make", [AnthropicChatModel, OpenAIChatModel, OpenAIResponsesChatModel])
@pytest.mark.parametrize("declared", [None, True])
def test_strict_for_one_provider(make: Any, declared: bool | None) -> None:
    """It wins over that of the tool, and the schema has the form that the provider enforces."""

    def search(text: str, limit: int = 3) -> None: ...

    def fields(strict: bool) -> dict[str, Any]:
        options = {provider: {"strict": strict} for provider in OPTIONS}
        return sent(make, FunctionToolCallback(search, strict=declared, provider_options=options))

    assert fields(strict=True)["strict"] is True
    assert fields(strict=False)["strict"] is False


def test_definitions_keep_them() -> None:
    """They are compared and stored, so data tools and pending turns have them, too."""
    definition = FunctionToolCallback(weather).definition

    assert ToolDefinition.from_json(definition.to_json()) == definition
    assert definition != FunctionToolCallback(weather, provider_options={}).definition


@pytest.mark.parametrize("name", ["name", "input_schema", "parameters", "type"])
def test_generated_fields(name: str) -> None:
    """The library's own fields cannot be replaced."""
    options = {"anthropic": {name: 1}}
    with pytest.raises(ToolDefinitionError, match=f"{name} in its options for 'anthropic'"):
        ToolDefinition("f", provider_options=options)
    with pytest.raises(ToolDefinitionError, match=f"{name} in its options for 'anthropic'"):
        tool(provider_options=options)


def test_options_are_by_provider() -> None:
    """Fields without a provider are an error."""
    with pytest.raises(WrongTypeError, match=r"provider_options\['strict'\]"):
        tool(provider_options={"strict": True})  # type: ignore[dict-item]
