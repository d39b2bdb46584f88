"""Checks the compensation of a tool: the function that undoes its calls."""

from collections.abc import Callable, Sequence
from typing import Any

from chatclient.errors import ToolDefinitionError
from chatclient.tools.function.parameters import callee_of
from chatclient.tools.function.schema import signature_of
from chatclient.tools.tool_execution import ToolExecution


def check_compensation(name: str, known: Sequence[str], compensation: Any) -> None:
    """Check that *compensation* can undo calls of the tool *name*.

    Args:
        name: The name of the tool.
        known: The names of its parameters.
        compensation: The compensation in its metadata.

    Raises:
        ToolDefinitionError: It is not callable, or needs parameters that the tool does not have.
    """
    if not callable(compensation):
        msg = f"the compensation of tool {name!r} is {compensation!r}, which cannot be called"
        raise ToolDefinitionError(msg)
    try:
        alone = wants_execution(compensation)
    except Exception as error:
        msg = f"the parameters of the compensation of tool {name!r} cannot be read: {error}"
        raise ToolDefinitionError(msg) from error
    if alone:
        return
    schema = signature_of(compensation, name=compensation_name(name)).input_schema
    if missing := [each for each in schema.get("required", ()) if each not in known]:
        msg = (
            f"the compensation of tool {name!r} needs {missing}, which the tool does not get; it "
            f"takes some of {list(known)}, or one ToolExecution"
        )
        raise ToolDefinitionError(msg)


def compensation_name(tool: str) -> str:
    """Return the name of the compensation of *tool*, for errors and idempotency keys."""
    return f"the compensation of {tool}"


def wants_execution(compensation: Callable[..., Any]) -> bool:
    """Return whether a `ToolExecution` is the only parameter of *compensation*."""
    parameters = callee_of(compensation).parameters
    return [each.annotation for each in parameters] == [ToolExecution]
