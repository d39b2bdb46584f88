"""The tool calls of one message: which are run, in which order, and what came of them."""

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from chatclient.errors import DeadlineExceededError, ToolArgumentError, ToolUsageError
from chatclient.events import ToolCallFinished
from chatclient.json import loads
from chatclient.messages import AssistantMessage, ToolCall, ToolResponse
from chatclient.operations import ToolRun
from chatclient.prompt import Prompt
from chatclient.runtime import Runtime
from chatclient.tool import (
    CONVERSATION_ID,
    FAILURE,
    RAN_WITH,
    ToolCallback,
    ToolContext,
    ToolMetadata,
    ToolResult,
)
from chatclient.tools.approval import ApprovalRequired, PendingTurn
from chatclient.tools.compensation import executed_in, is_failure
from chatclient.tools.decorator import PLAIN
from chatclient.tools.execution import ToolExecution, ToolTurn
from chatclient.tools.failure import ToolFailure, kind_of
from chatclient.values import merged

if TYPE_CHECKING:  # which makes rounds
    from chatclient.tools.manager import ToolCallingManager

Callbacks = Mapping[str, ToolCallback]
"""Tools by name."""

MetadataOf = Callable[[str], ToolMetadata]
"""Knows how tools are to be run, by name."""


def metadata_of(name: str, callbacks: Callbacks) -> ToolMetadata:
    """Return how the tool called *name* is to be run; in no special way, if there is none."""
    callback = callbacks.get(name)
    return PLAIN if callback is None else callback.metadata


class Round:
    """The tool calls of one message: which are run, in which order, and what came of them."""

    def __init__(
        self,
        manager: "ToolCallingManager",
        prompt: Prompt,
        message: AssistantMessage,
        runtime: Runtime,
        turn: ToolTurn,
    ) -> None:
        self.manager = manager
        self.prompt = prompt
        self.calls = message.tool_calls
        self.runtime = runtime
        self.turn = turn
        self.callbacks = manager.runnable(prompt, turn)
        self.breach: str | None = None
        self.pending: dict[str, PendingTurn | None] = {}
        self.cut_off: str | None = None
        self._attempts = [0] * len(self.calls)
        self._executions: dict[int, ToolExecution] = {}

    async def run(self, done: Mapping[str, ToolResponse]) -> list[ToolExecution]:
        """Return an execution for every call but those that wait for approval."""
        executions = self._executions
        names = [call.name for call in self.calls]
        self.callbacks = await self.manager.with_resolved(self.callbacks, names, self.runtime)
        admitted: list[int] = []
        for at, call in enumerate(self.calls):
            if call.id in done:
                executions[at] = ToolExecution(call, done[call.id])
                continue
            refusal = self._refusal(call)
            self._attempts[at] = self.turn.calls[call.name]
            if refusal is None:
                admitted.append(at)
            else:
                refused = ToolResult(refusal, is_error=True)
                executions[at] = await self._finished(at, refused, self.runtime)
        if len(admitted) == 1:
            await self._run_lane(admitted, self.runtime)
        else:
            await self._run_stages(admitted)
        run = set(admitted)
        for at in sorted(executions):
            if at in run:
                self.turn.remember(executions[at])
            if self.calls[at].id not in done:
                self.turn.executions.append(executions[at])
        return self.executed

    @property
    def executed(self) -> list[ToolExecution]:
        """What has been run so far, in the order of the calls."""
        return [self._executions[at] for at in sorted(self._executions)]

    async def undone(self, executions: Sequence[ToolExecution]) -> bool:
        """Undo what the turn has done if one of *executions*, this round's, has failed."""
        errors = (e for e in executions if e.is_error)
        failed = (e for e in errors if is_failure(e, self.metadata_of(e.tool_call.name)))
        failure = next(failed, None)
        if failure is None:
            return False
        earlier = executed_in(self.prompt.messages)
        cause = f"'{failure.tool_call.name}' failed"
        await self.manager.undo(
            (*earlier, *executions), cause, self.callbacks, self.turn, self.runtime
        )
        return bool(self.turn.undone)

    async def _run_stages(self, admitted: Sequence[int]) -> None:
        def job(lane: list[int]) -> Any:
            return lambda runtime: self._run_lane(lane, runtime)

        limit = self.manager.concurrency(self.runtime)
        for stage in _stages([(at, self.calls[at]) for at in admitted], self.metadata_of):
            await self.runtime.gather([job(lane) for lane in stage], limit=limit)

    def metadata_of(self, name: str) -> ToolMetadata:
        """Return how the tool called *name* is to be run."""
        return metadata_of(name, self.callbacks)

    async def _run_lane(self, lane: Sequence[int], runtime: Runtime) -> None:
        for at in lane:
            try:
                self._executions[at] = await self._run(at, runtime)
            except ApprovalRequired as waiting:
                self.pending[self.calls[at].id] = waiting.turn

    def _refusal(self, call: ToolCall) -> str | None:
        """Return why *call* is not run, or None when it is."""
        limits, turn = self.manager.limits, self.turn
        if self.breach is not None and limits.on_exceeded != "tell_model":
            return f"Not run. {self.breach}"
        if limits.max_repeats is not None and call.name not in limits.excluded:
            repeats = turn.repeats(call)
            if repeats >= limits.max_repeats:
                turn.nudged(call)
                if repeats + 1 >= 2 * limits.max_repeats:
                    self.breach = f"No progress: '{call.name}' was called again and again."
                return (
                    f"'{call.name}' has been called {repeats} times with these very arguments, "
                    "with the same result each time. Use that result, or do something else."
                )
        turn.calls[call.name] += 1
        breach = limits.breach(call.name, turn.calls)
        if breach is not None:
            self.breach = breach
        return breach

    async def _run(self, at: int, runtime: Runtime) -> ToolExecution:
        call, turn = self.calls[at], self.turn
        context = ToolContext(
            turn.context,
            runtime=runtime,
            tool_call_id=call.id,
            tool_name=call.name,
            attempt=self._attempts[at],
            idempotency=functools.partial(turn.idempotency_key, call, turn.ordinal(call)),
        )
        turn.begin(self.prompt.messages)
        with runtime.observe(self._operation(call)) as observed:
            execution = observed.result = await self._executed(at, context)
        return execution

    def _operation(self, call: ToolCall) -> ToolRun:
        callback = self.callbacks.get(call.name)
        description = "" if callback is None else callback.definition.description
        return ToolRun(call, description, self.turn.context.get(CONVERSATION_ID))

    async def _executed(self, at: int, context: ToolContext) -> ToolExecution:
        call = self.calls[at]
        started_at, started = time.time(), time.perf_counter()
        error: Exception | None = None
        try:
            if call.id == self.cut_off:
                _require_whole(call)
            callback = await self.manager.find(call.name, self.callbacks, context.runtime)
            result = await self.manager.run(call, callback, context)
            if context.arguments is not None and callback.metadata.compensation is not None:
                self.turn.compensations[id(call)] = callback.metadata.compensation
        except (ApprovalRequired, ToolUsageError, MemoryError):
            raise  # nothing that a model could mend
        except Exception as problem:  # noqa: BLE001 - a tool is the application's code
            error, result = problem, await self._failed(call, problem, context)
        ran = started_at, time.perf_counter() - started
        if context.arguments != call.arguments:
            result = _noted(result, context.arguments)
        return await self._finished(at, result, context.runtime, ran, error)

    async def _failed(self, call: ToolCall, error: Exception, context: ToolContext) -> ToolResult:
        if not self.runtime.remaining():
            msg = f"the deadline passed while the tool {call.name!r} ran"
            raise DeadlineExceededError(msg) from error
        kind = kind_of(error)
        self.turn.failures[call.name, kind] += 1
        count = self.turn.failures[call.name, kind]
        told = await self.manager.processed(ToolFailure(kind, call, error, count, context))
        return replace(told, metadata=merged(told.metadata, {FAILURE: kind}))

    async def _finished(
        self,
        at: int,
        result: ToolResult,
        runtime: Runtime,
        ran: tuple[float | None, float] = (None, 0.0),
        error: Exception | None = None,
    ) -> ToolExecution:
        call, (started, seconds) = self.calls[at], ran
        response = ToolResponse(
            call.id, call.name, result.text, result.is_error, result.media, result.metadata
        )
        await runtime.emit(ToolCallFinished(call, response, seconds))
        attempt = self._attempts[at]
        return ToolExecution(call, response, seconds, attempt, error, result.value, started)


def _noted(result: ToolResult, ran_with: str | None) -> ToolResult:
    """Return *result* with what the tool was *ran_with* instead of the model's arguments."""
    if ran_with is None and result.is_error:  # it came to nothing
        return result
    return replace(result, metadata=merged(result.metadata, {RAN_WITH: ran_with}))


def _require_whole(call: ToolCall) -> None:
    try:
        loads(call.arguments or "{}")
    except ValueError as error:
        msg = f"The call of {call.name} was cut off at the token limit; make it again, shorter"
        raise ToolArgumentError(msg, tool_name=call.name, malformed=True) from error


def _stages(
    calls: Sequence[tuple[int, ToolCall]], metadata_of: MetadataOf
) -> list[list[list[int]]]:
    """Return stages that follow each other, of lanes that run side by side, of calls in a row."""
    stages: list[dict[object, list[int]]] = [{}]
    for at, call in calls:
        metadata = metadata_of(call.name)
        if metadata.exclusive:
            stages.extend(({at: [at]}, {}))
            continue
        lane: object = at
        if metadata.concurrency_group is not None:
            lane = ("group", metadata.concurrency_group)
        elif metadata.sequential:
            lane = ("tool", call.name)
        stages[-1].setdefault(lane, []).append(at)
    return [list(stage.values()) for stage in stages if stage]
