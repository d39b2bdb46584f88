"""Undoes tool calls: idempotency keys, steps of recorded turns, and compensation."""

import asyncio
import functools
import hashlib
import json
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from chatclient._internal.json import dumps_exact, loads_comparable
from chatclient._internal.json_repair import repair_json
from chatclient._internal.logging import get_logger
from chatclient.chat.events import ToolCallFinished, ToolCallUndone
from chatclient.chat.messages import (
    AssistantMessage,
    Message,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
)
from chatclient.chat.parts import call_key
from chatclient.chat.pending_turn import ApprovalRequired, PendingTurn, answered_in
from chatclient.chat.recorder import Recorder, TurnStep
from chatclient.chat.serialization import (
    error_from_dict,
    error_to_dict,
    tool_result_from_dict,
    tool_result_to_dict,
)
from chatclient.chat.stored_values import from_stored, to_stored
from chatclient.chat.tool import (
    CONVERSATION_ID,
    DONE,
    FAILURE,
    RAN_WITH,
    USER_ID,
    ToolCallback,
    ToolContext,
    ToolExecution,
    ToolMetadata,
    ToolResult,
    is_agent,
    without_remark,
)
from chatclient.observability.operations import ToolUndo
from chatclient.runtime.runtime import CallerDeadline, Runtime
from chatclient.tools.execution.approval import NextTool, ToolInvocation
from chatclient.tools.execution.result import ToolExecutionResult
from chatclient.tools.execution.toolset import Toolset
from chatclient.tools.function.argument_repair import repair_value
from chatclient.tools.function.schema import signature_of
from chatclient.tools.function.signature import (
    compensation_name,
    object_in,
    own_schema,
    wants_execution,
)

_SORTING = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=str)
# Two owners never share a key, even if an application gives their turns the same key.
_OWNERS = (CONVERSATION_ID, USER_ID, "tenant_id", "tenant", "user_id", "user")

CanonicalCall = tuple[str, str]
"""Name and arguments of a call, with the arguments as canonical JSON."""


class IdempotencyKeys:
    """Counts the calls of one turn and derives their idempotency keys.

    Which calls are equal is only determined when a key or a count is asked for: few tools use their
    keys.

    Args:
        identity: Identifies the turn; None for a random value.
    """

    def __init__(self, identity: str | None = None) -> None:
        self._identity = identity
        self._seed: str | None = None
        self._canonical: dict[tuple[str, str], CanonicalCall] = {}
        self._calls: list[ToolCall] = []
        # The numbers of equal calls, from 1, by their position, for the first `_compared` calls.
        self._equal: dict[CanonicalCall, dict[int, int]] = {}
        self._compared = 0

    def canonical(self, call: ToolCall) -> CanonicalCall:
        """Return *call* in the form in which equal calls are equal, however they are formatted."""
        written = call.name, call.arguments
        canonical = self._canonical.get(written)
        if canonical is None:
            canonical = self._canonical[written] = call.name, _canonical_json(call.arguments)
        return canonical

    def count(self, call: ToolCall) -> int:
        """Count *call*, and return its position among the calls of the turn, from 0."""
        self._calls.append(call)
        return len(self._calls) - 1

    def call_count(self, call: ToolCall) -> int:
        """Return how many calls equal to *call* were counted."""
        return len(self._equal_to(call))

    def _equal_to(self, call: ToolCall) -> dict[int, int]:
        """Return the numbers, from 1, of the counted calls equal to *call*, by position."""
        count = len(self._calls)
        # Without a lock: tools in several threads that ask for their keys set the same numbers.
        for position in range(self._compared, count):
            equal = self._equal.setdefault(self.canonical(self._calls[position]), {})
            equal.setdefault(position, len(equal) + 1)
        self._compared = count
        return self._equal.get(self.canonical(call), {})

    def key_of(self, position: int, context: Mapping[str, Any]) -> str:
        """Return the idempotency key of the call that was counted at *position*; see `key`."""
        call = self._calls[position]
        return self.key(call, self._equal_to(call)[position], context)

    def key(self, call: ToolCall, ordinal: int, context: Mapping[str, Any]) -> str:
        """Return the idempotency key of a call.

        It depends on the turn, its owner, the tool, the arguments and *ordinal*. It does not depend
        on the id of the call, because a model generates a new one when a turn is repeated.

        Args:
            call: The call.
            ordinal: Its position among the equal calls of the turn.
            context: The tool context, which names the owner of the turn.
        """
        return _digest(self.seed(context), *self.canonical(call), str(ordinal))[:32]

    def seed(self, context: Mapping[str, Any]) -> str:
        """Return the part that all keys of the turn share; it is stored in a pending turn."""
        if self._seed is None:
            identity = self._identity or secrets.token_hex(16)
            self._seed = _digest(*(str(context.get(key, "")) for key in _OWNERS), identity)
        return self._seed

    def restore_seed(self, seed: str | None) -> None:
        """Use the *seed* of a pending turn."""
        self._seed = seed


def _canonical_json(arguments: str) -> str:
    """Return *arguments* as JSON with sorted keys and no spaces; unreadable ones unchanged."""
    try:
        value = loads_comparable(arguments.strip() or "{}")
    except ValueError:
        repaired = repair_json(arguments)
        if repaired is None:
            return arguments
        value = loads_comparable(repaired)
    return _SORTING.encode(value)


def _digest(*parts: str) -> str:
    # Encoded as JSON, because no separator in a part can then make two lists equal.
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def recorded_chain(chain: NextTool, recorder: Recorder) -> NextTool:
    """Return *chain*, which runs a tool with its interceptors, executed by *recorder*."""
    return lambda invocation: recorder.step(
        _tool_step(invocation, chain), invocation.context.runtime
    )


def _tool_step(invocation: ToolInvocation, run_chain: NextTool) -> TurnStep[ToolResult]:
    """Return the call of a tool, with all interceptors, as a step of a turn."""
    call, context = invocation.tool_call, invocation.context

    async def run(runtime: Runtime) -> ToolResult:
        context.runtime = runtime
        return await run_chain(invocation)

    def dump(outcome: ToolResult | Exception) -> dict[str, Any]:
        return to_stored({**_outcome_to_dict(outcome, context), **_context_to_dict(context)})

    async def load(recorded: dict[str, Any]) -> ToolResult:
        return _loaded(from_stored(recorded), context)

    def after(outcome: ToolResult | Exception, seconds: float) -> list[Any]:
        if isinstance(outcome, ApprovalRequired) or context.suspended is not None:
            return []
        error = outcome if isinstance(outcome, Exception) else None
        result = (
            outcome if isinstance(outcome, ToolResult) else ToolResult(str(outcome), is_error=True)
        )
        response = ToolResponse(call.id, call.name, result.text, result.is_error)
        return [ToolCallFinished(call, response, seconds, context.attempt, error)]

    agent = is_agent(invocation.callback)
    return TurnStep(
        "agent" if agent else "tool",
        f"tool {call.name} {context.idempotency_key}",
        run,
        dump,
        load,
        after=after,
        writes=invocation.metadata.effect == "write" and not agent,
        tool_call=call,
    )


def _outcome_to_dict(outcome: ToolResult | Exception, context: ToolContext) -> dict[str, Any]:
    if isinstance(suspended := context.suspended, ApprovalRequired):
        outcome = suspended  # even if an interceptor has caught it
    match outcome:
        case ApprovalRequired(turn=turn):
            return {"suspended": None if turn is None else turn.to_json()}
        case Exception():
            return {"error": error_to_dict(outcome)}
    return {"result": tool_result_to_dict(outcome)}


def _context_to_dict(context: ToolContext) -> dict[str, Any]:
    """Return what the call has left in *context*, which the tool loop reads."""
    completed = None if context.result is None else tool_result_to_dict(context.result)
    return {
        "arguments": context.arguments,
        "remark": context.remark,
        "decided": context.decided,
        "decided_by": context.decided_by,
        "completed": completed,
    }


def _loaded(recorded: dict[str, Any], context: ToolContext) -> ToolResult:
    """Return the recorded result, or raise what was recorded instead."""
    context.arguments, context.remark = recorded["arguments"], recorded["remark"]
    context.decided = recorded["decided"]
    context.decided_by = recorded.get("decided_by")  # older records have none
    if recorded["completed"] is not None:
        context.result = tool_result_from_dict(recorded["completed"])
    if "error" in recorded:
        raise error_from_dict(recorded["error"])
    if "suspended" in recorded:
        turn = recorded["suspended"]
        raise ApprovalRequired(None if turn is None else PendingTurn.from_json(turn))
    return tool_result_from_dict(recorded["result"])


def undo_step(key: str, undo: Callable[[], Awaitable[None]]) -> TurnStep[None]:
    """Return what undoes the call with the idempotency key *key* as a step of a turn."""

    def dump(outcome: Exception | None) -> dict[str, Any]:
        return {} if outcome is None else {"error": error_to_dict(outcome)}

    async def load(recorded: dict[str, Any] | None) -> None:
        # Older records are None, or the error itself.
        error = None if recorded is None else recorded.get("error", recorded)
        if error:
            raise error_from_dict(error)

    return TurnStep("undo", f"undo {key}", lambda _: undo(), dump, load)


log = get_logger(__name__)

# Failures of the tool itself; errors that the model made in its call undo nothing.
_FAILURES = frozenset({"exception", "timeout"})

UndoneCalls = Mapping[object, ToolExecution]
"""The executions of undone calls by the key of the call, with the responses that replace theirs."""


@dataclass(slots=True, eq=False)
class Compensation:
    """The calls of one turn that can be undone, and those that were.

    The tool loop registers the turn with `Runtime.undo_on_failure`, and a round undoes the turn
    when one of its calls has failed. Everything else is here.

    All mappings and sets go by the key of the call, because models may use an id again.

    Attributes:
        keys: Idempotency keys, also for the calls that undo others.
        executions: All executions of the turn so far; the turn adds to this list.
        recorder: Executes what undoes a call, as a step of the turn; or None.
        earlier: Executions that messages of an unfinished turn contain, from before this process
            continued it.
        tools: The calls that were run, with their tools, which may not be offered any more when
            the calls are undone.
        completed: Results of tools that finished although their call failed or was interrupted.
        undone: The calls that were undone.
        final: Calls that stay, even if the turn fails: a memory has stored them.
        shared: Calls that an earlier attempt of the request undoes if the request fails.
    """

    keys: IdempotencyKeys
    executions: list[ToolExecution]
    recorder: Recorder | None = None
    earlier: list[ToolExecution] = field(default_factory=list)
    tools: dict[object, ToolCallback] = field(default_factory=dict)
    completed: dict[object, ToolExecution] = field(default_factory=dict)
    undone: dict[object, ToolExecution] = field(default_factory=dict)
    final: frozenset[object] = frozenset()
    shared: frozenset[object] = frozenset()

    def by_key(self) -> dict[object, ToolExecution]:
        """Return the executions of the turn by the key of their call."""
        return {call_key(execution.tool_call): execution for execution in self.executions}

    def tracked_calls(self) -> set[object]:
        """Return the keys of all calls that something is recorded of."""
        return self.by_key().keys() | self.undone.keys() | self.shared

    def add_earlier(self, messages: Sequence[Message]) -> None:
        """Add the answered calls of *messages* that are not among the executions."""
        known = self.by_key()
        self.earlier += [
            ToolExecution(call, response)
            for call, response in answered_in(messages)
            if call_key(call) not in known
        ]

    def continue_from(self, attempts: Sequence["Compensation"]) -> None:
        """Continue the executions so far, which earlier attempts of the request have made.

        No call is undone twice, although an advisor may show an earlier attempt to the model.

        Args:
            attempts: Those that are undone if the request fails. Calls of others are final.
        """
        if attempts:
            self.undone = attempts[0].undone
            self.shared = frozenset().union(*(a.by_key().keys() - a.final for a in attempts))
        self.final = frozenset(self.by_key()) - self.shared

    def repeat(self, attempt: "Compensation") -> None:
        """Take over the calls of an earlier *attempt*, which led to an answer that has stayed."""
        self.undone.update(attempt.undone)
        self.final |= attempt.by_key().keys() - self.shared

    def failed_call(
        self, executions: Iterable[ToolExecution], toolset: Toolset
    ) -> ToolExecution | None:
        """Return the first of *executions* whose failure undoes the turn, or None."""
        for each in executions:
            if each.response.is_error and _undoes(each, toolset.metadata_of(each.tool_call.name)):
                return each
        return None

    async def undo(
        self,
        executions: Iterable[ToolExecution],
        cause: str,
        toolset: Toolset,
        context: Mapping[str, Any],
        runtime: Runtime,
    ) -> None:
        """Undo all calls of the turn, the last one first, as far as possible.

        A request that is cancelled during this waits for it. Calls that were undone before or are
        final are skipped.

        Args:
            executions: Those of the current round, in the order of the calls.
            cause: The reason, for the model.
            toolset: Finds the tools of calls that were made in another process.
            context: The values of the tool context.
            runtime: How the request runs.
        """
        by_key: dict[object, ToolExecution] = {}
        for execution in (*self.earlier, *self.executions, *executions):
            key = call_key(execution.tool_call)
            by_key.pop(key, None)  # the turn may contain those of the round already
            by_key[key] = execution
        to_undo = [
            (execution, ordinal)
            for execution, ordinal in self._with_ordinals(by_key.values())
            if self._can_be_undone(execution)
        ]
        if to_undo:
            # Shielded: another cancellation must not leave some of the calls in effect.
            await runtime.shielded(self._undo(to_undo[::-1], cause, toolset, context, runtime))

    def _with_ordinals(
        self, executions: Iterable[ToolExecution]
    ) -> Iterator[tuple[ToolExecution, int]]:
        """Yield each execution with its position among the equal calls."""
        counts: Counter[tuple[str, str]] = Counter()
        for execution in executions:
            canonical = self.keys.canonical(execution.tool_call)
            counts[canonical] += 1
            yield execution, counts[canonical]

    def _can_be_undone(self, execution: ToolExecution) -> bool:
        key = call_key(execution.tool_call)
        failed = execution.is_error or FAILURE in execution.metadata
        completed = not failed or DONE in execution.metadata
        ran = execution.arguments is not None
        return completed and ran and key not in self.undone and key not in self.final

    async def _undo(
        self,
        executions: Sequence[tuple[ToolExecution, int]],
        cause: str,
        toolset: Toolset,
        context: Mapping[str, Any],
        runtime: Runtime,
    ) -> None:
        for execution, ordinal in executions:
            call, key = execution.tool_call, call_key(execution.tool_call)
            tool = self.tools.get(key)
            if tool is None:
                tool = (await toolset.with_resolved([call.name], runtime)).get(call.name)
            if tool is None or not callable(tool.metadata.compensation):
                continue
            run = _as_run(self.completed.get(key, execution))
            # A separate key, because undoing is another operation than the call.
            undoing = replace(call, name=compensation_name(call.name))
            values = ToolContext(
                context,
                runtime=runtime,
                tool_call_id=call.id,
                tool_name=call.name,
                idempotency=functools.partial(self.keys.key, undoing, ordinal, context),
            )
            try:
                # The deadline of the turn has usually passed.
                with CallerDeadline(None), runtime.observe(ToolUndo(call, cause)) as step:
                    undo = functools.partial(
                        _compensate, tool.metadata.compensation, tool, run, values
                    )
                    if self.recorder is None:
                        await undo()
                    else:
                        await self.recorder.step(undo_step(values.idempotency_key, undo), runtime)
                    step.result = undone = _undone(execution, cause)
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001
                # The request is not cancelled here, only something that the function awaited. The
                # other calls are undone all the same.
                log.warning("tool call not undone", tool=call.name, id=call.id, error=repr(error))
                continue
            log.info("tool call undone", tool=call.name, id=call.id)
            self.undone[key] = undone
            await runtime.emit(ToolCallUndone(call, undone.response))


def with_undone_executions(
    executions: Iterable[ToolExecution], undone: UndoneCalls
) -> list[ToolExecution]:
    """Return *executions* with the responses of undone calls replaced."""
    return [undone.get(call_key(each.tool_call), each) for each in executions]


def with_undone(result: ToolExecutionResult, undone: UndoneCalls) -> ToolExecutionResult:
    """Return *result* with the responses of undone calls replaced."""
    return replace(
        result,
        conversation_history=rewritten(result.conversation_history, undone),
        executions=tuple(with_undone_executions(result.executions, undone)),
    )


def rewritten(messages: Sequence[Message], undone: UndoneCalls) -> tuple[Message, ...]:
    """Return *messages* with the responses of undone calls replaced."""
    return tuple(_rewritten(messages, undone) if undone else messages)


def _rewritten(messages: Sequence[Message], undone: UndoneCalls) -> Iterator[Message]:
    replacements: dict[str, ToolResponse] = {}
    for message in messages:
        if isinstance(message, AssistantMessage):
            replacements = {
                call.id: undone[call_key(call)].response
                for call in message.tool_calls
                if call_key(call) in undone
            }
        elif replacements and isinstance(message, ToolResponseMessage):
            responses = [replacements.get(each.id, each) for each in message.responses]
            if responses != list(message.responses):
                yield message.mutate(responses=responses)
                continue
        yield message


def _undoes(execution: ToolExecution, metadata: ToolMetadata) -> bool:
    """Return whether a failed *execution* undoes the turn.

    A tool that only reads may fail and be called again; the model can correct its arguments.
    """
    failed = execution.response.metadata.get(FAILURE) in _FAILURES
    return failed and metadata.effect != "read"


def _undone(execution: ToolExecution, cause: str) -> ToolExecution:
    """Return *execution* with the response that the model gets instead."""
    call = execution.tool_call
    text = f"'{call.name}' was run, and then undone because {cause}."
    kept = {k: v for k, v in execution.metadata.items() if k == RAN_WITH}
    response = ToolResponse(call.id, call.name, text, is_error=True, metadata=kept)
    return replace(execution, response=response)


def _as_run(execution: ToolExecution) -> ToolExecution:
    """Return *execution* with the arguments and the result of the tool itself."""
    execution = replace(execution, response=without_remark(execution.response))
    call, arguments = execution.tool_call, execution.arguments
    if arguments is None or arguments == call.arguments:
        return execution
    return replace(execution, tool_call=replace(call, arguments=arguments))


async def _compensate(
    compensation: Callable[..., Any],
    tool: ToolCallback,
    execution: ToolExecution,
    context: ToolContext,
) -> None:
    if wants_execution(compensation):
        await context.runtime.invoke(compensation, execution)
        return
    signature = signature_of(compensation, name=compensation_name(execution.tool_call.name))
    given = _complete_arguments(tool, execution.tool_call)
    arguments = {name: given[name] for name in signature.parameters if name in given}
    call = signature.prepare(compensation, dumps_exact(arguments), context)
    await context.runtime.invoke(call)


def _complete_arguments(tool: ToolCallback, call: ToolCall) -> dict[str, Any]:
    """Return the arguments of *call* as JSON, with the tool's defaults for those left out."""
    schema = own_schema(tool)
    properties: Mapping[str, Any] = schema.get("properties", {})
    defaults = {
        name: each["default"]
        for name, each in properties.items()
        if isinstance(each, Mapping) and "default" in each
    }
    given: dict[str, Any] = repair_value(object_in(call.arguments, call.name), schema)
    return defaults | given
