"""`MessageIds`: the ids under which memories will store the messages of a turn."""

from collections.abc import Callable

from chatclient.advisors.tool_loop.pending_notes import load_turn
from chatclient.chat.messages import AssistantMessage
from chatclient.chat.pending_turn import PendingTurn
from chatclient.chat.turn import Turn


class MessageIds:
    """Counts the messages of a turn, from which their ids are derived; see `Turn`.

    The record of the turn itself may be ahead of the events: they wait for the consumer.

    Args:
        record: Returns the record of the turn.
        resumed: The turn that the request resumes, or None.
    """

    def __init__(self, record: Callable[[], Turn], resumed: PendingTurn | None) -> None:
        self._record = record
        self._resumed = resumed
        self._turn_id = ""
        self._position = 0
        self._first: str | None = None
        self._has_results = False  # whether calls of the last message have results
        self._has_skipped = False  # whether a message was not streamed since
        self._used: list[str] = []

    @property
    def first(self) -> str:
        """The id of the first message of the model."""
        self._look()
        return self._first or ""

    @property
    def last(self) -> str:
        """The id of the last message that was begun."""
        return self._used[-1] if self._used else self._next(0)

    @property
    def is_rejected(self) -> bool:
        """Whether the last message was an answer that was rejected, if another one begins."""
        return bool(self._used) and not self._has_results

    def begin(self, *, late: bool) -> str:
        """Return the id of the message that begins.

        An answer that an advisor rejects is not in the record of the turn, so that the next one
        has its id; a frontend shows both.

        Args:
            late: Whether it has only calls, of the last message, that were not streamed.
        """
        if late and self._used and not self._has_skipped:
            return self.last
        self.skip()
        self._has_skipped = False
        id = self._next(0)
        id = f"{id}.{len(self._used)}" if id in self._used else id
        self._used.append(id)
        return id

    def take_back(self) -> None:
        """Forget the last message, which begins again."""
        self._used.pop()

    def skip(self) -> None:
        """Count the messages of the last round, if its tool calls have results."""
        if self._has_results:
            self._position += 2  # the message of the model, and the one with the results
            self._has_results, self._has_skipped = False, True

    def results(self) -> str:
        """Return the id of the message with the results of the tool calls of this round."""
        self._has_results = True
        return self._next(1)

    def _next(self, after: int) -> str:
        self._look()
        return f"{self._turn_id}-{self._position + after}"

    def _look(self) -> None:
        """Read the id of the turn, and how many messages it had when it began."""
        if self._turn_id:
            return
        if self._resumed is not None:
            turn = load_turn(self._resumed, {})
            earlier = turn.rounds
        else:
            turn, earlier = self._record(), ()
        self._turn_id, self._position = turn.id, len(turn.request_messages) + len(earlier)
        answers = (each.id for each in earlier if isinstance(each, AssistantMessage))
        self._first = next(answers, None) or self._next(0)
