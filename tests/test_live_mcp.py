"""An MCP server's tools, called by the real model, beside tools of the application."""

import sys
from collections.abc import Iterator

import pytest
from conftest import Ask
from test_live import get_current_weather
from test_live_tool_search import OTHERS, Seen

pytest.importorskip("mcp_server_time", reason="the server of the tests is not installed")
pytest.importorskip("mcp", reason="the extra `mcp` is not installed")

from chatclient import ChatClient, ChatModel
from chatclient.advisors.tool_search import ToolSearchToolCallingAdvisor
from chatclient.services import Result, ai_service
from chatclient.tools.mcp import McpServer, McpToolCallbackProvider

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def clock() -> Iterator[McpToolCallbackProvider]:
    server = McpServer.stdio("time", sys.executable, "-m", "mcp_server_time", connect_timeout=120)
    with McpToolCallbackProvider(server) as provider:
        yield provider


@pytest.mark.parametrize("ask", ["call", "astream"], indirect=True)
def test_the_model_calls_a_tool_of_a_server(
    ask: Ask, local_model: ChatModel, clock: McpToolCallbackProvider
) -> None:
    """It picks the right one of two, with arguments that fit, and tells what the server said."""
    client = ChatClient.builder(local_model).default_tools(clock).build()

    asked = ask(client.prompt("It is 10:00 in Etc/UTC. What time is that in Asia/Tokyo?"))

    converted = [e for e in asked.executions if e.tool_call.name == "convert_time"]
    assert converted
    assert "19:00" in converted[-1].response.data
    assert "19:00" in asked.text or "7:00" in asked.text


def test_a_service_uses_the_tools_of_a_server(
    local_model: ChatModel, clock: McpToolCallbackProvider
) -> None:
    """A declarative service has whatever its client has."""
    from typing import Protocol

    class Clock(Protocol):
        def ask(self, text: str) -> Result[str]: ...

    service = ai_service(Clock, ChatClient.builder(local_model).default_tools(clock).build())
    result = service.ask("What time is it now in Europe/Rome?")

    assert [e.tool_call.name for e in result.tool_executions][:1] == ["get_current_time"]
    assert result.usage.total_tokens > 0


@pytest.mark.parametrize("ask", ["call", "astream"], indirect=True)  # each takes its time
def test_tools_of_a_server_and_of_the_application_in_one_turn(
    ask: Ask, local_model: ChatModel, clock: McpToolCallbackProvider
) -> None:
    """The model makes no difference between them."""
    client = ChatClient.builder(local_model).default_tools(clock, get_current_weather).build()

    question = "What is the weather in Paris? And what time is 10:00 in Etc/UTC in Asia/Tokyo?"
    asked = ask(client.prompt(question))

    called = {e.tool_call.name: e.response.data for e in asked.executions}
    assert "19" in called["get_current_weather"]
    assert "19:00" in called["convert_time"]


@pytest.mark.parametrize("ask", ["call", "astream"], indirect=True)  # each takes its time
def test_tools_of_a_server_are_searched_beside_those_of_the_application(
    ask: Ask, local_model: ChatModel, clock: McpToolCallbackProvider
) -> None:
    """The model is told about none of them, and finds the server's."""
    seen = Seen()
    client = (
        ChatClient.builder(local_model)
        .default_tools(*OTHERS[:30], clock, get_current_weather)
        .default_advisors(ToolSearchToolCallingAdvisor(), seen)
        .build()
    )

    asked = ask(client.prompt("What is the current time in the time zone Europe/Rome?"))

    assert seen.rounds[0] == ["toolSearchTool"]
    names = [e.tool_call.name for e in asked.executions]
    assert names[0] == "toolSearchTool"
    told = next(e for e in asked.executions if e.tool_call.name == "get_current_time")
    assert "Europe/Rome" in told.response.data
