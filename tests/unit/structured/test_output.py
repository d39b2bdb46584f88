"""Schema enforcement by provider and model, and the types of `entity`."""

import asyncio
from typing import Any, Literal, assert_type

import pytest
from pydantic import BaseModel

from chatclient import ChatClient, ChatModel, tool
from chatclient.chat.model import OutputMode
from chatclient.chat.options import ChatOptions
from chatclient.errors import UsageError
from chatclient.providers.anthropic.model import AnthropicChatModel, AnthropicChatOptions
from chatclient.providers.compatible import compatible_model
from chatclient.providers.composite import FallbackChatModel
from chatclient.providers.gemini.model import GeminiChatModel
from chatclient.providers.local.model import LocalChatModel
from chatclient.providers.ollama.model import OllamaChatModel
from chatclient.providers.openai.chat import OpenAIChatModel
from chatclient.providers.openai.responses import OpenAIResponsesChatModel
from chatclient.structured import ListOutputConverter, ResponseEntity
from chatclient.testing import ScriptedModel
from chatclient.testing.recording import Recording, RecordingModel
from chatclient.tools import tool_callbacks


class Film(BaseModel):
    title: str


@tool
def look_up() -> str:
    """Look something up."""
    return "found"


def preset(name: str) -> ChatModel:
    return compatible_model(name, model="m", api_key="k")


def openai(model: str = "gpt-5-mini") -> ChatModel:
    return OpenAIChatModel(model, api_key="k")


def thinking(model: str) -> ChatModel:
    return AnthropicChatModel(model, api_key="k", options=AnthropicChatOptions(thinking=2000))


MODES: list[tuple[ChatModel, OutputMode, OutputMode]] = [
    (openai(), "schema", "schema"),
    (OpenAIResponsesChatModel("gpt-5-mini", api_key="k"), "schema", "schema"),
    (AnthropicChatModel("claude-sonnet-4-5", api_key="k"), "schema", "schema"),
    (AnthropicChatModel("claude-opus-4-1-20250805", api_key="k"), "schema", "schema"),
    (AnthropicChatModel("claude-sonnet-4-20250514", api_key="k"), "tool", "tool"),
    (AnthropicChatModel("claude-3-7-sonnet-latest", api_key="k"), "tool", "tool"),
    (thinking("claude-3-7-sonnet-latest"), "instructions", "instructions"),
    (thinking("claude-sonnet-4-5"), "schema", "schema"),
    (GeminiChatModel("gemini-3-pro", api_key="k"), "schema", "schema"),
    (GeminiChatModel("gemini-2.5-flash", api_key="k"), "schema", "tool"),
    (OllamaChatModel("qwen3"), "schema", "tool"),
    (LocalChatModel(), "schema", "tool"),
    (preset("groq"), "schema", "tool"),
    (preset("vllm"), "schema", "tool"),
    (preset("lmstudio"), "schema", "tool"),
    (preset("deepseek"), "instructions", "instructions"),
    (FallbackChatModel(openai(), preset("groq")), "schema", "tool"),
    (RecordingModel(preset("groq"), Recording()), "schema", "tool"),
    (FallbackChatModel(preset("deepseek"), openai()), "instructions", "instructions"),
]


@pytest.mark.feature(
    "entity-use-provider-structured-output",
    "lc4j-entity-response-format-json-schema",
    "lc4j-entity-response-format-beside-tools",
)
@pytest.mark.parametrize(("model", "alone", "beside_tools"), MODES, ids=lambda x: str(x)[:40])
def test_schema_enforcement_by_provider(
    model: ChatModel, alone: OutputMode, beside_tools: OutputMode
) -> None:
    """The method depends on the API, the model, and the presence of tools."""
    with_tools = ChatOptions(tool_callbacks=tuple(tool_callbacks(look_up)))

    assert model.output_mode(model.options) == alone
    assert model.output_mode(model.options.merge(with_tools)) == beside_tools


def test_inferred_types() -> None:
    """Mypy and pyright check this function without annotations."""
    client = ChatClient.create(ScriptedModel(lambda prompt: '{"title": "Alien"}'))
    assert_type(client.prompt("?").call().entity(Film), Film)
    assert_type(client.prompt("?").call().entity(dict[str, str]), dict[str, str])
    assert_type(client.prompt("?").call().response_entity(Film), ResponseEntity[Film])
    assert_type(client.prompt("?").call().entity(ListOutputConverter()), list[str])
    for partial in client.prompt("?").stream().entity(Film):
        assert_type(partial, Film)

    async def run() -> None:
        assert_type(await client.prompt("?").acall().entity(Film), Film)
        assert_type(await client.prompt("?").acall().response_entity(Film), ResponseEntity[Film])
        async for partial in client.prompt("?").astream().entity(Film):
            assert_type(partial, Film)

    asyncio.run(run())


def test_types_that_cannot_be_inferred() -> None:
    """Types that Python cannot express give `Any`."""
    client = ChatClient.create(ScriptedModel("good"))
    mood: Literal["good", "bad"] = client.prompt("?").call().entity(Literal["good", "bad"])

    assert mood == "good"


def test_entity_stream_is_consumed_once() -> None:
    """Reading a stream again raises."""
    stream = ChatClient.create(ScriptedModel('{"title": "Alien"}')).prompt("?").stream()
    values: list[Any] = list(stream.entity(Film))

    assert values[-1] == Film(title="Alien")
    assert stream.response.chat_response.text == '{"title": "Alien"}'
    with pytest.raises(UsageError, match="consumed once"):
        stream.entity(Film)
