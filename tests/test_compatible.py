"""Servers that speak Chat Completions, by name."""

from collections.abc import Callable
from typing import Any

import pytest
from conftest import Ask
from servers import ChatServer, Reply, completion

from chatclient import ChatClient
from chatclient.errors import RateLimitedError, UsageError
from chatclient.messages import (
    AssistantMessage,
    Media,
    Message,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
)
from chatclient.options import ChatOptions
from chatclient.providers import registry
from chatclient.providers.compatible import PRESETS, compatible_model
from chatclient.providers.openai import OpenAIChatModel
from chatclient.providers.registry import chat_model

VARIABLES = {preset.key_variable for preset in PRESETS.values()}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*VARIABLES, "AZURE_OPENAI_ENDPOINT", "OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


def base_url(model: Any) -> str:
    return repr(model).partition("base_url='")[2].removesuffix("')")


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_preset_knows_its_server_and_key(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model is made of a name, a model and a key in the usual place."""
    preset = PRESETS[name]
    monkeypatch.setenv(preset.key_variable, "secret")
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://acme.openai.azure.com/")
    model = compatible_model(name, "m")

    assert model.name == "m"
    assert base_url(model) == preset.base_url or name == "azure"
    assert "secret" not in repr(model)


@pytest.mark.parametrize("name", [n for n, preset in PRESETS.items() if preset.needs_key])
def test_a_missing_key_is_told_before_anything_is_sent(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the variable to set; a key for another service is not used."""
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
def test_azure_is_where_the_environment_says(
    endpoint: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The endpoint is a resource's address, with or without the path of the API."""
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", endpoint)

    assert base_url(compatible_model("azure", "m", api_key="k")) == expected


def test_azure_has_no_address_for_everybody() -> None:
    """Without an endpoint there is nobody to ask."""
    with pytest.raises(UsageError, match="set AZURE_OPENAI_ENDPOINT or pass base_url="):
        compatible_model("azure", "m", api_key="k")


def test_an_unknown_preset_is_an_error_that_lists_the_known_ones() -> None:
    """A slip of the pen is told, with what there is."""
    with pytest.raises(UsageError, match=r"no preset is called 'grok'; there are azure, .*xai"):
        compatible_model("grok", "m")


Start = Callable[..., ChatServer]


@pytest.mark.parametrize(
    ("key", "sent"), [("k", "Bearer k"), (lambda: "rotated", "Bearer rotated"), ("", None)]
)
def test_a_server_may_be_elsewhere(chat_server: Start, key: Any, sent: str | None) -> None:
    """Address, key and headers of one's own go before the preset's."""
    server = chat_server("hi")
    with compatible_model(
        "groq", "m", api_key=key, base_url=server.url, headers={"x-mine": "1"}
    ) as model:
        assert model.call("x").text == "hi"

    assert server.headers[0].get("authorization") == sent
    assert server.headers[0]["x-mine"] == "1"


def test_quirks_reach_the_wire(chat_server: Start) -> None:
    """A preset's dialect is spoken, in calls and in streams."""
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


def test_deepseek_goes_on_with_what_it_did_without_a_thought(ask: Ask, chat_server: Start) -> None:
    """It refuses a conversation in which one of the model's messages lacks its reasoning."""
    server = chat_server(completion(None, ("c1", "add", '{"a": 1}')), "2")
    model = compatible_model("deepseek", "m", api_key="k", base_url=server.url)

    def add(a: int) -> int:
        return a + 1

    with ChatClient.create(model) as client:
        assert ask(client.prompt("1 + 1?").tools(add)).text == "2"
    said = server.requests[1]["messages"][1]

    assert (said["role"], said["reasoning_content"]) == ("assistant", "")


def test_mistral_takes_no_user_after_tool_results(chat_server: Start) -> None:
    """The model has a word in between, whether a tool shows something or the user goes on."""
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
    """Who answered is in the error, not just that it was compatible."""
    server = chat_server(Reply(b'{"message": "slow down"}', 429))
    with (
        compatible_model("together", "m", api_key="k", base_url=server.url, max_retries=0) as model,
        pytest.raises(RateLimitedError, match="together answered 429: slow down") as caught,
    ):
        model.call("x")

    assert caught.value.provider == "together"


# --- by name --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_string_names_a_model_of_a_preset(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`groq:llama-3` is all it takes; the model's name may have colons."""
    monkeypatch.setenv(PRESETS[name].key_variable, "k")
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://acme.openai.azure.com")
    model = chat_model(f"{name}:vendor/model:free")

    assert isinstance(model, OpenAIChatModel)
    assert model.name == "vendor/model:free"


def test_the_registry_knows_every_preset() -> None:
    """Its list, kept apart so that no preset is loaded in vain, is complete."""
    assert sorted(PRESETS) == list(registry.COMPATIBLE)


def test_a_preset_needs_a_model() -> None:
    """There is no default model behind an address."""
    with pytest.raises(UsageError, match="'groq' names no model; write groq:model"):
        chat_model("groq")


def test_an_unknown_name_is_an_error_that_lists_the_known_ones() -> None:
    """All providers are listed, presets among them."""
    with pytest.raises(UsageError, match=r"'grok:4' names no provider; .*:gpt.*groq.*xai"):
        chat_model("grok:4")


def test_openai_is_named_with_or_without_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider with a class of its own may have a default model."""
    monkeypatch.setenv("OPENAI_API_KEY", "k")

    assert chat_model("openai").name
    assert chat_model("openai:gpt-5").name == "gpt-5"
