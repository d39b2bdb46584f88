"""The log of a session: its turns, `EventFilter`, and the contract `SessionRepository`."""

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence, Set as AbstractSet
from dataclasses import dataclass, fields, replace
from datetime import datetime
from itertools import pairwise
from typing import Any, Literal, Self

from chatclient._internal.checks import check_choice, check_moment, check_number, check_type, names
from chatclient._internal.closeable import Closeable
from chatclient.chat.message_merging import begins_turn
from chatclient.chat.messages import Role, SystemMessage
from chatclient.errors import ChatMemoryError, UsageError, VersionConflictError
from chatclient.memory.sessions.event import (
    COMPACTION,
    MESSAGE,
    EventPayload,
    Session,
    SessionEvent,
    checked_branch,
    visible_branches,
)
from chatclient.runtime.runtime import Runtime

_PAGE_SIZE = 20
_MESSAGES = frozenset({MESSAGE})
_SELECTING = (
    *("since", "until", "roles", "message_id", "last", "page", "page_size"),
    *("keyword", "keywords", "match", "pattern"),
)
EVERY_TYPE = "*"
"""As `EventFilter.types`: events of all types."""

Match = Literal["any", "all"]
"""Whether any or all keywords must occur."""


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
    """Return *log*, complete or its beginning, with `archived` as its compactions define it."""
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
    # A message that an earlier rewind removed may have been appended again.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """Selects the events that satisfy all of its conditions, in the order of the log.

    Attributes:
        types: The types of events; default: messages. `EVERY_TYPE` selects all.
        since: The earliest timestamp.
        until: The latest timestamp.
        roles: The permitted roles of messages.
        message_id: The id of the message.
        exclude_synthetic: Whether to exclude summaries.
        exclude_archived: Whether to exclude archived events. The result is then a view of the
            log, which begins with the summaries.
        last: The maximum number of events; the newest are selected.
        complete_turns: Whether to add the other events of each turn that has a selected event, as
            far as the conditions on types, branch, summaries and archived events permit. The
            result may be longer than *last* or a page.
        keyword: A text that the message must contain, ignoring case.
        keywords: Texts that the message must contain, ignoring case.
        match: Whether any or all of *keywords* are required; default: any.
        pattern: A regular expression that must match somewhere; case-sensitive if a string.
        page: The page to select, from 0; default: the first, if *page_size* is set.
        page_size: The number of events of a page; default: 20, if *page* is set.
        branch: Selects what the agent of this branch sees: events of the root, of the branch
            and of its ancestors. Empty for the root agent, None for all events.

    Raises:
        UsageError: A number is out of range, *last* is combined with pages, a time has no time
            zone, or a role, match, branch or regular expression is invalid.
    """

    types: str | AbstractSet[str] | None = None
    since: datetime | None = None
    until: datetime | None = None
    roles: Role | AbstractSet[Role] | None = None
    message_id: str | None = None
    exclude_synthetic: bool = False
    exclude_archived: bool = False
    last: int | None = None
    complete_turns: bool = False
    keyword: str | None = None
    keywords: Collection[str] | None = None
    match: Match | None = None
    pattern: "str | re.Pattern[str] | None" = None
    page: int | None = None
    page_size: int | None = None
    branch: str | None = None

    def __post_init__(self) -> None:
        check_moment("since", self.since)
        check_moment("until", self.until)
        checked_branch(self.branch)
        if self.message_id is not None:
            check_type("message_id", self.message_id, str)
        put = object.__setattr__
        if self.types is not None:
            put(self, "types", names(self.types))
        if self.roles is not None:
            put(self, "roles", names(self.roles))
            for role in names(self.roles):
                check_choice("a role", role, Role)
        check_choice("match", self.match, None, Match)
        put(self, "keyword", _term(self.keyword))
        if isinstance(self.keywords, str):
            msg = "keywords= takes several words; pass a single one as keyword="
            raise UsageError(msg)
        put(
            self,
            "keywords",
            tuple(term for text in self.keywords or () if (term := _term(text))) or None,
        )
        if isinstance(self.pattern, str):
            put(self, "pattern", _compiled(self.pattern))
        amounts: dict[str, tuple[Any, int]] = {
            "last": (self.last, 1),
            "page": (self.page, 0),
            "page_size": (self.page_size, 1),
        }
        for name, (amount, least) in amounts.items():
            if amount is not None:
                check_type(name, amount, int)
                check_number(name, amount, least=least)
        if self.last is not None and (self.page is not None or self.page_size is not None):
            msg = "last= and page= exclude each other; leave one of them out"
            raise UsageError(msg)

    def merge(self, over: "EventFilter") -> Self:
        """Return this filter with the fields that are set in *over* replaced.

        Events that either filter excludes are excluded. A page replaces `last`, and vice versa.
        """
        changes = {
            field.name: value
            for field in fields(over)
            if (value := getattr(over, field.name)) is not None and value is not False
        }
        if over.last is not None:
            changes |= {"page": None, "page_size": None}
        elif over.bounds is not None:
            changes["last"] = None
        return replace(self, **changes)

    def __call__(self, event: SessionEvent) -> bool:
        """Return whether *event* matches, ignoring `last`, pages and `complete_turns`."""
        return self._matches_fields(event) and self.matches_text(event.text)

    def _matches_fields(self, event: SessionEvent) -> bool:
        if self.selected_types is not None and event.type not in self.selected_types:
            return False
        if self.exclude_synthetic and event.synthetic:
            return False
        if self.exclude_archived and event.archived:
            return False
        if self.roles is not None and not self._matches_role(event):
            return False
        if self.message_id is not None and not self._matches_id(event):
            return False
        if not self._matches_branch(event.branch):
            return False
        return not (
            (self.since is not None and event.timestamp < self.since)
            or (self.until is not None and event.timestamp > self.until)
        )

    def _matches_role(self, event: SessionEvent) -> bool:
        return event.type == MESSAGE and event.message.role in (self.roles or ())

    def _matches_id(self, event: SessionEvent) -> bool:
        return event.type == MESSAGE and event.message.id == self.message_id

    def _matches_branch(self, branch: str | None) -> bool:
        return branch is None or self.branch is None or branch in visible_branches(self.branch)

    @property
    def selected_types(self) -> "frozenset[str] | None":
        """The types of the selected events, or None for all types."""
        selected = _MESSAGES if self.types is None else names(self.types)
        return None if EVERY_TYPE in selected else selected

    @property
    def has_text_conditions(self) -> bool:
        """Whether the text of messages matters."""
        return bool(self.keyword or self.keywords or self.pattern)

    @property
    def bounds(self) -> tuple[int, int] | None:
        """The start and end index of the page in the matching events, or None without pages."""
        if self.page is None and self.page_size is None:
            return None
        size = self.page_size or _PAGE_SIZE
        start = (self.page or 0) * size
        return start, start + size

    @property
    def terms(self) -> "tuple[tuple[str, ...], ...]":
        """Groups of casefolded keywords; a text must contain at least one of each group."""
        groups: list[tuple[str, ...]] = [(self.keyword,)] if self.keyword else []
        if self.keywords:
            every = tuple(self.keywords)
            groups += [(term,) for term in every] if self.match == "all" else [every]
        return tuple(groups)

    def matches_text(self, text: str) -> bool:
        """Return whether *text* satisfies the text conditions; an empty text never does."""
        if not self.has_text_conditions:
            return True
        if not text:
            return False
        folded = text.casefold()
        if not all(any(term in folded for term in group) for group in self.terms):
            return False
        return not isinstance(self.pattern, re.Pattern) or bool(self.pattern.search(text))

    def limit(self, events: Sequence[SessionEvent]) -> list[SessionEvent]:
        """Return the last events or the page of *events*, which all match."""
        if self.last is not None:
            return list(events[-self.last :])
        return list(events if self.bounds is None else events[slice(*self.bounds)])

    def without_limits(self) -> Self:
        """Return this filter without `last` and pages, to apply `limit` later."""
        return replace(self, last=None, page=None, page_size=None)

    def without_selection(self) -> Self:
        """Return this filter without the conditions that `complete_turns` extends to turns."""
        unset: dict[str, Any] = dict.fromkeys(_SELECTING)
        return replace(self, **unset, complete_turns=False)

    def apply(self, log: Iterable[SessionEvent]) -> list[SessionEvent]:
        """Return the selected events of *log*."""
        if self.complete_turns:
            scope = self.without_selection().apply(log)
            return with_complete_turns(scope, replace(self, complete_turns=False).apply(scope))
        events = [event for event in log if self(event)]
        return self.limit(synthetic_first(events) if self.exclude_archived else events)


def _term(text: str | None) -> str | None:
    return (text or "").strip().casefold() or None


def _compiled(pattern: str) -> "re.Pattern[str]":
    try:
        return re.compile(pattern)
    except re.error as error:
        msg = f"{pattern!r} is not a regular expression: {error}"
        raise UsageError(msg) from error


MESSAGES = EventFilter()
"""Selects all messages, including archived ones."""

EVERYTHING = EventFilter(types=EVERY_TYPE)
"""Selects all events, including archived messages."""

ACTIVE = EventFilter(exclude_archived=True)
"""Selects the messages that are not archived, which a model sees."""


@dataclass(frozen=True, slots=True)
class SessionLog:
    """Selected events of a session, and the version of its log.

    Attributes:
        events: The events, in the order of the log; a view begins with its summaries.
        version: Increased by each change of the log, by an append at the number of its events. 0
            for an empty log and for a session that does not exist.
    """

    events: tuple[SessionEvent, ...] = ()
    version: int = 0


class SessionRepository(Closeable, ABC):
    """Stores sessions, each with an append-only log of events.

    Implement the coroutines below. They serve blocking and async callers and wait only through
    the given runtime; call a blocking driver with `await runtime.finish(function, ...)`. Each
    operation is atomic, isolated from concurrent ones, and permanent when it returns.
    """

    @abstractmethod
    async def create(self, session: Session, runtime: Runtime) -> bool:
        """Store a new session.

        Returns:
            Whether it was stored; False if the id exists, and then nothing is changed.
        """

    @abstractmethod
    async def save(self, session: Session, runtime: Runtime) -> None:
        """Create or update a session, without its log."""

    @abstractmethod
    async def find(self, session_id: str, runtime: Runtime) -> Session | None:
        """Return a session, even if it has expired, or None if it does not exist."""

    @abstractmethod
    async def find_by_user(self, user_id: str, runtime: Runtime) -> list[Session]:
        """Return the sessions of a user, the oldest first."""

    @abstractmethod
    async def find_by_metadata(self, name: str, value: str, runtime: Runtime) -> list[Session]:
        """Return the sessions whose metadata has the text *value* as *name*, the oldest first.

        This uses an index, of `Session.indexed`.
        """

    @abstractmethod
    async def find_expired(self, moment: datetime, runtime: Runtime) -> list[str]:
        """Return the ids of the sessions that have expired at *moment*."""

    @abstractmethod
    async def delete(
        self, session_id: str, runtime: Runtime, *, expired: datetime | None = None
    ) -> bool:
        """Delete a session and its log.

        Args:
            session_id: The session.
            runtime: The runtime of the request.
            expired: Delete it only if it has expired at this time, so that a session that was
                renewed concurrently is kept.

        Returns:
            Whether it was deleted.
        """

    @abstractmethod
    async def append(
        self,
        session_id: str,
        events: Sequence[SessionEvent],
        runtime: Runtime,
        *,
        expected: int | None = None,
    ) -> bool:
        """Append *events* to the log of a session.

        A `COMPACTION` event among them archives the messages in its `archived`, and shows those in
        its `restored` again, for all later reads; their events are not changed.

        Args:
            session_id: The session.
            events: The events.
            runtime: The runtime of the request.
            expected: The required version of the log; None for any.

        Returns:
            Whether they were appended; False if the log contains one of their ids, because then
            this is a repetition, at any version.

        Raises:
            VersionConflictError: The log has another version than *expected*.
            ChatMemoryError: The session does not exist.
            UsageError: An event has another session id, or two have the same id.
        """

    @abstractmethod
    async def read(
        self,
        session_id: str,
        runtime: Runtime,
        filter: EventFilter = EVERYTHING,
        *,
        until: int | None = None,
    ) -> SessionLog:
        """Return the events of a session that match *filter*, and the version of the log.

        Args:
            session_id: The session.
            runtime: The runtime of the request.
            filter: The filter. `complete_turns` is left to the caller, `Sessions`, and may be
                ignored.
            until: A version of the log: later events are not returned. Whether an event is
                archived depends on the present version nevertheless.
        """

    @abstractmethod
    async def search(
        self, user_id: str, runtime: Runtime, filter: EventFilter = EVERYTHING
    ) -> list[SessionEvent]:
        """Return the matching events of all sessions of a user, the oldest first."""

    async def delete_older(self, cutoff: datetime, runtime: Runtime) -> int:  # noqa: ARG002
        """Delete the events of turns before *cutoff* in all logs; see `older_events`.

        Optional: a repository without it only deletes complete sessions.

        Returns:
            The number of deleted events. The version of each changed log increases.
        """
        msg = f"{type(self).__name__} cannot delete single events, only whole sessions"
        raise UsageError(msg)


def missing_session(session_id: str) -> ChatMemoryError:
    """Return the error for a session that does not exist."""
    msg = f"there is no session {session_id!r}; create it first"
    return ChatMemoryError(msg, conversation_id=session_id)


def version_conflict(session_id: str, expected: int, actual: int) -> VersionConflictError:
    """Return the error for a log that has another version than expected."""
    msg = (
        f"the log of session {session_id!r} has version {actual}, not {expected}: it was changed "
        "meanwhile; read it again"
    )
    return VersionConflictError(msg, conversation_id=session_id, expected=expected, actual=actual)


def checked_events(session_id: str, events: Sequence[SessionEvent]) -> Sequence[SessionEvent]:
    """Return *events* after checking that they can be appended to the log of a session.

    Raises:
        UsageError: One has another session id, or two have the same id.
    """
    strays = sorted({e.session_id for e in events if e.session_id != session_id})
    if strays:
        msg = f"events of the sessions {strays} do not belong in the log of {session_id!r}"
        raise UsageError(msg)
    if len({event.id for event in events}) < len(events):
        msg = "two events have the same id; give each event a unique id"
        raise UsageError(msg)
    return events
