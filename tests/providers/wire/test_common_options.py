"""What becomes of common options that a model does not take."""

import logging
from collections.abc import Callable
from typing import Any

import pytest

from chatclient import (
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    ChatModel,
    ChatOptions,
    Next,
    Prompt,
)
from chatclient.errors import UnsupportedOptionError
from chatclient.providers import (
    AnthropicChatModel,
    AnthropicChatOptions,
    FallbackChatModel,
    GeminiChatModel,
    OllamaChatModel,
    OpenAIChatModel,
    OpenAIChatOptions,
    compatible_model,
)
from chatclient.providers.anthropic.options import COMMON_OPTIONS as ANTHROPIC
from chatclient.providers.gemini.encoding import COMMON_OPTIONS as GEMINI
from chatclient.providers.ollama.model import COMMON_OPTIONS as OLLAMA
from chatclient.providers.openai.chat import common_options
from chatclient.providers.openai.dialect import OPENAI, PRESETS
from chatclient.providers.openai.responses import COMPATIBLE_OPTIONS, OPENAI_OPTIONS
from chatclient.providers.wire.common_options import COMMON_OPTIONS, CommonOptions
from chatclient.testing import Ask, ScriptedModel
from chatclient.tools import tool_callbacks
from tests.support.bodies import added_fields, body_of
from tests.support.servers import ChatServer

HELLO = Prompt("x")
DECLARED = [
    *(ANTHROPIC, GEMINI, OLLAMA, OPENAI_OPTIONS, COMPATIBLE_OPTIONS, common_options(OPENAI)),
    *(common_options(preset.dialect) for preset in PRESETS.values()),
]


@pytest.mark.parametrize("declared", DECLARED, ids=lambda each: each.provider)
def test_every_api_declares_every_option(declared: CommonOptions) -> None:
    """Each API declares how it encodes each of the common options."""
    assert declared.encoders.keys() == set(COMMON_OPTIONS)
    assert ChatOptions.__dataclass_fields__.keys() >= set(COMMON_OPTIONS)


def test_option_of_a_request_raises(ask: Ask) -> None:
    """An option of the request that the model does not take raises before anything is sent."""
    client = ChatClient.create(AnthropicChatModel("claude-haiku-4-5", api_key="k"))

    with pytest.raises(UnsupportedOptionError, match="the API has no seed") as caught:
        ask(client.prompt("x").options(seed=1))

    error = caught.value
    assert (error.option, error.provider, error.model) == ("seed", "Anthropic", "claude-haiku-4-5")


def test_default_options_are_dropped_with_one_warning(
    ask: Ask, chat_server: Callable[..., ChatServer], caplog: pytest.LogCaptureFixture
) -> None:
    """Defaults of client and model that the model does not take are dropped, and logged once."""
    server, name = chat_server("1", "2"), f"dropping-{ask.mode}"
    options = ChatOptions(user_id="ada")
    mistral = compatible_model("mistral", name, api_key="k", base_url=server.url, options=options)
    builder = ChatClient.builder(mistral).default_options(top_k=4, seed=1)

    with caplog.at_level(logging.WARNING), builder.build() as client:
        for _ in range(2):
            ask(client.prompt("x").options(temperature=0.5))

    dropped = {"top_k", "user", "user_id"}
    assert [request.keys() & dropped for request in server.requests] == [set(), set()]
    assert [(r["random_seed"], r["temperature"]) for r in server.requests] == [(1, 0.5)] * 2
    lines = [record.message for record in caplog.records if name in record.message]
    assert [line.split(" reason=")[0] for line in lines] == [
        f"option dropped provider='mistral' model='{name}' option='top_k'",
        f"option dropped provider='mistral' model='{name}' option='user_id'",
    ]


def test_request_takes_an_option_from_the_defaults() -> None:
    """An option that the request sets again is no default any more; dropping it is possible."""
    defaults = OpenAIChatOptions(seed=1, top_k=2).as_defaults()

    assert defaults.merge(ChatOptions(seed=3)).defaults == {"top_k"}
    assert defaults.mutate(top_k=5).defaults == {"seed"}
    assert defaults.merge(ChatOptions(unset="seed")).defaults == {"top_k"}
    assert ChatOptions(seed=1).merge(defaults).defaults == {"seed", "top_k"}
    assert defaults == OpenAIChatOptions(seed=1, top_k=2)


def test_options_of_a_derived_client_are_defaults() -> None:
    """The options of a request are defaults of a client that is made from it."""
    model = OllamaChatModel("qwen3")
    derived = ChatClient.create(model).prompt("x").options(user_id="ada").mutate().build()
    request = derived.prompt("x").options(temperature=0.0)
    options = model.options.merge(request._settings.options)

    assert body_of(model, Prompt("x", options))["options"] == {"temperature": 0.0}


def test_fallback_skips_a_model_that_does_not_take_an_option(ask: Ask) -> None:
    """The next model is asked, which may take the option."""
    claude = AnthropicChatModel("claude-haiku-4-5", api_key="k")

    with FallbackChatModel(claude, ScriptedModel("ok")) as model:
        asked = ask(ChatClient.create(model).prompt("x").options(seed=1))

    assert asked.text == "ok"


@pytest.mark.parametrize(
    ("options", "effort"),
    [
        (OpenAIChatOptions(reasoning="low"), "low"),
        (OpenAIChatOptions(reasoning="low", reasoning_effort="high"), "high"),
        (OpenAIChatOptions(reasoning="low", reasoning_effort="high").as_defaults(), "high"),
        (OpenAIChatOptions(reasoning_effort="high").as_defaults().mutate(reasoning="low"), "low"),
        (OpenAIChatOptions(reasoning="low").as_defaults().mutate(reasoning_effort="high"), "high"),
    ],
)
def test_option_of_the_provider_for_the_same(options: ChatOptions, effort: str) -> None:
    """A provider's own option wins, unless it is a default and the common one is not."""
    model = OpenAIChatModel("gpt-5.4", api_key="k")

    sent = body_of(model, Prompt("x", model.options.merge(options)))
    assert sent["reasoning_effort"] == effort


@pytest.mark.parametrize("name", ["user", "safety_identifier"])
def test_own_name_of_the_user_wins(name: str) -> None:
    """OpenAI's own options for the user replace the common one."""
    model = OpenAIChatModel("gpt-5.4", api_key="k")

    assert added_fields(model, Prompt("x"), user_id="a", **{name: "b"}) == {name: "b"}


@pytest.mark.parametrize(
    ("model", "options", "fields"),
    [
        ("gpt-5.4", {"temperature": 0.5}, {"temperature": 0.5}),
        ("gpt-5.4", {"temperature": 0.5, "reasoning": "low"}, "temperature"),
        ("gpt-5.4", {"temperature": 1, "reasoning": "low"}, {"temperature": 1}),
        ("gpt-5.4", {"top_p": 0.5, "reasoning_effort": "high"}, "top_p"),
        ("gpt-5.6-sol", {"presence_penalty": 0.5}, "presence_penalty"),
        ("gpt-5.6-sol", {"frequency_penalty": 0.5, "reasoning": 0}, {"frequency_penalty": 0.5}),
        ("o3", {"stop": ["x"]}, "stop"),
        ("gpt-4.1", {"stop": ["x"], "temperature": 0}, {"stop": ["x"], "temperature": 0}),
        ("gpt-5", {"temperature": 0, "extra": {"reasoning_effort": "none"}}, {"temperature": 0}),
    ],
)
def test_sampling_of_openai(model: str, options: dict[str, Any], fields: Any) -> None:
    """OpenAI's models take sampling options only while they do not reason."""
    check(OpenAIChatModel(model, api_key="k"), options, fields)


@pytest.mark.parametrize(
    ("model", "options", "fields"),
    [
        ("claude-haiku-4-5", {"temperature": 0.5, "top_k": 4}, {"temperature": 0.5, "top_k": 4}),
        ("claude-haiku-4-5", {"temperature": 0.5, "reasoning": "low"}, "temperature"),
        ("claude-haiku-4-5", {"temperature": 1, "reasoning": "low"}, {"temperature": 1}),
        ("claude-haiku-4-5", {"top_k": 4, "thinking": 2000}, "top_k"),
        ("claude-opus-4-7", {"top_p": 0.5}, "top_p"),
        ("claude-sonnet-5", {"temperature": 0.5}, "temperature"),
        ("claude-sonnet-5", {"service_tier": "default"}, {"service_tier": "standard_only"}),
        ("claude-sonnet-5", {"service_tier": "auto"}, {"service_tier": "auto"}),
        ("claude-sonnet-5", {"service_tier": "flex"}, "service_tier"),
    ],
)
def test_options_of_claude(model: str, options: dict[str, Any], fields: Any) -> None:
    """Claude's generations differ in what they take."""
    check(AnthropicChatModel(model, api_key="k"), options, fields)


def check(model: Any, options: dict[str, Any], fields: Any, prompt: Prompt = HELLO) -> None:
    """Check the fields that *options* become, or that the option named *fields* is refused."""
    if isinstance(fields, str):
        with pytest.raises(UnsupportedOptionError) as caught:
            added_fields(model, prompt, **options)
        assert caught.value.option == fields
        return
    added = added_fields(model, prompt, **options)
    assert {name: added.get(name) for name in fields} == fields


def test_user_may_replace_what_a_default_of_anthropic_says() -> None:
    """A default `thinking` yields to the option `reasoning` of a request."""
    model = AnthropicChatModel(
        "claude-haiku-4-5", api_key="k", options=AnthropicChatOptions(thinking=9000)
    )

    assert added_fields(model, Prompt("x"), reasoning="none") == {
        "thinking.type": "disabled",
        "max_tokens": 16_384,
    }


def look() -> str:
    """Look."""
    return ""


@pytest.mark.parametrize(
    ("model", "options", "fields"),
    [
        (
            compatible_model("moonshot", "m", api_key="k"),
            {"tool_choice": "required"},
            "tool_choice",
        ),
        (compatible_model("moonshot", "m", api_key="k"), {"tool_choice": "look"}, "tool_choice"),
        (
            compatible_model("moonshot", "m", api_key="k"),
            {"tool_choice": "required", "reasoning": "none"},
            {"tool_choice": "required"},
        ),
        (
            compatible_model("deepseek", "deepseek-chat", api_key="k"),
            {"tool_choice": "auto"},
            {"tool_choice": "auto"},
        ),
        (GeminiChatModel(api_key="k"), {"parallel_tool_calls": False}, "parallel_tool_calls"),
        (GeminiChatModel(api_key="k"), {"parallel_tool_calls": True}, {}),
        (OllamaChatModel("qwen3"), {"parallel_tool_calls": False}, "parallel_tool_calls"),
        (OllamaChatModel("qwen3"), {"parallel_tool_calls": True}, {}),
        (OllamaChatModel("qwen3"), {"tool_choice": "required"}, "tool_choice"),
        (OllamaChatModel("qwen3"), {"tool_choice": "auto"}, {}),
        (
            AnthropicChatModel("claude-opus-5-5", api_key="k"),
            {"tool_choice": "required"},
            "tool_choice",
        ),
        (
            AnthropicChatModel("claude-haiku-4-5", api_key="k"),
            {"tool_choice": "look", "reasoning": "low"},
            "tool_choice",
        ),
    ],
    ids=lambda value: value.provider if isinstance(value, ChatModel) else "",
)
def test_options_of_tools(model: Any, options: dict[str, Any], fields: Any) -> None:
    """What a server cannot do with tools is refused, unless there are no tools."""
    prompt = Prompt("x", ChatOptions(tool_callbacks=tool_callbacks(look)))
    check(model, options, fields, prompt)

    assert (
        added_fields(model, Prompt("x"), **{next(iter(options)): next(iter(options.values()))})
        == {}
    )


def test_defaults_are_no_change_of_an_advisor(ask: Ask) -> None:
    """The trail shows the option that an advisor changes, and nothing else."""

    async def warmer(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        prompt = request.prompt.mutate_options(temperature=0.9)
        return await call_next(request.mutate(prompt=prompt))

    builder = ChatClient.builder(ScriptedModel("ok")).default_options(temperature=0.1)
    asked = ask(builder.default_advisors(warmer).build().prompt("x"))

    assert asked.answer.trail().rounds[0].changes[0].options == (("temperature", 0.9),)
