"""`DurableConversation`: the durable turns of a conversation, of which one runs at a time."""

import asyncio
import hashlib
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from chatclient.durable.handle import TurnHandle, TurnState, turn_id
from chatclient.errors import ConversationBusyError

if TYPE_CHECKING:  # it makes conversations
    from chatclient.durable.client import DurableClient, DurableRequest

UNFINISHED: tuple[TurnState, ...] = ("queued", "running", "waiting", "cancelling")
_NUMBERS_AT_ONCE = 4


class DurableConversation:
    """The durable turns of one conversation; `DurableClient.conversation` returns it.

    Each method has an asynchronous twin with an `a` before its name.

    Args:
        client: The client.
        id: The id of the conversation.

    Attributes:
        id: The id of the conversation.
    """

    def __init__(self, client: "DurableClient", id: str) -> None:
        self.id = id
        self._client = client
        # Ids of conversations may be long, and are perhaps not meant for the tables of turns.
        self._digest = hashlib.sha256(id.encode()).hexdigest()[:32]

    def __repr__(self) -> str:
        return f"DurableConversation({self._client.name!r}, {self.id!r})"

    def last(self) -> TurnHandle | None:
        """Return the last turn of the conversation, or None."""
        found = self._last()
        return None if found is None else found[0]

    async def alast(self) -> TurnHandle | None:
        """Return the last turn of the conversation, or None."""
        return await asyncio.to_thread(self.last)

    def start(
        self,
        prompt: "DurableRequest",
        *,
        queue: str | None = None,
        priority: int | None = None,
        limit_key: str | None = None,
        streaming: bool = False,
    ) -> TurnHandle:
        """Start a turn of the conversation, and return its handle at once.

        The arguments are those of `DurableClient.start`.

        Raises:
            ConversationBusyError: The last turn runs, waits or is being cancelled, or another one
                was just started.
            UsageError: The request cannot be stored, there is no such queue, or this process has no
                engine.
        """
        from chatclient.durable.engine import Enqueued  # noqa: PLC0415 - an extra

        number = 1
        if (last := self._last()) is not None:
            number = last[1] + 1
            if (state := last[0].status().state) in UNFINISHED:
                raise self._busy(last[0], state)
        # Numbers are used again if all turns are deleted; a memory stores a key once.
        request = self._client.request_of(prompt).conversation(self.id)
        turn, is_new = self._client.start_turn(
            request.idempotency_key(uuid4().hex),
            f"{self._digest}/{number}",
            Enqueued(queue, priority, None, limit_key),
            streaming=streaming,
            reject=True,
            attributes=self._attributes,
        )
        if not is_new:
            raise self._busy(turn, "running")
        return turn

    async def astart(self, prompt: "DurableRequest", **how: Any) -> TurnHandle:
        """Start a turn; see `start`, which has the same arguments."""
        return await asyncio.to_thread(lambda: self.start(prompt, **how))

    @property
    def _attributes(self) -> dict[str, str]:
        return {"conversation": f"{self._client.name}/{self._digest}"}

    def _last(self) -> tuple[TurnHandle, int] | None:
        """Return the last turn and its number."""
        from chatclient.durable.engine import current_engine  # noqa: PLC0415 - an extra

        prefix = turn_id(self._client.name, f"{self._digest}/")
        id = current_engine().newest(self._attributes, prefix)
        if id is None:
            return None
        number = int(id.removeprefix(prefix).partition("#")[0])  # a segment has a #
        # Clocks differ: a later turn of another process may have an earlier time.
        while later := self._existing(prefix, range(number + 1, number + 1 + _NUMBERS_AT_ONCE)):
            number = max(later)
        return self._client.turn(f"{prefix}{number}"), number

    @staticmethod
    def _existing(prefix: str, numbers: range) -> list[int]:
        from chatclient.durable.engine import current_engine  # noqa: PLC0415 - an extra

        found = current_engine().existing([f"{prefix}{number}" for number in numbers])
        return [number for number in numbers if f"{prefix}{number}" in found]

    def _busy(self, turn: TurnHandle, state: str) -> ConversationBusyError:
        msg = f"the last turn of conversation {self.id!r} has not ended: it is {state}"
        return ConversationBusyError(msg, turn_id=turn.id, state=state)
