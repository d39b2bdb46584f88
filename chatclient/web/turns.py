"""Run the turns of frontends, in the process of the server, and store those that wait."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, Protocol

from chatclient.chat.events import ApprovalNeeded
from chatclient.chat.pending_turn import Decision, PendingTurn
from chatclient.chat.turn import Turn
from chatclient.client.request import ChatClientRequestSpec
from chatclient.extend import ON_LOOP
from chatclient.runtime.cancellation import consume_error
from chatclient.web.requests import InvalidInputError, RefusedError


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


WAITS = "Decide about the tool calls that wait, then go on."
RUNS = "Wait for the answer first."
LATER = "This answer cannot be continued at the moment. Try again later."
GONE = "These tool calls do not wait for a decision any more."


@dataclass(frozen=True, slots=True)
class TurnEvents:
    """A turn that was started or continued.

    Attributes:
        record: Returns the record of the turn; called when there are events.
        events: Its events. Closing them cancels the turn, or stops following it.
        resumed: The turn that it continues, if its earlier events are not among *events*.
    """

    record: Callable[[], Turn]
    events: AsyncGenerator[Any, None]
    resumed: PendingTurn | None = None


class TurnRunner(Protocol):
    """Runs the turns of conversations, of which one at a time runs or waits."""

    def prompt(self) -> ChatClientRequestSpec:
        """Return a new request of the client."""
        ...

    async def pending(self, conversation_id: str) -> PendingTurn | None:
        """Return the turn of the conversation that waits for decisions, or None.

        Raises:
            RefusedError: A turn is running that other requests have to wait for.
        """
        ...

    async def begin(self, conversation_id: str, request: ChatClientRequestSpec) -> TurnEvents:
        """Begin a turn. If its events are closed unread, it ends like any that is cancelled.

        Raises:
            RefusedError: Another one was started at the same time.
        """
        ...

    async def resume(
        self,
        conversation_id: str,
        request: ChatClientRequestSpec,
        turn: PendingTurn,
        decisions: Mapping[str, Decision],
    ) -> TurnEvents:
        """Continue *turn*, which waits.

        Raises:
            RefusedError: It does not wait any more.
        """
        ...

    async def follow(self, conversation_id: str, unanswered: str | None) -> TurnEvents | None:
        """Return the turn that runs or waits, from its beginning.

        Args:
            conversation_id: The id of the conversation.
            unanswered: The id of a message of the user that the frontend has no answer to: its turn
                is returned also if it has ended.
        """
        ...

    async def cancel(self, conversation_id: str) -> None:
        """Cancel the turn that runs or waits, if there is one."""
        ...


@dataclass(frozen=True)
class ProcessRunner:
    """Runs turns in this process: each ends with the HTTP request that runs it.

    Attributes:
        prompt: Returns a new request of the client.
        store: Keeps turns that wait.
    """

    prompt: Callable[[], ChatClientRequestSpec]
    store: PendingTurnStore

    async def pending(self, conversation_id: str) -> PendingTurn | None:
        """Return the turn of the conversation that waits, or None."""
        return await ON_LOOP.invoke(self.store.get, conversation_id)

    async def begin(self, conversation_id: str, request: ChatClientRequestSpec) -> TurnEvents:
        """Begin a turn."""
        return await self._begun(conversation_id, request, None)

    async def resume(
        self,
        conversation_id: str,
        request: ChatClientRequestSpec,
        turn: PendingTurn,
        decisions: Mapping[str, Decision],
    ) -> TurnEvents:
        """Continue *turn*.

        Raises:
            RefusedError: It does not wait any more.
        """
        # Before the turn is taken from the store: an invalid decision leaves it pending.
        request = request.resuming(turn, decisions).conversation(conversation_id)
        if not await ON_LOOP.invoke(self.store.take, conversation_id, turn):
            raise RefusedError(409, GONE)
        return await self._begun(conversation_id, request, turn)

    async def follow(self, conversation_id: str, unanswered: str | None) -> None:  # noqa: ARG002
        """Return None: a turn has no other reader than the one who has started it."""
        return

    async def cancel(self, conversation_id: str) -> None:
        """Do nothing: a turn is cancelled when its reader disconnects."""

    async def _begun(
        self, conversation_id: str, request: ChatClientRequestSpec, pending: PendingTurn | None
    ) -> TurnEvents:
        """Begin or continue a turn, so that it is stored also if nobody reads its events."""
        turn: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        stream = request.in_turn(replace(request.settings.turn, began=turn.set_result)).astream()

        async def running() -> AsyncGenerator[Any, None]:
            async with stream, aclosing(stream.events()) as found:
                first: asyncio.Future[Any] = asyncio.ensure_future(anext(found, None))
                first.add_done_callback(consume_error)  # nobody awaits it, if they are not read
                await asyncio.wait({first, turn}, return_when=asyncio.FIRST_COMPLETED)
                yield None  # for the caller of this function
                event = await first
                while event is not None:
                    if isinstance(event, ApprovalNeeded):
                        event = await self._stored(conversation_id, event.turn)
                    yield event
                    event = await anext(found, None)

        events = running()
        await anext(events)
        return TurnEvents(turn.result, events, pending)

    async def _stored(self, conversation_id: str, turn: PendingTurn) -> ApprovalNeeded:
        """Store *turn*, and return the event for it.

        Raises:
            InvalidInputError: Another turn of the conversation waits: two were started in parallel.
        """
        # As it is read again, so that stores can compare it: dates in metadata become texts.
        turn = PendingTurn.from_json(turn.to_json())
        if not await ON_LOOP.invoke(self.store.put, conversation_id, turn):
            raise InvalidInputError(WAITS)
        return ApprovalNeeded(turn)
