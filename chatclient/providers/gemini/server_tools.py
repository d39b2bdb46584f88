"""How Gemini takes server tools; no I/O."""

from collections.abc import Callable, Mapping
from typing import Any

from chatclient.chat.options import ChatOptions
from chatclient.chat.server_tools import (
    CodeExecution,
    FileSearch,
    McpConnector,
    ServerTool,
    WebFetch,
    WebSearch,
)
from chatclient.providers.gemini.encoding import FROM_3, dialect_of
from chatclient.providers.wire.server_tools import EncodeServerTool, ServerTools

_EncodeTool = Callable[[Any], Mapping[str, Any] | str]


def _has_functions(options: ChatOptions) -> bool:
    """Return whether functions are offered."""
    return any(not isinstance(each, ServerTool) for each in options.tool_callbacks or ())


def _beside_functions(encode_tool: _EncodeTool) -> EncodeServerTool:
    """Return the encoder of a tool that models before Gemini 3 do not combine with functions."""

    def encode(tool: Any, options: ChatOptions) -> Mapping[str, Any] | str:
        if _has_functions(options) and dialect_of(options.model or "") is not FROM_3:
            return "before Gemini 3, it has no tools of its own beside functions"
        return encode_tool(tool)

    return encode


def _of_web(field: str) -> _EncodeTool:
    def encode_tool(tool: WebSearch | WebFetch) -> Mapping[str, Any] | str:
        if tool.allowed_domains or tool.blocked_domains or tool.max_uses is not None:
            return "it can be limited neither to domains nor in number"
        return {field: {}}

    return encode_tool


def _files(tool: FileSearch) -> Mapping[str, Any]:
    limit = {} if tool.max_results is None else {"topK": tool.max_results}
    return {"fileSearch": {"fileSearchStoreNames": tool.stores, **limit}}


def _mcp(tool: McpConnector) -> Mapping[str, Any] | str:
    if tool.allowed_tools:
        return "it takes all tools of a server"
    transport: dict[str, Any] = {"url": tool.url}
    if tool.authorization is not None:
        transport["headers"] = {"Authorization": f"Bearer {tool.authorization}"}
    return {"mcpServers": [{"name": tool.label, "streamableHttpTransport": transport}]}


SERVER_TOOLS: ServerTools = {
    WebSearch: _beside_functions(_of_web("googleSearch")),
    WebFetch: _beside_functions(_of_web("urlContext")),
    CodeExecution: _beside_functions(lambda _tool: {"codeExecution": {}}),
    FileSearch: _beside_functions(_files),
    McpConnector: _beside_functions(_mcp),
}
"""The encoder of each server tool that the API has."""

VERTEX_TOOLS: ServerTools = {
    kind: SERVER_TOOLS[kind] for kind in (WebSearch, WebFetch, CodeExecution)
}
"""The encoder of each server tool that Vertex AI has."""
