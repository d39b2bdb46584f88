"""The turns in a session's log, and the view of it that a model gets."""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from itertools import pairwise

from chatclient.chat.message_merging import begins_turn
from chatclient.chat.messages import SystemMessage
from chatclient.memory.sessions.event import COMPACTION, MESSAGE, EventPayload, SessionEvent


def synthetic_first(events: Iterable[SessionEvent]) -> list[SessionEvent]:
    """Return *events* with the synthetic ones first: they summarise earlier messages."""
    events = list(events)
    return [e for e in events if e.synthetic] + [e for e in events if not e.synthetic]


def archive_changes(events: Iterable[SessionEvent]) -> dict[str, bool]:
    """Return the ids that the compactions among *events* name, and whether they are archived."""
    changes: dict[str, bool] = {}
    for event in events:
        if event.type == COMPACTION:
            changes |= dict.fromkeys(event.payload.data.get("archived", ()), True)
            changes |= dict.fromkeys(event.payload.data.get("restored", ()), False)
    return changes


def replayed(log: Sequence[SessionEvent]) -> list[SessionEvent]:
    """Return *log*, a whole log or its beginning, with `archived` as its compactions define it."""
    changes = archive_changes(log)
    return [event.with_archived(archived=changes.get(event.id, False)) for event in log]


def rewinding(log: Sequence[SessionEvent], message_id: str) -> EventPayload | None:
    """Return the payload that restores the view from before the message with an id was appended.

    Events of branches that belong to the turn of the message precede it and are archived as well.
    System messages are left as they are.

    Args:
        log: All events.
        message_id: The id of the message.

    Returns:
        None if there is no such message, or only ones that an earlier rewind removed.
    """
    removed = {
        id
        for event in log
        if event.type == COMPACTION and "restored" in event.payload.data
        for id in event.payload.data["archived"]
    }
    messages = [event for event in log if event.type == MESSAGE and event.id not in removed]
    place = next((at for at, it in enumerate(messages) if it.message.id == message_id), None)
    if place is None:
        return None
    start = place
    if messages[place].branch is None:
        while start and _is_same_turn(messages[start - 1], messages[place]):
            start -= 1
    before = replayed(log[: log.index(messages[start])])
    later = [e.id for e in messages[start:] if not isinstance(e.message, SystemMessage)]
    hidden = {event.id for event in replayed(log) if event.archived}
    shown = [e.id for e in before if e.type == MESSAGE and not e.archived and e.id in hidden]
    return EventPayload(COMPACTION, {"archived": later, "restored": shown, "strategy": "rewind"})


def turn_starts(events: Sequence[SessionEvent]) -> list[int]:
    """Return the indexes at which turns begin in *events*: messages that are not synthetic.

    A turn begins with a user message to the root agent. The other agents of the turn may finish,
    and append their events, before the turn is appended. Events of branches directly before the
    user message are therefore part of the turn unless they are older.
    """
    places = [at for at, event in enumerate(events) if event.branch is None]
    messages = [events[at].message for at in places]
    starts = []
    for number, at in enumerate(places):
        if begins_turn(messages, number):
            start = at
            while start and _is_same_turn(events[start - 1], events[at]):
                start -= 1
            starts.append(start)
    return starts


def with_complete_turns(
    events: Sequence[SessionEvent], selected: Collection[SessionEvent]
) -> list[SessionEvent]:
    """Return the *selected* events, and those of *events* in the same turns.

    Events before the first question count as one turn. Summaries, system messages and events
    without a message belong to no turn.
    """
    ids = {event.id for event in selected}
    log = [event for event in events if event.type == MESSAGE and not event.synthetic]
    for begin, end in pairwise(sorted({0, *turn_starts(log), len(log)})):
        turn = [event for event in log[begin:end] if is_in_turn(event)]
        if any(event.id in ids for event in turn):
            ids.update(event.id for event in turn)
    return [event for event in events if event.id in ids]


def is_in_turn(event: SessionEvent) -> bool:
    """Return whether *event* is part of a turn, not a summary, system message or payload."""
    if event.synthetic or event.type != MESSAGE:
        return False
    return not isinstance(event.message, SystemMessage)


def older_events(log: Sequence[SessionEvent], cutoff: datetime) -> list[SessionEvent]:
    """Return the events of *log* that belong to turns with events before *cutoff*.

    Turns are complete in the result, so that the other events are a valid log. Summaries are in it
    if all that they summarise is older, compactions if all that they archived is in it, and events
    of other types if they are older.

    Args:
        log: All events, in their order.
        cutoff: The time.
    """
    found = [e for e in log if e.timestamp < cutoff and _is_outside_turns(e)]
    turns = [event for event in log if event.type == MESSAGE and not event.synthetic]
    bounds = sorted({0, *turn_starts(turns), len(turns)})
    for begin, end in pairwise(bounds):
        turn = turns[begin:end]
        if any(event.timestamp < cutoff for event in turn):
            found += turn
    kept = {event.id for event in log} - {event.id for event in found}
    return found + [
        event
        for event in log
        if event.type == COMPACTION
        and event.timestamp < cutoff
        and kept.isdisjoint(archive_changes([event]))
    ]


def _is_outside_turns(event: SessionEvent) -> bool:
    return event.synthetic or event.type not in (MESSAGE, COMPACTION)


def _is_same_turn(event: SessionEvent, question: SessionEvent) -> bool:
    return event.branch is not None and event.timestamp >= question.timestamp
