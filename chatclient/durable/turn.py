"""Runs one segment of a durable turn: until its answer, or until it waits for decisions."""

import asyncio
import time
from collections.abc import Mapping, Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from chatclient.chat.pending_turn import PendingTurn
from chatclient.chat.resumption import Decision
from chatclient.chat.serialization import response_from_dict
from chatclient.client.pipeline import Pipeline
from chatclient.durable.recording import (
    OnInterrupted,
    Publisher,
    Recording,
    StepRecorder,
    TurnRetries,
)
from chatclient.durable.requests import recorded, request_from_dict, tool_names
from chatclient.durable.results import decisions_from_dict, result_to_dict
from chatclient.errors import ChatMemoryUnavailableError, TurnVersionError
from chatclient.runtime.cancellation import Cancellation, run_request
from chatclient.runtime.runtime import ON_LOOP

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0  # seconds
_REPLAY_SECONDS = 10.0  # for a turn that is repeated after its deadline, until its next new step


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
        """Return the result of a segment, as JSON values; it has been checked.

        Args:
            data: What `segment` returns.
            steps: Records the steps.
            recovered: Whether an earlier execution has recorded steps.
            publisher: Receives the events.
        """
        pause = _FIRST_PAUSE
        while True:
            recording = Recording(
                steps,
                started=data["started"],
                deadline=data["deadline"],
                on_interrupted=self.on_interrupted,
                publisher=publisher if data["streaming"] else None,
            )
            try:
                return await self._run_once(data, recording, recovered=recovered)
            except ChatMemoryUnavailableError:
                # Repeated only if it failed before its first new step: nothing was undone then.
                if recording.live or pause > _LONGEST_PAUSE:
                    raise
            await asyncio.sleep(pause)
            pause, recovered = pause * 2, True

    async def _run_once(
        self, data: Mapping[str, Any], recording: Recording, *, recovered: bool
    ) -> dict[str, Any]:
        """Return the result of a segment, continuing after its recorded steps."""
        deadline, resume = data["deadline"], data["resume"]
        request = request_from_dict(self.pipeline, data["request"])
        if resume is not None:
            request = request.resuming(resume["turn"], decisions_from_dict(resume["decisions"]))
        if deadline is not None:
            left = max(deadline - time.time(), _REPLAY_SECONDS if recovered else 0.001)
            request = request.deadline(left)
        request = recorded(request, recording, data["turn"], retries=self.retries)
        runtime = ON_LOOP.streamed_to(_discard) if data["streaming"] else ON_LOOP
        cancellation = Cancellation()
        work = request.pipeline.run(request.settings, runtime.with_cancellation(cancellation))
        response = await run_request(work, cancellation)
        return result_to_dict(response, recording.interrupted, deadline)

    def check(self, data: Mapping[str, Any], recorded: Mapping[str, Any]) -> None:
        """Check that this version has the tools that a segment needs to continue.

        Args:
            data: What the segment was started with.
            recorded: The recorded values of its steps, by name.

        Raises:
            TurnVersionError: Tools are missing.
        """
        called = _recorded_calls(recorded)
        if (resume := data["resume"]) is not None:
            decisions = decisions_from_dict(resume["decisions"])
            called |= needed_tools(PendingTurn.from_json(resume["turn"]), decisions)
        check_tools(self.pipeline, data, called)


def needed_tools(pending: PendingTurn, decisions: Mapping[str, Decision]) -> set[str]:
    """Return the names of the tools without which *pending* cannot continue with *decisions*.

    These are the tools of calls that were run, which may have to be undone, and of those that will
    be run.
    """
    waiting = [
        call
        for call in (*pending.pending, *pending.held)
        if call.id not in decisions or decisions[call.id].approved
    ]
    run = [each.tool_call for each in pending.executions if each.arguments is not None]
    return {call.name for call in (*waiting, *run)}


def _recorded_calls(recorded: Mapping[str, Any]) -> set[str]:
    """Return the names of the tools that recorded responses of the model call."""
    values = [each["value"] for name, each in recorded.items() if name.startswith("model ")]
    responses = [each["response"] for each in values if "response" in each]
    return {
        call.name
        for response in map(response_from_dict, responses)
        for generation in response.generations
        for call in generation.output.tool_calls
    }


def check_tools(pipeline: Pipeline, data: Mapping[str, Any], called: AbstractSet[str]) -> None:
    """Check that a client has those *called* tools that it had when a turn was started.

    Raises:
        TurnVersionError: Tools are missing.
    """
    missing = sorted(called & set(data["tools"]) - set(tool_names(pipeline)))
    if missing:
        names = ", ".join(missing)
        msg = (
            f"turn {data['turn']!r} has called tools that the client {data['client']!r} does not"
            f" have here: {names}. Run a worker of a version that has them"
        )
        raise TurnVersionError(msg, turn_id=data["turn"], missing_tools=missing)


async def _discard(_event: object) -> None:
    """Drop an event; the publisher has it."""
