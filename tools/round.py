"""The tool calls of one message: which are run, in which order, and what came of them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from chatclient.messages import AssistantMessage, Message, ToolCall, ToolResponse
from chatclient.runtime import Runtime
from chatclient.tool import RETURN_DIRECT, ReturnDirect, ToolResult
from chatclient.tools.approval import ApprovalRequired
from chatclient.tools.compensation import executed_in, is_failure
from chatclient.tools.execution import ToolExecutionResult
from chatclient.tools.outcome import ToolExecution
from chatclient.tools.pending import PendingTurn
from chatclient.tools.runnable import RunnableTools
from chatclient.tools.single import SingleCalls
from chatclient.tools.turn import key_of


class RoundRunner:
    """Runs the calls of one message that may be run, in their order or side by side.

    Args:
        single: Runs each of the calls.
        message: What the model said.
        runtime: How the request runs.
    """

    def __init__(self, single: SingleCalls, message: AssistantMessage, runtime: Runtime) -> None:
        self.message = message
        self.calls = message.tool_calls
        self.runtime = runtime
        self.turn = single.turn
        self.breach: str | None = None
        self.pending: dict[str, PendingTurn | None] = {}
        self._single = single
        self._counted: dict[int, tuple[int, int]] = {}  # of those that may be run
        self._executions: dict[int, ToolExecution] = {}

    async def run(self, done: Mapping[str, ToolExecution]) -> list[ToolExecution]:
        """Return an execution for every call that does not wait for approval.

        Args:
            done: Those that have been run before, by the id of the call.
        """
        executions = self._executions
        if done:  # before anything else can fail: these may have to be undone
            executions |= {
                at: done[call.id] for at, call in enumerate(self.calls) if call.id in done
            }
        names = [call.name for call in self.calls]
        tools = await self.tools.with_resolved(names, self.runtime)
        if tools is not self.tools:
            self._single = replace(self._single, tools=tools)
        await self._admit(done)
        admitted = list(self._counted)
        limit = self._single.runner.concurrency(self.runtime)
        if limit == 1 or len(admitted) == 1:
            await self._run_lane(admitted, self.runtime)
        else:
            await self._run_stages(admitted, limit)
        for at in sorted(executions):
            if at in self._counted:
                self.turn.remember(executions[at])
            if self.calls[at].id not in done:
                self.turn.executions.append(executions[at])
        self.turn.end_round()
        return self.executed

    async def _admit(self, done: Mapping[str, ToolExecution]) -> None:
        """Count the calls that may be run, in their order, and answer the others."""
        for at, call in enumerate(self.calls):
            if call.id in done:
                self.turn.ordinal(call)  # those that waited are counted where they stand
                continue
            refusal = self._refusal(call)
            attempt = self.turn.calls[call.name]
            if refusal is None:  # counted here, for threads begin in any order
                self._counted[at] = attempt, self.turn.ordinal(call)
            else:
                refused = ToolResult(refusal, is_error=True)
                self._executions[at] = await self._single.answer(
                    call, refused, self.runtime, attempt=attempt
                )

    @property
    def tools(self) -> RunnableTools:
        """The tools that may be run; once the calls were, also those that only a resolver knows."""
        return self._single.tools

    @property
    def executed(self) -> list[ToolExecution]:
        """What has been run so far, in the order of the calls."""
        return [self._executions[at] for at in sorted(self._executions)]

    def waiting(self, messages: tuple[Message, ...]) -> ToolExecutionResult:
        """Return what the round has come to when calls wait, with the turn as it waits then.

        Args:
            messages: The conversation before the round; the history ends with it, for the model's
                message has calls without answers yet.
        """
        result = ToolExecutionResult(
            messages,
            return_direct=False,
            executions=tuple(self.executed),
            breach=self.breach,
            pending=tuple(call for call in self.calls if call.id in self.pending),
            agents={id: agent for id, agent in self.pending.items() if agent is not None},
        )
        return replace(result, pending_turn=self.turn.pending(messages, self.message, result))

    async def undo_if_failed(self, executions: Sequence[ToolExecution]) -> bool:
        """Undo what the turn has done if one of *executions*, this round's, has failed."""
        errors = (e for e in executions if e.is_error)
        failed = (e for e in errors if is_failure(e, self.tools.metadata_of(e.tool_call.name)))
        failure = next(failed, None)
        if failure is None:
            return False
        earlier = executed_in(self._single.messages, self.turn)
        cause = f"'{failure.tool_call.name}' failed"
        await self._single.undo((*earlier, *executions), cause, self.runtime)
        return bool(self.turn.undone)

    async def _run_stages(self, admitted: Sequence[int], limit: int) -> None:
        def job(lane: list[int]) -> Any:
            return lambda runtime: self._run_lane(lane, runtime)

        begun = self.turn.begun  # these run already, and so take the first places
        first = sorted(admitted, key=lambda at: key_of(self.calls[at]) not in begun)
        for stage in _stages([(at, self.calls[at]) for at in first], self.tools):
            await self.runtime.gather([job(lane) for lane in stage], limit=limit)

    async def _run_lane(self, lane: Sequence[int], runtime: Runtime) -> None:
        for at in lane:
            try:
                self._executions[at] = await self._run(at, runtime)
            except ApprovalRequired as waiting:
                self.pending[self.calls[at].id] = waiting.turn

    async def _run(self, at: int, runtime: Runtime) -> ToolExecution:
        call, (attempt, ordinal) = self.calls[at], self._counted[at]
        begun = self.turn.begun.pop(key_of(call), None)
        if begun is not None:  # while the model was still speaking
            return replace(await begun.result(runtime.emit), tool_call=call, attempt=attempt)

        def keep(execution: ToolExecution) -> None:
            self._executions[at] = execution

        return await self._single.run(call, runtime, attempt=attempt, ordinal=ordinal, keep=keep)

    def _refusal(self, call: ToolCall) -> str | None:
        """Return why *call* is not run, or None when it is."""
        limits, turn = self._single.runner.limits, self.turn
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


def direct_answers(
    executions: Sequence[ToolExecution], tools: RunnableTools
) -> tuple[ToolResponse, ...]:
    """Return those of a round's results that are the answer; none if the model is asked again.

    They are the answer if every one of them is returned directly, or if the last one says
    `"if_last"`. If something failed, none of them is: an error is no answer.
    """
    if any(execution.is_error for execution in executions):
        return ()
    ways = [_return_direct(execution, tools) for execution in executions]
    if all(ways):
        return tuple(execution.response for execution in executions)
    if ways[-1] != "if_last":
        return ()
    *others, last = [e.response for e, way in zip(executions, ways, strict=True) if way]
    return (last, *others)


def _return_direct(execution: ToolExecution, tools: RunnableTools) -> ReturnDirect:
    """Return whether a result is the answer: by its own word, or else by its tool's."""
    own: ReturnDirect | None = execution.metadata.get(RETURN_DIRECT)
    return tools.metadata_of(execution.tool_call.name).return_direct if own is None else own


def _stages(calls: Sequence[tuple[int, ToolCall]], tools: RunnableTools) -> list[list[list[int]]]:
    """Return stages that follow each other, of lanes that run side by side, of calls in a row."""
    stages: list[dict[object, list[int]]] = [{}]
    for at, call in calls:
        metadata = tools.metadata_of(call.name)
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
