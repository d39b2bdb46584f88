"""A session and the events in its log."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Self
from uuid import uuid4

from chatclient.checks import check_kind
from chatclient.errors import UsageError
from chatclient.messages import Message, begins_turn
from chatclient.values import EMPTY, frozen

COMPACTION_SOURCE = "compaction_source"
"""The key in the metadata of a synthetic event of what made it."""


def now() -> datetime:
    """Return the time, in UTC."""
    return datetime.now(UTC)


def timely(moment: datetime | None, what: str) -> None:
    """Make sure that *moment* has a time zone, so that it means the same wherever it is read.

    Raises:
        UsageError: It is not a `datetime`, or has no time zone.
    """
    if moment is None:
        return
    check_kind(what, moment, datetime)
    if moment.tzinfo is None:
        msg = f"{what} needs a time zone; datetime.now(UTC) has one"
        raise UsageError(msg)


@dataclass(frozen=True, slots=True)
class Session:
    """A conversation of a user's with one agent or several.

    Attributes:
        id: Its name; the conversation id of the requests that belong to it.
        user_id: Whose it is.
        created_at: Since when.
        expires_at: When it is gone, or None for never.
        metadata: Whatever the application wants to remember; JSON values.

    Raises:
        UsageError: An id is blank, or a time has no time zone.
    """

    id: str
    user_id: str
    created_at: datetime
    expires_at: datetime | None = None
    metadata: Mapping[str, Any] = EMPTY

    def __post_init__(self) -> None:
        _named(self.id, "a session's id")
        _named(self.user_id, "a session's user id")
        timely(self.created_at, "created_at")
        timely(self.expires_at, "expires_at")
        object.__setattr__(self, "metadata", frozen(self.metadata, "metadata"))

    def expired(self, moment: datetime) -> bool:
        """Return whether it is gone at *moment*."""
        return self.expires_at is not None and self.expires_at <= moment


@dataclass(frozen=True, slots=True)
class SessionEvent:
    """A message in a session's log.

    Attributes:
        id: Names the event in its session: appended again, it changes nothing.
        session_id: The session that it belongs to.
        timestamp: When it happened.
        message: What was said.
        branch: The agent that said or heard it, as a dotted path such as `lead.writer`, or None
            for the agent that talks with the user.
        metadata: Whatever the application wants to remember; JSON values.
        synthetic: Whether it was never said: it stands for events that compaction has archived.
        archived: Whether compaction took it out of what the model is shown.

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
        timely(self.timestamp, "timestamp")
        check_branch(self.branch)
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
        """Return the event of *message* being said now, with an id of its own, unless told."""
        return cls(id or uuid4().hex, session_id, timestamp or now(), message, **rest)

    def as_archived(self) -> Self:
        """Return the event, archived."""
        return self if self.archived else replace(self, archived=True)


def _named(value: object, what: str) -> None:
    if not isinstance(value, str) or not value.strip():
        msg = f"{what} must be a text that is not blank, not {value!r}"
        raise UsageError(msg)


def check_branch(branch: str | None) -> None:
    """Make sure that *branch* is well-formed, or None.

    Raises:
        UsageError: It is not made of names with dots between.
    """
    if branch is not None and not all(p and p == p.strip() for p in branch.split(".")):
        msg = f"a branch must be a path of agents' names such as 'lead.writer', not {branch!r}"
        raise UsageError(msg)


def visible_branches(branch: str) -> tuple[str, ...]:
    """Return the branches whose events an agent sees beside the root's: its own and those above.

    Args:
        branch: The agent's, or an empty text for the agent at the root, which sees no branch.
    """
    parts = branch.split(".") if branch else []
    return tuple(".".join(parts[:count]) for count in range(1, len(parts) + 1))


def in_order(events: Iterable[SessionEvent]) -> list[SessionEvent]:
    """Return *events*, which are in the order of the log, as they are shown: synthetic ones first.

    They stand for what was said before everything that is still shown.
    """
    events = list(events)
    return [e for e in events if e.synthetic] + [e for e in events if not e.synthetic]


def turn_starts(events: Sequence[SessionEvent]) -> list[int]:
    """Return where turns begin in *events*, which have no synthetic ones among them.

    A turn begins with what the user says to the agent at the root. Agents that answer within the
    turn may be done, and have their events in the log, before the turn as a whole is; so events of
    branches right before it that are not older belong to it.
    """
    places = [at for at, event in enumerate(events) if event.branch is None]
    messages = [events[at].message for at in places]
    starts = []
    for number, at in enumerate(places):
        if begins_turn(messages, number):
            start = at
            while start and _within(events[start - 1], events[at]):
                start -= 1
            starts.append(start)
    return starts


def _within(event: SessionEvent, question: SessionEvent) -> bool:
    return event.branch is not None and event.timestamp >= question.timestamp
