"""How Anthropic's API takes server tools; no I/O."""

import re
from collections.abc import Mapping
from typing import Any

from chatclient.chat.options import ChatOptions
from chatclient.chat.server_tools import (
    CodeExecution,
    McpConnector,
    ToolSearch,
    WebFetch,
    WebSearch,
)
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
"""The form of each server tool that the API has."""


def mcp_servers(options: ChatOptions) -> list[Mapping[str, Any]]:
    """Return the MCP servers in *options* as the request's `mcp_servers`."""
    servers: list[Mapping[str, Any]] = []
    for each in server_tools_in(options, McpConnector):
        server = {"type": "url", "name": each.label, "url": each.url}
        if each.authorization is not None:
            server["authorization_token"] = each.authorization
        servers.append(server)
    return servers
