"""One tool call: runs the tool, and turns its result or its failure into a response."""

import asyncio
import math
import time
from collections.abc import Awaitable
from dataclasses import dataclass, replace

import anyio

from chatclient._internal.exceptions import leaf_errors, raise_single, single_error
from chatclient._internal.frozen import merged
from chatclient.chat.events import ToolRunStarted
from chatclient.chat.messages import Message, ToolCall
from chatclient.chat.parts import call_key
from chatclient.chat.pending_turn import ApprovalRequired
from chatclient.chat.tool import (
    CONVERSATION_ID,
    DECIDED_BY,
    DONE,
    FAILURE,
    RAN_WITH,
    REMARK,
    ToolCallback,
    ToolContext,
    ToolResult,
)
from chatclient.errors import (
    DeadlineExceededError,
    ToolArgumentError,
    ToolDeniedError,
    ToolResultError,
    ToolUsageError,
)
from chatclient.observability.operations import WAITS, ToolRun
from chatclient.runtime.blocking import check_interruption, is_interrupted
from chatclient.runtime.runtime import CallerDeadline, Runtime
from chatclient.runtime.threads import is_awaitable
from chatclient.tools.execution.approval import (
    NextTool,
    ToolApproval,
    ToolInvocation,
    check_confirmed,
    check_result,
    earlier_decision,
)
from chatclient.tools.execution.failure import (
    ToolExecutionExceptionProcessor,
    ToolFailure,
    kind_of,
    log_programming_error,
    process_failure,
)
from chatclient.tools.execution.result import (
    CallOutcome,
    SuspendedCall,
    execution_of,
    finished_event,
)
from chatclient.tools.execution.state import ToolState
from chatclient.tools.execution.toolset import Toolset, check_complete
from chatclient.tools.function.data_tool import is_external


@dataclass(slots=True, eq=False)
class ToolCallRunner:
    """Runs single calls of one round.

    Attributes:
        state: The state of the tools.
        toolset: The tools that may be run.
        chain: Calls the interceptors, with the tool inside.
        exception_processor: Decides what happens when a call fails.
        messages: The conversation before the calls.
        truncated: The id of the call in which the model's message may be truncated, if any.
        forbidden: Whether the model called tools despite `tool_choice="none"`.
        approvals: The approvals among the interceptors, if all calls of a round wait while one of
            them does; else None.
    """

    state: ToolState
    toolset: Toolset
    chain: NextTool
    exception_processor: ToolExecutionExceptionProcessor
    messages: tuple[Message, ...] = ()
    truncated: str | None = None
    forbidden: bool = False
    approvals: tuple[ToolApproval, ...] | None = None

    async def run(
        self, call: ToolCall, tool: ToolCallback | None, context: ToolContext
    ) -> CallOutcome:
        """Run one call.

        Args:
            call: The call.
            tool: The tool, or None if the toolset has none of this name.
            context: The context of the call.

        Raises:
            ToolUsageError: The application made a mistake that no model can correct.
            Exception: What the exception processor raises.
        """
        runtime = context.runtime
        runtime.check_cancelled()
        description = "" if tool is None else tool.definition.description
        operation = ToolRun(call, description, self.state.context.get(CONVERSATION_ID))
        error: Exception | None = None
        with runtime.observe(operation) as step:
            started_at = time.time()
            try:
                if self.forbidden or call.id == self.truncated:
                    self._check_admissible(call, tool)
                if tool is None:
                    tool = await self.toolset.find(call.name, runtime)
                metadata = tool.metadata
                # Before the call, because one that is interrupted may have to be undone.
                if metadata.compensation is not None:
                    self.state.compensation.tools[call_key(call)] = tool
                context.timeout = _time_limit(metadata.timeout, runtime)
                invocation = ToolInvocation(call, tool, context, self.messages, self.state.turn)
                if runtime.deadline is None:
                    result = await self.chain(invocation)
                else:
                    with CallerDeadline(runtime.deadline):
                        result = await self.chain(invocation)
            except Exception as raised:  # noqa: BLE001 - the failure policy decides
                outcome: SuspendedCall | ToolResult | None = _suspension(context, raised)
                if outcome is None:
                    error = _raise_or_tell(call, raised)
                    seconds = time.perf_counter() - step.started
                    outcome = await self._result_or_raise(error, call, context, seconds)
            else:
                outcome = None if context.suspended is None else _suspension(context)
                if outcome is None:
                    outcome = result
                    # An interceptor may treat the result of a tool that has finished as a failure.
                    if result.is_error and self._has_completed(call, context):
                        outcome = replace(result, metadata=merged(result.metadata, {DONE: True}))
            if isinstance(outcome, SuspendedCall):
                step.note(WAITS, "approval")
                return outcome
            ran = started_at, time.perf_counter() - step.started
            result = _annotated(outcome, call, context)
            execution = execution_of(call, result, context.attempt, ran=ran, error=error)
            if runtime.streaming:
                await runtime.emit(finished_event(execution))
            step.result = execution
        return execution

    async def waits(self, call: ToolCall, tool: ToolCallback | None, context: ToolContext) -> bool:
        """Return whether *call* will wait for a decision, as far as that is known before."""
        # These calls fail without running, so there is nothing to decide.
        if tool is None or self.forbidden or call.id == self.truncated:
            return False
        invocation = ToolInvocation(call, tool, context, self.messages, self.state.turn)
        try:
            invocation.arguments()
        except ToolArgumentError:
            return False
        if earlier_decision(invocation) is not None:
            return False
        approvals = self.approvals or ()
        asked = any(approval.ask is not None for approval in approvals)
        if is_external(tool) or (tool.metadata.confirm and not asked):
            return True
        return any([await approval.waits(invocation) for approval in approvals])

    async def _result_or_raise(
        self, error: Exception, call: ToolCall, context: ToolContext, seconds: float
    ) -> ToolResult:
        """Return the error result of *error*, or raise it, as the failure policy decides."""
        try:
            return await self._react(call, error, context)
        except Exception:
            if context.runtime.streaming:
                text = f"The tool {call.name!r} failed, and ended the turn."
                failure = ToolResult(text, is_error=True)
                ran = None, seconds
                failed = execution_of(call, failure, context.attempt, ran=ran, error=error)
                await context.runtime.emit(finished_event(failed))
            raise

    def _check_admissible(self, call: ToolCall, tool: ToolCallback | None) -> None:
        """Check that *call* may be run at all.

        Raises:
            ToolDeniedError: The model was not allowed to call tools.
            ToolArgumentError: The call may be incomplete.
        """
        if self.forbidden:
            msg = "No tool may be called here; answer without"
            raise ToolDeniedError(msg, tool_name=call.name)
        check_complete(call, tool)

    async def _react(self, call: ToolCall, error: Exception, context: ToolContext) -> ToolResult:
        # First, because a completed call is undone if the deadline ends the turn.
        completed = self._has_completed(call, context)
        # The model cannot be called any more, so an error result would have no reader.
        if not context.runtime.remaining():
            msg = f"the deadline passed while the tool {call.name!r} ran"
            raise DeadlineExceededError(msg) from error
        kind = kind_of(error)
        count = self.state.count_failure(call.name, kind)
        failure = ToolFailure(kind, call, error, count, context)
        result = await process_failure(self.exception_processor, failure)
        metadata = {FAILURE: kind, DONE: True} if completed else {FAILURE: kind}
        return replace(result, metadata=merged(result.metadata, metadata))

    def _has_completed(self, call: ToolCall, context: ToolContext) -> bool:
        """Return whether the tool of a failed *call* has finished, and record its result."""
        if context.result is None or context.result.is_error:
            return False
        self.record_completed(call, context)
        return True

    def record_completed(self, call: ToolCall, context: ToolContext) -> None:
        """Record the result of the tool, if it has finished although its *call* failed."""
        if context.result is not None:
            result = _with_arguments_note(context.result, context.arguments)
            completed = execution_of(call, result, context.attempt)
            self.state.compensation.completed[call_key(call)] = completed


def _suspension(context: ToolContext, error: Exception | None = None) -> SuspendedCall | None:
    """Return the suspension of a call, even if an interceptor caught or replaced its exception."""
    raised = () if error is None else leaf_errors(error)
    for each in (context.suspended, *raised):
        if isinstance(each, ApprovalRequired):
            return SuspendedCall(each.turn)
    return None


def _raise_or_tell(call: ToolCall, raised: Exception) -> Exception:
    """Return the error of a failed *call*, or raise it if no model can correct it."""
    problem = single_error(raised)
    if isinstance(problem, (ToolUsageError, MemoryError)):
        raise problem from problem.__cause__
    log_programming_error(call.name, problem)
    return problem


def _annotated(result: ToolResult, call: ToolCall, context: ToolContext) -> ToolResult:
    """Return *result* with changed arguments in its metadata, and with a remark before its text."""
    if context.arguments != call.arguments:
        result = _with_arguments_note(result, context.arguments)
    if context.decided_by is not None:
        metadata = merged(result.metadata, {DECIDED_BY: context.decided_by})
        result = replace(result, metadata=metadata)
    if context.remark is not None:
        metadata = merged(result.metadata, {REMARK: context.remark})
        result = replace(result, text=f"{context.remark}\n{result.text}", metadata=metadata)
    return result


def _with_arguments_note(result: ToolResult, arguments: str | None) -> ToolResult:
    """Return *result* with the *arguments* that the tool ran with in its metadata."""
    if arguments is None and result.is_error:  # the tool was not run
        return result
    return replace(result, metadata=merged(result.metadata, {RAN_WITH: arguments}))


def _time_limit(timeout: float | None, runtime: Runtime) -> float | None:
    """Return how many seconds a tool with *timeout* may take: less until the deadline, if any."""
    if runtime.deadline is None:
        return timeout
    remaining = runtime.remaining()
    return remaining if timeout is None else min(timeout, remaining)


async def invoke_tool(invocation: ToolInvocation) -> ToolResult:
    """Run the tool itself, inside all interceptors.

    Raises:
        TimeoutError: It took too long, or the interceptors left it no time.
    """
    # The last moment for it: a plain function cannot be stopped once it runs.
    check_interruption()
    context, callback = invocation.context, invocation.callback
    runtime, metadata = context.runtime, callback.metadata
    if (waiting := context.suspended) is not None:
        if isinstance(waiting, ApprovalRequired) and waiting.turn is not None:
            raise ApprovalRequired(waiting.turn)  # a suspended agent is not called again
        context.suspended = None  # an interceptor asked for approval and then continued
    # Inside all interceptors, so that none of them can run the tool without a decision.
    if metadata.confirm and not context.decided:
        check_confirmed(invocation)
    if context.begin is not None:
        invocation.arguments()  # so that the model is told of a mistake at once
        begin, context.begin = context.begin, None  # an interceptor may call the tool again
        await begin()
    # Again, because interceptors have used some of the time until the deadline.
    context.timeout = timeout = _time_limit(metadata.timeout, runtime)
    context.arguments = arguments = invocation.tool_call.arguments
    if runtime.streaming:
        await runtime.emit(ToolRunStarted(invocation.tool_call, context.attempt))
    try:
        if timeout is None:
            result = await _started(callback, arguments, context)
        elif timeout <= 0:
            msg = "the deadline passed before the tool began"
            raise TimeoutError(msg)
        else:
            with CallerDeadline(time.monotonic() + timeout):
                running = _started(callback, arguments, context)
                result = await runtime.within(timeout, running)
    except asyncio.CancelledError as error:
        if _request_is_cancelled():
            raise
        # The tool awaited a task that something else has cancelled.
        msg = "something that the tool waited for was cancelled"
        raise RuntimeError(msg) from error
    except ExceptionGroup as group:
        raise_single(group)
    except ApprovalRequired as suspension:
        context.suspended = ApprovalRequired(suspension.turn)
        raise
    context.result = check_result(result, "invoke() of tool {!r}", callback.definition.name)
    return result


def _started(callback: ToolCallback, arguments: str, context: ToolContext) -> Awaitable[ToolResult]:
    """Call `invoke` and return its awaitable.

    Raises:
        ToolResultError: It returned something else.
    """
    running: object = callback.invoke(arguments, context)
    if not is_awaitable(running):
        name = callback.definition.name
        msg = f"invoke() of tool {name!r} is not a coroutine function; write it with `async def`"
        raise ToolResultError(msg)
    return running


def _request_is_cancelled() -> bool:
    """Return whether the request was cancelled, and not only something that a tool awaited."""
    if is_interrupted():
        return True
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop is running, so nothing else could cancel
        return False
    # A cancelled scope of anyio cancels repeatedly and resets the task's counter.
    scope_is_cancelled = anyio.current_effective_deadline() == -math.inf
    return task is None or task.cancelling() > 0 or scope_is_cancelled
