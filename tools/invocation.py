"""A tool call on its way to the tool: what interceptors see, and may change."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import anyio

from chatclient.callers import caller_deadline
from chatclient.errors import ToolResultError, ToolUsageError
from chatclient.interruption import check_interruption, is_interrupted
from chatclient.messages import ToolCall
from chatclient.runtime import Runtime
from chatclient.threads import is_awaitable
from chatclient.tool import ToolCallback, ToolContext, ToolDefinition, ToolMetadata, ToolResult
from chatclient.tools.binding import read_arguments


@dataclass(frozen=True, slots=True)
class ToolInvocation:
    """A tool that is about to be run.

    Attributes:
        tool_call: What the model asked for.
        callback: The tool.
        context: What the application tells it.
    """

    tool_call: ToolCall
    callback: ToolCallback
    context: ToolContext

    @property
    def definition(self) -> ToolDefinition:
        """What the model was told about the tool."""
        return self.callback.definition

    @property
    def metadata(self) -> ToolMetadata:
        """How the tool is to be run."""
        return self.callback.metadata

    def arguments(self) -> Mapping[str, Any]:
        """Return what the tool would be run with, by name: mended, checked and converted.

        They are plain JSON where the tool does not say how it reads them.

        Raises:
            ToolArgumentError: It cannot be run with them; left alone, this is told to the model.
        """
        return read_arguments(self.callback, self.tool_call.arguments)

    def with_arguments(self, arguments: str) -> Self:
        """Return this with other arguments, a JSON object."""
        return replace(self, tool_call=replace(self.tool_call, arguments=arguments))


NextTool = Callable[[ToolInvocation], Awaitable[ToolResult]]
"""The rest of the interceptors, and then the tool."""


class ToolInterceptor(Protocol):
    """Stands around every tool call; any coroutine function of this shape is one.

    It may look on, change the arguments (`invocation.with_arguments`) or the result, answer in the
    tool's place, or refuse with `ToolDeniedError`, whose message the model is told.
    """

    def __call__(self, invocation: ToolInvocation, call_next: NextTool, /) -> Awaitable[ToolResult]:
        """Return the result of the call, from *call_next* or of one's own making."""
        ...


async def run_tool(invocation: ToolInvocation) -> ToolResult:
    """Run the tool itself: the innermost of the interceptors.

    Raises:
        TimeoutError: It took too long, or the interceptors left it no time at all.
    """
    check_interruption()
    context, callback = invocation.context, invocation.callback
    runtime = context.runtime
    context.timeout = timeout = time_for(callback.metadata.timeout, runtime)
    context.arguments = arguments = invocation.tool_call.arguments
    try:
        if timeout is None:
            result = await _started(callback, arguments, context)
        elif timeout <= 0:
            msg = "the deadline passed before the tool began"
            raise TimeoutError(msg)
        else:
            with caller_deadline(time.monotonic() + timeout):
                result = await runtime.within(timeout, _started(callback, arguments, context))
    except asyncio.CancelledError as error:
        if _is_cancelled():
            raise
        msg = "something that the tool waited for was cancelled"
        raise RuntimeError(msg) from error
    except ExceptionGroup as group:
        alone = _alone(group)
        raise alone from alone.__cause__
    if not isinstance(result, ToolResult):
        raise _no_result(f"invoke() of tool {callback.definition.name!r}", result)
    context.result = result
    return result


def _started(callback: ToolCallback, arguments: str, context: ToolContext) -> Awaitable[ToolResult]:
    """Return the run of a tool, to be awaited.

    Raises:
        ToolResultError: There is nothing to await.
    """
    running: object = callback.invoke(arguments, context)
    if not is_awaitable(running):
        name = callback.definition.name
        msg = f"invoke() of tool {name!r} is not a coroutine function; write it with `async def`"
        raise ToolResultError(msg)
    return running


def _is_cancelled() -> bool:
    """Return whether it is the request that was cancelled, not just something a tool waited for."""
    if is_interrupted():
        return True
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop runs here, where nothing else could cancel
        return False
    # A cancelled scope of anyio cancels again and again, and takes back what it counted.
    scope_is_cancelled = anyio.current_effective_deadline() == -math.inf
    return task is None or task.cancelling() > 0 or scope_is_cancelled


def _alone(error: Exception) -> Exception:
    """Return the one error that a task group has wrapped: it may be meant for the model."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _no_result(origin: str, given: object) -> ToolResultError:
    return ToolResultError(f"{origin} returned {given!r}; it must return a ToolResult")


def time_for(own: float | None, runtime: Runtime) -> float | None:
    """Return how long a tool with a timeout of its *own* may take, or None for ever."""
    if runtime.deadline is None:
        return own
    remaining = runtime.remaining()
    return remaining if own is None else min(own, remaining)


def chain_of(interceptors: tuple[ToolInterceptor, ...]) -> NextTool:
    """Return the first of *interceptors* around all others around the tool."""
    chain: NextTool = run_tool
    for interceptor in reversed(interceptors):
        chain = _around(interceptor, chain)
    return chain


def _around(interceptor: ToolInterceptor, call_next: NextTool) -> NextTool:
    name = getattr(interceptor, "__qualname__", type(interceptor).__qualname__)

    async def next_call(invocation: ToolInvocation) -> ToolResult:
        passed: object = invocation
        if not isinstance(passed, ToolInvocation):
            msg = (
                f"tool interceptor {name} called call_next with {passed!r}; it takes the"
                " invocation, or a changed copy: call_next(invocation.with_arguments(...))"
            )
            raise ToolUsageError(msg)
        return await call_next(invocation)

    async def call(invocation: ToolInvocation) -> ToolResult:
        given: object = interceptor(invocation, next_call)
        result = await given if is_awaitable(given) else given
        if not isinstance(result, ToolResult):
            raise _no_result(f"tool interceptor {name}", result)
        return result

    return call
