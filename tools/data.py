"""Tools that exist as data: from a database, a file, another service."""

from collections.abc import Callable, Mapping
from typing import Any

from chatclient.checks import check_callable, check_kind, misfit
from chatclient.errors import ToolDefinitionError, ToolDeniedError, ToolResultError
from chatclient.messages import ToolCall
from chatclient.tool import ToolContext, ToolDefinition, ToolMetadata, ToolResult
from chatclient.tools.approval import (
    DECISIONS,
    ApprovalRequired,
    Decision,
    refuse_to_suspend,
    remark_on,
)
from chatclient.tools.conversion import to_tool_result
from chatclient.tools.naming import check_tool_name
from chatclient.tools.schema import signature_of_schema

Executor = Callable[[ToolCall, ToolContext], Any]
"""Runs a call as the model made it; plain or asynchronous."""


def _check_definition(definition: ToolDefinition) -> None:
    hint = "make one: ToolDefinition(name, description, input_schema)"
    check_kind("the definition of a tool", definition, ToolDefinition, hint)
    check_tool_name(definition.name)


def _check_executor(name: str, executor: Executor) -> None:
    check_callable(f"the executor of tool {name!r}", executor)
    if error := misfit(executor, 2):
        msg = (
            f"the executor of tool {name!r} must take two arguments, the ToolCall (its arguments"
            f" are JSON) and the ToolContext: {error}"
        )
        raise ToolDefinitionError(msg) from error


class DataToolCallback:
    """A tool made of a definition and something that runs any call.

    The arguments reach the executor exactly as the model wrote them, unchecked.

    Args:
        definition: What the model is told: name, description, JSON Schema.
        executor: Runs the call.
        metadata: How the tool is to be run.

    Raises:
        ToolDefinitionError: No provider would accept the name, or the executor does not take a
            call and a context.
        WrongTypeError: It is no definition, or nothing that can be called.
    """

    def __init__(
        self,
        definition: ToolDefinition,
        executor: Executor,
        metadata: ToolMetadata | None = None,
    ) -> None:
        _check_definition(definition)
        _check_executor(definition.name, executor)
        self.definition = definition
        self.metadata = metadata or ToolMetadata()
        self._executor = executor

    async def invoke(self, arguments: str, context: ToolContext) -> ToolResult:
        """Hand the call to the executor."""
        call = ToolCall(context.tool_call_id, self.definition.name, arguments)
        timeout = context.timeout
        try:
            value = await context.runtime.invoke(self._executor, call, context, timeout=timeout)
        except ApprovalRequired as waiting:
            refuse_to_suspend(self.definition.name, waiting)
            raise
        try:
            return to_tool_result(value, origin=f"tool {self.definition.name!r}")
        except ToolResultError:
            context.result = ToolResult("", value=value)  # it has done its work all the same
            raise


class ExternalTool:
    """A tool that is done elsewhere: by a browser, by a person, by a job that takes a day.

    A call suspends the turn, as one does that waits for approval. `client.resume` goes on with it
    and `Decision.answered(result)` once there is a result.

    Args:
        definition: What the model is told: name, description, JSON Schema.
        metadata: How its calls are treated.

    Raises:
        ToolDefinitionError: No provider would accept the name, or the schema is not that of an
            object.
    """

    def __init__(self, definition: ToolDefinition, metadata: ToolMetadata | None = None) -> None:
        _check_definition(definition)
        self.definition = definition
        self.metadata = metadata or ToolMetadata()
        self._signature = signature_of_schema(definition.input_schema, name=definition.name)

    async def invoke(self, arguments: str, context: ToolContext) -> ToolResult:
        """Return what somebody has answered.

        Raises:
            ToolArgumentError: The arguments do not fit.
            ToolDeniedError: Somebody did not want to.
            ApprovalRequired: There is no answer yet.
        """
        decision: Decision | None = context.get(DECISIONS, {}).get(context.tool_call_id)
        if decision is None:
            self.read_arguments(arguments)
            raise ApprovalRequired
        if not decision.approved:
            raise ToolDeniedError(decision.message, tool_name=context.tool_name)
        if decision.result is None:
            raise ApprovalRequired
        context.arguments = None  # nothing was run here
        context.remark = remark_on(decision, arguments)
        return decision.result

    def read_arguments(self, arguments: str) -> Mapping[str, Any]:
        """Return what the model gives, by name; see `ToolInvocation.arguments`.

        Raises:
            ToolArgumentError: The arguments do not fit.
        """
        return self._signature.read(arguments)
