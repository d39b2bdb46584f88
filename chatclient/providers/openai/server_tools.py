"""How OpenAI's Responses API takes server tools; no I/O."""

import re
from collections.abc import Mapping
from typing import Any

from chatclient.chat.options import ChatOptions
from chatclient.chat.server_tools import (
    CodeExecution,
    FileSearch,
    ImageGeneration,
    McpConnector,
    ToolSearch,
    WebSearch,
)
from chatclient.providers.wire.server_tools import ServerTools

# developers.openai.com/api/docs/guides/tools-tool-search: from GPT-5.4, without GPT-5.4 nano.
_WITH_TOOL_SEARCH = re.compile(r"gpt-(?:5\.(?:4(?!-nano)|[5-9]|\d\d)|[6-9])")


def _search(tool: WebSearch, _options: ChatOptions) -> Mapping[str, Any] | str:
    if tool.max_uses is not None:
        return "it has no maximum number of searches"
    domains = {"allowed_domains": tool.allowed_domains, "blocked_domains": tool.blocked_domains}
    filters = {name: value for name, value in domains.items() if value}
    return {"type": "web_search", **({"filters": filters} if filters else {})}


def _files(tool: FileSearch, _options: ChatOptions) -> Mapping[str, Any]:
    limit = {} if tool.max_results is None else {"max_num_results": tool.max_results}
    return {"type": "file_search", "vector_store_ids": tool.stores, **limit}


def _image(tool: ImageGeneration, _options: ChatOptions) -> Mapping[str, Any]:
    fields = {"size": tool.size, "quality": tool.quality}
    given = {name: value for name, value in fields.items() if value is not None}
    return {"type": "image_generation", **given}


def _mcp(tool: McpConnector, _options: ChatOptions) -> Mapping[str, Any]:
    fields = {"authorization": tool.authorization, "allowed_tools": tool.allowed_tools or None}
    given = {name: value for name, value in fields.items() if value is not None}
    return {
        "type": "mcp",
        "server_label": tool.label,
        "server_url": tool.url,
        "require_approval": "never",
        **given,
    }


def _tool_search(tool: ToolSearch, options: ChatOptions) -> Mapping[str, Any] | str:
    if not _WITH_TOOL_SEARCH.match(options.model or ""):
        return "it cannot search tools; GPT can from version 5.4"
    if tool.variant is not None:
        return "it has one kind of tool search"
    return {"type": "tool_search"}


SERVER_TOOLS: ServerTools = {
    WebSearch: _search,
    CodeExecution: lambda _tool, _options: {
        "type": "code_interpreter",
        "container": {"type": "auto"},
    },
    FileSearch: _files,
    ImageGeneration: _image,
    McpConnector: _mcp,
    ToolSearch: _tool_search,
}
"""The encoder of each server tool that the API has."""
