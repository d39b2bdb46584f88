"""Tool search with the real local model and two hundred hidden tools."""

from typing import Any

import pytest

from chatclient import ChatClient, ChatModel, tool
from chatclient.advisors.tool_search.advisor import ToolSearchToolCallingAdvisor
from chatclient.chain.chain import ChatClientRequest, ChatClientResponse, Next
from chatclient.testing import Ask
from chatclient.tools import DataToolCallback, ToolCallback, ToolDefinition

pytestmark = pytest.mark.live


@tool
def get_current_weather(city: str) -> dict[str, str | int]:
    """Get the current weather in a city.

    Args:
        city: The city's name.
    """
    return {"city": city, "temperature_celsius": 19 if city == "Paris" else 30}


VERBS = ["create", "delete", "list", "update", "archive", "export", "share", "rename"]
THINGS = ["invoice", "customer", "ticket", "playlist", "photo album", "recipe", "shipment"]
THINGS += ["contract", "employee", "survey", "backup", "mailing list", "firewall rule"]
THINGS += ["bank account", "blog post", "warehouse", "lesson", "server", "meeting room"]
THINGS += ["parking permit", "insurance claim", "lab sample", "hotel booking", "train ticket"]
THINGS += ["newsletter"]


def other(verb: str, thing: str) -> ToolCallback:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    name = f"{verb}_{thing}".replace(" ", "_")
    definition = ToolDefinition(name, f"{verb.capitalize()}s a {thing}.", schema)
    return DataToolCallback(definition, lambda call, context: "done")


OTHERS = [other(verb, thing) for verb in VERBS for thing in THINGS]


class Seen:
    """Records the tools offered to the model in each round."""

    order = 10

    def __init__(self) -> None:
        self.rounds: list[list[str]] = []

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        callbacks = request.prompt.options.tool_callbacks or ()
        self.rounds.append([callback.definition.name for callback in callbacks])
        return await call_next(request)


@pytest.mark.parametrize("ask", ["call", "astream"], indirect=True)  # slow calls
def test_model_finds_a_tool(ask: Ask, local_model: ChatModel) -> None:
    """It searches, calls the tool, and needs no search in the next turn."""
    seen = Seen()
    tools: list[Any] = [*OTHERS[:99], get_current_weather, *OTHERS[99:199]]
    assert len(tools) == 200
    advisor = ToolSearchToolCallingAdvisor()
    client = (
        ChatClient.builder(local_model)
        .default_tools(*tools)
        .default_advisors(advisor, seen)
        .build()
    )

    first = ask(client.prompt("What is the weather in Paris?").conversation("c"))
    assert seen.rounds[0] == ["toolSearchTool"]
    assert first.executions[0].tool_call.name == "toolSearchTool"
    assert "get_current_weather" in [e.tool_call.name for e in first.executions]
    assert "19" in first.text

    seen.rounds.clear()
    second = ask(client.prompt("What is the weather in Rome?").conversation("c"))
    assert "get_current_weather" in seen.rounds[0]
    assert second.executions[0].tool_call.name == "get_current_weather"
    assert "30" in second.text
