"""Undoes what tools have done when a later call of the turn fails (a saga).

A tool says with `@tool(compensation=...)` how a call of it is undone. When a tool that writes fails
in a turn, or when the turn ends with an error, all calls of the turn that succeeded are undone, the
last one first. What the model was told about them is rewritten, so that it knows where it stands.
"""

import asyncio
import functools
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from chatclient.callers import caller_deadline
from chatclient.errors import ToolDefinitionError
from chatclient.json import dumps
from chatclient.logs import get_logger
from chatclient.messages import (
    AssistantMessage,
    Message,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
)
from chatclient.runtime import Runtime
from chatclient.tool import DONE, FAILURE, RAN_WITH, ToolCallback, ToolContext, ToolMetadata
from chatclient.tools.binding import object_in, own_schema
from chatclient.tools.execution import ToolExecutionResult
from chatclient.tools.outcome import ToolExecution, without_remark
from chatclient.tools.parameters import callee_of
from chatclient.tools.pending import answered_in
from chatclient.tools.repair import repair_value
from chatclient.tools.schema import signature_of
from chatclient.tools.turn import ToolTurn, last_turn

log = get_logger(__name__)

_FAILURES = frozenset({"exception", "timeout"})  # of a tool; the model's own slips undo nothing

ToolOf = Callable[[ToolCall], Awaitable[ToolCallback | None]]
"""Knows the tool of a call that was run."""

Undone = Mapping[int, ToolExecution]
"""Calls that were undone, by the identity of the call, each with what the model is told now."""


def is_failure(execution: ToolExecution, metadata: ToolMetadata) -> bool:
    """Return whether *execution* is reason to undo what the turn has done.

    A tool that only reads may fail and be asked again; arguments that do not fit are the model's to
    mend.
    """
    failed = execution.response.metadata.get(FAILURE) in _FAILURES
    return failed and metadata.effect != "read"


def executed_in(messages: Sequence[Message], turn: ToolTurn) -> list[ToolExecution]:
    """Return the calls that the turn at the end of *messages* has made, with what came of them.

    Each is as *turn* knows it: advisors may have rewritten what *messages* tell of it. Calls that
    only *turn* knows go first. There are some if an advisor has asked again: the last turn in
    *messages* begins with its words, and they were made before.
    """
    known = turn.by_identity()
    told = list(answered_in(last_turn(messages)))
    present = {id(call) for call, _ in told}
    before = (each for each in turn.executions if id(each.tool_call) not in present)
    return [*before, *(known.get(id(call)) or ToolExecution(call, t) for call, t in told)]


async def undo(
    executions: Iterable[ToolExecution],
    cause: str,
    tool_of: ToolOf,
    turn: ToolTurn,
    runtime: Runtime,
) -> None:
    """Undo what can be undone of *executions*, the last one first, and note it in *turn*.

    A request that is cancelled meanwhile waits until that is done. Calls that were undone before,
    or that are settled, are left alone.

    Args:
        executions: In the order in which they were made.
        cause: Why, for the model.
        tool_of: Knows the tool of a call, which says how it is undone.
        turn: What they belong to.
        runtime: How the request runs.
    """
    done: dict[int, ToolExecution] = {}
    for execution in executions:
        done.pop(id(execution.tool_call), None)  # the turn knows it, and so does its last round
        done[id(execution.tool_call)] = execution
    to_undo = [
        (execution, ordinal)
        for execution, ordinal in _numbered(done.values(), turn)
        if _was_done(execution)
        and execution.arguments is not None
        and id(execution.tool_call) not in turn.undone
        and id(execution.tool_call) not in turn.settled
    ]
    if to_undo:
        await runtime.shielded(_undo(to_undo[::-1], cause, tool_of, turn, runtime))


def _numbered(
    executions: Iterable[ToolExecution], turn: ToolTurn
) -> Iterator[tuple[ToolExecution, int]]:
    """Yield each of *executions* with how often the very same call was made, this time included."""
    made: Counter[tuple[str, str]] = Counter()
    for execution in executions:
        key = turn.meaning_of(execution.tool_call)
        made[key] += 1
        yield execution, made[key]


def _was_done(execution: ToolExecution) -> bool:
    """Return whether the tool has done its work, whatever the model was told of it."""
    failed = execution.is_error or FAILURE in execution.metadata
    return not failed or DONE in execution.metadata


async def _undo(
    done: Sequence[tuple[ToolExecution, int]],
    cause: str,
    tool_of: ToolOf,
    turn: ToolTurn,
    runtime: Runtime,
) -> None:
    for execution, ordinal in done:
        call = execution.tool_call
        tool = await tool_of(call)
        if tool is None or not callable(tool.metadata.compensation):
            continue
        undoing = replace(call, name=_name(call.name))  # another thing than the call itself
        context = ToolContext(
            turn.context,
            runtime=runtime,
            tool_call_id=call.id,
            tool_name=call.name,
            idempotency=functools.partial(turn.idempotency_key, undoing, ordinal),
        )
        try:
            run = _as_run(turn.done.get(id(call), execution))
            with caller_deadline(None):  # as a rule, the turn's own has passed
                await _compensate(tool.metadata.compensation, tool, run, context)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001
            # The others are to be undone all the same, also where something that this one waits for
            # was cancelled: the request itself is not, here.
            log.warning("tool call not undone", tool=call.name, id=call.id, error=repr(error))
            continue
        log.info("tool call undone", tool=call.name, id=call.id)
        told = f"'{call.name}' was run, and then undone because {cause}."
        kept = {k: v for k, v in execution.metadata.items() if k == RAN_WITH}
        response = ToolResponse(call.id, call.name, told, is_error=True, metadata=kept)
        turn.undone[id(call)] = replace(execution, response=response)


def _as_run(execution: ToolExecution) -> ToolExecution:
    """Return *execution* with what the tool was run with, and returned: that is to be undone."""
    execution = replace(execution, response=without_remark(execution.response))
    call, arguments = execution.tool_call, execution.arguments
    if arguments is None or arguments == call.arguments:
        return execution
    return replace(execution, tool_call=replace(call, arguments=arguments))


def retold(executions: Iterable[ToolExecution], undone: Undone) -> list[ToolExecution]:
    """Return *executions* with what is to be told about calls that were undone."""
    return [undone.get(id(each.tool_call), each) for each in executions]


def with_undone(result: ToolExecutionResult, undone: Undone) -> ToolExecutionResult:
    """Return *result* with what is to be told about calls that were undone."""
    return replace(
        result,
        conversation_history=rewritten(result.conversation_history, undone),
        executions=tuple(retold(result.executions, undone)),
    )


def rewritten(messages: Sequence[Message], undone: Undone) -> tuple[Message, ...]:
    """Return *messages* with what is to be told about calls that were undone."""
    return tuple(_rewritten(messages, undone) if undone else messages)


def _rewritten(messages: Sequence[Message], undone: Undone) -> Iterator[Message]:
    calls: Mapping[str, ToolCall] = {}
    for message in messages:
        if isinstance(message, AssistantMessage):
            calls = {call.id: call for call in message.tool_calls}
        elif isinstance(message, ToolResponseMessage):
            executions = [undone.get(id(calls.get(r.id))) for r in message.responses]
            new = [
                response if execution is None else execution.response
                for execution, response in zip(executions, message.responses, strict=True)
            ]
            if new != list(message.responses):
                yield message.mutate(responses=new)
                continue
        yield message


def check_compensation(name: str, known: Sequence[str], compensation: Any) -> None:
    """Make sure that *compensation* can undo calls of the tool *name*.

    Args:
        name: The tool.
        known: The names of its parameters.
        compensation: What its metadata says.

    Raises:
        ToolDefinitionError: It is nothing that can be called, or wants what the tool does not get.
    """
    if not callable(compensation):
        msg = f"the compensation of tool {name!r} is {compensation!r}, which cannot be called"
        raise ToolDefinitionError(msg)
    try:
        alone = _wants_execution(compensation)
    except Exception as error:
        msg = f"the parameters of the compensation of tool {name!r} cannot be read: {error}"
        raise ToolDefinitionError(msg) from error
    if alone:
        return
    schema = signature_of(compensation, name=_name(name)).input_schema
    if missing := [each for each in schema.get("required", ()) if each not in known]:
        msg = (
            f"the compensation of tool {name!r} needs {missing}, which the tool does not get; it "
            f"takes some of {list(known)}, or one ToolExecution"
        )
        raise ToolDefinitionError(msg)


async def _compensate(
    compensation: Callable[..., Any],
    tool: ToolCallback,
    execution: ToolExecution,
    context: ToolContext,
) -> None:
    if _wants_execution(compensation):
        await context.runtime.invoke(compensation, execution)
        return
    signature = signature_of(compensation, name=_name(execution.tool_call.name))
    given = _given(tool, execution.tool_call)
    arguments = {name: given[name] for name in signature.parameters if name in given}
    call = signature.prepare(compensation, dumps(arguments).decode(), context)
    await context.runtime.invoke(call)


def _given(tool: ToolCallback, call: ToolCall) -> dict[str, Any]:
    """Return what *tool* was run with, as JSON: with its defaults for what *call* leaves out."""
    schema = own_schema(tool)
    properties: Mapping[str, Any] = schema.get("properties", {})
    defaults = {
        name: each["default"]
        for name, each in properties.items()
        if isinstance(each, Mapping) and "default" in each
    }
    given: dict[str, Any] = repair_value(object_in(call.arguments, call.name), schema)
    return defaults | given


def _name(tool: str) -> str:
    return f"the compensation of {tool}"


def _wants_execution(compensation: Callable[..., Any]) -> bool:
    """Return whether *compensation* takes a `ToolExecution` and nothing else."""
    parameters = callee_of(compensation).parameters
    return [each.annotation for each in parameters] == [ToolExecution]
