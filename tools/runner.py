"""How a manager runs a tool, and what it makes of a failure."""

from collections.abc import Mapping
from dataclasses import dataclass

from chatclient.callers import caller_deadline
from chatclient.errors import ToolResultError
from chatclient.messages import ToolCall
from chatclient.runtime import Runtime
from chatclient.tool import ToolCallback, ToolContext, ToolResult
from chatclient.tools.approval import DECISIONS
from chatclient.tools.awaiting import awaited
from chatclient.tools.failure import ToolExecutionExceptionProcessor, ToolFailure
from chatclient.tools.invocation import NextTool, ToolInvocation, time_for
from chatclient.tools.limits import ToolLimits


@dataclass(frozen=True, slots=True)
class ToolRunner:
    """How a manager runs tools; the same for all its turns.

    Attributes:
        limits: How long a turn may go on.
        at_once: How many tools of one response run at once, by whether the request blocks.
        call: The interceptors around the tool.
        resume: The same for a turn that goes on with decisions made.
        process: Decides what comes of a failed call.
    """

    limits: ToolLimits
    at_once: Mapping[bool, int]
    call: NextTool
    resume: NextTool
    process: ToolExecutionExceptionProcessor

    def concurrency(self, runtime: Runtime) -> int:
        """Return how many tools of one response run at once."""
        return self.at_once[runtime.blocking]

    async def run(self, call: ToolCall, callback: ToolCallback, context: ToolContext) -> ToolResult:
        """Run one tool, with all interceptors around it."""
        context.timeout = time_for(callback.metadata.timeout, context.runtime)
        invocation = ToolInvocation(call, callback, context)
        run = self.resume if DECISIONS in context else self.call
        if context.runtime.deadline is None:
            return await run(invocation)
        with caller_deadline(context.runtime.deadline):
            return await run(invocation)

    async def process_failure(self, failure: ToolFailure) -> ToolResult:
        """Return what the model is told about *failure*, or raise.

        Raises:
            ToolResultError: The exception processor returned neither a text nor a `ToolResult`.
        """
        told = await awaited(failure.context.runtime, self.process(failure))
        if isinstance(told, ToolResult):
            return told
        if isinstance(told, str):
            return ToolResult(told, is_error=True)
        name = getattr(self.process, "__qualname__", type(self.process).__qualname__)
        msg = f"exception processor {name} returned {told!r}, not a text or a ToolResult"
        raise ToolResultError(msg) from failure.error
