"""`EventCursor`: reads the published events of a durable turn, without waiting."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from chatclient.chat.events import ApprovalNeeded, Done, RoundEnded, TextDelta, TextReplaced
from chatclient.chat.pending_turn import PendingTurn
from chatclient.durable.events import DurableEvent, EventReader, RoundRestarted, TurnDecided
from chatclient.durable.results import TurnResult, decisions_from_dict

if TYPE_CHECKING:  # it makes cursors
    from chatclient.durable.handle import TurnHandle


class EventCursor:
    """Reads the events of a turn, segment by segment.

    Attributes:
        ended: Whether all events have been read.

    Args:
        turn: The handle of the turn.
        segment: The number of the segment to begin with.
    """

    def __init__(self, turn: "TurnHandle", segment: int) -> None:
        self.ended = False
        self._turn = turn
        self._segment = segment
        self._offset = 0
        self._reader = EventReader()
        self._text = ""  # of the last round

    def read(self) -> list[DurableEvent]:
        """Return the events that were published since the last call.

        Raises:
            ChatClientError: The turn failed; its events have been returned before.
        """
        values, is_complete = self._turn.published(self._segment, self._offset)
        self._offset += len(values)
        events = [event for value in values for event in self._reader.events(value)]
        for event in events:
            self._note(event)
        if events or not is_complete:
            return events
        if (decided := self._turn.input_of(self._segment + 1)) is not None:
            self._segment, self._offset, self._reader = self._segment + 1, 0, EventReader()
            return [*_decided(decided)]
        if (result := self._turn.result_so_far()) is None:  # a segment was just begun
            return []
        self.ended = True
        return [*self._closing(result)]

    def _note(self, event: DurableEvent) -> None:
        match event:
            case TextDelta(text=text):
                self._text += text
            case RoundRestarted():
                self._text = ""
            case RoundEnded(response=response):
                self._text = response.text
            case _:
                pass

    def _closing(self, result: TurnResult) -> Iterator[DurableEvent]:
        """Yield the last events, as a stream in the process has them."""
        response, pending = result.chat_response, result.pending_turn
        if pending is None and response.text != self._text:
            # An advisor has answered or has changed the answer, or events were not published.
            yield TextReplaced(response.text) if self._text else TextDelta(response.text)
        if pending is not None:
            yield ApprovalNeeded(pending)
        yield Done(response, executions=result.tool_executions)


def _decided(data: Mapping[str, Any]) -> Iterator[DurableEvent]:
    """Yield the event of the decisions that begin a segment; a cancelled one has none."""
    if not data.get("cancelled"):
        resume = data["resume"]
        turn = PendingTurn.from_json(resume["turn"])
        yield TurnDecided(turn, decisions_from_dict(resume["decisions"]))
