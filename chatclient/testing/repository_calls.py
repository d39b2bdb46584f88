"""Helpers of the repository contract: calls in both modes, times, and checks of turns."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from chatclient.chat.messages import Message, UserMessage
from chatclient.memory.repository import ChatMemoryRepository, Conversation
from chatclient.runtime.blocking import drive
from chatclient.runtime.runtime import BLOCKING, ON_LOOP, Runtime
from chatclient.testing.sample_conversations import turn

T = TypeVar("T")


@dataclass(frozen=True)
class Store:
    """A repository that is called blocking, or each time on a new event loop."""

    repository: ChatMemoryRepository
    blocking: bool

    def load(self, name: str, *, last: int | None = None) -> Conversation:
        """Load a conversation."""
        return self._run(lambda runtime: self.repository.load(name, runtime, last=last))

    def append(self, name: str, messages: Sequence[Message], *, key: str | None = None) -> bool:
        """Append *messages*, and return whether they were stored."""
        return self._run(lambda runtime: self.repository.append(name, messages, runtime, key=key))

    def replace(
        self, name: str, messages: Sequence[Message], *, expected: int | None = None
    ) -> bool:
        """Replace the messages, and return whether they were stored."""
        return self._run(
            lambda runtime: self.repository.replace(name, messages, runtime, expected=expected)
        )

    def delete(self, name: str) -> None:
        """Delete a conversation."""
        self._run(lambda runtime: self.repository.delete(name, runtime))

    def delete_older_than(self, cutoff: datetime) -> int:
        """Delete old messages, and return their number."""
        return self._run(lambda runtime: self.repository.delete_older(cutoff, runtime))

    def conversation_ids(self) -> list[str]:
        """Return the ids of all conversations."""
        return self._run(self.repository.conversation_ids)

    def call(self, method: str, *arguments: object) -> Any:
        """Call a public method of the repository, or its asynchronous variant."""
        if self.blocking:
            return getattr(self.repository, method)(*arguments)
        return asyncio.run(getattr(self.repository, f"a{method}")(*arguments))

    def _run(self, start: Callable[[Runtime], Coroutine[Any, Any, T]]) -> T:
        return drive(start(BLOCKING)) if self.blocking else asyncio.run(start(ON_LOOP))


def check_turns(messages: Sequence[Message], *, workers: int, turns: int) -> None:
    """Check that *messages* are the turns `turn("worker.number", 2)`, each complete and once.

    Raises:
        AssertionError: They are not.
    """
    labels = [m.text.split()[1] for m in messages if isinstance(m, UserMessage)]
    assert tuple(messages) == tuple(m for label in labels for m in turn(label, 2))
    for worker in range(workers):
        own = [label for label in labels if label.split(".")[0] == str(worker)]
        assert own == [f"{worker}.{number}" for number in range(turns)]
    assert len(labels) == workers * turns


def day(number: int) -> datetime:
    """Return a day of January 2000."""
    return datetime(2000, 1, number, tzinfo=UTC)


def stored_on(messages: Sequence[Message], number: int) -> list[Message]:
    """Return *messages* as stored on a day of January 2000."""
    return [message.with_stored_at(day(number)) for message in messages]


def times(conversation: Conversation) -> list[datetime]:
    """Return when the messages of *conversation* were stored."""
    return [m.stored_at for m in conversation.messages if m.stored_at is not None]


def with_first(message: Message, messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return *messages* after *message*."""
    return (message, *messages)
