"""An MCP server's tools, called by the real model, beside tools of the application."""

import sys
from collections.abc import Iterator

import pytest
from conftest import Ask
from test_live import model as model  # noqa: PLC0414 - the fixture, under its name

pytest.importorskip("mcp_server_time", reason="the server of the tests is not installed")
pytest.importorskip("mcp", reason="the extra `mcp` is not installed")

from chatclient import ChatClient, ChatModel
from chatclient.services import Result, ai_service
from chatclient.tools import tool
from chatclient.tools.mcp import McpServer, McpToolCallbackProvider

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def clock() -> Iterator[McpToolCallbackProvider]:
    server = McpServer.stdio("time", sys.executable, "-m", "mcp_server_time", connect_timeout=120)
    with McpToolCallbackProvider(server) as provider:
        yield provider


@tool
def get_office_city(name: str) -> str:
    """Get the city that an employee works in.

    Args:
        name: The employee's name.
    """
    return f"{name} works in Tokyo, in the time zone Asia/Tokyo."


def test_the_model_calls_a_tool_of_a_server(
    ask: Ask, model: ChatModel, clock: McpToolCallbackProvider
) -> None:
    """It picks the right one of two, with arguments that fit, and tells what the server said."""
    client = ChatClient.builder(model).default_tools(clock).build()

    asked = ask(client.prompt("It is 10:00 in Etc/UTC. What time is that in Asia/Tokyo?"))

    converted = [e for e in asked.executions if e.tool_call.name == "convert_time"]
    assert converted
    assert "19:00" in converted[-1].response.data
    assert "19:00" in asked.text or "7:00" in asked.text


def test_a_service_uses_the_tools_of_a_server(
    model: ChatModel, clock: McpToolCallbackProvider
) -> None:
    """A declarative service has whatever its client has."""
    from typing import Protocol

    class Clock(Protocol):
        def ask(self, text: str) -> Result[str]: ...

    service = ai_service(Clock, ChatClient.builder(model).default_tools(clock).build())
    result = service.ask("What time is it now in Europe/Rome?")

    assert [e.tool_call.name for e in result.tool_executions][:1] == ["get_current_time"]
    assert result.usage.total_tokens > 0
