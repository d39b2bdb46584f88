"""Tools of MCP servers, and tools offered as an MCP server."""

from typing import TYPE_CHECKING

from chatclient._internal.exports import lazy_exports

if TYPE_CHECKING:
    from chatclient.mcp.limits import (
        McpLimits as McpLimits,
    )
    from chatclient.mcp.oauth import (
        McpOAuth as McpOAuth,
        OpenUrl as OpenUrl,
    )
    from chatclient.mcp.offers import (
        McpCompletion as McpCompletion,
        McpContent as McpContent,
        McpPrompt as McpPrompt,
        McpPromptArgument as McpPromptArgument,
        McpResource as McpResource,
        McpResourceTemplate as McpResourceTemplate,
    )
    from chatclient.mcp.provider import (
        McpToolCallbackProvider as McpToolCallbackProvider,
        ToolNamePrefix as ToolNamePrefix,
    )
    from chatclient.mcp.server import (
        Connect as Connect,
        ElicitationHandler as ElicitationHandler,
        McpElicitation as McpElicitation,
        McpProgress as McpProgress,
        McpServer as McpServer,
        McpServerSettings as McpServerSettings,
        McpUserAnswer as McpUserAnswer,
        ToolContextToMeta as ToolContextToMeta,
        tool_context_meta as tool_context_meta,
    )
    from chatclient.mcp.tool_server import (
        McpToolServer as McpToolServer,
        ToolContextFromMeta as ToolContextFromMeta,
    )
else:  # not seen by type checkers, which would take any name for one that exists
    __getattr__, __dir__ = lazy_exports(__name__)
