"""What the tool loop remembers of a turn while it runs."""

import hashlib
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from chatclient.jobs import Begun
from chatclient.messages import (
    AssistantMessage,
    Message,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
    last_turn_begin,
)
from chatclient.prompt import Prompt
from chatclient.tool import ASKED_BY, CONVERSATION_ID, FAILURE, TURN_KEY, USER_ID, ToolCallback
from chatclient.tools.execution import ToolExecutionResult
from chatclient.tools.outcome import ToolExecution
from chatclient.tools.pending import PendingTurn
from chatclient.values import EMPTY


@dataclass(slots=True)
class ToolTurn:
    """What the tool loop remembers from the user's message to the final answer.

    Attributes:
        context: What tools are told behind the model's back.
        calls: How often each tool was called.
        failures: In how many rounds each tool failed in each way.
        executions: Every call so far.
        rounds: How often the model was called.
        started: When the turn began, on the clock of `time.monotonic`.
        unoffered: More tools, by name, that are run if the model names them all the same.
        undoable: Calls that can be undone, with their tools, by the identity of the call: the tools
            may be offered no longer when it comes to that, and a call that has gone may leave its
            identity to another.
        done: What tools had come to before their calls failed, by the identity of the call.
        undone: Calls that were undone, by the identity of the call, with what is told of them.
        settled: Calls that stand whatever becomes of the turn, by the identity of the call: a
            memory has kept them when an advisor around it asked before.
        before: What a memory shows of the turns before and the loop is not shown.
        earlier: Calls, by identity, of earlier turns of the request that its failure would undo.
        begun: Calls that were begun while the model was still speaking, see `key_of`.
        resumed: Whether the turn goes on after it has waited.
        abandoned: Whether the turn has failed, and what it has done is undone.
    """

    context: Mapping[str, Any] = EMPTY
    calls: Counter[str] = field(default_factory=Counter)
    failures: Counter[tuple[str, str]] = field(default_factory=Counter)
    executions: list[ToolExecution] = field(default_factory=list)
    rounds: int = 0
    started: float = field(default_factory=time.monotonic)
    unoffered: Mapping[str, ToolCallback] = EMPTY
    undoable: dict[int, tuple[ToolCall, ToolCallback]] = field(default_factory=dict)
    done: dict[int, ToolExecution] = field(default_factory=dict)
    undone: dict[int, ToolExecution] = field(default_factory=dict)
    settled: frozenset[int] = frozenset()
    before: Sequence[Message] = ()
    earlier: frozenset[int] = frozenset()
    begun: dict[tuple[str, str, str], Begun[ToolExecution]] = field(default_factory=dict)
    resumed: bool = False
    abandoned: bool = False
    _repeats: dict[tuple[str, str], tuple[str, int]] = field(default_factory=dict)
    _failed: set[tuple[str, str]] = field(default_factory=set)
    _made: Counter[tuple[str, str]] = field(default_factory=Counter)
    _seed: tuple[str, ...] | None = None
    _messages: Sequence[Message] = ()

    @classmethod
    def of(cls, prompt: Prompt) -> "ToolTurn":
        """Return the turn that *prompt* is in the middle of, for loops of an application's own."""
        turn = cls(prompt.options.tool_context)
        for message in reversed(prompt.messages):
            if isinstance(message, UserMessage):
                break
            if isinstance(message, ToolResponseMessage):
                turn.rounds += 1
                turn.calls.update(response.name for response in message.responses)
                turn.failures.update(_failures_in(message.responses))
        turn.recall(prompt.messages)
        return turn

    def pending(
        self,
        messages: Sequence[Message],
        message: AssistantMessage,
        result: ToolExecutionResult,
    ) -> PendingTurn:
        """Return this turn as it waits for approvals.

        Args:
            messages: The conversation up to the model's message with the tool calls.
            message: That message.
            result: What came of those calls that do not wait.
        """
        return PendingTurn(
            messages=tuple(messages),
            message=message,
            responses=result.responses,
            pending=result.pending,
            calls=self.calls,
            rounds=self.rounds,
            conversation_id=self.context.get(CONVERSATION_ID),
            agents=result.agents,
            failures=tuple((*key, count) for key, count in self.failures.items()),
            repeats=tuple((*key, *seen) for key, seen in self._repeats.items()),
            seconds=time.monotonic() - self.started,
            breach=result.breach,
            # What has no JSON form would be there or not, as the turn is stored or not.
            executions=tuple(replace(each, error=None, value=None) for each in self.executions),
        )

    def resume(self, pending: PendingTurn) -> None:
        """Go on from where *pending* came to wait."""
        self.resumed = True
        self.calls.update(pending.calls)
        # The waiting calls were counted when they were made, and are counted when they are run.
        self.calls.subtract(call.name for call in pending.pending)
        self.rounds = pending.rounds
        known = self.by_identity()  # from an advisor that asks again
        self.executions.extend(e for e in pending.executions if id(e.tool_call) not in known)
        self.started -= pending.seconds
        for name, kind, count in pending.failures:
            self.failures[name, kind] = count
        # The round goes on that came to wait: what fails in it now fails beside those.
        self._failed.update(_failures_in(pending.responses))
        for name, arguments, result, count in pending.repeats:
            self._repeats[name, arguments] = result, count
        self.recall(pending.messages)  # the waiting round counts its calls itself

    def by_identity(self) -> dict[int, ToolExecution]:
        """Return every call so far by its own identity: models may use an id again."""
        return {id(execution.tool_call): execution for execution in self.executions}

    def answered(
        self, message: AssistantMessage, responses: Sequence[ToolResponse]
    ) -> dict[str, ToolExecution]:
        """Return those calls of *message* that *responses* answer, by id, as they went here."""
        told = {response.id: response for response in responses}
        known = self.by_identity()
        return {
            call.id: known.get(id(call)) or ToolExecution(call, told[call.id])
            for call in message.tool_calls
            if call.id in told
        }

    def recall(self, messages: Sequence[Message]) -> None:
        """Take note of the calls that the last turn of *messages* has made already."""
        for message in last_turn(messages):
            if isinstance(message, AssistantMessage):
                self._made.update((call.name, call.arguments) for call in message.tool_calls)

    def repeats(self, call: ToolCall) -> int:
        """Return how often in a row *call* has been made with one and the same result."""
        return self._repeats.get((call.name, call.arguments), ("", 0))[1]

    def remember(self, execution: ToolExecution) -> None:
        """Take note of a call that was run, and of its result."""
        key = (execution.tool_call.name, execution.tool_call.arguments)
        before, count = self._repeats.get(key, ("", 0))
        result = _told(execution.response)
        self._repeats[key] = (result, count + 1 if result == before else 1)

    def nudged(self, call: ToolCall) -> None:
        """Take note of a call that was answered with a reminder instead of being run."""
        key = (call.name, call.arguments)
        result, count = self._repeats[key]
        self._repeats[key] = (result, count + 1)

    def known_calls(self) -> set[int]:
        """Return the calls that something is known of, by identity."""
        return self.by_identity().keys() | self.undone.keys() | self.earlier

    def failed(self, name: str, kind: str) -> int:
        """Take note of a failed call; return in how many rounds the tool has failed in this way.

        Calls that are made side by side are made before the model can know better.
        """
        if (name, kind) not in self._failed:
            self._failed.add((name, kind))
            self.failures[name, kind] += 1
        return self.failures[name, kind]

    def end_round(self) -> None:
        """Take note that all calls of a round have been run."""
        self._failed.clear()

    def begin(self, messages: Sequence[Message]) -> None:
        """Take note of the conversation that the turn belongs to, once."""
        self._messages = self._messages or messages

    def made(self, call: ToolCall) -> int:
        """Return how many times the turn has made this very call."""
        return self._made[call.name, call.arguments]

    def ordinal(self, call: ToolCall) -> int:
        """Return how many times the turn has made this very call, this time included."""
        key = (call.name, call.arguments)
        self._made[key] = ordinal = self._made.get(key, 0) + 1
        return ordinal

    async def forget_begun(self) -> None:
        """End what was begun early and is not wanted, as it turns out."""
        while self.begun:
            _, begun = self.begun.popitem()
            await begun.end()

    def idempotency_key(self, call: ToolCall, ordinal: int) -> str:
        """Return a key that is the same whenever this turn makes this call with these arguments.

        It depends on the user, on the turn, on the call that asked, if the turn is an agent's, on
        the tool, its arguments, and on how many times the turn has made the very same call before;
        not on the call's id, which a model makes up anew when a turn is repeated. A turn without a
        key of its own is known by the conversation up to the words that it began with.
        """
        if self._seed is None:
            known = (CONVERSATION_ID, USER_ID, ASKED_BY, TURN_KEY)
            seed = [str(self.context.get(key, "")) for key in known]
            if TURN_KEY not in self.context:
                seed += _spoken((*self.before, *_up_to_last_turn(self._messages)))
            self._seed = tuple(seed)
        parts = (*self._seed, call.name, call.arguments, str(ordinal))
        return hashlib.sha256("\x1f".join(parts).encode(errors="replace")).hexdigest()[:32]


def key_of(call: ToolCall) -> tuple[str, str, str]:
    """Return what tells whether a call is the one that was streamed."""
    return call.id, call.name, call.arguments


def last_turn(messages: Sequence[Message]) -> Sequence[Message]:
    """Return what follows on the first words of the user in the last turn of *messages*."""
    begin = last_turn_begin(messages)
    return messages if begin is None else messages[begin + 1 :]


def _up_to_last_turn(messages: Sequence[Message]) -> Sequence[Message]:
    """Return *messages* up to the words of the user that their last turn began with."""
    end = (last_turn_begin(messages) or 0) + 1
    while end < len(messages) and isinstance(messages[end], UserMessage):
        end += 1
    return messages[:end]


def _spoken(messages: Sequence[Message]) -> Iterator[str]:
    """Yield what is said in *messages*.

    Only that tells turns apart that begin with the same words: a memory with a bound always shows
    the same number of messages.
    """
    for message in messages:
        match message:
            case AssistantMessage():
                yield message.text
                for call in message.tool_calls:
                    yield from key_of(call)
            case ToolResponseMessage():
                yield from (response.data for response in message.responses)
            case UserMessage():
                yield message.text
            case _:  # what the application says has no place in the conversation
                continue


def _failures_in(responses: Sequence[ToolResponse]) -> set[tuple[str, str]]:
    """Return which tools have failed in which ways, of one round's *responses*."""
    return {(each.name, each.metadata[FAILURE]) for each in responses if FAILURE in each.metadata}


def _told(response: ToolResponse) -> str:
    """Return what tells whether two answers are the same: the text, and a digest of the media."""
    if not response.media:
        return response.data
    digest = hashlib.sha256()
    for media in response.media:
        data = media.data if isinstance(media.data, bytes) else media.data.encode()
        digest.update(f"{media.mime_type}\x1f{len(data)}\x1f".encode() + data)
    return f"{response.data}\x1f{digest.hexdigest()}"
