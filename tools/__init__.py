"""Tools: made of Python code, found by name, run by one manager."""

from chatclient.tool import (
    ToolCallback,
    ToolCallbackProvider,
    ToolContext,
    ToolDefinition,
    ToolMetadata,
    ToolRequest,
    ToolResult,
)
from chatclient.tools.approval import ApprovalRequired, Decision, ToolApproval
from chatclient.tools.augmentation import AugmentedArguments, AugmentedToolCallback, augment
from chatclient.tools.callback import FunctionToolCallback
from chatclient.tools.data import DataToolCallback, ExternalTool
from chatclient.tools.decorator import tool
from chatclient.tools.execution import ToolExecutionResult
from chatclient.tools.failure import (
    ToolExecutionExceptionProcessor,
    ToolFailure,
    ToolFailurePolicy,
)
from chatclient.tools.invocation import NextTool, ToolInterceptor, ToolInvocation
from chatclient.tools.limits import ToolLimits
from chatclient.tools.manager import ToolCallingManager
from chatclient.tools.outcome import ToolExecution
from chatclient.tools.pending import PendingTurn
from chatclient.tools.resolution import (
    DelegatingToolCallbackResolver,
    StaticToolCallbackResolver,
    ToolCallbackResolver,
    ToolRegistry,
)
from chatclient.tools.schema import ToolMemoryId, ToolParam, sanitise_tool_name
from chatclient.tools.sources import tool_callbacks

__all__ = [
    "ApprovalRequired",
    "AugmentedArguments",
    "AugmentedToolCallback",
    "DataToolCallback",
    "Decision",
    "DelegatingToolCallbackResolver",
    "ExternalTool",
    "FunctionToolCallback",
    "NextTool",
    "PendingTurn",
    "StaticToolCallbackResolver",
    "ToolApproval",
    "ToolCallback",
    "ToolCallbackProvider",
    "ToolCallbackResolver",
    "ToolCallingManager",
    "ToolContext",
    "ToolDefinition",
    "ToolExecution",
    "ToolExecutionExceptionProcessor",
    "ToolExecutionResult",
    "ToolFailure",
    "ToolFailurePolicy",
    "ToolInterceptor",
    "ToolInvocation",
    "ToolLimits",
    "ToolMemoryId",
    "ToolMetadata",
    "ToolParam",
    "ToolRegistry",
    "ToolRequest",
    "ToolResult",
    "augment",
    "sanitise_tool_name",
    "tool",
    "tool_callbacks",
]
