"""The tables of docs/options.md are true."""

from collections.abc import Mapping
from typing import Any

import pytest

from chatclient import ChatModel, ChatOptions, Prompt
from chatclient.errors import UnsupportedOptionError
from chatclient.providers import (
    AnthropicChatModel,
    GeminiChatModel,
    OllamaChatModel,
    OpenAIChatModel,
    OpenAIResponsesChatModel,
    compatible_model,
)
from chatclient.providers.local.model import _LLAMA
from chatclient.providers.openai.dialect import PRESETS
from chatclient.providers.wire.common_options import COMMON_OPTIONS
from chatclient.tools import tool_callbacks
from tests.support.bodies import added_fields
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
LOCAL = "http://127.0.0.1:1/v1"
MODELS: Mapping[str, ChatModel] = {
    "Chat Completions": OpenAIChatModel("gpt-5.4", api_key="k"),
    "Responses": OpenAIResponsesChatModel("gpt-5.4", api_key="k"),
    "Anthropic": AnthropicChatModel(
        "claude-sonnet-4-6", api_key="k", options=ChatOptions(unset="cache")
    ),
    "Gemini": GeminiChatModel("gemini-3-flash", api_key="k"),
    "Ollama": OllamaChatModel("qwen3"),
    "local": OpenAIChatModel("qwen3.gguf", api_key="k", base_url=LOCAL, dialect=_LLAMA),
}
VALUES: Mapping[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 4,
    "max_tokens": 99,
    "stop": ["END"],
    "seed": 7,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "reasoning": "low",
    "cache": "conversation",
    "service_tier": "default",
    "user_id": "u-1",
}


def look() -> str:
    """Look."""
    return ""


PROMPT = Prompt("x", ChatOptions(tool_callbacks=tool_callbacks(look)))
AUTOMATIC, MISSING = "*by itself*", "—"


def cell(model: ChatModel, *, values: bool = False, **option: Any) -> str:
    """Return the fields in which *model* sends *option*, or that it does not."""
    try:
        fields = added_fields(model, PROMPT, **option)
    except UnsupportedOptionError:
        return MISSING
    if values:
        shown = [f"`{path}: {str(value).lower()}`" for path, value in sorted(fields.items())]
    else:
        # Tools and system text have breakpoints of their own.
        shown = [f"`{path}`" for path in sorted({p.removesuffix(".type") for p in fields})]
        shown = [each for each in shown if each != "`tools`"]
    return ", ".join(shown) or AUTOMATIC


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return (
        "\n".join(f"| {' | '.join(row)} |" for row in lines)
        .replace("| ---", "|---")
        .replace("--- |", "---|")
    )


def option_table() -> str:
    """Return the field of each common option, by API."""
    rows = [
        [f"`{name}`", *(cell(model, **{name: VALUES[name]}) for model in MODELS.values())]
        for name in COMMON_OPTIONS
    ]
    return table(["option", *MODELS], rows)


def reasoning_table() -> str:
    """Return the fields of some values of `reasoning`, by compatible server."""
    rows = []
    for name in PRESETS:
        model = compatible_model(name, "m", api_key="k", base_url=LOCAL)
        shown = (cell(model, values=True, reasoning=each) for each in ("none", "low", "max", 4000))
        rows.append([f"`{name}`", *shown])
    return table(["server", '`"none"`', '`"low"`', '`"max"`', "`4000`"], rows)


@pytest.mark.parametrize("made", [option_table, reasoning_table])
def test_table_of_the_page(made: Any) -> None:
    """The page has the table that is made from requests of all APIs."""
    assert made() in PAGE, f"put this table into docs/options.md:\n{made()}"
