"""The option `extra` is merged into the request that the library makes."""

from collections.abc import Mapping
from typing import Any

import pytest

from chatclient import ChatModel, Prompt, SystemMessage, UserMessage
from chatclient.providers import (
    AnthropicChatModel,
    BedrockChatModel,
    GeminiChatModel,
    OllamaChatModel,
    OpenAIChatModel,
    OpenAIResponsesChatModel,
)
from chatclient.tools import tool_callbacks
from tests.support.bodies import body_of

MODELS: Mapping[str, ChatModel] = {
    "chat": OpenAIChatModel("gpt-4.1", api_key="k"),
    "responses": OpenAIResponsesChatModel("gpt-4.1", api_key="k"),
    "anthropic": AnthropicChatModel(api_key="k"),
    "gemini": GeminiChatModel(api_key="k"),
    "ollama": OllamaChatModel(),
    "bedrock": BedrockChatModel("anthropic.claude-x", api_key="k", base_url="http://b"),
}


def look(number: float) -> str:
    """Look."""
    return ""


def sent(name: str, extra: Mapping[str, Any], **options: Any) -> dict[str, Any]:
    """Return the body for a system text, a question and a tool."""
    model = MODELS[name]
    given = {"tool_callbacks": tool_callbacks(look), "extra": extra, **options}
    messages = (SystemMessage("Be kind."), UserMessage("Hi"))
    return body_of(model, Prompt.of(messages, model.options.mutate(**given).as_defaults()))


THEIRS = {"theirs": True}


@pytest.mark.feature("options-fields-nobody-models")
@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("chat", "messages"),
        ("chat", "tools"),
        ("responses", "input"),
        ("responses", "tools"),
        ("anthropic", "messages"),
        ("anthropic", "system"),
        ("anthropic", "tools"),
        ("gemini", "contents"),
        ("gemini", "systemInstruction.parts"),
        ("gemini", "tools"),
        ("ollama", "messages"),
        ("ollama", "tools"),
        ("bedrock", "messages"),
        ("bedrock", "system"),
        ("bedrock", "toolConfig.tools"),
    ],
)
def test_extra_elements(name: str, path: str) -> None:
    """Messages, system texts and tools in `extra` follow those of the request."""
    outer, _, inner = path.partition(".")
    body = sent(name, {outer: {inner: [THEIRS], "more": 1} if inner else [THEIRS]})
    plain = sent(name, {})

    expected = plain[outer][inner] if inner else plain[outer]
    elements = body[outer][inner] if inner else body[outer]
    assert expected
    assert elements == [*expected, THEIRS]
    if inner:
        assert body[outer] == {**plain[outer], inner: elements, "more": 1}
    assert {k: v for k, v in body.items() if k != outer} == {
        k: v for k, v in plain.items() if k != outer
    }


@pytest.mark.parametrize("name", MODELS)
def test_other_extra_fields(name: str) -> None:
    """Other values override those of the library, and new ones are added."""
    body = sent(name, {"new": {"a": [1]}, "model": "theirs"})

    assert (body["new"], body["model"]) == ({"a": [1]}, "theirs")


def test_text_in_place_of_blocks() -> None:
    """A value of another kind replaces that of the library."""
    assert sent("anthropic", {"system": "Theirs."})["system"] == "Theirs."
    assert sent("bedrock", {"toolConfig": None})["toolConfig"] is None


def test_choice_in_extra_tool_config() -> None:
    """An object in `extra` keeps the fields that it does not name."""
    choice: dict[str, Any] = {"toolChoice": {"any": {}}}
    config = sent("bedrock", {"toolConfig": choice}, tool_choice="auto")["toolConfig"]

    assert config["toolChoice"] == {"any": {}}
    assert [each["toolSpec"]["name"] for each in config["tools"]] == ["look"]
