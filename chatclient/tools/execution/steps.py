"""Tool calls, and what undoes them, as steps of a turn."""

from collections.abc import Awaitable, Callable
from typing import Any

from chatclient.chat.events import ToolCallFinished
from chatclient.chat.messages import ToolResponse
from chatclient.chat.pending_turn import ApprovalRequired, PendingTurn
from chatclient.chat.recorder import Recorder, TurnStep
from chatclient.chat.serialization import (
    error_from_dict,
    error_to_dict,
    tool_result_from_dict,
    tool_result_to_dict,
)
from chatclient.chat.stored_values import from_stored, to_stored
from chatclient.chat.tool import ToolContext, ToolResult, is_agent
from chatclient.runtime.runtime import Runtime
from chatclient.tools.execution.interceptors import NextTool, ToolInvocation


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
        "completed": completed,
    }


def _loaded(recorded: dict[str, Any], context: ToolContext) -> ToolResult:
    """Return the recorded result, or raise what was recorded instead."""
    context.arguments, context.remark = recorded["arguments"], recorded["remark"]
    context.decided = recorded["decided"]
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
