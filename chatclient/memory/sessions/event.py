"""`Session`, and `SessionEvent`: a message in the log of a session."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Self
from uuid import uuid4

from chatclient._internal.checks import check_moment, checked_id
from chatclient._internal.frozen import EMPTY, frozen
from chatclient.chat.message_merging import begins_turn
from chatclient.chat.messages import Message
from chatclient.errors import UsageError

COMPACTION_SOURCE = "compaction_source"
"""The metadata key of a synthetic event with the name of the strategy that created it."""


def now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Session:
    """A conversation of a user with one or several agents.

    Attributes:
        id: The session id, which is the conversation id of its requests.
        user_id: The id of the owner.
        created_at: The time of creation.
        expires_at: The time of expiry, or None.
        metadata: JSON values of the application.

    Raises:
        UsageError: An id is blank, or a time has no time zone.
    """

    id: str
    user_id: str
    created_at: datetime
    expires_at: datetime | None = None
    metadata: Mapping[str, Any] = EMPTY

    def __post_init__(self) -> None:
        checked_id(self.id, "a session's id")
        checked_id(self.user_id, "a session's user id")
        check_moment("created_at", self.created_at)
        check_moment("expires_at", self.expires_at)
        object.__setattr__(self, "metadata", frozen(self.metadata, "metadata"))

    def expired(self, moment: datetime) -> bool:
        """Return whether the session has expired at *moment*."""
        return self.expires_at is not None and self.expires_at <= moment


@dataclass(frozen=True, slots=True)
class SessionEvent:
    """A message in a session's log.

    Attributes:
        id: The id, unique in the session. Appending an event with an existing id has no effect.
        session_id: The id of the session.
        timestamp: The time of the message.
        message: The message.
        branch: The agent that sent or received it, as a dotted path such as `lead.writer`, or
            None for the root agent, which talks with the user; an empty path becomes None.
        metadata: JSON values of the application.
        synthetic: Whether it is a summary of archived events instead of an actual message.
        archived: Whether compaction has hidden it from the model.

    Raises:
        UsageError: The timestamp has no time zone, or the branch is not a dotted path.
    """

    id: str
    session_id: str
    timestamp: datetime
    message: Message
    branch: str | None = None
    metadata: Mapping[str, Any] = EMPTY
    synthetic: bool = False
    archived: bool = False

    def __post_init__(self) -> None:
        check_moment("timestamp", self.timestamp)
        object.__setattr__(self, "branch", checked_branch(self.branch))
        object.__setattr__(self, "metadata", frozen(self.metadata, "metadata"))

    @classmethod
    def of(
        cls,
        session_id: str,
        message: Message,
        *,
        id: str | None = None,
        timestamp: datetime | None = None,
        **rest: Any,
    ) -> Self:
        """Return an event for *message*; by default with a random id and the current time."""
        return cls(id or uuid4().hex, session_id, timestamp or now(), message, **rest)

    def as_archived(self) -> Self:
        """Return the event as an archived one."""
        return self if self.archived else replace(self, archived=True)


def checked_branch(branch: str | None) -> str | None:
    """Return *branch*, a dotted path of names, or None for the root agent: no or an empty path.

    Raises:
        UsageError: It is no such path.
    """
    if branch and not all(p and p == p.strip() for p in branch.split(".")):
        msg = f"a branch must be a path of agents' names such as 'lead.writer', not {branch!r}"
        raise UsageError(msg)
    return branch or None


def visible_branches(branch: str) -> tuple[str, ...]:
    """Return the branches that an agent sees besides the root: *branch* and its ancestors.

    Args:
        branch: The branch of the agent; empty for the root agent, which sees no branch.
    """
    parts = branch.split(".") if branch else []
    return tuple(".".join(parts[:count]) for count in range(1, len(parts) + 1))


def synthetic_first(events: Iterable[SessionEvent]) -> list[SessionEvent]:
    """Return *events* with the synthetic ones first: they summarise earlier messages."""
    events = list(events)
    return [e for e in events if e.synthetic] + [e for e in events if not e.synthetic]


def turn_starts(events: Sequence[SessionEvent]) -> list[int]:
    """Return the indexes at which turns begin in *events*, which contain no synthetic ones.

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


def older_events(log: Sequence[SessionEvent], cutoff: datetime) -> list[SessionEvent]:
    """Return the events of *log* that belong to turns with events before *cutoff*.

    Turns are complete in the result, so that the other events are a valid log. Summaries are in it
    if all that they summarise is older.

    Args:
        log: All events, in their order.
        cutoff: The time.
    """
    found = [event for event in log if event.synthetic and event.timestamp < cutoff]
    log = [event for event in log if not event.synthetic]
    bounds = sorted({0, *turn_starts(log), len(log)})
    for begin, end in pairwise(bounds):
        turn = log[begin:end]
        if any(event.timestamp < cutoff for event in turn):
            found += turn
    return found


def _is_same_turn(event: SessionEvent, question: SessionEvent) -> bool:
    return event.branch is not None and event.timestamp >= question.timestamp
