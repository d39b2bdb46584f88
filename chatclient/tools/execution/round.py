"""One round of tool calls: in order, concurrently, or while the model is still streaming."""

import functools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from typing import Any

from chatclient._internal.json import loads
from chatclient.chat.events import ToolCallDelta, ToolCallStarted
from chatclient.chat.messages import (
    AssistantMessage,
    Message,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
)
from chatclient.chat.parts import call_key
from chatclient.chat.pending_turn import EXTERNAL_CALLS, Decision, PendingTurn
from chatclient.chat.tool import (
    BACKGROUND,
    RETURN_DIRECT,
    ReturnDirect,
    ToolCallback,
    ToolContext,
    ToolExecution,
    ToolResult,
    is_handoff,
)
from chatclient.errors import ToolUsageError, UnknownToolError
from chatclient.runtime.runtime import Runtime
from chatclient.tools.execution.approval import ToolInvocation, check_edit
from chatclient.tools.execution.call import ToolCallRunner
from chatclient.tools.execution.compensation import rewritten, with_undone_executions
from chatclient.tools.execution.failure import ToolLimits
from chatclient.tools.execution.result import (
    CallOutcome,
    SuspendedCall,
    ToolExecutionResult,
    execution_of,
    finished_event,
)
from chatclient.tools.execution.state import ToolState, streamed_call
from chatclient.tools.execution.toolset import Toolset
from chatclient.tools.function.data_tool import is_external
from chatclient.tools.function.decorator import PLAIN


@dataclass(slots=True, eq=False)
class _PartialCall:
    """A tool call as far as it has been streamed."""

    id: str
    name: str
    arguments: list[str] = field(default_factory=list)

    def call(self) -> ToolCall:
        """Return the call so far, which may be incomplete."""
        return ToolCall(self.id, self.name, "".join(self.arguments))


class EagerReads:
    """Observes a stream and starts each reading tool as soon as its arguments are complete.

    They are complete when the next call begins, so the last call of a message is never started
    early. Started calls stay in the turn until the round takes them over. It may never do so: the
    stream may fail, or an advisor may change the calls. Therefore no tool with an effect is started
    early, nor one that must not run concurrently, nor any after a call that has to run alone.

    Args:
        runner: Runs the calls.
        runtime: How the request runs.
        limits: The limits of the turn.
        concurrency: How many calls run in parallel.
    """

    def __init__(
        self, runner: ToolCallRunner, runtime: Runtime, limits: ToolLimits, concurrency: int
    ) -> None:
        self._runner = runner
        self._runtime = runtime
        self._limits = limits
        self._state = runner.state
        self._partial: dict[tuple[str, int | None], _PartialCall] = {}
        self._last: _PartialCall | None = None
        # The complete calls so far: by name, by name and arguments, and their ids.
        self._names: Counter[str] = Counter()
        self._equal: Counter[tuple[str, str]] = Counter()
        self._ids: set[str] = set()
        self._available = concurrency
        # The context of the round: started calls are no part of the model call.
        self._context = copy_context()

    async def observe(self, event: Any) -> None:
        """Process one event of the model and pass it on."""
        match event:
            case ToolCallStarted(id=id, name=name, index=index):
                self._complete_last()
                self._last = _PartialCall(id, name)
                self._partial[id, index] = self._last
            case ToolCallDelta(id=id, arguments=arguments, index=index):
                partial = self._partial.get((id, index))
                if partial is not None:  # an advisor may have dropped the first event
                    partial.arguments.append(arguments)
            case _:
                pass
        await self._runtime.emit(event)

    def _complete_last(self) -> None:
        """Start the last call so far, if possible."""
        if self._last is None:
            return
        call = self._last.call()
        tool = self._runner.toolset.get(call.name)
        if self._can_start(call, tool):
            self._available -= 1
            state = self._state
            attempt = state.calls[call.name] + self._names[call.name] + 1
            equal = self._equal[call.name, call.arguments]
            ordinal = state.keys.call_count(call) + equal + 1
            key = functools.partial(state.keys.key, call, ordinal, state.context)

            async def run(runtime: Runtime) -> CallOutcome:
                context = ToolContext(
                    state.context,
                    runtime=runtime,
                    tool_call_id=call.id,
                    tool_name=call.name,
                    attempt=attempt,
                    idempotency=key,
                )
                return await self._runner.run(call, tool, context)

            state.early_calls[streamed_call(call)] = self._runtime.begin(run, self._context)
        # Calls that do not start early count as well: the round numbers the attempts of all calls.
        self._names[call.name] += 1
        self._equal[call.name, call.arguments] += 1
        self._ids.add(call.id)

    def _can_start(self, call: ToolCall, tool: ToolCallback | None) -> bool:
        if tool is None:  # a resolver may return a tool that has to run alone
            self._available = 0
            return False
        metadata, limits = tool.metadata, self._limits
        if metadata.exclusive:
            self._available = 0
        concurrent = not metadata.sequential and metadata.concurrency_group is None
        return (
            self._available > 0
            and metadata.effect == "read"
            and concurrent
            and not metadata.background
            and self._has_distinct_id(call)
            and _is_json(call.arguments)
            and limits.breach(call.name, "read", self._calls_with(call)) is None
            and (limits.max_repeats is None or self._state.repeats(call) < limits.max_repeats)
        )

    def _has_distinct_id(self, call: ToolCall) -> bool:
        """Return whether the call keeps its id: some servers give all calls the same one."""
        return bool(call.id) and call.id not in self._ids

    def _calls_with(self, call: ToolCall) -> Counter[str]:
        """Return the number of calls of each tool in the turn, including *call*."""
        return self._state.calls + self._names + Counter([call.name])


def _is_json(arguments: str) -> bool:
    try:
        loads(arguments or "{}")
    except ValueError:
        return False
    return True


@dataclass(slots=True, eq=False)
class _AdmittedCall:
    """A call of a round that may be run.

    Attributes:
        position: Its position in the message.
        call: The call.
        tool: The tool, or None if there is none of this name.
        context: The context that the tool gets.
    """

    position: int
    call: ToolCall
    tool: ToolCallback | None
    context: ToolContext


@dataclass(slots=True, eq=False)
class ToolRound:
    """Runs the calls of one message that the limits allow.

    Attributes:
        runner: Runs each of the calls.
        history: The conversation before the message.
        message: The model's message with the calls.
        runtime: How the request runs.
        limits: The limits of the turn.
        concurrency: How many calls run in parallel.
        done: Executions of calls that need not be run, by the id of the call.
        breach: The limit that was reached, in words, or None.
        calls: The calls of the message.
        state: The state of the tools in the turn.
    """

    runner: ToolCallRunner
    history: tuple[Message, ...]
    message: AssistantMessage
    runtime: Runtime
    limits: ToolLimits
    concurrency: int
    done: Mapping[str, ToolExecution]
    breach: str | None = None
    calls: tuple[ToolCall, ...] = field(init=False)
    state: ToolState = field(init=False)
    _admitted: list[_AdmittedCall] = field(default_factory=list)
    # By the position of the call: what has come of it so far.
    _outcomes: list[CallOutcome | None] = field(init=False)

    def __post_init__(self) -> None:
        self.calls = self.message.tool_calls
        self.state = self.runner.state
        # Calls that need not be run have to be undone as well if anything fails.
        self._outcomes = [self.done.get(call.id) for call in self.calls]

    async def run(self) -> ToolExecutionResult:
        """Run the calls and return the result of the round.

        If the round raises, the calls of the turn are undone.
        """
        try:
            if self.runtime.streaming:
                await self.runtime.wait_for_consumer()  # who leaves the stream now runs no tool
            await self._admit()
            first = await self._waiting()
            # Calls that wait come first: if one of them is suspended, none of the others runs.
            for calls in (first, [each for each in self._admitted if each not in first]):
                if self._is_suspended:
                    break
                if self.concurrency > 1 and len(calls) > 1:
                    await self._run_stages(calls)
                else:
                    await self._run_lane(calls, self.runtime)
        # Also a cancellation: calls that have run are undone before it is raised.
        except BaseException:
            await self._abandon()
            raise
        executions = [each for each in self._outcomes if isinstance(each, ToolExecution)]
        # Before the pending turn is made, which contains the counts and executions of this round.
        # Add the executions of this round to the turn.
        added = [
            each
            for each in executions
            if each.tool_call.id not in self.done and BACKGROUND not in each.metadata
        ]
        self.state.executions += added
        # Without those that were refused.
        self.state.remember([each for each in added if each.started is not None])
        self.state.end_round()
        if self._is_suspended:
            if background := self.state.background:  # nothing runs while a turn waits
                await background.finish(self.runtime)
                executions = background.in_place_of(executions)
            pending: dict[str, PendingTurn | None] = {
                call.id: outcome.turn
                for call, outcome in zip(self.calls, self._outcomes, strict=True)
                if isinstance(outcome, SuspendedCall)
            }
            result = ToolExecutionResult(
                self.history,
                return_direct=False,
                executions=tuple(executions),
                breach=self.breach,
                pending=tuple(call for call in self.calls if call.id in pending),
                agents={id: agent for id, agent in pending.items() if agent is not None},
            )
            turn = self.state.pending(self.history, self.message, result)
            # Recorded here, because a process that resumes the turn may not know its tools.
            external = [call.id for call in result.pending if self._is_external(call)]
            if external:
                turn = replace(turn, notes={**turn.notes, EXTERNAL_CALLS: external})
            return replace(result, pending_turn=turn)
        return await self._finished(executions)

    @property
    def _is_suspended(self) -> bool:
        return SuspendedCall in map(type, self._outcomes)

    async def _admit(self) -> None:
        """Count the calls that may be run, in their order, and answer the others."""
        # Before the calls are checked, because limits depend on the effects of their tools.
        names = [call.name for call in self.calls]
        toolset = await self.runner.toolset.with_resolved(names, self.runtime)
        if toolset is not self.runner.toolset:
            self.runner = replace(self.runner, toolset=toolset)
        state = self.state
        for position, call in enumerate(self.calls):
            if call.id in self.done:
                state.keys.count(call)  # counted in the order of the message
                continue
            tool = toolset.get(call.name)
            refusal = self._refusal(call, tool)
            attempt = state.calls[call.name]
            if refusal is not None:
                refused = ToolResult(refusal, is_error=True)
                self._outcomes[position] = execution = execution_of(call, refused, attempt)
                if self.runtime.streaming:
                    await self.runtime.emit(finished_event(execution))
                continue
            # Counted here, because threads start in any order.
            key = functools.partial(state.keys.key_of, state.keys.count(call), state.context)
            context = ToolContext(
                state.context,
                runtime=self.runtime,
                tool_call_id=call.id,
                tool_name=call.name,
                attempt=attempt,
                idempotency=key,
            )
            self._admitted.append(_AdmittedCall(position, call, tool, context))

    def _refusal(self, call: ToolCall, tool: ToolCallback | None) -> str | None:
        """Return why *call* is not run, or None if it is."""
        limits, state = self.limits, self.state
        if self.breach is not None and limits.on_exceeded != "tell_model":
            return f"Not run. {self.breach}"
        # Before the call is counted: a repeated call does not run, and does not use up the limits.
        if limits.max_repeats is not None and call.name not in limits.excluded:
            repeats = state.repeats(call)
            if repeats >= limits.max_repeats:
                state.count_reminder(call)
                if repeats + 1 >= 2 * limits.max_repeats:
                    self.breach = f"No progress: '{call.name}' was called again and again."
                return (
                    f"'{call.name}' has been called {repeats} times with these very arguments, "
                    "with the same result each time. Use that result, or do something else."
                )
        if is_handoff(tool) and self._follows_handoff(call):
            return "Not run. The conversation can be handed over to one at a time."
        # Counted even if it exceeds a limit, so that a model that ignores refusals reaches the next
        # one.
        state.calls[call.name] += 1
        effect = PLAIN.effect if tool is None else tool.metadata.effect
        breach = limits.breach(call.name, effect, state.calls)
        if breach is not None:
            self.breach = breach
        return breach

    def _follows_handoff(self, call: ToolCall) -> bool:
        """Return whether *call*, a handoff, is not the first one of its message."""
        toolset = self.runner.toolset
        return call is not next(c for c in self.calls if is_handoff(toolset.get(c.name)))

    async def _waiting(self) -> list[_AdmittedCall]:
        """Return the calls that are run first: those that wait, if others wait with them."""
        if self.runner.approvals is None:
            return []
        waits = self.runner.waits
        return [e for e in self._admitted if await waits(e.call, e.tool, e.context)]

    async def _run_stages(self, calls: Sequence[_AdmittedCall]) -> None:
        """Run calls concurrently, as far as their tools allow."""

        def job(lane: Sequence[_AdmittedCall]) -> Any:
            return lambda runtime: self._run_lane(lane, runtime)

        early = self.state.early_calls  # already running, so they take the first places
        order = sorted(calls, key=lambda each: streamed_call(each.call) not in early)
        stages: list[dict[object, list[_AdmittedCall]]] = [{}]
        for each in order:
            metadata = PLAIN if each.tool is None else each.tool.metadata
            if metadata.exclusive:
                stages.extend(({each: [each]}, {}))
                continue
            lane: object = each
            if metadata.concurrency_group is not None:
                lane = ("group", metadata.concurrency_group)
            elif metadata.sequential:
                lane = ("tool", each.call.name)
            stages[-1].setdefault(lane, []).append(each)
        for stage in [list(stage.values()) for stage in stages if stage]:
            await self.runtime.gather([job(lane) for lane in stage], limit=self.concurrency)

    async def _run_lane(self, lane: Iterable[_AdmittedCall], runtime: Runtime) -> None:
        """Run calls one after another."""
        early = self.state.early_calls
        for each in lane:
            if early and streamed_call(each.call) in early:
                outcome = await self._early_outcome(each, runtime)
            else:
                each.context.runtime = runtime
                outcome = await self._outcome(each)
            self._outcomes[each.position] = outcome

    async def _outcome(self, admitted: _AdmittedCall) -> CallOutcome:
        """Run a call, or start it in the background."""
        call, tool, context = admitted.call, admitted.tool, admitted.context
        background, runner = self.state.background, self.runner
        if background is None or tool is None or not _runs_in_background(tool):
            return await runner.run(call, tool, context)

        def completed() -> ToolExecution | None:
            runner.record_completed(call, context)
            return runner.state.compensation.completed.get(call_key(call))

        return await background.begin(
            call, context, lambda: runner.run(call, tool, context), completed
        )

    async def _early_outcome(self, admitted: _AdmittedCall, runtime: Runtime) -> CallOutcome:
        """Return the outcome of a call that was started while the model was streaming."""
        call = admitted.call
        job = self.state.early_calls.pop(streamed_call(call))
        outcome: CallOutcome = await job.result(runtime.emit)
        if isinstance(outcome, SuspendedCall):
            return outcome
        return replace(outcome, tool_call=call, attempt=admitted.context.attempt)

    def _is_external(self, call: ToolCall) -> bool:
        callback = self.runner.toolset.get(call.name)
        return callback is not None and is_external(callback)

    async def _finished(self, executions: list[ToolExecution]) -> ToolExecutionResult:
        """Return the result of a round in which every call has a response."""
        messages, toolset, undone = (
            self.history,
            self.runner.toolset,
            self.state.compensation.undone,
        )
        failed = self.state.compensation.failed_call(executions, toolset)
        if failed is not None:
            cause = f"'{failed.tool_call.name}' failed"
            # Before the messages are made: the results of undone calls say that they were undone.
            await self.state.undo(cause, toolset, self.runtime, executions)
            messages = rewritten(messages, undone)
            executions = with_undone_executions(executions, undone)
            self.state.executions[:] = with_undone_executions(self.state.executions, undone)
        direct = direct_responses(executions, toolset)
        responses = ToolResponseMessage([execution.response for execution in executions])
        return ToolExecutionResult(
            (*messages, self.message, responses),
            bool(direct),
            tuple(executions),
            self.breach,
            direct=direct,
        )

    async def _abandon(self) -> None:
        """Undo the calls of the turn, because the round raises."""
        # An interrupted call has no outcome, but its tool may have finished all the same.
        for each in self._admitted:
            if self._outcomes[each.position] is None:
                self.runner.record_completed(each.call, each.context)
        completed = self.state.compensation.completed
        outcomes = [
            outcome or completed.get(call_key(call))
            for call, outcome in zip(self.calls, self._outcomes, strict=True)
        ]
        executions = [outcome for outcome in outcomes if isinstance(outcome, ToolExecution)]
        await self.state.abandon(self.runner.toolset, self.runtime, executions)


def _runs_in_background(tool: ToolCallback) -> bool:
    """Return whether *tool* runs in the background; what is not run here does not."""
    return tool.metadata.background and not is_handoff(tool) and not is_external(tool)


def direct_responses(
    executions: Sequence[ToolExecution], toolset: Toolset
) -> tuple[ToolResponse, ...]:
    """Return the responses that are the final answer; none if the model is called again.

    They are final if every tool returns directly, or if the last one returns `"if_last"`. If a call
    failed, none is: an error is no answer.
    """

    def mode(execution: ToolExecution) -> ReturnDirect:
        own: ReturnDirect | None = execution.response.metadata.get(RETURN_DIRECT)
        return toolset.metadata_of(execution.tool_call.name).return_direct if own is None else own

    last = mode(executions[-1])
    if not last or any(execution.is_error for execution in executions):
        return ()
    direct = [execution.response for execution in executions if mode(execution)]
    if len(direct) == len(executions):
        return tuple(direct)
    return (direct[-1], *direct[:-1]) if last == "if_last" else ()


async def check_decision(
    call: ToolCall, decision: Decision, toolset: Toolset, runtime: Runtime
) -> None:
    """Check that *decision* can be applied, before anything is run.

    Raises:
        ToolUsageError: It cannot. Also for the turn of an agent, the error goes to no model.
    """
    if not decision.approved:
        return
    try:
        callback = await toolset.find(call.name, runtime)
    except UnknownToolError as error:
        msg = (
            f"the turn waits to run the tool {call.name!r}, which is not offered; give the"
            " resumed request the tools that the first one had"
        )
        raise ToolUsageError(msg) from error
    if is_external(callback) and decision.result is None:
        msg = f"{call.name!r} is not run here: decide with Decision.answered(...), or deny it"
        raise ToolUsageError(msg)
    if decision.arguments is not None and decision.result is None:
        context = ToolContext(runtime=runtime, tool_call_id=call.id, tool_name=call.name)
        invocation = ToolInvocation(call, callback, context)
        check_edit(invocation.with_arguments(decision.arguments))
