"""Tools that exist as data: from a database, a file, another service."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from chatclient.checks import check_callable, check_kind, misfit
from chatclient.errors import ToolDefinitionError
from chatclient.messages import ToolCall
from chatclient.threads import is_async
from chatclient.tool import ToolContext, ToolDefinition, ToolMetadata, ToolResult
from chatclient.tools.approval import ApprovalRequired
from chatclient.tools.compensation import check_compensation
from chatclient.tools.conversion import to_tool_result
from chatclient.tools.naming import check_tool_name
from chatclient.tools.running import run_code
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
        ToolDefinitionError: No provider would accept the name, the executor does not take a call
            and a context, or its compensation wants what no call has.
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
        if self.metadata.compensation is not None:
            known = tuple(definition.input_schema["properties"])
            check_compensation(definition.name, known, self.metadata.compensation)
        self._executor = executor
        self._is_async = is_async(executor)

    async def invoke(self, arguments: str, context: ToolContext) -> ToolResult:
        """Hand the call to the executor."""
        made = ToolCall(context.tool_call_id, self.definition.name, arguments)
        call = functools.partial(self._executor, made, context)
        return await run_code(made.name, call, self._told, context, is_async=self._is_async)

    def _told(self, value: Any) -> ToolResult:
        return to_tool_result(value, origin=f"tool {self.definition.name!r}")


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

    async def invoke(
        self,
        arguments: str,
        context: ToolContext,  # noqa: ARG002 - of every tool
    ) -> ToolResult:
        """Have the turn wait until somebody has answered.

        Raises:
            ToolArgumentError: The arguments do not fit.
            ApprovalRequired: There is no answer yet.
        """
        self.read_arguments(arguments)
        raise ApprovalRequired

    def read_arguments(self, arguments: str) -> Mapping[str, Any]:
        """Return what the model gives, by name; see `ToolInvocation.arguments`.

        Raises:
            ToolArgumentError: The arguments do not fit.
        """
        return self._signature.read(arguments)


def is_external(callback: Any) -> bool:
    """Return whether *callback* is a tool that is done elsewhere, or stands around one."""
    while (delegate := getattr(callback, "delegate", None)) is not None:
        callback = delegate
    return isinstance(callback, ExternalTool)
