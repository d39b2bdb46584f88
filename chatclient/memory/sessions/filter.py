"""Which events of a log are meant."""

import re
from collections.abc import Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any, Literal, Self

from chatclient.checks import check_kind, check_number, check_word, names
from chatclient.errors import UsageError
from chatclient.memory.sessions.event import (
    SessionEvent,
    check_branch,
    in_order,
    timely,
    visible_branches,
)
from chatclient.messages import Role

_PAGE_SIZE = 20

Match = Literal["any", "all"]
"""Whether one of the keywords is enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """Which events of a log are meant; those that satisfy everything that is set.

    Attributes:
        since: Not before this moment.
        until: Not after this moment.
        roles: Messages of these kinds only.
        exclude_synthetic: No summaries.
        exclude_archived: Nothing that compaction has taken out.
        last: The newest so many of what is left.
        keyword: The message's text contains this, in whatever case.
        keywords: It contains these, in whatever case.
        match: Whether it has to contain one of *keywords* or all; default: any.
        pattern: It matches this regular expression somewhere; a text is case-sensitive.
        page: Which page of what is left, counted from 0; default: the first, if pages have a size.
        page_size: How many events make a page; default: 20, if there is a page.
        branch: What the agent of this branch sees: the root's events, its own and those of the
            agents above it. An empty text is the agent at the root, None is everything.

    Raises:
        UsageError: A number is out of range, there are pages as well as *last*, a moment has no
            time zone, or something is not a role, match, branch or regular expression.
    """

    since: datetime | None = None
    until: datetime | None = None
    roles: Role | AbstractSet[Role] | None = None
    exclude_synthetic: bool = False
    exclude_archived: bool = False
    last: int | None = None
    keyword: str | None = None
    keywords: Collection[str] | None = None
    match: Match | None = None
    pattern: "str | re.Pattern[str] | None" = None
    page: int | None = None
    page_size: int | None = None
    branch: str | None = None

    def __post_init__(self) -> None:
        timely(self.since, "since")
        timely(self.until, "until")
        if self.branch:
            check_branch(self.branch)
        put = object.__setattr__
        if self.roles is not None:
            put(self, "roles", names(self.roles))
            for role in names(self.roles):
                check_word("a role", role, Role)
        check_word("match", self.match, None, Match)
        put(self, "keyword", _term(self.keyword))
        put(self, "keywords", _terms(self.keywords))
        if isinstance(self.pattern, str):
            put(self, "pattern", _compiled(self.pattern))
        _check_amounts(self)

    def merge(self, over: "EventFilter") -> Self:
        """Return this filter with everything on top that *over* sets.

        What either excludes is excluded. A page takes the place of `last`, and the other way
        round.
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
        """Return whether *event* is meant, not counting `last` and pages."""
        return self._fits(event) and self.says(event.message.text)

    def _fits(self, event: SessionEvent) -> bool:
        if self.exclude_synthetic and event.synthetic:
            return False
        if self.exclude_archived and event.archived:
            return False
        if self.roles is not None and event.message.role not in self.roles:
            return False
        if not self._sees(event.branch):
            return False
        return not (
            (self.since is not None and event.timestamp < self.since)
            or (self.until is not None and event.timestamp > self.until)
        )

    def _sees(self, branch: str | None) -> bool:
        return branch is None or self.branch is None or branch in visible_branches(self.branch)

    @property
    def searches(self) -> bool:
        """Whether texts have to be looked at."""
        return bool(self.keyword or self.keywords or self.pattern)

    @property
    def bounds(self) -> tuple[int, int] | None:
        """Where the page begins and ends in all that is meant, or None without pages."""
        if self.page is None and self.page_size is None:
            return None
        size = self.page_size or _PAGE_SIZE
        start = (self.page or 0) * size
        return start, start + size

    @property
    def terms(self) -> "tuple[tuple[str, ...], ...]":
        """The keywords in lower case: of each group, one has to be contained."""
        groups: list[tuple[str, ...]] = [(self.keyword,)] if self.keyword else []
        if self.keywords:
            every = tuple(self.keywords)
            groups += [(term,) for term in every] if self.match == "all" else [every]
        return tuple(groups)

    def says(self, text: str) -> bool:
        """Return whether *text* contains what is looked for; an empty one contains nothing."""
        if not self.searches:
            return True
        if not text:
            return False
        folded = text.casefold()
        if not all(any(term in folded for term in group) for group in self.terms):
            return False
        return not isinstance(self.pattern, re.Pattern) or bool(self.pattern.search(text))

    def cut(self, events: Sequence[SessionEvent]) -> list[SessionEvent]:
        """Return the newest or the page of *events*, all of which are meant."""
        if self.last is not None:
            return list(events[-self.last :])
        return list(events if self.bounds is None else events[slice(*self.bounds)])

    def uncut(self) -> Self:
        """Return this filter without `last` and pages, for a `cut` that comes later."""
        return replace(self, last=None, page=None, page_size=None)

    def apply(self, log: Iterable[SessionEvent]) -> list[SessionEvent]:
        """Return the events of *log* that are meant, synthetic ones first."""
        return self.cut(in_order(event for event in log if self(event)))


def _check_amounts(filter: EventFilter) -> None:
    amounts: dict[str, tuple[Any, int]] = {
        "last": (filter.last, 1),
        "page": (filter.page, 0),
        "page_size": (filter.page_size, 1),
    }
    for name, (amount, least) in amounts.items():
        if amount is not None:
            check_kind(name, amount, int)
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


EVERYTHING = EventFilter()
"""All events there are, archived ones too."""

ACTIVE = EventFilter(exclude_archived=True)
"""What a model is shown: all events that compaction has left."""
