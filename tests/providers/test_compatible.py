"""Presets of servers that implement Chat Completions."""

from collections.abc import Callable
from typing import Any

import pytest

from chatclient import ChatClient
from chatclient.chat.messages import (
    AssistantMessage,
    Media,
    Message,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
)
from chatclient.chat.options import ChatOptions
from chatclient.errors import RateLimitedError, UsageError
from chatclient.providers import registry
from chatclient.providers.compatible import compatible_model
from chatclient.providers.openai.chat import OpenAIChatModel
from chatclient.providers.openai.chat_encoding import encode_message
from chatclient.providers.openai.dialect import COMPATIBLE, PRESETS, dialect_at
from chatclient.providers.registry import chat_model
from chatclient.testing import Ask
from tests.support.servers import ChatServer, Reply, completion

VARIABLES = {preset.key_variable for preset in PRESETS.values()}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*VARIABLES, "AZURE_OPENAI_ENDPOINT", "OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


def base_url(model: Any) -> str:
    return repr(model).partition("base_url='")[2].removesuffix("')")


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_preset_url_and_key(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A preset supplies the base URL and reads the key from its usual variable."""
    preset = PRESETS[name]
    monkeypatch.setenv(preset.key_variable, "secret")
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://acme.openai.azure.com/")
    model = compatible_model(name, "m")

    assert model.name == "m"
    assert base_url(model) == preset.base_url or name == "azure"
    assert "secret" not in repr(model)


@pytest.mark.parametrize(
    ("base_url", "provider"),
    [
        ("https://api.groq.com/openai/v1", "groq"),
        ("https://api.deepseek.com", "deepseek"),
        ("https://mine.openai.azure.com/openai/v1", "azure"),
        ("https://api.moonshot.cn/v1", "moonshot"),
        ("https://generativelanguage.googleapis.com/v1beta/openai", "gemini"),
        ("http://localhost:8000/v1", "openai-compatible"),
        ("https://groq.com.example.org/v1", "openai-compatible"),
    ],
)
def test_dialect_by_host(base_url: str, provider: str) -> None:
    """A known host has its dialect without a preset."""
    model = OpenAIChatModel("m", api_key="k", base_url=base_url)

    assert model.provider == provider


def test_tool_results_with_names() -> None:
    """Gemini's endpoint for Chat Completions requires them."""
    message = ToolResponseMessage([ToolResponse("1", "look", "seen")])
    url = "https://generativelanguage.googleapis.com/v1beta/openai"

    assert next(iter(encode_message(message, dialect_at(url))))["name"] == "look"
    assert "name" not in next(iter(encode_message(message, COMPATIBLE)))


@pytest.mark.parametrize("name", [n for n, preset in PRESETS.items() if preset.needs_key])
def test_missing_key_names_the_variable(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing key raises before a request; a key for another service is not used."""
    monkeypatch.setenv("OPENAI_API_KEY", "of another service")

    with pytest.raises(UsageError, match=f"set {PRESETS[name].key_variable} or pass api_key="):
        compatible_model(name, "m")


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        ("https://acme.openai.azure.com", "https://acme.openai.azure.com/openai/v1"),
        ("https://acme.openai.azure.com/", "https://acme.openai.azure.com/openai/v1"),
        ("https://acme.openai.azure.com/openai/v1/", "https://acme.openai.azure.com/openai/v1"),
    ],
)
def test_azure_endpoint_from_environment(
    endpoint: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The endpoint is a resource's URL, with or without the API path."""
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", endpoint)

    assert base_url(compatible_model("azure", "m", api_key="k")) == expected


def test_azure_requires_an_endpoint() -> None:
    """Without an endpoint the model cannot be made."""
    with pytest.raises(UsageError, match="set AZURE_OPENAI_ENDPOINT or pass base_url="):
        compatible_model("azure", "m", api_key="k")


def test_unknown_preset() -> None:
    """The error for an unknown preset lists the known ones."""
    with pytest.raises(UsageError, match=r"no preset is called 'grok'; there are azure, .*xai"):
        compatible_model("grok", "m")


Start = Callable[..., ChatServer]


@pytest.mark.parametrize(
    ("key", "sent"), [("k", "Bearer k"), (lambda: "rotated", "Bearer rotated"), ("", None)]
)
def test_arguments_override_the_preset(chat_server: Start, key: Any, sent: str | None) -> None:
    """URL, key and headers given as arguments override those of the preset."""
    server = chat_server("hi")
    with compatible_model(
        "groq", "m", api_key=key, base_url=server.url, headers={"x-mine": "1"}
    ) as model:
        assert model.call("x").text == "hi"

    assert server.headers[0].get("authorization") == sent
    assert server.headers[0]["x-mine"] == "1"


def test_preset_dialect_is_used(chat_server: Start) -> None:
    """Requests follow the dialect of the preset, streamed or not."""
    server = chat_server("hi")
    options = ChatOptions(max_tokens=5, seed=7)
    with compatible_model(
        "mistral", "m", api_key="k", base_url=server.url, options=options
    ) as model:
        model.call("x")
        list(model.stream("x"))

    for request in server.requests:
        assert (request["max_tokens"], request["random_seed"]) == (5, 7)
        assert "stream_options" not in request


def test_deepseek_gets_empty_reasoning(ask: Ask, chat_server: Start) -> None:
    """DeepSeek requires the reasoning field in every assistant message."""
    server = chat_server(completion(None, ("c1", "add", '{"a": 1}')), "2")
    model = compatible_model("deepseek", "m", api_key="k", base_url=server.url)

    def add(a: int) -> int:
        return a + 1

    with ChatClient.create(model) as client:
        assert ask(client.prompt("1 + 1?").tools(add)).text == "2"
    message = server.requests[1]["messages"][1]

    assert (message["role"], message["reasoning_content"]) == ("assistant", "")


def test_mistral_message_after_tool_results(chat_server: Start) -> None:
    """An assistant message separates tool results from a user message, images included."""
    server = chat_server("hi")
    called = AssistantMessage(tool_calls=[ToolCall("abcdefghi", "draw", "{}")])
    drawn = ToolResponse("abcdefghi", "draw", "here")
    shown = ToolResponse("abcdefghi", "draw", "here", media=(Media("image/png", b"x"),))
    with compatible_model("mistral", "m", api_key="k", base_url=server.url) as model:
        before: list[Message] = [UserMessage("Draw"), called]
        model.call([*before, ToolResponseMessage([drawn]), UserMessage("Never mind")])
        model.call([*before, ToolResponseMessage([shown])])
        model.call([*before, ToolResponseMessage([drawn])])

    assert [[m["role"] for m in request["messages"]] for request in server.requests] == [
        ["user", "assistant", "tool", "assistant", "user"],
        ["user", "assistant", "tool", "assistant", "user"],
        ["user", "assistant", "tool"],
    ]


def test_errors_name_the_server(chat_server: Start) -> None:
    """Errors name the preset's server as provider."""
    server = chat_server(Reply(b'{"message": "slow down"}', 429))
    with (
        compatible_model("together", "m", api_key="k", base_url=server.url, max_retries=0) as model,
        pytest.raises(RateLimitedError, match="together answered 429: slow down") as caught,
    ):
        model.call("x")

    assert caught.value.provider == "together"


# --- by name --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_model_string_with_preset(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`groq:llama-3` selects preset and model; the model name may contain colons."""
    monkeypatch.setenv(PRESETS[name].key_variable, "k")
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://acme.openai.azure.com")
    model = chat_model(f"{name}:vendor/model:free")

    assert isinstance(model, OpenAIChatModel)
    assert model.name == "vendor/model:free"


def test_registry_lists_every_preset() -> None:
    """The registry's list, kept apart to avoid imports, is complete."""
    assert sorted(PRESETS) == list(registry.COMPATIBLE)


def test_preset_requires_a_model() -> None:
    """A preset has no default model."""
    with pytest.raises(UsageError, match="'groq' names no model; write groq:model"):
        chat_model("groq")


def test_unknown_provider() -> None:
    """The error for an unknown provider lists all providers and presets."""
    with pytest.raises(UsageError, match=r"'grok:4' names no provider; .*:gpt.*groq.*xai"):
        chat_model("grok:4")


def test_openai_default_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider with its own class may have a default model."""
    monkeypatch.setenv("OPENAI_API_KEY", "k")

    assert chat_model("openai").name
    assert chat_model("openai:gpt-5").name == "gpt-5"
