"""The main job on a real model: the local one, over real HTTP, in all four ways of calling."""

from datetime import UTC, datetime, timedelta

import pytest
import quickstart
from conftest import Ask

from chatclient import ChatClient, ChatModel
from chatclient.tools import tool

pytestmark = pytest.mark.live


@tool
def get_current_weather(city: str) -> dict[str, str | int]:
    """Get the current weather in a city.

    Args:
        city: The city's name.
    """
    degrees = {"Amsterdam": 14, "Paris": 19}
    return {"city": city, "temperature_celsius": degrees.get(city, 30)}


def client_of(local_model: ChatModel) -> ChatClient:
    return ChatClient.builder(local_model).default_tools(get_current_weather).build()


def test_the_model_calls_a_tool_and_answers(ask: Ask, local_model: ChatModel) -> None:
    """Asked for the weather, the model asks for it and tells it."""
    result = ask(client_of(local_model).prompt("What is the weather in Paris?"))

    assert result.executions[0].tool_call.name == "get_current_weather"
    assert "19" in result.text
    assert result.response.chat_response.usage.total_tokens > 100


def test_the_model_does_what_the_demo_asks(ask: Ask, local_model: ChatModel) -> None:
    """Tools that take what is said leave it nothing to reckon, at any hour."""
    tools = quickstart.DateTimeTools()
    client = ChatClient.builder(local_model).default_tools(tools).build()

    day = ask(client.prompt("What day is tomorrow?"))
    asked = datetime.now(UTC)
    ask(client.prompt("Set an alarm 10 minutes from now"))

    assert day.executions[0].response.data in day.text
    assert day.executions[0].tool_call.arguments.replace(" ", "") == '{"days_from_today":1}'
    assert len(tools.alarms) == 1
    assert asked <= tools.alarms[0] - timedelta(minutes=10) <= datetime.now(UTC)


def test_the_model_calls_two_tools_at_once(ask: Ask, local_model: ChatModel) -> None:
    """Two cities are two calls in one response, answered together."""
    result = ask(client_of(local_model).prompt("What is the weather in Amsterdam and in Paris?"))

    asked = {execution.tool_call.arguments.replace(" ", "") for execution in result.executions}
    assert {'{"city":"Amsterdam"}', '{"city":"Paris"}'} <= asked
    assert "14" in result.text
    assert "19" in result.text


def test_a_plain_answer_needs_no_tool(ask: Ask, local_model: ChatModel) -> None:
    """Without tools the model just answers, and keeps to the system text."""
    client = ChatClient.builder(local_model).default_system("Answer with one word.").build()

    assert "Paris" in ask(client.prompt("What is the capital of France?")).text
