"""The real local model through llama.cpp's Responses and Messages APIs."""

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from pydantic import BaseModel

from chatclient import ChatClient, ChatModel, tool
from chatclient.chat.events import TextDelta
from chatclient.chat.options import ChatOptions
from chatclient.providers.anthropic.model import AnthropicChatModel
from chatclient.providers.local.hub import QWEN_CODER_1_5B, find_installed
from chatclient.providers.local.llama_server import LlamaServer, RunningServer
from chatclient.providers.openai.responses import OpenAIResponsesChatModel
from chatclient.testing import Ask

pytestmark = pytest.mark.live

KINDS: dict[str, Callable[..., ChatModel]] = {
    "responses": OpenAIResponsesChatModel,  # at /v1/responses
    "messages": AnthropicChatModel,  # at /v1/messages
}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """Start llama.cpp; the weights are downloaded by `make test`."""
    pytest.importorskip("xllamacpp", reason="the extra `local` is not installed")
    weights = find_installed(QWEN_CODER_1_5B)
    if weights is None:
        pytest.skip("the dependency group `weights` is not installed")
    with closing(LlamaServer(weights)) as llama:
        yield llama.start()


@pytest.fixture(params=KINDS)
def model(request: pytest.FixtureRequest, server: RunningServer) -> Iterator[ChatModel]:
    """Return the model for one protocol, as deterministic as possible."""
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


def test_tool_call(ask: Ask, model: ChatModel) -> None:
    """The model calls the weather tool and answers with its result."""
    client = ChatClient.create(model)
    result = ask(client.prompt("What is the weather in Paris?").tools(get_current_weather))

    assert result.executions[0].tool_call.name == "get_current_weather"
    assert "19" in result.text
    assert result.response.chat_response.usage.output_tokens > 5


def test_parallel_tool_calls(ask: Ask, model: ChatModel) -> None:
    """Two cities are two calls in one response."""
    question = "What is the weather in Amsterdam and in Paris?"
    result = ask(ChatClient.create(model).prompt(question).tools(get_current_weather))

    arguments = {execution.tool_call.arguments.replace(" ", "") for execution in result.executions}
    assert {'{"city":"Amsterdam"}', '{"city":"Paris"}'} <= arguments
    assert "14" in result.text
    assert "19" in result.text


def test_stream(model: ChatModel) -> None:
    """A stream has many chunks and its usage at the end."""
    stream = ChatClient.create(model).prompt("Count from one to ten, in words.").stream()
    pieces = [event.text for event in stream.events() if isinstance(event, TextDelta)]

    assert len(pieces) > 10
    assert "three" in "".join(pieces).lower()
    assert stream.response.chat_response.usage.output_tokens > 10


class City(BaseModel):
    name: str
    country: str


def test_entity(model: ChatModel) -> None:
    """The schema is described in text, as llama.cpp ignores the fields for it."""
    question = "Which city is the capital of France?"

    assert ChatClient.create(model).prompt(question).call().entity(City, validate=True) == City(
        name="Paris", country="France"
    )
