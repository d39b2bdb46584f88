"""The state of the tools of a turn: counters, executions, idempotency keys."""

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from chatclient._internal.frozen import EMPTY
from chatclient.chat.message_merging import last_turn_start
from chatclient.chat.messages import (
    AssistantMessage,
    Message,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
)
from chatclient.chat.parts import call_key
from chatclient.chat.pending_turn import PendingTurn
from chatclient.chat.prompt import Prompt
from chatclient.chat.recorder import Recorder
from chatclient.chat.tool import (
    BACKGROUND,
    CONVERSATION_ID,
    FAILURE,
    ToolCallback,
    ToolExecution,
)
from chatclient.chat.turn import TURN_KEY, Turn, present_recorder
from chatclient.memory.shortening import READ_RESULT
from chatclient.runtime.concurrency import BackgroundJob
from chatclient.runtime.runtime import Runtime
from chatclient.tools.execution.background import BackgroundCalls
from chatclient.tools.execution.compensation import Compensation, IdempotencyKeys
from chatclient.tools.execution.result import ToolExecutionResult
from chatclient.tools.execution.toolset import Toolset

_SEED = "idempotency"  # the note of a pending turn with the seed of its idempotency keys

StreamedCall = tuple[str, str, str]
"""Id, name and arguments: what a streamed call has in common with the call of the response."""


@dataclass(slots=True, eq=False)
class ToolState:
    """The state of the tools during one run of a tool loop.

    Attributes:
        context: The values of the tool context.
        identity: Identifies the turn in its idempotency keys; None for a random value.
        turn: The turn, or None in a loop of the application's own.
        calls: The number of calls of each tool.
        failures: The number of rounds in which each tool failed in each way.
        executions: All calls of the turn so far.
        rounds: The number of model calls.
        clock: Measures how long the turn takes, in seconds.
        recorder: Executes the calls, as steps of the turn; None runs them directly.
        started: When the turn started, on that clock.
        unoffered: Tools by name that are run although the model was not offered them.
        background: The calls that run in the background; None for a loop of an application's own,
            in which these tools run like all others.
        early_calls: Calls that were started while the model was streaming; see `streamed_call`.
        resumed: Whether the turn continues a pending one.
        undo_closed: Whether no call is undone any more, because that was done, or must not be.
        keys: The idempotency keys.
        compensation: Undoes the calls if the turn fails.
    """

    context: Mapping[str, Any] = field(default=EMPTY, repr=False)
    identity: str | None = None
    turn: Turn | None = None
    calls: Counter[str] = field(default_factory=Counter)
    failures: Counter[tuple[str, str]] = field(default_factory=Counter)
    executions: list[ToolExecution] = field(default_factory=list)
    rounds: int = 0
    clock: Callable[[], float] = time.monotonic
    recorder: Recorder | None = None
    started: float = field(init=False)
    unoffered: Mapping[str, ToolCallback] = EMPTY
    background: BackgroundCalls | None = None
    early_calls: dict[StreamedCall, BackgroundJob[Any]] = field(default_factory=dict)
    resumed: bool = False
    undo_closed: bool = False
    keys: IdempotencyKeys = field(init=False)
    compensation: Compensation = field(init=False)
    # The last result of each call, and how often in a row the call had it; without those of the
    # executions that follow, which are compared when the model calls tools again.
    _repeats: dict[tuple[str, str], tuple[str, int]] = field(default_factory=dict)
    _not_compared: list[ToolExecution] = field(default_factory=list)
    _failed_in_round: set[tuple[str, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.started = self.clock()
        self.keys = IdempotencyKeys(self.identity)
        self.compensation = Compensation(self.keys, self.executions, self.recorder)

    @classmethod
    def for_turn(cls, turn: Turn, context: Mapping[str, Any]) -> "ToolState":
        """Return the state of the tools for a run of the tool loop in *turn*.

        Args:
            turn: The turn, whose executions so far it shares.
            context: The values of the tool context.
        """
        return cls(
            context,
            turn.id,
            turn,
            executions=turn.executions,
            clock=turn.clock,
            recorder=turn.recorder,
        )

    @classmethod
    def of(cls, prompt: Prompt) -> "ToolState":
        """Return the state after *prompt*, for applications with a loop of their own."""
        context = prompt.options.tool_context
        key = context.get(TURN_KEY)
        state = cls(context, None if key is None else f"key {key}", recorder=present_recorder())
        for message in reversed(prompt.messages):
            if isinstance(message, UserMessage):
                break
            if isinstance(message, ToolResponseMessage):
                state.rounds += 1
                state.calls.update(response.name for response in message.responses)
                state.failures.update(_failures_in(message.responses))
        state.recall(prompt.messages)
        return state

    def pending(
        self,
        messages: Sequence[Message],
        message: AssistantMessage,
        result: ToolExecutionResult,
    ) -> PendingTurn:
        """Return this turn as one that waits for approvals.

        Args:
            messages: The conversation before the model's message with the tool calls.
            message: That message.
            result: The result of the round, with the calls that do not wait.
        """
        self._compare()
        notes: dict[str, Any] = {_SEED: self.keys.seed(self.context)}
        if self.background is not None and self.background.arrived:
            arrived = [id(each) for each in self.background.arrived]
            notes[BACKGROUND] = [n for n, e in enumerate(self.executions) if id(e) in arrived]
        settled = {each.id for each in result.responses} | {each.id for each in result.pending}
        return PendingTurn(
            messages=tuple(messages),
            message=message,
            responses=result.responses,
            pending=result.pending,
            held=tuple(call for call in message.tool_calls if call.id not in settled),
            calls=self.calls,
            rounds=self.rounds,
            conversation_id=self.context.get(CONVERSATION_ID),
            agents=result.agents,
            failures=tuple((*key, count) for key, count in self.failures.items()),
            repeats=tuple((*key, *seen) for key, seen in self._repeats.items()),
            seconds=self.seconds(),
            notes=notes,
            breach=result.breach,
            # Not serialisable; dropped so that stored turns behave alike.
            executions=tuple(replace(each, error=None, value=None) for each in self.executions),
        )

    def resume(self, pending: PendingTurn) -> None:
        """Continue from the state of *pending*."""
        self.resumed = True
        self.keys.restore_seed(pending.notes.get(_SEED))
        self.calls.update(pending.calls)
        # These calls were counted in the suspended round and are counted again when run.
        self.calls.subtract(call.name for call in (*pending.pending, *pending.held))
        self.rounds = pending.rounds
        known = self.compensation.by_key()  # if an advisor calls the loop again
        self.executions.extend(e for e in pending.executions if call_key(e.tool_call) not in known)
        if self.background is not None:
            self.background.arrived += [
                pending.executions[n] for n in pending.notes.get(BACKGROUND, ())
            ]
        # The time before the suspension counts, and the suspension itself does not.
        self.started -= pending.seconds
        for name, kind, count in pending.failures:
            self.failures[name, kind] = count
        # The suspended round continues; its failures count too.
        self._failed_in_round.update(_failures_in(pending.responses))
        for name, arguments, result, count in pending.repeats:
            self._repeats[name, arguments] = result, count
        self.recall(pending.messages)  # without the suspended round, which counts its own calls

    def answered(
        self, message: AssistantMessage, responses: Sequence[ToolResponse]
    ) -> dict[str, ToolExecution]:
        """Return the executions of those calls of *message* that *responses* answer, by id."""
        by_id = {response.id: response for response in responses}
        known = self.compensation.by_key()
        return {
            call.id: known.get(call_key(call)) or ToolExecution(call, by_id[call.id])
            for call in message.tool_calls
            if call.id in by_id
        }

    def recall(self, messages: Sequence[Message]) -> None:
        """Count the calls that the last turn of *messages* contains already."""
        turn = last_turn(messages)
        if len(turn) < 2:  # noqa: PLR2004 - only the question
            return
        for message in turn:
            if isinstance(message, AssistantMessage):
                for call in message.tool_calls:
                    self.keys.count(call)
        self.compensation.add_earlier(turn)

    def seconds(self) -> float:
        """Return how long the turn has taken so far."""
        return self.clock() - self.started

    def repeats(self, call: ToolCall) -> int:
        """Return how often in a row *call* has been made with the same result.

        What was read again may be left out again, so reading results is never a repetition.
        """
        if self._not_compared:
            self._compare()
        if not self._repeats or call.name == READ_RESULT:
            return 0
        return self._repeats.get(self.keys.canonical(call), ("", 0))[1]

    def remember(self, executions: Iterable[ToolExecution]) -> None:
        """Record the results of calls, to recognise repetitions."""
        self._not_compared += executions

    def with_background(self) -> BackgroundCalls:
        """Let tools run in the background, and return the calls that do."""
        self.background = BackgroundCalls((self.executions, self._not_compared), self.recorder)
        return self.background

    def _compare(self) -> None:
        """Compare the recorded results with those of equal calls before."""
        for execution in self._not_compared:
            key = self.keys.canonical(execution.tool_call)
            before, count = self._repeats.get(key, ("", 0))
            result = _comparison_key(execution.response)
            self._repeats[key] = (result, count + 1 if result == before else 1)
        self._not_compared.clear()

    def count_reminder(self, call: ToolCall) -> None:
        """Count a call that was answered with a reminder instead of being run."""
        key = self.keys.canonical(call)
        result, count = self._repeats[key]
        self._repeats[key] = (result, count + 1)

    def count_failure(self, name: str, kind: str) -> int:
        """Count a failed call; return in how many rounds the tool has failed in this way.

        Calls of one round count once: the model made all of them before it knew of the failure.
        """
        if (name, kind) not in self._failed_in_round:
            self._failed_in_round.add((name, kind))
            self.failures[name, kind] += 1
        return self.failures[name, kind]

    def end_round(self) -> None:
        """Start counting failures for the next round."""
        self._failed_in_round.clear()

    async def undo(
        self,
        cause: str,
        toolset: Toolset,
        runtime: Runtime,
        executions: Sequence[ToolExecution] = (),
    ) -> None:
        """Undo the calls of the turn and of the current round; see `Compensation.undo`."""
        await self.compensation.undo(executions, cause, toolset, self.context, runtime)

    async def abandon(
        self, toolset: Toolset, runtime: Runtime, executions: Sequence[ToolExecution] = ()
    ) -> None:
        """Undo the calls of the turn and of the current round, because it fails; only once."""
        try:
            if self.background:
                await runtime.shielded(self.background.stop(runtime.silent()))
        finally:
            if not self.undo_closed:
                self.undo_closed = True
                await self.undo("the turn failed", toolset, runtime, executions)

    async def cancel_early_calls(self) -> None:
        """Cancel calls that were started early and turned out not to be needed."""
        while self.early_calls:
            _, job = self.early_calls.popitem()
            await job.stop()


def streamed_call(call: ToolCall) -> StreamedCall:
    """Return what identifies *call* both in a stream and in the response it leads to."""
    return call.id, call.name, call.arguments


def last_turn(messages: Sequence[Message]) -> Sequence[Message]:
    """Return the messages after the first user message of the last turn of *messages*."""
    begin = last_turn_start(messages)
    return messages if begin is None else messages[begin + 1 :]


def _failures_in(responses: Sequence[ToolResponse]) -> set[tuple[str, str]]:
    """Return the tools that failed in a round with *responses*, each with the kind of failure."""
    return {(each.name, each.metadata[FAILURE]) for each in responses if FAILURE in each.metadata}


def _comparison_key(response: ToolResponse) -> str:
    """Return what is equal for equal results: the text, and a digest of the media."""
    if not response.media:
        return response.data
    digest = hashlib.sha256()
    for media in response.media:
        data = media.data if isinstance(media.data, bytes) else media.data.encode()
        digest.update(f"{media.mime_type}\x1f{len(data)}\x1f".encode() + data)
    return f"{response.data}\x1f{digest.hexdigest()}"
