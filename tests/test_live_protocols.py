"""The real local model through the other protocols that llama.cpp speaks: Responses, Messages."""

from collections.abc import Callable, Iterator

import pytest
from conftest import Ask
from pydantic import BaseModel

from chatclient import ChatClient, ChatModel
from chatclient.events import TextDelta
from chatclient.options import ChatOptions
from chatclient.providers.anthropic import AnthropicChatModel
from chatclient.providers.llama_server import LlamaServer, RunningServer
from chatclient.providers.openai_responses import OpenAIResponsesChatModel
from chatclient.providers.weights import QWEN_CODER_1_5B, WeightsError, join_weights
from chatclient.tools import tool

pytestmark = pytest.mark.live

KINDS: dict[str, Callable[..., ChatModel]] = {
    "responses": OpenAIResponsesChatModel,  # at /v1/responses
    "messages": AnthropicChatModel,  # at /v1/messages
}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """Start llama.cpp; the weights are fetched by `make test`."""
    pytest.importorskip("xllamacpp", reason="the extra `local` is not installed")
    try:
        weights = join_weights(QWEN_CODER_1_5B)
    except WeightsError as error:
        pytest.skip(f"no weights: {error}")
    with LlamaServer(weights) as llama:
        yield llama.start()


@pytest.fixture(params=KINDS)
def model(request: pytest.FixtureRequest, server: RunningServer) -> Iterator[ChatModel]:
    """Give the model through one protocol, as repeatable as it can be."""
    options = ChatOptions(temperature=0.0, max_tokens=300)
    kind = KINDS[request.param]
    with kind("local", api_key=server.api_key, base_url=server.base_url, options=options) as model:
        yield model


@tool
def get_current_weather(city: str) -> dict[str, str | int]:
    """Get the current weather in a city.

    Args:
        city: The city's name.
    """
    degrees = {"Amsterdam": 14, "Paris": 19}
    return {"city": city, "temperature_celsius": degrees.get(city, 30)}


def test_the_model_calls_a_tool_and_answers(ask: Ask, model: ChatModel) -> None:
    """Asked for the weather, the model asks for it and tells it."""
    client = ChatClient.create(model)
    result = ask(client.prompt("What is the weather in Paris?").tools(get_current_weather))

    assert result.executions[0].tool_call.name == "get_current_weather"
    assert "19" in result.text
    assert result.response.chat_response.usage.output_tokens > 5


def test_the_model_calls_two_tools_at_once(ask: Ask, model: ChatModel) -> None:
    """Two cities are two calls in one response, answered together."""
    question = "What is the weather in Amsterdam and in Paris?"
    result = ask(ChatClient.create(model).prompt(question).tools(get_current_weather))

    asked = {execution.tool_call.arguments.replace(" ", "") for execution in result.executions}
    assert {'{"city":"Amsterdam"}', '{"city":"Paris"}'} <= asked
    assert "14" in result.text
    assert "19" in result.text


def test_words_come_as_they_are_said(model: ChatModel) -> None:
    """A stream is many pieces of the one answer, and knows its usage at the end."""
    stream = ChatClient.create(model).prompt("Count from one to ten, in words.").stream()
    pieces = [event.text for event in stream.events() if isinstance(event, TextDelta)]

    assert len(pieces) > 10
    assert "three" in "".join(pieces).lower()
    assert stream.response.chat_response.usage.output_tokens > 10


class City(BaseModel):
    name: str
    country: str


def test_an_answer_of_a_type(model: ChatModel) -> None:
    """Told in words: llama.cpp passes over the fields of both protocols that hold to a schema."""
    question = "Which city is the capital of France?"

    assert ChatClient.create(model).prompt(question).call().entity(City, validate=True) == City(
        name="Paris", country="France"
    )
