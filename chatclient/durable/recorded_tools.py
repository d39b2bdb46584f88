"""`RecordedTools`: the outermost tool interceptor, which records the results of tools."""

import time
from collections.abc import Mapping
from typing import Any

from chatclient.chat.events import ToolCallFinished
from chatclient.chat.messages import ToolResponse, ToolResponseMessage
from chatclient.chat.serialization import message_from_dict, message_to_dict
from chatclient.chat.tool import ToolContext, ToolResult
from chatclient.durable.recorded_errors import error_from_dict, error_to_dict, json_form
from chatclient.durable.recorded_model import publishing
from chatclient.durable.recording import Recording
from chatclient.errors import ToolInterruptedError
from chatclient.tools.execution.interceptors import NextTool, ToolInvocation
from chatclient.tools.pending_turn import ApprovalRequired, PendingTurn


class RecordedTools:
    """Records the results and errors of tools, and returns recorded ones.

    A tool that writes has two steps: the first one records that it begins. If it began in an
    earlier execution of the turn and its result was not recorded, it may have taken effect; see
    `OnInterrupted`.

    Args:
        recording: The record of the turn.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    async def __call__(self, invocation: ToolInvocation, call_next: NextTool, /) -> ToolResult:
        """Return the result of the tool, from the record if it is there."""
        context = invocation.context
        key = f"{invocation.tool_call.name} {context.idempotency_key}"
        begun = False
        if invocation.metadata.effect == "write" and self._recording.on_interrupted != "repeat":
            begun = await self._recording.was_started(f"begin {key}")
        outcome: ToolResult | Exception | None = None

        async def run_tool() -> dict[str, Any]:
            nonlocal outcome
            began = time.monotonic()
            try:
                self._recording.check_deadline()
                outcome = await self._run(invocation, call_next, interrupted=begun)
            except Exception as error:  # noqa: BLE001 - recorded, and raised below
                outcome = error
            await self._publish(invocation, outcome, time.monotonic() - began)
            return {**_outcome_to_dict(outcome), **_context_to_dict(context)}

        recorded, replayed = await self._recording.step(f"tool {key}", run_tool)
        if "interrupted" in recorded:
            self._recording.interrupted.append(invocation.tool_call.id)
        if replayed:
            return _replay(recorded, context)
        if isinstance(outcome, Exception):
            raise outcome
        assert outcome is not None  # noqa: S101 - set by the step that has just run
        return outcome

    async def _run(
        self, invocation: ToolInvocation, call_next: NextTool, *, interrupted: bool
    ) -> ToolResult:
        if not interrupted:
            publisher, context = self._recording.publisher, invocation.context
            if publisher is not None:
                context.runtime = publishing(context.runtime, publisher)
            return await call_next(invocation)
        if self._recording.on_interrupted == "ask":
            raise _Interrupted
        name = invocation.tool_call.name
        msg = (
            f"The process ended while {name} ran. It is unknown whether the call took effect: find"
            " out before you repeat it"
        )
        raise ToolInterruptedError(msg, tool_name=name)

    async def _publish(
        self, invocation: ToolInvocation, outcome: ToolResult | Exception, seconds: float
    ) -> None:
        publisher, call = self._recording.publisher, invocation.tool_call
        if publisher is None or isinstance(outcome, ApprovalRequired):
            return
        error = outcome if isinstance(outcome, Exception) else None
        result = ToolResult(str(outcome), is_error=True) if error is not None else outcome
        assert isinstance(result, ToolResult)  # noqa: S101 - for type checkers
        response = ToolResponse(call.id, call.name, result.text, result.is_error)
        attempt = invocation.context.attempt
        self._recording.published.add(call.id)
        await publisher.publish(ToolCallFinished(call, response, seconds, attempt, error))
        await publisher.flush()


class _Interrupted(ApprovalRequired):
    """Suspends the turn until there is a decision about an interrupted call."""


def _outcome_to_dict(outcome: ToolResult | Exception) -> dict[str, Any]:
    match outcome:
        case _Interrupted():
            return {"interrupted": True, "suspended": None}
        case ApprovalRequired(turn=turn):
            return {"suspended": None if turn is None else turn.to_json()}
        case Exception():
            return {"error": error_to_dict(outcome)}
    return {"result": tool_result_to_dict(outcome)}


def tool_result_to_dict(result: ToolResult) -> dict[str, Any]:
    """Return *result* as JSON values; its value is left out if it has no JSON form."""
    response = ToolResponse("", "", result.text, result.is_error, result.media, result.metadata)
    (data,) = message_to_dict(ToolResponseMessage((response,)))["responses"]
    return {
        **data,
        "metadata": json_form(data.get("metadata"), None),
        "return_direct": result.return_direct,
        "value": json_form(result.value, None),
    }


def tool_result_from_dict(data: Mapping[str, Any]) -> ToolResult:
    """Return the result in *data*, the result of `tool_result_to_dict`."""
    message: Any = message_from_dict({"role": "tool", "responses": [data]})
    (response,) = message.responses
    return ToolResult(
        response.data,
        response.media,
        response.is_error,
        response.metadata,
        data["value"],
        data["return_direct"],
    )


def _context_to_dict(context: ToolContext) -> dict[str, Any]:
    """Return what the call has left in *context*, which the tool loop reads."""
    completed = None if context.result is None else tool_result_to_dict(context.result)
    return {
        "arguments": context.arguments,
        "remark": context.remark,
        "decided": context.decided,
        "completed": completed,
    }


def _replay(recorded: Mapping[str, Any], context: ToolContext) -> ToolResult:
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
