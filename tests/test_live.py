"""The main job on a real model: the local one, over real HTTP, in all four ways of calling."""

from collections.abc import Iterator

import pytest
from conftest import Ask

from chatclient import ChatClient, ChatModel
from chatclient.providers.local import LocalChatModel
from chatclient.providers.weights import QWEN_CODER_1_5B, WeightsError, join_weights
from chatclient.tools import tool

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def model() -> Iterator[ChatModel]:
    """Give the local model; its weights are fetched by `make test`."""
    pytest.importorskip("xllamacpp", reason="the extra `local` is not installed")
    try:
        join_weights(QWEN_CODER_1_5B)
    except WeightsError as error:
        pytest.skip(f"no weights: {error}")
    with LocalChatModel() as model:
        yield model


@tool
def get_current_weather(city: str) -> dict[str, str | int]:
    """Get the current weather in a city.

    Args:
        city: The city's name.
    """
    degrees = {"Amsterdam": 14, "Paris": 19}
    return {"city": city, "temperature_celsius": degrees.get(city, 30)}


def client_of(model: ChatModel) -> ChatClient:
    return ChatClient.builder(model).default_tools(get_current_weather).build()


def test_the_model_calls_a_tool_and_answers(ask: Ask, model: ChatModel) -> None:
    """Asked for the weather, the model asks for it and tells it."""
    result = ask(client_of(model).prompt("What is the weather in Paris?"))

    assert result.executions[0].tool_call.name == "get_current_weather"
    assert "19" in result.text
    assert result.response.chat_response.usage.total_tokens > 100


def test_the_model_calls_two_tools_at_once(ask: Ask, model: ChatModel) -> None:
    """Two cities are two calls in one response, answered together."""
    result = ask(client_of(model).prompt("What is the weather in Amsterdam and in Paris?"))

    asked = {execution.tool_call.arguments.replace(" ", "") for execution in result.executions}
    assert {'{"city":"Amsterdam"}', '{"city":"Paris"}'} <= asked
    assert "14" in result.text
    assert "19" in result.text


def test_a_plain_answer_needs_no_tool(ask: Ask, model: ChatModel) -> None:
    """Without tools the model just answers, and keeps to the system text."""
    client = ChatClient.builder(model).default_system("Answer with one word.").build()

    assert "Paris" in ask(client.prompt("What is the capital of France?")).text
