"""The real model corrects a wrong call after an error message.

An advisor inside the loop makes the first call wrong; the following rounds are those of
the model.
"""

from dataclasses import replace

import pytest

from chatclient import (
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    ChatModel,
    Next,
    ToolCall,
    tool,
)
from chatclient.chain.chain import Advisor
from chatclient.testing import Ask

pytestmark = pytest.mark.live


@tool(effect="read")
def get_current_weather(city: str) -> dict[str, str | int]:
    """Get the current weather in a city.

    Args:
        city: The city's name.
    """
    degrees = {"Amsterdam": 14, "Paris": 19}
    return {"city": city, "temperature_celsius": degrees.get(city, 30)}


def spoil(name: str | None = None, arguments: str | None = None) -> Advisor:
    """Return an advisor that makes the first tool call wrong."""
    spoiled = False

    async def advisor(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        nonlocal spoiled
        response = await call_next(request)
        output = response.chat_response.output
        if spoiled or output is None or not output.tool_calls:
            return response
        spoiled = True
        first = output.tool_calls[0]
        wrong = ToolCall(first.id, name or first.name, arguments or first.arguments)
        message = output.mutate(tool_calls=[wrong])
        generation = replace(response.chat_response.generations[0], output=message)
        return response.mutate(
            chat_response=replace(response.chat_response, generations=(generation,))
        )

    return advisor


@pytest.mark.parametrize(
    ("spoiler", "problem"),
    [
        ({"arguments": '{"town": "Paris"}'}, "city: missing"),
        ({"name": "get_current_wether"}, "did you mean 'get_current_weather'"),
    ],
    ids=["argument error", "unknown tool"],
)
def test_model_corrects_its_call(
    ask: Ask, local_model: ChatModel, spoiler: dict[str, str], problem: str
) -> None:
    """After the error the model makes a valid call and answers."""
    builder = ChatClient.builder(local_model).default_tools(get_current_weather)
    client = builder.default_advisors(spoil(**spoiler)).build()
    result = ask(client.prompt("What is the weather in Paris?"))
    first, *others = result.executions

    assert problem in first.response.data
    assert [each.value for each in others if not each.is_error] == [
        {"city": "Paris", "temperature_celsius": 19}
    ]
    assert "19" in result.text
