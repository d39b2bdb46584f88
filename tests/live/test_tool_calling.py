"""Tool calling with the real local model over HTTP, in all four modes."""

from datetime import UTC, datetime, timedelta

import pytest
import quickstart

from chatclient import ChatClient, ChatModel, tool
from chatclient.testing import Ask

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


def test_tool_call(ask: Ask, local_model: ChatModel) -> None:
    """The model calls the weather tool and answers with its result."""
    result = ask(client_of(local_model).prompt("What is the weather in Paris?"))

    assert result.executions[0].tool_call.name == "get_current_weather"
    assert "19" in result.text
    assert result.response.chat_response.usage.total_tokens > 100


def test_demo(ask: Ask, local_model: ChatModel) -> None:
    """Tools with relative arguments need no arithmetic of the model."""
    tools = quickstart.DateTimeTools()
    client = ChatClient.builder(local_model).default_tools(tools).build()

    day = ask(client.prompt("What day is tomorrow?"))
    asked = datetime.now(UTC)
    ask(client.prompt("Set an alarm 10 minutes from now"))

    assert day.executions[0].response.data in day.text
    assert day.executions[0].tool_call.arguments.replace(" ", "") == '{"days_from_today":1}'
    assert len(tools.alarms) == 1
    assert asked <= tools.alarms[0] - timedelta(minutes=10) <= datetime.now(UTC)


def test_parallel_tool_calls(ask: Ask, local_model: ChatModel) -> None:
    """Two cities are two calls in one response."""
    result = ask(client_of(local_model).prompt("What is the weather in Amsterdam and in Paris?"))

    asked = {execution.tool_call.arguments.replace(" ", "") for execution in result.executions}
    assert {'{"city":"Amsterdam"}', '{"city":"Paris"}'} <= asked
    assert "14" in result.text
    assert "19" in result.text


def test_answer_without_tools(ask: Ask, local_model: ChatModel) -> None:
    """Without tools the model answers and follows the system text."""
    client = ChatClient.builder(local_model).default_system("Answer with one word.").build()

    assert "Paris" in ask(client.prompt("What is the capital of France?")).text
