"""Handles on durable turns: results, events, states and decisions."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from chatclient.chat.events import (
    ApprovalNeeded,
    Done,
    RoundEnded,
    RoundRestarted,
    TextDelta,
    TextReplaced,
    TurnDecided,
)
from chatclient.chat.pending_turn import Decision, Decisions, PendingTurn, decisions_for
from chatclient.chat.serialization import message_from_dict
from chatclient.chat.turn import TURN_KEY, Turn
from chatclient.durable.events import FORMAT, DurableEvent, EventReader, segment_id, unread_reason
from chatclient.durable.requests import (
    TurnResult,
    decisions_from_dict,
    decisions_to_dict,
    result_from_dict,
)
from chatclient.durable.states import (
    ACTIVE,
    CANCEL,
    REJECTED,
    TurnState,
    TurnStatus,
    attribute_of,
    error_of,
    input_of,
    output_of,
    problem_of,
    state_of,
    unreadable,
)
from chatclient.errors import DurableTurnError, TurnCancelledError, TurnVersionError, UsageError
from chatclient.extend import from_stored

if TYPE_CHECKING:
    from chatclient.durable.dbos_steps import WorkflowStatus
    from chatclient.durable.engine import Engine
    from chatclient.durable.notices import Watch

_AGAIN_SECONDS = 0.05  # until a segment that is just being started can be read


class EventCursor:
    """Reads the events of a turn, segment by segment; a context manager.

    Attributes:
        ended: Whether all events have been read.
        watch: Receives what the segment publishes.

    Args:
        turn: The handle of the turn.
        segment: The number of the segment to begin with.
        loop: The event loop of the reader, or None if it blocks.
    """

    def __init__(
        self, turn: "TurnHandle", segment: int, loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        self.ended = False
        self._turn = turn
        self._loop = loop
        self._begin(segment)
        self._text = ""  # of the last round

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.watch.__exit__(None, None, None)

    def _begin(self, segment: int) -> None:
        self._segment, self._reader = segment, EventReader()
        id = segment_id(self._turn.id, segment)
        self.watch = self._turn.engine.notices.watch(id, 0, loop=self._loop)

    def read(self) -> tuple[list[DurableEvent], bool]:
        """Return the events since the last call, and whether these are all; without blocking.

        Raises:
            DurableTurnError: They are stored in another format.
        """
        events: list[DurableEvent] = []
        values, are_all = self.watch.take()
        for each in values:
            if each.format != FORMAT:
                raise unreadable(self.watch.id, unread_reason(each.value))
            events += self._reader.events(json.loads(each.value))
        for event in events:
            match event:
                case TextDelta(text=text):
                    self._text += text
                case RoundRestarted():
                    self._text = ""
                case RoundEnded(response=response):
                    self._text = response.text
                case _:
                    pass
        return events, are_all

    def continued(self) -> list[DurableEvent] | None:
        """Return the events between this segment and the next one; None if it is being started.

        Raises:
            ChatClientError: The turn failed; its events have been returned before.
        """
        if (decided := self._turn.input_of(self._segment + 1)) is not None:
            self.watch.__exit__(None, None, None)
            self._begin(self._segment + 1)
            return [*_decided(decided)]
        if (result := self._turn.result_so_far()) is None:
            return None
        self.ended = True
        return [*self._closing(result)]

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


_NO_RESULT = "the durable turn has no result yet; it continues"
_SEGMENTS_AT_ONCE, _TURNS_AT_ONCE = 4, 500

CheckDecisions = Callable[[Mapping[str, Any], PendingTurn, dict[str, Decision]], None]
"""Raises an error if decisions cannot be applied; the first argument is what started the turn."""


@dataclass(frozen=True, slots=True)
class _Segment:
    """A workflow of the turn: the first one, or one that continues after decisions."""

    id: str
    number: int
    status: "WorkflowStatus"

    @property
    def result(self) -> TurnResult | None:
        """The result, if it has succeeded."""
        status = self.status
        return result_from_dict(output_of(status)) if status.status == "SUCCESS" else None

    @property
    def state(self) -> TurnState:
        """Where it is."""
        return state_of(self.status)


class TurnHandle:
    """A durable turn that was started: reads its result, events and status, and sends decisions.

    Each method has an asynchronous twin with an `a` before its name.

    Args:
        engine: The engine of this process.
        id: The id of the turn.
        check_decisions: Checks whether decisions can be applied.
        is_new: Whether the turn has just been started.

    Attributes:
        id: The id of the turn, with which any process gets a handle: `durable_client.turn(id)`.
    """

    def __init__(
        self, engine: "Engine", id: str, check_decisions: CheckDecisions, *, is_new: bool = False
    ) -> None:
        self.id = id
        self._engine = engine
        self._check_decisions = check_decisions
        self._is_new = is_new
        self._known = 1  # the number of a segment that exists

    def __repr__(self) -> str:
        return f"TurnHandle({self.id!r})"

    @property
    def engine(self) -> "Engine":
        """The engine of this process.

        Raises:
            UsageError: There is none any more.
        """
        from chatclient.durable.engine import current_engine, has_engine  # noqa: PLC0415 - an extra

        # One that is being closed still reads the turns that end meanwhile.
        if has_engine() or self._engine.notices.is_closed:
            self._engine = current_engine()
        return self._engine

    def status(self) -> TurnStatus:
        """Return where the turn is.

        Raises:
            UsageError: There is no such turn.
        """
        status = self._segment().status
        problem = problem_of(status)
        version = self.engine.version_of(status)
        return TurnStatus(state_of(status), version, status.queue_name, problem)

    async def astatus(self) -> TurnStatus:
        """Return where the turn is; see `status`."""
        return await asyncio.to_thread(self.status)

    def result(self, timeout: float | None = None) -> TurnResult:
        """Wait until the turn has ended, or waits for decisions, and return its result.

        Args:
            timeout: The maximum time to wait in seconds.

        Raises:
            TimeoutError: *timeout* has passed; the turn continues.
            TurnCancelledError: The turn was cancelled.
            DurableTurnError: The turn cannot be continued.
            ChatClientError: The turn failed; the error is that of its request.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._watch() as watch:
                in_time = watch.wait(None if end is None else max(end - time.monotonic(), 0.0))
            if (result := _answer_of(watch) or self.result_so_far()) is not None:
                return result
            if not in_time:
                raise TimeoutError(_NO_RESULT)

    async def aresult(self, timeout: float | None = None) -> TurnResult:  # noqa: ASYNC109
        """Wait until the turn has ended; see `result`."""
        end = None if timeout is None else time.monotonic() + timeout
        loop = asyncio.get_running_loop()
        while True:
            with self._watch(loop) as watch:
                left = None if end is None else max(end - time.monotonic(), 0.0)
                in_time = await watch.await_news(left)
            result = _answer_of(watch) or await asyncio.to_thread(self.result_so_far)
            if result is not None:
                return result
            if not in_time:
                raise TimeoutError(_NO_RESULT)

    def _watch(self, loop: asyncio.AbstractEventLoop | None = None) -> "Watch":
        """Return a watch of the last segment that is known."""
        id, is_new = segment_id(self.id, self._known), self._is_new
        self._is_new = False
        return self.engine.notices.watch(id, loop=loop, is_new=is_new)

    def events(self, *, after_decisions: bool = False) -> Generator[DurableEvent, None, None]:
        """Yield the events of the turn from its beginning, until it has ended or waits.

        The last one is `Done`, and before it comes `ApprovalNeeded` if the turn waits. Unless the
        turn was started with `streaming=True`, there is only the text of the answer before them.

        Args:
            after_decisions: Whether to leave out what precedes the last decisions.

        Raises:
            ChatClientError: The turn failed, as in `result`.
        """
        with self._cursor(after_decisions=after_decisions) as cursor:
            while not cursor.ended:
                cursor.watch.wait()
                events, are_all = cursor.read()
                yield from events
                while are_all:
                    if (more := cursor.continued()) is not None:
                        yield from more
                        break
                    time.sleep(_AGAIN_SECONDS)

    async def aevents(self, *, after_decisions: bool = False) -> AsyncGenerator[DurableEvent, None]:
        """Yield the events of the turn; see `events`. No thread waits for them."""
        loop = asyncio.get_running_loop()
        with await asyncio.to_thread(
            self._cursor, after_decisions=after_decisions, loop=loop
        ) as cursor:
            while not cursor.ended:
                await cursor.watch.await_news()
                events, are_all = cursor.read()
                for event in events:
                    yield event
                while are_all:
                    if (more := await asyncio.to_thread(cursor.continued)) is not None:
                        for event in more:
                            yield event
                        break
                    await asyncio.sleep(_AGAIN_SECONDS)

    def _cursor(
        self, *, after_decisions: bool, loop: asyncio.AbstractEventLoop | None = None
    ) -> EventCursor:
        number = self._segment().number
        return EventCursor(self, number if after_decisions else 1, loop)

    def input_of(self, segment: int) -> Mapping[str, Any] | None:
        """Return what the segment was started with, or None if there is no such segment."""
        found = self.engine.workflows(
            workflow_ids=[segment_id(self.id, segment)], load_output=False
        )
        return input_of(found[0]) if found else None

    def first_input(self) -> Mapping[str, Any]:
        """Return what the turn was started with.

        Raises:
            UsageError: There is no such turn.
        """
        found = self.input_of(1)
        if found is None:
            raise self._missing()
        return found

    def record(self) -> Turn:
        """Return the record of the turn at its beginning, which has the messages of the request.

        Raises:
            UsageError: There is no such turn.
        """
        request = from_stored(self.first_input()["request"])
        turn = Turn.of({TURN_KEY: self.id, **request["params"]})
        turn.request_messages = tuple(message_from_dict(each) for each in request["messages"])
        return turn

    def decide(self, decisions: Decisions) -> None:
        """Continue a turn that waits, with decisions about its calls; applied once.

        Args:
            decisions: As in `ChatClient.resume`; `pending_turn.to_decide()` has the ids.

        Raises:
            UsageError: The turn does not wait, has been continued by other decisions, or a
                decision is missing or cannot be applied; nothing was changed.
            TurnVersionError: This process does not have the tools that the turn needs to continue;
                nothing was changed.
        """
        segment = self._segment()
        result = segment.result
        pending = None if result is None else result.pending_turn
        # The state is checked as well, because a turn that is being cancelled takes no decisions.
        if pending is None or segment.state != "waiting":
            msg = f"turn {self.id!r} does not wait for decisions: it is {self.status().state}"
            raise UsageError(msg)
        given = decisions_for(pending, decisions)
        # Before the next segment starts, so that the caller gets the error and the turn stays
        # pending.
        self._check_decisions(self.first_input(), pending, given)
        resume = {"turn": pending.to_json(), "decisions": decisions_to_dict(given)}
        # The id of the next segment is unique, so only one of several concurrent decisions counts.
        if not self._continue(segment, {"resume": resume}):
            msg = f"turn {self.id!r} has been continued by other decisions"
            raise UsageError(msg)

    async def adecide(self, decisions: Decisions) -> None:
        """Continue a turn that waits; see `decide`."""
        await asyncio.to_thread(self.decide, decisions)

    def cancel(self) -> None:
        """Cancel the turn; calls of tools with a compensation are undone.

        Returns immediately, and does nothing if the turn has ended. Nothing new begins, and a tool
        that runs is cancelled at its next `await`. The turn is `cancelling` until nothing of it
        runs and its calls were undone, by another process if the present one ends before.
        `result` waits for that, and raises a `TurnCancelledError`.
        """
        segment = self._segment()
        while segment.state in ("queued", "running", "waiting", "stuck"):
            if segment.status.status == "SUCCESS":
                output_of(segment.status)  # raises an error before anything is changed
            self.engine.cancel(segment.id, is_first=segment.number == 1)
            segment = self._segment()  # it has just ended, or decisions were faster

    async def acancel(self) -> None:
        """Cancel the turn; see `cancel`."""
        await asyncio.to_thread(self.cancel)

    def delete(self) -> None:
        """Delete all that is stored of the turn, which has ended or waits for decisions.

        Raises:
            UsageError: It is queued, running or being cancelled: cancel it first.
        """
        segment = self._segment()
        state = segment.state
        if segment.status.status in ACTIVE or state == "cancelling":
            msg = f"turn {self.id!r} is {state}; cancel it before it is deleted"
            raise UsageError(msg)
        self.engine.delete_workflows([segment_id(self.id, n + 1) for n in range(segment.number)])
        self._known = 1

    async def adelete(self) -> None:
        """Delete all that is stored of the turn; see `delete`."""
        await asyncio.to_thread(self.delete)

    # --- segments ---

    def last_segment(self) -> str:
        """Return the id of the workflow that is the last segment of the turn.

        Raises:
            UsageError: There is no such turn.
        """
        return self._segment().id

    def _segment(self) -> _Segment:
        """Return the last segment, which does not wait if it will be cancelled.

        A turn may begin to wait at the same time as it is cancelled. Then another segment takes
        the place of decisions, and undoes the calls.

        Raises:
            UsageError: There is no such turn.
        """
        while True:
            segment: _Segment | None = None
            while True:
                first = self._known if segment is None else segment.number + 1
                numbers = {
                    segment_id(self.id, n): n for n in range(first, first + _SEGMENTS_AT_ONCE)
                }
                found = self.engine.workflows(workflow_ids=[*numbers], load_input=False)
                if not found:
                    break
                status = max(found, key=lambda each: numbers[each.workflow_id])
                segment = _Segment(status.workflow_id, numbers[status.workflow_id], status)
                if len(found) < _SEGMENTS_AT_ONCE:
                    break
            if segment is None:
                raise self._missing()
            self._known = segment.number
            result = segment.result if segment.state == "cancelling" else None
            if result is None or result.pending_turn is None:
                return segment
            pending = result.pending_turn
            denied = decisions_to_dict(decisions_for(pending, "deny"))
            resume = {"turn": pending.to_json(), "decisions": denied}
            changes = {"resume": resume, "cancelled": True, "deadline": None}
            self._continue(segment, changes, {CANCEL: True})

    def _missing(self) -> UsageError:
        return UsageError(f"there is no durable turn {self.id!r} in this database")

    def _continue(
        self,
        segment: _Segment,
        changes: dict[str, Any],
        attributes: dict[str, Any] | None = None,
    ) -> bool:
        """Start the segment after *segment*; return False if there is one already."""
        from chatclient.durable.engine import Enqueued  # noqa: PLC0415 - an extra

        (status,) = self.engine.workflows(workflow_ids=[segment.id])
        data = input_of(status)
        left, now = output_of(status)["seconds_left"], self.engine.now()
        data = {
            **data,
            "segment": segment.number + 1,
            "started": now,
            "deadline": None if left is None else now + left,
            **changes,
        }
        how = Enqueued(data["queue"], status.priority or None, None, status.queue_partition_key)
        id = segment_id(self.id, segment.number + 1)
        return self.engine.start(id, data, how, reject=True, attributes=attributes)

    def result_so_far(self) -> TurnResult | None:
        """Return the result, or None while the turn is running.

        Raises:
            ChatClientError: It failed.
        """
        segment = self._segment()
        status = segment.status
        match status.status:
            case "SUCCESS":
                return segment.result
            case "ERROR":
                raise error_of(status)
            case "CANCELLED":
                if (reason := attribute_of(status, REJECTED)) is not None:
                    raise TurnVersionError(reason, turn_id=self.id, version=status.app_version)
                msg = f"turn {self.id!r} was cancelled"
                raise TurnCancelledError(msg, turn_id=self.id)
            case "MAX_RECOVERY_ATTEMPTS_EXCEEDED":
                msg = (
                    f"turn {self.id!r} is not continued any more, because the processes that ran it"
                    " ended too often"
                )
                raise DurableTurnError(msg, turn_id=self.id)
        return None


def _answer_of(watch: "Watch") -> TurnResult | None:
    """Return the result of a turn that was answered in this process, which needs no query."""
    if watch.output is None or (output := json.loads(watch.output))["pending"] is not None:
        return None
    return result_from_dict(output)


def states_of(turns: Sequence[TurnHandle]) -> dict[str, TurnState]:
    """Return the states of *turns* of one database by their ids, with few queries.

    The outcome of a turn that has succeeded is not read, except for whether it waits.
    """
    found: dict[str, TurnState] = {}
    for at in range(0, len(turns), _TURNS_AT_ONCE):
        several = turns[at : at + _TURNS_AT_ONCE]
        engine = several[0].engine
        ids = [turn.id for turn in several]
        for status in engine.workflows(workflow_ids=ids, load_input=False):
            found[status.workflow_id] = state_of(status)
        for turn in several:
            if found.get(turn.id) in ("waiting", "cancelling", "stuck"):  # or continued already
                found[turn.id] = turn.status().state
    return found
