"""One tool call of a turn: run, and answered whatever happens."""

import functools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from chatclient.errors import (
    DeadlineExceededError,
    ToolArgumentError,
    ToolDeniedError,
    ToolUsageError,
)
from chatclient.events import ToolCallFinished
from chatclient.json import loads
from chatclient.messages import Message, ToolCall, ToolResponse
from chatclient.operations import WAITS, ToolRun
from chatclient.runtime import Runtime
from chatclient.tool import (
    CONVERSATION_ID,
    DONE,
    FAILURE,
    RAN_WITH,
    REMARK,
    RETURN_DIRECT,
    ToolCallback,
    ToolContext,
    ToolResult,
)
from chatclient.tools.approval import ApprovalRequired
from chatclient.tools.compensation import undo
from chatclient.tools.failure import ToolFailure, kind_of
from chatclient.tools.outcome import ToolExecution
from chatclient.tools.runnable import RunnableTools
from chatclient.tools.runner import ToolRunner
from chatclient.tools.turn import ToolTurn
from chatclient.values import merged

Keep = Callable[[ToolExecution], None]
"""Takes a call that was run, although the turn has ended meanwhile."""


def _forget(_execution: ToolExecution) -> None:
    """Keep nothing."""


@dataclass(frozen=True, slots=True)
class SingleCalls:
    """Runs tool calls of one turn, each by itself.

    Attributes:
        runner: Knows the interceptors, and what comes of failures.
        turn: What the calls belong to.
        tools: Those that may be run.
        messages: The conversation up to the model's message with the calls.
        cut_off: The id of the call in which the model's message may have been cut off, if any.
        forbidden: Whether the model was to call nothing, and did not listen.
    """

    runner: ToolRunner
    turn: ToolTurn
    tools: RunnableTools
    messages: Sequence[Message]
    cut_off: str | None = None
    forbidden: bool = False

    async def run(
        self, call: ToolCall, runtime: Runtime, *, attempt: int, ordinal: int, keep: Keep = _forget
    ) -> ToolExecution:
        """Run one call.

        Args:
            call: What the model asked for.
            runtime: How the request runs.
            attempt: How many calls of this tool the turn has seen, this one included.
            ordinal: How many times the turn has made this very call, this time included.
            keep: Is given what the tool came to where the turn ends at that moment.

        Raises:
            ApprovalRequired: It has to wait for a decision.
            ToolUsageError: The application has made a mistake, and no model could mend it.
        """
        turn = self.turn
        context = ToolContext(
            turn.context,
            runtime=runtime,
            tool_call_id=call.id,
            tool_name=call.name,
            attempt=attempt,
            idempotency=functools.partial(turn.idempotency_key, call, ordinal),
        )
        turn.begin(self.messages)
        with runtime.observe(self._operation(call)) as observed:
            try:
                execution = observed.result = await self._execute(call, context)
            except ApprovalRequired as error:  # no failure, so nobody who watches sees it raised
                observed.note(WAITS, "approval")
                waiting = error
            except BaseException:
                if context.result is not None:  # the tool has done its work all the same
                    keep(_done(call, context, context.result))
                raise
            else:
                return execution
        try:
            raise waiting
        finally:
            del waiting  # or the error would hold itself, and with it all of the request

    async def answer(
        self,
        call: ToolCall,
        result: ToolResult,
        runtime: Runtime,
        *,
        attempt: int,
        ran: tuple[float | None, float] = (None, 0.0),
        error: Exception | None = None,
    ) -> ToolExecution:
        """Tell that *call* has come to *result*, and return that.

        Args:
            call: What the model asked for.
            result: What it is told.
            runtime: How the request runs.
            attempt: How many calls of this tool the turn has seen, this one included.
            ran: When the tool began and how long it took, if it was run.
            error: What went wrong.
        """
        started, seconds = ran
        response = _response(call, result)
        execution = ToolExecution(call, response, seconds, attempt, error, result.value, started)
        if runtime.streaming:
            await runtime.emit(ToolCallFinished(call, response, seconds))
        return execution

    async def undo(self, executions: Iterable[ToolExecution], cause: str, runtime: Runtime) -> None:
        """Undo what can be undone of *executions*, the last one first, because of *cause*."""

        async def tool_of(call: ToolCall) -> ToolCallback | None:
            if id(call) in self.turn.undoable:
                return self.turn.undoable[id(call)][1]
            known = await self.tools.with_resolved([call.name], runtime)
            return known.get(call.name)

        self.turn.begin(self.messages)
        await undo(executions, cause, tool_of, self.turn, runtime)

    def _operation(self, call: ToolCall) -> ToolRun:
        callback = self.tools.get(call.name)
        description = "" if callback is None else callback.definition.description
        return ToolRun(call, description, self.turn.context.get(CONVERSATION_ID))

    async def _execute(self, call: ToolCall, context: ToolContext) -> ToolExecution:
        started_at, started = time.time(), time.perf_counter()
        error: Exception | None = None
        try:
            if self.forbidden:
                _deny(call)
            if call.id == self.cut_off:
                _require_whole(call, self.tools.get(call.name))
            result = await self._run_tool(call, context)
            # What a tool has done may be a failure to an interceptor.
            if result.is_error and self._is_done(call, context):
                result = replace(result, metadata=merged(result.metadata, {DONE: True}))
        except (ApprovalRequired, ToolUsageError, MemoryError):
            raise  # nothing that a model could mend
        except Exception as problem:  # noqa: BLE001 - a tool is the application's code
            error, result = problem, await self._handle_failure(call, problem, context)
        ran = started_at, time.perf_counter() - started
        if context.arguments != call.arguments:
            result = _noted(result, context.arguments)
        if context.remark is not None:
            result = _remarked(result, context.remark)
        return await self.answer(
            call, result, context.runtime, attempt=context.attempt, ran=ran, error=error
        )

    async def _run_tool(self, call: ToolCall, context: ToolContext) -> ToolResult:
        callback = await self.tools.find(call.name, context.runtime)
        try:
            return await self.runner.run(call, callback, context)
        finally:
            if context.arguments is not None and callback.metadata.compensation is not None:
                self.turn.undoable[id(call)] = call, callback

    async def _handle_failure(
        self, call: ToolCall, error: Exception, context: ToolContext
    ) -> ToolResult:
        done = self._is_done(call, context)
        if not context.runtime.remaining():
            msg = f"the deadline passed while the tool {call.name!r} ran"
            raise DeadlineExceededError(msg) from error
        kind = kind_of(error)
        count = self.turn.failed(call.name, kind)
        told = await self.runner.process_failure(ToolFailure(kind, call, error, count, context))
        noted = {FAILURE: kind, DONE: True} if done else {FAILURE: kind}
        return replace(told, metadata=merged(told.metadata, noted))

    def _is_done(self, call: ToolCall, context: ToolContext) -> bool:
        """Return whether the tool of a failed *call* has done its work; note what that came to."""
        result = context.result
        if result is None or result.is_error:
            return False
        self.turn.done[id(call)] = _done(call, context, result)
        return True


def _response(call: ToolCall, result: ToolResult) -> ToolResponse:
    metadata = result.metadata
    if result.return_direct is not None:
        metadata = merged(metadata, {RETURN_DIRECT: result.return_direct})
    return ToolResponse(call.id, call.name, result.text, result.is_error, result.media, metadata)


def _done(call: ToolCall, context: ToolContext, result: ToolResult) -> ToolExecution:
    """Return what the tool has come to, whatever becomes of the call after that."""
    response = _response(call, _noted(result, context.arguments))
    return ToolExecution(call, response, attempt=context.attempt, value=result.value)


def _noted(result: ToolResult, ran_with: str | None) -> ToolResult:
    """Return *result* with what the tool was *ran_with* instead of the model's arguments."""
    if ran_with is None and result.is_error:  # it came to nothing
        return result
    return replace(result, metadata=merged(result.metadata, {RAN_WITH: ran_with}))


def _remarked(result: ToolResult, remark: str) -> ToolResult:
    """Return *result* with a *remark* before it; the metadata lets it be told from the result."""
    metadata = merged(result.metadata, {REMARK: remark})
    return replace(result, text=f"{remark}\n{result.text}", metadata=metadata)


def _deny(call: ToolCall) -> NoReturn:
    msg = "No tool may be called here; answer without"
    raise ToolDeniedError(msg, tool_name=call.name)


def _require_whole(call: ToolCall, callback: ToolCallback | None) -> None:
    try:
        given = loads(call.arguments.strip() or "{}")
    except ValueError as error:
        raise _cut_off(call) from error
    # A call may end before its arguments begin, and would do what it does by default.
    if not given and callback is not None and callback.definition.input_schema["properties"]:
        raise _cut_off(call)


def _cut_off(call: ToolCall) -> ToolArgumentError:
    msg = f"The call of {call.name} was cut off, perhaps at a token limit; make it again, shorter"
    return ToolArgumentError(msg, tool_name=call.name, malformed=True)
