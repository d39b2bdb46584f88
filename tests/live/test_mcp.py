"""Tools of an MCP server and of the application, called by the real model."""

import sys
from collections.abc import Iterator

import pytest

from chatclient.testing import Ask
from tests.live.test_tool_calling import get_current_weather
from tests.live.test_tool_search import OTHERS, Seen

pytest.importorskip("mcp_server_time", reason="the server of the tests is not installed")
pytest.importorskip("mcp", reason="the extra `mcp` is not installed")

from chatclient import ChatClient, ChatModel
from chatclient.advisors.tool_search.advisor import ToolSearchToolCallingAdvisor
from chatclient.mcp import McpServer, McpToolCallbackProvider
from chatclient.services import Result, ai_service

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def clock() -> Iterator[McpToolCallbackProvider]:
    server = McpServer.stdio("time", sys.executable, "-m", "mcp_server_time", connect_timeout=120)
    with McpToolCallbackProvider(server) as provider:
        yield provider


@pytest.mark.parametrize("ask", ["call", "astream"], indirect=True)
def test_model_calls_a_tool_of_a_server(
    ask: Ask, local_model: ChatModel, clock: McpToolCallbackProvider
) -> None:
    """It selects one of two tools with valid arguments and answers with the result."""
    client = ChatClient.builder(local_model).default_tools(clock).build()

    result = ask(client.prompt("It is 10:00 in Etc/UTC. What time is that in Asia/Tokyo?"))

    converted = [e for e in result.executions if e.tool_call.name == "convert_time"]
    assert converted
    assert "19:00" in converted[-1].response.data
    assert "19:00" in result.text or "7:00" in result.text


def test_service_with_tools_of_a_server(
    local_model: ChatModel, clock: McpToolCallbackProvider
) -> None:
    """A declarative service has the tools of its client."""
    from typing import Protocol

    class Clock(Protocol):
        def ask(self, text: str) -> Result[str]: ...

    service = ai_service(Clock, ChatClient.builder(local_model).default_tools(clock).build())
    result = service.ask("What time is it now in Europe/Rome?")

    assert [e.tool_call.name for e in result.tool_executions][:1] == ["get_current_time"]
    assert result.usage.total_tokens > 0


@pytest.mark.parametrize("ask", ["call", "astream"], indirect=True)  # slow calls
def test_server_and_application_tools_in_one_turn(
    ask: Ask, local_model: ChatModel, clock: McpToolCallbackProvider
) -> None:
    """The model calls both kinds of tools."""
    client = ChatClient.builder(local_model).default_tools(clock, get_current_weather).build()

    question = "What is the weather in Paris? And what time is 10:00 in Etc/UTC in Asia/Tokyo?"
    result = ask(client.prompt(question))

    called = {e.tool_call.name: e.response.data for e in result.executions}
    assert "19" in called["get_current_weather"]
    assert "19:00" in called["convert_time"]


@pytest.mark.parametrize("ask", ["call", "astream"], indirect=True)  # slow calls
def test_tool_search_with_server_tools(
    ask: Ask, local_model: ChatModel, clock: McpToolCallbackProvider
) -> None:
    """The model finds a tool of the server by search."""
    seen = Seen()
    client = (
        ChatClient.builder(local_model)
        .default_tools(*OTHERS[:30], clock, get_current_weather)
        .default_advisors(ToolSearchToolCallingAdvisor(), seen)
        .build()
    )

    result = ask(client.prompt("What is the current time in the time zone Europe/Rome?"))

    assert seen.rounds[0] == ["toolSearchTool"]
    names = [e.tool_call.name for e in result.executions]
    assert names[0] == "toolSearchTool"
    execution = next(e for e in result.executions if e.tool_call.name == "get_current_time")
    assert "Europe/Rome" in execution.response.data
