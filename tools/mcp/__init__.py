"""The Model Context Protocol: tools of its servers for our models, and our tools for its clients.

Needs the extra `mcp`, whose SDK is loaded when the first server is connected or served.
"""

from chatclient.tools.mcp.names import ToolNamePrefix
from chatclient.tools.mcp.provider import McpToolCallbackProvider
from chatclient.tools.mcp.server import (
    ElicitationHandler,
    McpElicitation,
    McpProgress,
    McpServer,
    McpUserAnswer,
    ToolContextToMeta,
    tool_context_meta,
)
from chatclient.tools.mcp.serving import McpToolServer

__all__ = [
    "ElicitationHandler",
    "McpElicitation",
    "McpProgress",
    "McpServer",
    "McpToolCallbackProvider",
    "McpToolServer",
    "McpUserAnswer",
    "ToolContextToMeta",
    "ToolNamePrefix",
    "tool_context_meta",
]
