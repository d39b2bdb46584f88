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
    from chatclient.chat.server_tools import (
        CodeExecution as CodeExecution,
        Fallback as Fallback,
        FileSearch as FileSearch,
        ImageGeneration as ImageGeneration,
        McpConnector as McpConnector,
        ServerTool as ServerTool,
        WebFetch as WebFetch,
        WebSearch as WebSearch,
    )
    from chatclient.chat.tool import (
        ACTIVATED_SKILL as ACTIVATED_SKILL,
        RETURN_DIRECT as RETURN_DIRECT,
        Effect as Effect,
        ReturnDirect as ReturnDirect,
        ToolCallback as ToolCallback,
        ToolCallbackProvider as ToolCallbackProvider,
        ToolContext as ToolContext,
        ToolMetadata as ToolMetadata,
        ToolRequest as ToolRequest,
        ToolResult as ToolResult,
    )
    from chatclient.chat.tool_definition import (
        ToolDefinition as ToolDefinition,
        sanitise_tool_name as sanitise_tool_name,
    )
    from chatclient.chat.tool_execution import (
        ToolExecution as ToolExecution,
    )
    from chatclient.chat.withheld_tool import WithheldTool as WithheldTool
    from chatclient.tools.augmentation import (
        AugmentedArguments as AugmentedArguments,
        AugmentedToolCallback as AugmentedToolCallback,
        AugmentedToolProvider as AugmentedToolProvider,
        Consumer as Consumer,
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
        Executor as Executor,
        ExternalTool as ExternalTool,
        is_external as is_external,
    )
    from chatclient.tools.function.decorator import (
        tool as tool,
    )
    from chatclient.tools.function.parameters import (
        ToolMemoryId as ToolMemoryId,
        ToolParam as ToolParam,
    )
    from chatclient.tools.handoff import (
        HANDOFFS as HANDOFFS,
        Handoff as Handoff,
    )
    from chatclient.tools.resolvers import (
        DelegatingToolCallbackResolver as DelegatingToolCallbackResolver,
        StaticToolCallbackResolver as StaticToolCallbackResolver,
        ToolRegistry as ToolRegistry,
    )
    from chatclient.tools.search.eviction import (
        AlwaysEvictStrategy as AlwaysEvictStrategy,
        CompositeEvictionStrategy as CompositeEvictionStrategy,
        LruEvictionStrategy as LruEvictionStrategy,
        NeverEvictStrategy as NeverEvictStrategy,
        ToolIndexEvictionStrategy as ToolIndexEvictionStrategy,
        TtlEvictionStrategy as TtlEvictionStrategy,
    )
    from chatclient.tools.search.hybrid import (
        HybridToolIndex as HybridToolIndex,
    )
    from chatclient.tools.search.index import (
        DEFAULT_MAX_RESULTS as DEFAULT_MAX_RESULTS,
        ToolIndex as ToolIndex,
        ToolReference as ToolReference,
        ToolSearchRequest as ToolSearchRequest,
        ToolSearchResponse as ToolSearchResponse,
    )
    from chatclient.tools.search.keyword import (
        KeywordToolIndex as KeywordToolIndex,
    )
    from chatclient.tools.search.provider import (
        ProviderToolIndex as ProviderToolIndex,
    )
    from chatclient.tools.search.regex import (
        RegexToolIndex as RegexToolIndex,
    )
    from chatclient.tools.search.vector import (
        VectorToolIndex as VectorToolIndex,
    )
    from chatclient.tools.skills import (
        ACTIVATE_SKILL as ACTIVATE_SKILL,
        READ_SKILL_RESOURCE as READ_SKILL_RESOURCE,
        Skill as Skill,
        Skills as Skills,
    )
    from chatclient.tools.sources import (
        tool_callbacks as tool_callbacks,
    )
else:  # not seen by type checkers, which would take any name for one that exists
    __getattr__, __dir__ = lazy_exports(__name__)
