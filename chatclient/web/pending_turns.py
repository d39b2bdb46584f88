"""Stores of turns that wait for a frontend: `PendingTurnStore`, `InMemoryPendingTurns`."""

from collections.abc import Awaitable
from threading import Lock
from typing import Protocol

from chatclient.chat.pending_turn import PendingTurn


class PendingTurnStore(Protocol):
    """Stores at most one pending turn per conversation; methods are plain or asynchronous.

    Turns contain the messages of the model. Write access to a turn can change what is run.
    """

    def put(self, conversation_id: str, turn: PendingTurn) -> bool | Awaitable[bool]:
        """Store *turn*; return False, and store nothing, if the conversation has one."""
        ...

    def get(self, conversation_id: str) -> PendingTurn | Awaitable[PendingTurn | None] | None:
        """Return the turn of the conversation, or None."""
        ...

    def take(self, conversation_id: str, turn: PendingTurn) -> bool | Awaitable[bool]:
        """Delete *turn* if it is that of the conversation; return True for one caller only."""
        ...


class InMemoryPendingTurns:
    """Keeps pending turns in this process, for development and for single-process services.

    Args:
        maximum: How many turns are kept; the oldest one is dropped, and its frontend gets an
            error that the turn does not wait any more.
    """

    def __init__(self, maximum: int = 10_000) -> None:
        self._maximum = maximum
        self._turns: dict[str, str] = {}
        self._lock = Lock()

    def put(self, conversation_id: str, turn: PendingTurn) -> bool:
        """Store *turn*; return False if the conversation has one."""
        with self._lock:
            if conversation_id in self._turns:
                return False
            self._turns[conversation_id] = turn.to_json()
            if len(self._turns) > self._maximum:
                del self._turns[next(iter(self._turns))]
        return True

    def get(self, conversation_id: str) -> PendingTurn | None:
        """Return the turn of the conversation, or None."""
        text = self._turns.get(conversation_id)
        return None if text is None else PendingTurn.from_json(text)

    def take(self, conversation_id: str, turn: PendingTurn) -> bool:
        """Delete *turn*; return True for one caller only."""
        with self._lock:
            # The conversation may have another turn by now.
            if self._turns.get(conversation_id) != turn.to_json():
                return False
            del self._turns[conversation_id]
        return True
