"""Tools that are defined by data, such as definitions in a database or of another service."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from chatclient._internal.checks import check_callable, check_type
from chatclient._internal.json import dumps_exact, loads
from chatclient.chat.messages import ToolCall
from chatclient.chat.pending_turn import ApprovalRequired
from chatclient.chat.tool import ToolContext, ToolDefinition, ToolMetadata, ToolResult, tool_inside
from chatclient.chat.tool_definition import check_tool_name
from chatclient.tools.function.callback import call_function
from chatclient.tools.function.result import to_tool_result
from chatclient.tools.function.schema import check_compensation, signature_of_schema

Executor = Callable[[ToolCall, ToolContext], Any]
"""Runs a call of the model; plain or asynchronous."""


def _check_definition(definition: ToolDefinition) -> None:
    hint = "make one: ToolDefinition(name, description, input_schema)"
    check_type("the definition of a tool", definition, ToolDefinition, hint)
    check_tool_name(definition.name)


class DataToolCallback:
    """A tool with a definition and an executor for its calls.

    The executor gets a `ToolCall` with arguments that fit the schema: repaired if that was
    possible without a guess, else as the model wrote them.

    Args:
        definition: Name, description and JSON Schema.
        executor: Runs the calls.
        metadata: How the tool is run.

    Raises:
        ToolDefinitionError: No provider would accept the name, the executor does not take a call
            and a context, or its compensation needs unknown parameters.
        WrongTypeError: An argument is of the wrong type.
    """

    def __init__(
        self,
        definition: ToolDefinition,
        executor: Executor,
        metadata: ToolMetadata | None = None,
    ) -> None:
        _check_definition(definition)
        hint = "the arguments of the ToolCall are JSON"
        check_callable(
            f"the executor of tool {definition.name!r}", executor, hint, takes=("call", "context")
        )
        self.definition = definition
        self.metadata = metadata or ToolMetadata()
        if self.metadata.compensation is not None:
            known = tuple(definition.input_schema["properties"])
            check_compensation(definition.name, known, self.metadata.compensation)
        self._executor = executor
        self._signature = signature_of_schema(definition.input_schema, name=definition.name)

    def read_arguments(self, arguments: str) -> Mapping[str, Any]:
        """Return the arguments of the model by name; see `ToolInvocation.arguments`.

        Raises:
            ToolArgumentError: The arguments do not fit.
        """
        return self._signature.read(arguments)

    async def invoke(self, arguments: str, context: ToolContext) -> ToolResult:
        """Call the executor.

        Raises:
            ToolArgumentError: The arguments do not fit.
        """
        given = self.read_arguments(arguments)
        if not _is_written(given, arguments):
            arguments = dumps_exact(given)
        made = ToolCall(context.tool_call_id, self.definition.name, arguments)
        call = functools.partial(self._executor, made, context)
        return await call_function(made.name, call, self._to_result, context)

    def _to_result(self, value: Any) -> ToolResult:
        return to_tool_result(value, origin=f"tool {self.definition.name!r}")


class NeedsApproval(Exception):  # noqa: N818 - not an error: it suspends the turn
    """Raised by the executor of an `ApprovableTool` for a call that was not approved yet."""


class ApprovableTool(DataToolCallback):
    """A tool of another framework, which decides itself which calls need approval."""

    async def invoke(self, arguments: str, context: ToolContext) -> ToolResult:
        """Call the executor, or suspend the turn.

        Raises:
            ToolArgumentError: The arguments do not fit.
            ApprovalRequired: The call needs approval.
        """
        try:
            return await super().invoke(arguments, context)
        except NeedsApproval as error:
            raise ApprovalRequired from error


def is_function(value: object) -> bool:
    """Return whether *value* is a function, and not an object that can be called as well."""
    return inspect.isroutine(value) or isinstance(value, functools.partial)


def _is_written(given: Mapping[str, Any], arguments: str) -> bool:
    """Return whether the JSON text *arguments* contains what is *given*, without repairs."""
    try:
        return bool(loads(arguments) == given)
    except ValueError:
        return False


class ExternalTool:
    """A tool that something else executes: a browser, a person, a job that takes a day.

    A call suspends the turn, like one that waits for approval. `client.resume` continues it with
    `Decision.answered(result)` when there is a result.

    Args:
        definition: Name, description and JSON Schema.
        metadata: How its calls are handled.

    Raises:
        ToolDefinitionError: No provider would accept the name, or the schema is not the schema of
            an object.
    """

    def __init__(self, definition: ToolDefinition, metadata: ToolMetadata | None = None) -> None:
        _check_definition(definition)
        self.definition = definition
        self.metadata = metadata or ToolMetadata()
        self._signature = signature_of_schema(definition.input_schema, name=definition.name)

    async def invoke(
        self,
        arguments: str,
        context: ToolContext,  # noqa: ARG002 - part of the contract
    ) -> ToolResult:
        """Suspend the turn until there is a result.

        Raises:
            ToolArgumentError: The arguments do not fit.
            ApprovalRequired: There is no result yet.
        """
        self.read_arguments(arguments)
        raise ApprovalRequired

    def read_arguments(self, arguments: str) -> Mapping[str, Any]:
        """Return the arguments of the model by name; see `ToolInvocation.arguments`.

        Raises:
            ToolArgumentError: The arguments do not fit.
        """
        return self._signature.read(arguments)


def is_external(callback: Any) -> bool:
    """Return whether *callback* is an `ExternalTool`, or delegates to one."""
    return isinstance(tool_inside(callback), ExternalTool)
