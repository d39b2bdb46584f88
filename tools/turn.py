"""What the tool loop remembers of a turn while it runs."""

import hashlib
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from chatclient.jobs import Begun
from chatclient.json import loads
from chatclient.messages import (
    AssistantMessage,
    Message,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
    last_turn_begin,
    last_user_message,
    without_system,
)
from chatclient.prompt import Prompt
from chatclient.slips import repair_json
from chatclient.tool import CONVERSATION_ID, FAILURE, USER_ID, ToolCallback
from chatclient.tools.execution import ToolExecutionResult
from chatclient.tools.outcome import ToolExecution
from chatclient.tools.pending import PendingTurn
from chatclient.values import EMPTY

_SORTING = json.JSONEncoder(sort_keys=True, separators=(",", ":"))
_SEED = "idempotency"  # the note of what the keys of a turn that waits are made of


@dataclass(slots=True)
class ToolTurn:
    """What the tool loop remembers from the user's message to the final answer.

    Attributes:
        context: What tools are told behind the model's back.
        identity: What tells the turn from all others: a text, or what was said before it. Without
            one, what its messages have before the user's last words does.
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
        earlier: Calls, by identity, of earlier turns of the request that its failure would undo.
        begun: Calls that were begun while the model was still speaking, see `key_of`.
        resumed: Whether the turn goes on after it has waited.
        abandoned: Whether the turn has failed, and what it has done is undone.
    """

    context: Mapping[str, Any] = EMPTY
    identity: str | Sequence[Message] | None = None
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
    earlier: frozenset[int] = frozenset()
    begun: dict[tuple[str, str, str], Begun[ToolExecution]] = field(default_factory=dict)
    resumed: bool = False
    abandoned: bool = False
    _repeats: dict[tuple[str, str], tuple[str, int]] = field(default_factory=dict)
    _failed: set[tuple[str, str]] = field(default_factory=set)
    _made: Counter[tuple[str, str]] = field(default_factory=Counter)
    _meanings: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    _seed: str | None = None
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
        self.begin(messages)
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
            notes={_SEED: self._seed_of_keys()},
            breach=result.breach,
            # What has no JSON form would be there or not, as the turn is stored or not.
            executions=tuple(replace(each, error=None, value=None) for each in self.executions),
        )

    def resume(self, pending: PendingTurn) -> None:
        """Go on from where *pending* came to wait."""
        self.resumed = True
        self._seed = pending.notes.get(_SEED)
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
                self._made.update(map(self.meaning_of, message.tool_calls))

    def repeats(self, call: ToolCall) -> int:
        """Return how often in a row *call* has been made with one and the same result."""
        return self._repeats.get(self.meaning_of(call), ("", 0))[1]

    def remember(self, execution: ToolExecution) -> None:
        """Take note of a call that was run, and of its result."""
        key = self.meaning_of(execution.tool_call)
        before, count = self._repeats.get(key, ("", 0))
        result = _told(execution.response)
        self._repeats[key] = (result, count + 1 if result == before else 1)

    def nudged(self, call: ToolCall) -> None:
        """Take note of a call that was answered with a reminder instead of being run."""
        key = self.meaning_of(call)
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
        return self._made[self.meaning_of(call)]

    def ordinal(self, call: ToolCall) -> int:
        """Return how many times the turn has made this very call, this time included."""
        key = self.meaning_of(call)
        self._made[key] = ordinal = self._made.get(key, 0) + 1
        return ordinal

    def meaning_of(self, call: ToolCall) -> tuple[str, str]:
        """Return name and arguments of *call*, the same however a model has written them.

        One writes spaces or escapes where another does not, or other fields first.
        """
        written = call.name, call.arguments
        meant = self._meanings.get(written)
        if meant is None:
            meant = self._meanings[written] = call.name, _in_one_way(call.arguments)
        return meant

    async def forget_begun(self) -> None:
        """End what was begun early and is not wanted, as it turns out."""
        while self.begun:
            _, begun = self.begun.popitem()
            await begun.end()

    def idempotency_key(self, call: ToolCall, ordinal: int) -> str:
        """Return a key that is the same whenever this turn makes this call with these arguments.

        It depends on the user, on the turn, on the tool, its arguments, and on how many times the
        turn has made the very same call before; not on the call's id, which a model makes up anew
        when a turn is repeated. A turn without an identity is known by the conversation up to the
        words that it began with.
        """
        return _digest(self._seed_of_keys(), *self.meaning_of(call), str(ordinal))[:32]

    def _seed_of_keys(self) -> str:
        """Return what is the same in all keys of the turn, and in no other turn."""
        if self._seed is None:
            messages, identity = self._messages, self.identity
            if identity is None:
                identity = without_system(messages[: last_turn_begin(messages) or 0])
            named = [identity] if isinstance(identity, str) else map(_heard, identity)
            asked = last_user_message(messages)
            whose = [str(self.context.get(key, "")) for key in (CONVERSATION_ID, USER_ID)]
            self._seed = _digest(*whose, *named, "" if asked is None else asked.text)
        return self._seed


def key_of(call: ToolCall) -> tuple[str, str, str]:
    """Return what tells whether a call is the one that was streamed."""
    return call.id, call.name, call.arguments


def last_turn(messages: Sequence[Message]) -> Sequence[Message]:
    """Return what follows on the first words of the user in the last turn of *messages*."""
    begin = last_turn_begin(messages)
    return messages if begin is None else messages[begin + 1 :]


def _in_one_way(arguments: str) -> str:
    """Return *arguments* as one would write them who sorts fields and wastes no space."""
    try:
        value = loads(arguments.strip() or "{}")
    except ValueError:
        mended = repair_json(arguments)
        if mended is None:
            return arguments
        value = loads(mended)
    return _SORTING.encode(value)


def _heard(message: Message) -> str:
    """Return what tells *message* from others: words, and calls and results with their ids."""
    parts = [message.role, message.text]
    if isinstance(message, AssistantMessage):
        parts += [text for call in message.tool_calls for text in key_of(call)]
    if isinstance(message, ToolResponseMessage):
        parts += [text for each in message.responses for text in (each.id, each.data)]
    return _digest(*parts)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\x1f".join(parts).encode(errors="replace")).hexdigest()


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
