"""Server tools of Anthropic's API, and turns that continue after they ran; no I/O.

The API pauses long turns; they continue when the answer is sent back. If a turn waits for tools of
the application, code may still run in a container, whose id the next request has to contain.
"""

import re
from collections.abc import Mapping
from typing import Any

from chatclient.chat.messages import AssistantMessage, Message, UserMessage
from chatclient.chat.options import ChatOptions
from chatclient.chat.prompt import Prompt
from chatclient.chat.response import ChatResponse
from chatclient.chat.server_tools import (
    CodeExecution,
    McpConnector,
    ToolSearch,
    WebFetch,
    WebSearch,
)
from chatclient.providers.anthropic.decoding import CONTAINER, PAUSED
from chatclient.providers.http.continuation import Continuation
from chatclient.providers.wire.server_tools import ServerTools, server_tools_in

MCP_BETA = "mcp-client-2025-11-20"
"""The beta feature that connects to MCP servers."""

# platform.claude.com/docs/en/agents-and-tools/tool-use/tool-search-tool: from version 4.5.
_WITHOUT_TOOL_SEARCH = re.compile(r"claude-(?:[23]|instant|(?:opus|sonnet)-4-(?:0|1|2025))")


def _of_web(kind: str, tool: WebSearch | WebFetch) -> Mapping[str, Any] | str:
    if tool.allowed_domains and tool.blocked_domains:
        return "domains are either allowed or blocked"
    fields = {
        "allowed_domains": tool.allowed_domains or None,
        "blocked_domains": tool.blocked_domains or None,
        "max_uses": tool.max_uses,
    }
    given = {name: value for name, value in fields.items() if value is not None}
    return {"type": kind, "name": tool.name, **given}


def _mcp(tool: McpConnector, _options: ChatOptions) -> Mapping[str, Any]:
    toolset: dict[str, Any] = {"type": "mcp_toolset", "mcp_server_name": tool.label}
    if tool.allowed_tools:
        toolset["default_config"] = {"enabled": False}
        toolset["configs"] = {name: {"enabled": True} for name in tool.allowed_tools}
    return toolset


def _tool_search(tool: ToolSearch, options: ChatOptions) -> Mapping[str, Any] | str:
    model = (options.model or "").lower()
    if "claude" not in model or _WITHOUT_TOOL_SEARCH.search(model):
        return "it cannot search tools; Claude can from version 4.5"
    name = f"tool_search_tool_{tool.variant or 'bm25'}"
    return {"type": f"{name}_20251119", "name": name}


SERVER_TOOLS: ServerTools = {
    WebSearch: lambda tool, _options: _of_web("web_search_20250305", tool),
    WebFetch: lambda tool, _options: _of_web("web_fetch_20250910", tool),
    CodeExecution: lambda tool, _options: {"type": "code_execution_20250825", "name": tool.name},
    McpConnector: _mcp,
    ToolSearch: _tool_search,
}
"""The encoder of each server tool that the API has."""

# platform.claude.com/docs/en/build-with-claude/overview
VERTEX_TOOLS: ServerTools = {kind: SERVER_TOOLS[kind] for kind in (WebSearch, ToolSearch)}
"""The encoder of each server tool that Vertex AI has."""


def mcp_servers(options: ChatOptions) -> list[Mapping[str, Any]]:
    """Return the MCP servers in *options* as the request's `mcp_servers`."""
    servers: list[Mapping[str, Any]] = []
    for each in server_tools_in(options, McpConnector):
        server = {"type": "url", "name": each.label, "url": each.url}
        if each.authorization is not None:
            server["authorization_token"] = each.authorization
        servers.append(server)
    return servers


def runs_tools(options: ChatOptions) -> bool:
    """Return whether there may be server-side tools; only turns with them are paused."""
    given = getattr(options, "server_tools", None) or options.extra
    return bool(given or server_tools_in(options))


def _next_prompt(prompt: Prompt, answer: ChatResponse) -> Prompt | None:
    if not answer.paused or answer.has_tool_calls():  # whose results are required first
        return None
    return Prompt.of((*prompt.messages, answer.message), prompt.options)


PAUSED_TURNS = Continuation(PAUSED, _next_prompt)
"""Continues paused turns."""


def with_container(prompt: Prompt) -> ChatOptions:
    """Return the options of *prompt*, with the container of its unfinished turn, if any."""
    options = prompt.options
    id = _container_of(prompt.messages) if runs_tools(options) else None
    if id is None:
        return options
    given: str | Mapping[str, Any] | None = options.extra.get("container")
    match given:
        case str():
            return options
        case Mapping():  # other settings of the container, such as skills
            container: Any = {"id": id, **given}
        case _:
            container = id
    return options.mutate(extra={**options.extra, "container": container})


def _container_of(messages: tuple[Message, ...]) -> str | None:
    """Return the id of the container that the turn at the end of *messages* uses, if any."""
    end = len(messages)
    while end and isinstance(messages[end - 1], UserMessage):
        end -= 1
    if end < len(messages) and end and isinstance(messages[end - 1], AssistantMessage):
        return None  # a new turn
    for message in reversed(messages[:end]):
        if isinstance(message, UserMessage):
            break
        if isinstance(id := message.metadata.get(CONTAINER), str):
            return id
    return None
