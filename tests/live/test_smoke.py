"""A short conversation with the real local model as a smoke test."""

import pytest

from chatclient import ChatClient, ChatModel, tool
from chatclient.advisors import MessageChatMemoryAdvisor
from chatclient.memory import MessageWindowChatMemory
from chatclient.testing import Ask

pytestmark = pytest.mark.live


@tool
def get_temperature(city: str) -> int:
    """Get the current temperature in a city, in degrees Celsius.

    Args:
        city: The city's name.
    """
    return {"Amsterdam": 14, "Paris": 19}.get(city, 30)


def test_conversation_with_parallel_tool_calls(ask: Ask, local_model: ChatModel) -> None:
    """Two calls in one round, whose results the next turn remembers."""
    memory = MessageChatMemoryAdvisor(MessageWindowChatMemory())
    builder = ChatClient.builder(local_model).default_tools(get_temperature)
    client = builder.default_advisors(memory).build()
    request = client.prompt().conversation("weather")

    first = ask(request.user("What is the temperature in Amsterdam and in Paris?"))
    second = ask(request.user("What was the temperature in Paris? Do not call a tool."))

    cities = {execution.tool_call.arguments.replace(" ", "") for execution in first.executions}
    assert cities == {'{"city":"Amsterdam"}', '{"city":"Paris"}'}
    assert "14" in first.text
    assert "19" in first.text
    assert "19" in second.text
