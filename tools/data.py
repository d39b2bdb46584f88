"""Tools that exist as data: from a database, a file, another service."""

from collections.abc import Callable
from typing import Any

from chatclient.messages import ToolCall
from chatclient.tool import ToolContext, ToolDefinition, ToolMetadata, ToolResult
from chatclient.tools.conversion import to_tool_result
from chatclient.tools.naming import check_tool_name

Executor = Callable[[ToolCall, ToolContext], Any]
"""Runs a call as the model made it; plain or asynchronous."""


class DataToolCallback:
    """A tool made of a definition and something that runs any call.

    The arguments reach the executor exactly as the model wrote them, unchecked.

    Args:
        definition: What the model is told: name, description, JSON Schema.
        executor: Runs the call.
        metadata: How the tool is to be run.

    Raises:
        ToolDefinitionError: No provider would accept the name.
    """

    def __init__(
        self,
        definition: ToolDefinition,
        executor: Executor,
        metadata: ToolMetadata | None = None,
    ) -> None:
        check_tool_name(definition.name)
        self.definition = definition
        self.metadata = metadata or ToolMetadata()
        self._executor = executor

    async def invoke(self, arguments: str, context: ToolContext) -> ToolResult:
        """Hand the call to the executor."""
        call = ToolCall(context.tool_call_id, self.definition.name, arguments)
        timeout = context.timeout
        return to_tool_result(
            await context.runtime.invoke(self._executor, call, context, timeout=timeout)
        )
