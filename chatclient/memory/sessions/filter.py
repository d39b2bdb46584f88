"""`EventFilter`: selects events of a session by type, time, role, text, branch and page."""

import re
from collections.abc import Collection, Iterable, Sequence, Set as AbstractSet
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any, Literal, Self

from chatclient._internal.checks import check_choice, check_moment, check_number, check_type, names
from chatclient.chat.messages import Role
from chatclient.errors import UsageError
from chatclient.memory.sessions.event import (
    MESSAGE,
    SessionEvent,
    checked_branch,
    visible_branches,
)
from chatclient.memory.sessions.turns import synthetic_first, with_complete_turns

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
        put(self, "keywords", _terms(self.keywords))
        if isinstance(self.pattern, str):
            put(self, "pattern", _compiled(self.pattern))
        _check_amounts(self)

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


def _check_amounts(filter: EventFilter) -> None:
    amounts: dict[str, tuple[Any, int]] = {
        "last": (filter.last, 1),
        "page": (filter.page, 0),
        "page_size": (filter.page_size, 1),
    }
    for name, (amount, least) in amounts.items():
        if amount is not None:
            check_type(name, amount, int)
            check_number(name, amount, least=least)
    if filter.last is not None and (filter.page is not None or filter.page_size is not None):
        msg = "last= and page= exclude each other; leave one of them out"
        raise UsageError(msg)


def _term(text: str | None) -> str | None:
    return (text or "").strip().casefold() or None


def _terms(texts: Iterable[str] | None) -> tuple[str, ...] | None:
    if isinstance(texts, str):
        msg = "keywords= takes several words; pass a single one as keyword="
        raise UsageError(msg)
    return tuple(term for text in texts or () if (term := _term(text))) or None


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
