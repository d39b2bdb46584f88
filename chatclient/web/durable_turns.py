"""`DurableRunner`: turns of frontends that survive restarts of the server and lost connections."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chatclient.chat.events import RoundEnded, ToolCallFinished
from chatclient.chat.messages import AssistantMessage, ToolResponse, ToolResponseMessage
from chatclient.chat.pending_notes import load_turn
from chatclient.chat.pending_turn import Decision, PendingTurn
from chatclient.chat.turn import Turn
from chatclient.client.request import ChatClientRequestSpec
from chatclient.durable.client import UNFINISHED
from chatclient.errors import (
    ConversationBusyError,
    TurnCancelledError,
    TurnVersionError,
    UsageError,
)
from chatclient.web.requests import RefusedError
from chatclient.web.turns import GONE, LATER, RUNS, WAITS, TurnEvents

if TYPE_CHECKING:  # the client is given
    from chatclient.durable.client import DurableClient
    from chatclient.durable.handle import TurnHandle

_STOP_SECONDS = 30.0  # that a message waits for the end of a turn that is being cancelled


@dataclass(frozen=True)
class DurableRunner:
    """Runs durable turns: the process of the server follows their events.

    Attributes:
        durable: The durable client.
        queue: The queue that turns are started in, or None.
    """

    durable: "DurableClient"
    queue: str | None = None

    def prompt(self) -> ChatClientRequestSpec:
        """Return a new request of the client."""
        return self.durable.prompt()

    async def pending(self, conversation_id: str) -> PendingTurn | None:
        """Return the turn of the conversation that waits for decisions, or None.

        One that the user has just stopped is waited for: its tools end, and its calls are undone.

        Raises:
            RefusedError: A turn is running.
        """
        turn = await self.durable.conversation(conversation_id).alast()
        if turn is None:
            return None
        if (state := (await turn.astatus()).state) == "cancelling":
            try:
                await turn.aresult(_STOP_SECONDS)
            except TurnCancelledError:
                return None
            except TimeoutError as error:
                raise RefusedError(409, RUNS) from error
            state = (await turn.astatus()).state
        if state not in UNFINISHED:
            return None
        # Not `aresult`, which waits if another request has just decided.
        result = await asyncio.to_thread(turn.result_so_far)
        if result is None:
            raise RefusedError(409, RUNS)
        return result.pending_turn

    async def begin(self, conversation_id: str, request: ChatClientRequestSpec) -> TurnEvents:
        """Begin a turn.

        Raises:
            RefusedError: Another one was started at the same time.
        """
        conversation = self.durable.conversation(conversation_id)
        try:
            turn = await conversation.astart(request, queue=self.queue, streaming=True)
        except ConversationBusyError as error:
            raise RefusedError(409, WAITS if error.state == "waiting" else RUNS) from error
        return await _followed(turn, None)

    async def resume(
        self,
        conversation_id: str,
        request: ChatClientRequestSpec,  # noqa: ARG002 - that of the first segment is stored
        turn: PendingTurn,
        decisions: Mapping[str, Decision],
    ) -> TurnEvents:
        """Continue *turn*, which waits.

        Raises:
            RefusedError: It does not wait any more, or not every tool that it needs is here.
            UsageError: A decision cannot be applied.
        """
        last = await self.durable.conversation(conversation_id).alast()
        if last is None:
            raise RefusedError(409, GONE)
        try:
            await last.adecide(dict(decisions))
        except TurnVersionError as error:
            raise RefusedError(503, LATER) from error
        except UsageError as error:
            # If it still waits, the decision is wrong; otherwise another request has decided.
            if (await last.astatus()).state == "waiting":
                raise
            raise RefusedError(409, GONE) from error
        return await _followed(last, turn)

    async def follow(self, conversation_id: str, unanswered: str | None) -> TurnEvents | None:
        """Return the turn that runs or waits, from its beginning."""
        turn = await self.durable.conversation(conversation_id).alast()
        if turn is None:
            return None
        if (await turn.astatus()).state not in ("queued", "running", "waiting"):
            record = await asyncio.to_thread(turn.record)
            if unanswered is None or record.request_messages[-1].id != unanswered:
                return None
        return await _followed(turn, None)

    async def cancel(self, conversation_id: str) -> None:
        """Cancel the turn that runs or waits, if there is one."""
        turn = await self.durable.conversation(conversation_id).alast()
        if turn is not None:
            await turn.acancel()


async def _followed(turn: "TurnHandle", resumed: PendingTurn | None) -> TurnEvents:
    if resumed is None:
        record = await asyncio.to_thread(turn.record)
    else:
        record = load_turn(resumed, {})
    return TurnEvents(lambda: record, _events(turn, record, resumed), resumed)


async def _events(
    turn: "TurnHandle", record: Turn, resumed: PendingTurn | None
) -> AsyncGenerator[Any, None]:
    """Yield the events of *turn*, and append the rounds that they complete to its record."""
    message: AssistantMessage | None = None
    results: dict[str, ToolResponse] = {}
    if resumed is not None:
        message, results = resumed.message, {each.id: each for each in resumed.responses}
    async with aclosing(turn.aevents(after_decisions=resumed is not None)) as events:
        async for event in events:
            match event:
                case RoundEnded(response=response):
                    if message is not None and results:
                        record.append((message, ToolResponseMessage(tuple(results.values()))))
                    message, results = response.output, {}
                case ToolCallFinished(tool_call=call, response=answer):
                    results[call.id] = answer
                case _:
                    pass
            yield event
