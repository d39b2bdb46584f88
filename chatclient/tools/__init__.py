"""Tools: functions, MCP servers, skills and data that a model can call."""

from typing import TYPE_CHECKING

from chatclient._internal.exports import lazy_exports

if TYPE_CHECKING:
    from chatclient.chat.pending_turn import (
        ApprovalRequired as ApprovalRequired,
        Decision as Decision,
        Decisions as Decisions,
        PendingTurn as PendingTurn,
    )
    from chatclient.chat.tool import (
        ACTIVATED_SKILL as ACTIVATED_SKILL,
        RETURN_DIRECT as RETURN_DIRECT,
        Effect as Effect,
        ReturnDirect as ReturnDirect,
        ToolCallback as ToolCallback,
        ToolCallbackProvider as ToolCallbackProvider,
        ToolExecution as ToolExecution,
        ToolMetadata as ToolMetadata,
        ToolRequest as ToolRequest,
        ToolResult as ToolResult,
    )
    from chatclient.chat.tool_definition import (
        ToolDefinition as ToolDefinition,
        sanitise_tool_name as sanitise_tool_name,
    )
    from chatclient.tools.augmentation import (
        AugmentedArguments as AugmentedArguments,
        AugmentedToolCallback as AugmentedToolCallback,
        AugmentedToolProvider as AugmentedToolProvider,
        augment as augment,
    )
    from chatclient.tools.execution.approval import (
        NextTool as NextTool,
        ToolApproval as ToolApproval,
        ToolInterceptor as ToolInterceptor,
        ToolInvocation as ToolInvocation,
    )
    from chatclient.tools.execution.failure import (
        ExceptionText as ExceptionText,
        FailureKind as FailureKind,
        OnLimit as OnLimit,
        Reaction as Reaction,
        ToolExecutionExceptionProcessor as ToolExecutionExceptionProcessor,
        ToolFailure as ToolFailure,
        ToolFailurePolicy as ToolFailurePolicy,
        ToolLimits as ToolLimits,
    )
    from chatclient.tools.execution.manager import (
        ToolCallingManager as ToolCallingManager,
    )
    from chatclient.tools.execution.result import (
        ToolExecutionResult as ToolExecutionResult,
    )
    from chatclient.tools.execution.toolset import (
        ToolCallbackResolver as ToolCallbackResolver,
    )
    from chatclient.tools.function.callback import (
        FunctionToolCallback as FunctionToolCallback,
    )
    from chatclient.tools.function.data_tool import (
        DataToolCallback as DataToolCallback,
        ExternalTool as ExternalTool,
    )
    from chatclient.tools.function.parameters import (
        ToolMemoryId as ToolMemoryId,
    )
    from chatclient.tools.resolvers import (
        DelegatingToolCallbackResolver as DelegatingToolCallbackResolver,
        StaticToolCallbackResolver as StaticToolCallbackResolver,
        ToolRegistry as ToolRegistry,
    )
    from chatclient.tools.skills import (
        Skill as Skill,
        Skills as Skills,
    )
    from chatclient.tools.sources import (
        tool_callbacks as tool_callbacks,
    )
else:  # not seen by type checkers, which would take any name for one that exists
    __getattr__, __dir__ = lazy_exports(__name__)
