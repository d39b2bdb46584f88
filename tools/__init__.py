"""Tools: made of Python code, found by name, run by one manager."""

from chatclient.tools.schema import ToolParam

from chatclient.tool import (
    ToolCallback,
    ToolCallbackProvider,
    ToolContext,
    ToolDefinition,
    ToolMetadata,
    ToolResult,
)
from chatclient.tools.callback import FunctionToolCallback
from chatclient.tools.decorator import tool
from chatclient.tools.execution import ToolExecution, ToolExecutionResult
from chatclient.tools.manager import ToolCallingManager
from chatclient.tools.resolution import (
    DelegatingToolCallbackResolver,
    StaticToolCallbackResolver,
    ToolCallbackResolver,
)
from chatclient.tools.sources import tool_callbacks

__all__ = [
    "DelegatingToolCallbackResolver",
    "FunctionToolCallback",
    "StaticToolCallbackResolver",
    "ToolCallback",
    "ToolCallbackProvider",
    "ToolCallbackResolver",
    "ToolCallingManager",
    "ToolContext",
    "ToolDefinition",
    "ToolExecution",
    "ToolExecutionResult",
    "ToolMetadata",
    "ToolParam",
    "ToolResult",
    "tool",
    "tool_callbacks",
]
