"""`Turn`, the record of one turn of a conversation, and the context keys that identify it."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chatclient.chat.messages import (
    AssistantMessage,
    Message,
    ToolResponseMessage,
    last_user_message,
)
from chatclient.chat.tool import ToolCallback
from chatclient.errors import DeadlineExceededError
from chatclient.runtime.runtime import Runtime

TURN = "turn"
"""The key of the `Turn` in a request's context, while the request runs."""

TURN_KEY = "chat_memory_turn_key"
"""The key in a request's context of an idempotency key for the turn, set by the application. A turn
that is repeated with the same key, such as a job that a queue delivers twice, is stored once, and
its tools find the same `idempotency_key` each time."""

TURN_ID = "turn_id"
"""The key in a request's context of the id that the turn is to have; an agent that is called as a
tool is given one. Default: derived from the `TURN_KEY`, or else random."""

EARLIER_MESSAGES = "earlier_messages"
"""The key in a request's context of the messages of the turn that precede those of the prompt, a
tuple without system messages, inside a tool loop that sends no history. A memory inside the loop
sends them."""

TURN_CLOCK = "turn_clock"
"""The key in a request's context of the clock that measures how long the turn takes: a function
that returns seconds. Default: `time.monotonic`. A recorded turn has one that survives restarts."""

AROUND_STORE = "turn_around_store"
"""The key in a request's context of an `AroundStore`."""

Work = Callable[[Runtime], Awaitable[object]]

AroundStore = Callable[[Work, Runtime], Awaitable[object]]
"""Calls the function with which a memory stores a turn, perhaps several times."""


@dataclass(slots=True, eq=False)
class PendingStore:
    """How one memory stores the turn.

    Attributes:
        store: Stores it.
        prepare: Runs before any memory stores: work that may fail or be cancelled, such as
            computing embeddings.
    """

    store: Work
    prepare: Work | None = None


class Turn:
    """The record of one turn: the messages of a request, its tool rounds, and who stores them.

    The outermost participant creates it: a client, or an advisor chain that is used without one.
    The tool loop appends each completed round. An advisor that calls `call_next` again stays in the
    same turn: rounds are kept, and the answer that it rejected was never part of the record.
    Memories leave a `PendingStore` here, which the last attempt replaces, and all of them store
    the turn when the outermost participant has its response.

    Args:
        id: Identifies the turn; idempotency keys and the ids of its messages are derived from it.
        key: The application's idempotency key, under which memories store the turn; or None.
        request_messages: What the request carries, without system messages and the client's
            default messages.
        rounds: Messages of completed rounds, if the turn continues after it was suspended.

    Attributes:
        resumed: Whether the turn continues after it was suspended.
        history_sent: Whether the suspended turn contains the history that memory had sent.
        offered_tools: The tools that the last model call offered; None before the first call.
        state: What participants keep for the turn, by participant.
        around_store: Calls the functions with which memories store the turn, or None.
    """

    def __init__(
        self,
        id: str | None = None,
        key: str | None = None,
        request_messages: tuple[Message, ...] = (),
        rounds: tuple[Message, ...] = (),
    ) -> None:
        self.id = os.urandom(16).hex() if id is None else id
        self.key = key
        self.request_messages = request_messages
        self.rounds = rounds
        self.resumed = self.history_sent = False
        self.offered_tools: Sequence[ToolCallback] | None = None
        self.state: dict[object, Any] = {}
        self.around_store: AroundStore | None = None
        self._beginner: object = None
        self._stores: dict[object, PendingStore] = {}
        self._finishers: dict[object, Callable[[], Mapping[str, Any]]] = {}

    @classmethod
    def of(cls, context: Mapping[str, Any]) -> "Turn":
        """Return a new turn for a request with *context*."""
        key = context.get(TURN_KEY)
        key = None if key is None else str(key)  # ids of jobs are numbers or UUIDs, too
        return cls(context.get(TURN_ID, None if key is None else f"key {key}"), key)

    def begin(self, participant: object, messages: tuple[Message, ...]) -> None:
        """Record what the request carries where the first memory sees it.

        Advisors outside of all memories may have rewritten the messages; what they removed is not
        to be stored. An attempt with another question replaces the messages. One that continues
        them does not: it adds a rejected answer and a correction.

        Args:
            participant: The memory.
            messages: The messages that the memory sees, without system and default messages.
        """
        if self.resumed or self._beginner not in (None, participant):
            return
        question = last_user_message(self.request_messages)
        if self._beginner is None or not any(message is question for message in messages):
            rounds = {message.id for message in self.rounds}
            self.request_messages = tuple(m for m in messages if m.id not in rounds)
        self._beginner = participant

    def append(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Append the *messages* of a completed round, and return them with their ids."""
        first = len(self.request_messages) + len(self.rounds)
        added = self._identified(messages, first)
        self.rounds = (*self.rounds, *added)
        return added

    def messages(self, answer: AssistantMessage | None = None) -> tuple[Message, ...]:
        """Return all messages of the turn with their ids, and the *answer*, if there is one."""
        count = len(self.request_messages)
        request = self._identified(self.request_messages, 0)
        if answer is None:
            return (*request, *self.rounds)
        return (*request, *self.rounds, *self._identified((answer,), count + len(self.rounds)))

    def _identified(self, messages: Sequence[Message], first: int) -> tuple[Message, ...]:
        """Return *messages*, those without an id with one that is the same each time."""
        return tuple(
            message if message.id is not None else message.with_id(f"{self.id}-{at}")
            for at, message in enumerate(messages, first)
        )

    def contains_round(self, messages: Sequence[Message]) -> bool:
        """Return whether *messages* contain some of the turn's rounds."""
        ids = {message.id for message in self.rounds}
        return bool(ids) and any(message.id in ids for message in messages)

    def updated(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Return *messages* with the tool results of this turn as they are now.

        They change when calls are undone after their round.
        """
        results = {m.id: m for m in self.rounds if isinstance(m, ToolResponseMessage)}
        return tuple(results.get(message.id, message) for message in messages)

    def store_at_end(self, participant: object, pending: PendingStore | None) -> None:
        """Have a memory store the turn when it ends; None withdraws what the memory left before."""
        if pending is not None:
            self._stores[participant] = pending
        else:
            self._stores.pop(participant, None)

    def finish_at_end(self, participant: object, finish: Callable[[], Mapping[str, Any]]) -> None:
        """Call *finish* when the turn is over, stored or failed; the last one of a participant.

        What it returns is added to the context of the response.
        """
        earlier = self._finishers.get(participant)
        if earlier is not None:
            earlier()
        self._finishers[participant] = finish

    async def commit(self, runtime: Runtime) -> None:
        """Let all memories store the turn, or none of them.

        Nothing is stored if the request is cancelled or late, or if the preparation of one memory
        fails. Once one of them has the turn, the others store it even if the request is cancelled
        meanwhile, and nothing that the turn has done is undone any more.

        Raises:
            ChatMemoryError: A memory failed.
            DeadlineExceededError: The deadline passed before anything was stored.
        """
        if not self._stores:
            return
        stores = tuple(self._stores.values())
        self._stores.clear()
        for each in stores:
            if each.prepare is not None:
                await each.prepare(runtime)
        runtime.check_cancelled()
        check_deadline(runtime)
        cancelled: asyncio.CancelledError | None = None
        for each in stores:
            try:
                if self.around_store is None:
                    await each.store(runtime)
                else:
                    await self.around_store(each.store, runtime)
            except asyncio.CancelledError as error:
                if error.__cause__ is not None:  # the store failed after it was cancelled
                    raise
                cancelled = error
            runtime.settle()
        if cancelled is not None:
            raise cancelled

    def close(self) -> dict[str, Any]:
        """End the turn, and return what participants add to the context of its response."""
        added = {key: value for each in self._finishers.values() for key, value in each().items()}
        self._finishers.clear()
        self._stores.clear()
        self.state.clear()
        return added


def check_deadline(runtime: Runtime) -> None:
    """Check that there is time to use a memory; how long a store may take is up to the store.

    Raises:
        DeadlineExceededError: The deadline has passed.
    """
    if not runtime.remaining():
        msg = "the deadline passed before the conversation could be read or written"
        raise DeadlineExceededError(msg)
