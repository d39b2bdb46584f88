"""`TurnResult`: the result of a durable turn, and its JSON."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chatclient.chain.chain import ChatClientResponse
from chatclient.chat.pending_turn import PendingTurn
from chatclient.chat.response import ChatResponse
from chatclient.chat.resumption import Decision
from chatclient.chat.serialization import (
    call_from_dict,
    call_to_dict,
    error_from_dict,
    error_to_dict,
    response_from_dict,
    response_to_dict,
    tool_response_from_dict,
    tool_response_to_dict,
    tool_result_from_dict,
    tool_result_to_dict,
)
from chatclient.chat.stored_values import LEFT_OUT, from_stored, to_stored
from chatclient.chat.tool_execution import ToolExecution
from chatclient.chat.turn import Turn
from chatclient.client.accessors import executions_in, pending_in, require_answer, warn_waiting
from chatclient.structured.converters import converter_of
from chatclient.structured.output import read_answer


@dataclass(frozen=True, slots=True)
class TurnResult:
    """The result of a durable turn, so far.

    Attributes:
        chat_response: The last response of the model, with the usage of the turn.
        pending_turn: The turn, if it waits for decisions; otherwise None.
        interrupted: The ids of calls that wait because a process ended while their tools ran; it
            is unknown whether they took effect.
        tool_executions: The executed tool calls, in order.
    """

    chat_response: ChatResponse
    pending_turn: PendingTurn | None = None
    interrupted: tuple[str, ...] = ()
    tool_executions: tuple[ToolExecution, ...] = ()

    def content(self) -> str:
        """Return the text of the answer.

        If the turn waits, this is the text before the tool calls, and a warning is logged.
        """
        if self.pending_turn is not None:
            warn_waiting(self.pending_turn)
        return self.chat_response.text

    def entity(self, kind: Any) -> Any:
        """Return the answer as a value of the type *kind*; see `CallResponse.entity`.

        Raises:
            EntityError: The turn waits for decisions, or the answer cannot be converted.
        """
        turn = Turn()
        turn.pending = self.pending_turn
        require_answer(ChatClientResponse(self.chat_response, turn=turn))
        return read_answer(self.chat_response, converter_of(kind))


def result_to_dict(
    response: ChatClientResponse, interrupted: Sequence[str], deadline: float | None
) -> dict[str, Any]:
    """Return the result of a segment as JSON values.

    Args:
        response: The response of its request.
        interrupted: The ids of interrupted calls.
        deadline: The deadline of the turn in seconds since 1970, or None.
    """
    pending = pending_in(response)
    return to_stored(
        {
            "response": response_to_dict(response.chat_response),
            "pending": None if pending is None else pending.to_json(),
            "interrupted": [*interrupted] if pending is not None else [],
            "executions": [_execution_to_dict(each) for each in executions_in(response)],
            "seconds_left": None if deadline is None else deadline - time.time(),
        }
    )


def result_from_dict(data: Mapping[str, Any]) -> TurnResult:
    """Return the result of a segment from what `result_to_dict` returned."""
    data = from_stored(data)
    pending = data["pending"]
    return TurnResult(
        response_from_dict(data["response"]),
        None if pending is None else PendingTurn.from_json(pending),
        tuple(data["interrupted"]),
        tuple(_execution_from_dict(each) for each in data["executions"]),
    )


def _execution_to_dict(execution: ToolExecution) -> dict[str, Any]:
    error = execution.error
    return {
        "call": call_to_dict(execution.tool_call),
        "response": tool_response_to_dict(execution.response),
        "seconds": execution.seconds,
        "attempt": execution.attempt,
        "error": None if error is None else error_to_dict(error),
        "started": execution.started,
    }


def _execution_from_dict(data: Mapping[str, Any]) -> ToolExecution:
    error = data["error"]
    return ToolExecution(
        call_from_dict(data["call"]),
        tool_response_from_dict(data["response"]),
        data["seconds"],
        data["attempt"],
        None if error is None else error_from_dict(error),
        started=data["started"],
    )


def decisions_to_dict(decisions: Mapping[str, Decision]) -> dict[str, Any]:
    """Return *decisions* as JSON values."""
    found: dict[str, Any] = {}
    for id, decision in decisions.items():
        result = decision.result
        found[id] = {
            "approved": decision.approved,
            "message": decision.message,
            "arguments": decision.arguments,
            "result": None if result is None else tool_result_to_dict(result),
        }
    return to_stored(found)


def decisions_from_dict(data: Mapping[str, Any]) -> dict[str, Decision]:
    """Return the decisions in *data*, the result of `decisions_to_dict`."""
    return {
        id: Decision(
            each["approved"],
            each["message"],
            each["arguments"],
            None if each["result"] is None else tool_result_from_dict(each["result"]),
        )
        for id, each in from_stored(data).items()
        if id != LEFT_OUT
    }
