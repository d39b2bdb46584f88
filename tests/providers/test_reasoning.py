"""The option `reasoning`, as each model takes it."""

from typing import Any

import pytest

from chatclient import ChatModel, ChatOptions, Prompt
from chatclient.errors import UnsupportedOptionError, UsageError
from chatclient.providers import (
    AnthropicChatModel,
    GeminiChatModel,
    OllamaChatModel,
    OpenAIChatModel,
    OpenAIResponsesChatModel,
    compatible_model,
)
from chatclient.providers.local.model import _LLAMA
from tests.support.bodies import added_fields

VALUES = ("none", "minimal", "low", "medium", "high", "max", 4000)


def taken(model: ChatModel, field: str, **options: Any) -> list[Any]:
    """Return the value of *field* for each value of the option; None where it is refused."""
    result: list[Any] = []
    for value in VALUES:
        try:
            fields = added_fields(model, Prompt("x"), reasoning=value, **options)
        except UnsupportedOptionError:
            result.append("refused")
        else:
            result.append(fields.get(field))
    return result


R = "refused"


@pytest.mark.parametrize(
    ("model", "values"),
    [
        ("gpt-4.1", [None, R, R, R, R, R, R]),
        ("o3", [R, "low", "low", "medium", "high", "high", R]),
        ("gpt-5-mini", [R, "minimal", "low", "medium", "high", "high", R]),
        ("gpt-5-chat-latest", [None, R, R, R, R, R, R]),
        ("gpt-5-pro", [R, "high", "high", "high", "high", "high", R]),
        ("gpt-5.1", ["none", "low", "low", "medium", "high", "high", R]),
        ("gpt-5.1-codex", [R, "low", "low", "medium", "high", "high", R]),
        ("gpt-5.4", ["none", "low", "low", "medium", "high", "xhigh", R]),
        ("gpt-5.4-pro", [R, "medium", "medium", "medium", "high", "xhigh", R]),
        ("gpt-5.6-sol", ["none", "low", "low", "medium", "high", "max", R]),
        ("gpt-6-astra", [R, "low", "low", "medium", "high", "max", R]),
        ("future", ["none", "minimal", "low", "medium", "high", "max", R]),
    ],
)
def test_openai(model: str, values: list[Any]) -> None:
    """OpenAI's models take the nearest effort that they have, in both APIs."""
    assert taken(OpenAIChatModel(model, api_key="k"), "reasoning_effort") == values
    assert taken(OpenAIResponsesChatModel(model, api_key="k"), "reasoning.effort") == values


@pytest.mark.parametrize(
    ("model", "field", "values"),
    [
        ("claude-3-5-haiku-latest", "thinking.type", [None, R, R, R, R, R, R]),
        (
            "claude-haiku-4-5",
            "thinking.budget_tokens",
            [None, 1024, 4096, 8192, 16_384, 32_768, 4000],
        ),
        (
            "claude-sonnet-4-6",
            "output_config.effort",
            [None, "low", "low", "medium", "high", "max", None],
        ),
        ("claude-sonnet-4-6", "thinking.type", ["disabled", *["adaptive"] * 5, "enabled"]),
        (
            "claude-opus-5-5",
            "output_config.effort",
            [None, "low", "low", "medium", "high", "max", R],
        ),
        ("claude-opus-4@20250514", "thinking.type", ["disabled", *["enabled"] * 6]),
        ("claude-fable-5", "thinking.type", [R, *["adaptive"] * 5, R]),
        ("MiniMax-M2", "thinking.budget_tokens", [None, 1024, 4096, 8192, 16_384, 32_768, 4000]),
    ],
)
def test_anthropic(model: str, field: str, values: list[Any]) -> None:
    """Claude takes a budget or an effort, by generation."""
    assert taken(AnthropicChatModel(model, api_key="k"), field) == values


def test_budget_of_claude_is_less_than_the_answer() -> None:
    """The budget fits into `max_tokens`; otherwise, the option is refused."""
    model, field = AnthropicChatModel("claude-haiku-4-5", api_key="k"), "thinking.budget_tokens"

    assert taken(model, field, max_tokens=2000)[2:] == [1999] * 5
    assert taken(model, field, max_tokens=1000)[1:] == [R] * 6
    assert taken(model, "max_tokens")[-1] == 16_384 + 4000


@pytest.mark.parametrize(
    ("model", "field", "values"),
    [
        ("gemini-2.0-flash", "thinkingBudget", [None, R, R, R, R, R, R]),
        ("gemini-2.5-flash", "thinkingBudget", [0, 512, 1024, 8192, 24_576, 24_576, 4000]),
        ("gemini-2.5-pro", "thinkingBudget", [R, 512, 1024, 8192, 24_576, 32_768, 4000]),
        ("gemini-3-flash", "thinkingLevel", [R, "minimal", "low", "medium", "high", "high", None]),
        ("gemini-3.8-flash", "thinkingLevel", [R, "low", "low", "medium", "high", "high", None]),
        ("gemini-3-pro", "thinkingLevel", [R, "low", "low", "high", "high", "high", None]),
        ("gemini-3-pro", "thinkingBudget", [R, None, None, None, None, None, 4000]),
    ],
)
def test_gemini(model: str, field: str, values: list[Any]) -> None:
    """Gemini takes a budget, and a level since version 3."""
    path = f"generationConfig.thinkingConfig.{field}"

    assert taken(GeminiChatModel(model, api_key="k"), path) == values


@pytest.mark.parametrize(
    ("model", "values"),
    [
        ("qwen3", [False, True, True, True, True, True, R]),
        ("gpt-oss:20b", [R, "low", "low", "medium", "high", "high", R]),
    ],
)
def test_ollama(model: str, values: list[Any]) -> None:
    """Ollama switches reasoning on or off; GPT-OSS takes an effort."""
    assert taken(OllamaChatModel(model), "think") == values


SWITCH, TEMPLATE = "thinking.type", "chat_template_kwargs.enable_thinking"


@pytest.mark.parametrize(
    ("server", "model", "field", "values"),
    [
        ("azure", "mine", "reasoning_effort", [*VALUES[:-1], R]),
        (
            "openrouter",
            "m",
            "reasoning.effort",
            ["none", "minimal", "low", "medium", "high", "xhigh", None],
        ),
        ("openrouter", "m", "reasoning.max_tokens", [*[None] * 6, 4000]),
        (
            "groq",
            "openai/gpt-oss-20b",
            "reasoning_effort",
            [R, "low", "low", "medium", "high", "high", R],
        ),
        ("groq", "qwen/qwen3-32b", "reasoning_effort", ["none", *["default"] * 5, R]),
        ("deepseek", "m", SWITCH, ["disabled", *["enabled"] * 5, R]),
        ("deepseek", "m", "reasoning_effort", [None, "low", "low", "high", "high", "max", R]),
        ("mistral", "m", "reasoning_effort", ["none", *["high"] * 5, R]),
        ("moonshot", "m", SWITCH, ["disabled", *["enabled"] * 5, R]),
        ("minimax", "m", SWITCH, [R] * 7),
        ("vllm", "m", TEMPLATE, [False, *[True] * 5, R]),
        ("llamacpp", "m", TEMPLATE, [False, *[True] * 6]),
        ("llamacpp", "m", "thinking_budget_tokens", [*[None] * 6, 4000]),
        (
            "lmstudio",
            "m",
            "reasoning_effort",
            ["none", "low", "low", "medium", "high", "high", R],
        ),
    ],
)
def test_presets(server: str, model: str, field: str, values: list[Any]) -> None:
    """Each compatible server has different fields."""
    url = "http://127.0.0.1:1/v1"

    assert taken(compatible_model(server, model, api_key="k", base_url=url), field) == values


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("Qwen2.5-Coder 1.5B", [None, R, R, R, R, R, R]),
        ("qwen3.gguf", [False, *[True] * 6]),
    ],
)
def test_local(name: str, values: list[Any]) -> None:
    """The weights of the extras do not reason; the template of another model gets the option."""
    model = OpenAIChatModel(name, api_key="k", base_url="http://127.0.0.1:1/v1", dialect=_LLAMA)

    assert taken(model, TEMPLATE) == values


@pytest.mark.parametrize("value", [True, -1, "very", 1.5])
def test_invalid_value(value: Any) -> None:
    """Other values are refused when the options are made."""
    with pytest.raises(UsageError, match="reasoning must be one of 'none', 'minimal'"):
        ChatOptions(reasoning=value)
