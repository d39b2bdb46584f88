"""Interceptors: code that runs around each tool call."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

from chatclient._internal.checks import check_callable, check_type
from chatclient.chat.messages import ToolCall
from chatclient.chat.pending_turn import ApprovalRequired
from chatclient.chat.tool import ToolCallback, ToolContext, ToolDefinition, ToolMetadata, ToolResult
from chatclient.errors import ToolResultError, ToolUsageError
from chatclient.runtime.threads import is_awaitable
from chatclient.tools.function.signature import read_arguments


@dataclass(frozen=True, slots=True)
class ToolInvocation:
    """A call of a tool that is about to run.

    Attributes:
        tool_call: The call as the model made it.
        callback: The tool.
        context: The tool context.
    """

    tool_call: ToolCall
    callback: ToolCallback
    context: ToolContext

    @property
    def definition(self) -> ToolDefinition:
        """The tool's name, description and schema."""
        return self.callback.definition

    @property
    def metadata(self) -> ToolMetadata:
        """How the tool is run."""
        return self.callback.metadata

    def arguments(self) -> Mapping[str, Any]:
        """Return the arguments by name, repaired, validated and converted.

        They are plain JSON if the tool has no `read_arguments`.

        Raises:
            ToolArgumentError: The tool cannot be run with them. Uncaught, it goes to the model.
        """
        return read_arguments(self.callback, self.tool_call.arguments)

    def with_arguments(self, arguments: str) -> Self:
        """Return this with other arguments, a JSON object."""
        return replace(self, tool_call=replace(self.tool_call, arguments=arguments))


NextTool = Callable[[ToolInvocation], Awaitable[ToolResult]]
"""The rest of the interceptors, and then the tool."""


class ToolInterceptor(Protocol):
    """Runs around every tool call; any coroutine function with this signature is one.

    It may observe the call, change the arguments (`invocation.with_arguments`) or the result,
    return a result without running the tool, or raise `ToolDeniedError`, whose message goes to the
    model.
    """

    def __call__(self, invocation: ToolInvocation, call_next: NextTool, /) -> Awaitable[ToolResult]:
        """Return the result of the call, from *call_next* or another one."""
        ...


class InterceptorChain:
    """Calls interceptors around a tool.

    Args:
        interceptors: The first one is the outermost.
        innermost: Runs the tool itself.
    """

    def __init__(self, interceptors: Sequence[ToolInterceptor], innermost: NextTool) -> None:
        first = innermost
        for interceptor in reversed(interceptors):
            first = _around(interceptor, first)
        self._first = first

    def __call__(self, invocation: ToolInvocation) -> Awaitable[ToolResult]:
        """Return the result of the outermost interceptor, or of the tool if there is none."""
        return self._first(invocation)


def _around(interceptor: ToolInterceptor, call_next: NextTool) -> NextTool:
    name = getattr(interceptor, "__qualname__", type(interceptor).__qualname__)

    async def checked_next(invocation: ToolInvocation) -> ToolResult:
        passed: object = invocation
        if not isinstance(passed, ToolInvocation):
            msg = (
                f"tool interceptor {name} called call_next with {passed!r}; it takes the"
                " invocation, or a changed copy: call_next(invocation.with_arguments(...))"
            )
            raise ToolUsageError(msg)
        return await call_next(invocation)

    async def call(invocation: ToolInvocation) -> ToolResult:
        try:
            given: object = interceptor(invocation, checked_next)
            result = await given if is_awaitable(given) else given
        except ApprovalRequired as suspension:
            invocation.context.suspended = ApprovalRequired(suspension.turn)
            raise
        return check_result(result, f"tool interceptor {name}")

    return call


def check_result(result: object, origin: str) -> ToolResult:
    """Return *result*, which *origin* has returned.

    Raises:
        ToolResultError: It is no `ToolResult`.
    """
    if not isinstance(result, ToolResult):
        raise ToolResultError(f"{origin} returned {result!r}; it must return a ToolResult")
    return result


def checked_interceptors(
    interceptors: Iterable[ToolInterceptor],
) -> tuple[ToolInterceptor, ...]:
    """Return *interceptors* after a check of their types."""
    check_type("interceptors", interceptors, Iterable, "put a single one into a list")
    several = tuple(interceptors)
    for interceptor in several:
        check_callable("an interceptor", interceptor, takes=("invocation", "call_next"))
    return several
