"""Runs one segment of a durable turn: until its answer, or until it waits for decisions."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from chatclient.chain.chain import ChatClientResponse
from chatclient.chat.events import ApprovalNeeded, Done
from chatclient.chat.response import ChatResponse
from chatclient.chat.serialization import response_from_dict, response_to_dict
from chatclient.client.accessors import executions_in, pending_in, require_answer, text_of
from chatclient.client.pipeline import Pipeline
from chatclient.advisors.tool_loop.context_keys import PENDING_TURN
from chatclient.durable.events import (
    call_from_dict,
    call_to_dict,
    tool_response_from_dict,
    tool_response_to_dict,
)
from chatclient.durable.recorded_errors import error_from_dict, error_to_dict
from chatclient.durable.recorded_model import TurnRetries
from chatclient.durable.recording import OnInterrupted, Publisher, Recording, StepRecorder
from chatclient.durable.recorded_tools import tool_result_from_dict, tool_result_to_dict
from chatclient.durable.requests import recorded, request_from_dict
from chatclient.errors import ChatMemoryUnavailableError, TurnCancelledError, TurnVersionError
from chatclient.runtime.cancellation import Cancellation, run_request
from chatclient.runtime.runtime import ON_LOOP
from chatclient.structured.converters import converter_of
from chatclient.structured.output import read_answer
from chatclient.tools.execution.approval import Decision
from chatclient.tools.pending_turn import PendingTurn
from chatclient.tools.tool_execution import ToolExecution

T = TypeVar("T")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0  # seconds
_REPLAY_SECONDS = 10.0  # for a turn that is repeated after its deadline, until its next new step


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
        """Return the text of the answer; if the turn waits, the text before the tool calls."""
        return self.chat_response.text

    def entity(self, kind: Any) -> Any:
        """Return the answer as a value of the type *kind*; see `CallResponse.entity`.

        Raises:
            EntityError: The turn waits for decisions, or the answer cannot be converted.
        """
        context = {} if self.pending_turn is None else {PENDING_TURN: self.pending_turn}
        require_answer(ChatClientResponse(self.chat_response, context))
        return read_answer(self.chat_response, converter_of(kind))


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class SegmentRunner:
    """Runs segments of the turns of one client.

    Attributes:
        pipeline: The pipeline of the client.
        on_interrupted: What happens with interrupted calls of tools that write.
        retries: Whether failed model calls are repeated.
    """

    pipeline: Pipeline
    on_interrupted: OnInterrupted
    retries: TurnRetries | None

    async def run(
        self, data: Mapping[str, Any], steps: StepRecorder, *, recovered: bool, publisher: Publisher
    ) -> dict[str, Any]:
        """Return the result of a segment, as JSON values.

        Args:
            data: What `segment` returns.
            steps: Records the steps.
            recovered: Whether an earlier execution has recorded steps.
            publisher: Receives the events.
        """
        resume = data["resume"]
        if recovered or resume is not None:
            self._check_tools(data)
        if data.get("cancelled"):
            msg = f"turn {data['turn']!r} was cancelled while it waited for decisions"
            raise TurnCancelledError(msg, turn_id=data["turn"])
        pause = _FIRST_PAUSE
        while True:
            try:
                return await self._run_once(data, steps, recovered=recovered, publisher=publisher)
            except ChatMemoryUnavailableError:  # before the first new step: nothing is undone
                if pause > _LONGEST_PAUSE:
                    raise
                await asyncio.sleep(pause)
                pause, recovered = pause * 2, True

    async def _run_once(
        self, data: Mapping[str, Any], steps: StepRecorder, *, recovered: bool, publisher: Publisher
    ) -> dict[str, Any]:
        """Return the result of a segment, continuing after its recorded steps."""
        deadline, resume = data["deadline"], data["resume"]
        recording = Recording(
            steps,
            started=data["started"],
            deadline=deadline,
            on_interrupted=self.on_interrupted,
            publisher=publisher if data["streaming"] else None,
        )
        request = request_from_dict(self.pipeline, data["request"])
        if resume is not None:
            request = request.resuming(resume["turn"], _decisions_from(resume["decisions"]))
        if deadline is not None:
            left = max(deadline - time.time(), _REPLAY_SECONDS if recovered else 0.001)
            request = request.deadline(left)
        request = recorded(request, recording, data["turn"], retries=self.retries)
        runtime = ON_LOOP.streamed_to(_discard) if data["streaming"] else ON_LOOP
        cancellation = Cancellation()
        work = request.pipeline.run(request.settings, runtime.with_cancellation(cancellation))
        response = await run_request(work, cancellation)
        return _result_to_dict(response, recording, deadline)

    def _check_tools(self, data: Mapping[str, Any]) -> None:
        """Check that this version has the tools that the turn was started with.

        Raises:
            TurnVersionError: Tools are missing.
        """
        missing = sorted(set(data["tools"]) - set(tool_names(self.pipeline)))
        if missing:
            names = ", ".join(missing)
            msg = (
                f"turn {data['turn']!r} was started with tools that the client {data['client']!r}"
                f" does not have here: {names}. Run a worker of the version that started it"
            )
            raise TurnVersionError(msg, turn_id=data["turn"], missing_tools=missing)


async def _discard(_event: object) -> None:
    """Drop an event; the publisher has it."""


def tool_names(pipeline: Pipeline) -> list[str]:
    """Return the names of the client's default tools, without those of providers."""
    named = []
    for source in pipeline.defaults.default_tools:
        if isinstance(source, str):
            named.append(source)
        elif (definition := getattr(source, "definition", None)) is not None:
            named.append(definition.name)
    return named


def decisions_to_dict(decisions: Mapping[str, Decision]) -> dict[str, Any]:
    """Return *decisions* as JSON values."""
    found = {}
    for id, decision in decisions.items():
        result = decision.result
        found[id] = {
            "approved": decision.approved,
            "message": decision.message,
            "arguments": decision.arguments,
            "result": None if result is None else tool_result_to_dict(result),
        }
    return found


def _decisions_from(data: Mapping[str, Any]) -> dict[str, Decision]:
    return {
        id: Decision(
            each["approved"],
            each["message"],
            each["arguments"],
            None if each["result"] is None else tool_result_from_dict(each["result"]),
        )
        for id, each in data.items()
    }


def _result_to_dict(
    response: ChatClientResponse, recording: Recording, deadline: float | None
) -> dict[str, Any]:
    pending = pending_in(response)
    return {
        "response": response_to_dict(response.chat_response),
        "pending": None if pending is None else pending.to_json(),
        "interrupted": recording.interrupted if pending is not None else [],
        "executions": [_execution_to_dict(each) for each in executions_in(response)],
        "seconds_left": None if deadline is None else deadline - time.time(),
    }


def result_from_dict(data: Mapping[str, Any]) -> TurnResult:
    """Return the result of a segment from what `SegmentRunner.run` returned."""
    pending = data["pending"]
    return TurnResult(
        response_from_dict(data["response"]),
        None if pending is None else PendingTurn.from_json(pending),
        tuple(data["interrupted"]),
        tuple(_execution_from_dict(each) for each in data["executions"]),
    )


def last_event(result: TurnResult) -> ApprovalNeeded | Done:
    """Return the event at the end of a segment with *result*."""
    if result.pending_turn is not None:
        return ApprovalNeeded(result.pending_turn)
    return Done(result.chat_response, executions=result.tool_executions)


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
