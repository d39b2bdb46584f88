"""`TurnMap`: one durable turn for each of many prompts."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass

from chatclient.chat.turn import Outcome
from chatclient.client.accessors import outcome_of, waiting_error
from chatclient.durable.handle import TurnHandle, TurnState, states_of
from chatclient.durable.results import TurnResult
from chatclient.errors import ChatClientError

_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class MapResult:
    """The result of one turn of a map.

    Attributes:
        key: The key of its prompt, or its position as a text.
        turn: The handle of the turn.
        result: The result; None if the turn failed or was cancelled.
        error: Why there is no answer, or None.
    """

    key: str
    turn: TurnHandle
    result: TurnResult | None
    error: Exception | None = None

    @property
    def outcome(self) -> Outcome:
        """How the turn ended."""
        return outcome_of(self.error)

    def unwrap(self) -> TurnResult:
        """Return the result with the answer, or raise the error."""
        if self.error is not None:
            raise self.error
        assert self.result is not None  # noqa: S101 - one of both
        return self.result


class TurnMap:
    """The turns of `DurableClient.map`; iterate over it for the results, in the order of their end.

    A turn that waits for decisions counts as ended; its result has the `pending_turn`, and its
    error says that there is no answer. Iterating again yields all results again, in any process.

    Args:
        turns: The handles by key.
    """

    def __init__(self, turns: Mapping[str, TurnHandle]) -> None:
        self.turns = turns

    def __len__(self) -> int:
        return len(self.turns)

    def progress(self) -> Counter[TurnState]:
        """Return the number of turns in each state."""
        return Counter(states_of([*self.turns.values()]).values())

    def __iter__(self) -> Iterator[MapResult]:
        left = dict(self.turns)
        while left:
            ended = self._ended(left)
            for key in ended:
                yield self._result(key, left.pop(key))
            if left and not ended:
                time.sleep(_POLL_SECONDS)

    async def __aiter__(self) -> AsyncIterator[MapResult]:
        left = dict(self.turns)
        while left:
            ended = await asyncio.to_thread(self._ended, left)
            for key in ended:
                yield await asyncio.to_thread(self._result, key, left.pop(key))
            if left and not ended:
                await asyncio.sleep(_POLL_SECONDS)

    def _ended(self, turns: Mapping[str, TurnHandle]) -> list[str]:
        states = states_of([*turns.values()])
        # One that was deleted has no state; its result is an error.
        running = ("queued", "running", "cancelling")
        return [key for key, turn in turns.items() if states.get(turn.id) not in running]

    @staticmethod
    def _result(key: str, turn: TurnHandle) -> MapResult:
        try:
            result = turn.result()
            pending = result.pending_turn
            error = None if pending is None else waiting_error(result.chat_response, pending)
            return MapResult(key, turn, result, error)
        except ChatClientError as error:
            return MapResult(key, turn, None, error)
        except Exception as error:
            if turn.status().state != "failed":  # an error of the database
                raise
            return MapResult(key, turn, None, error)
