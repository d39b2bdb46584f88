"""When the log of a session is compacted, and what of it is then archived."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from chatclient.checks import check_callable, check_kind, check_number
from chatclient.errors import UsageError
from chatclient.memory.sessions.event import SessionEvent, turn_starts
from chatclient.memory.window import TokenEstimator, estimated_tokens
from chatclient.runtime import Runtime

CompactionTrigger = Callable[[Sequence[SessionEvent]], bool]
"""Says of a log's active events whether it is time to compact them. Any function may do so."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """What is to become of a log's active events.

    Attributes:
        archived: Those that the model is no longer shown.
        summary: Synthetic events that stand for them and for all synthetic events before, or None
            to leave those as they are.
    """

    archived: tuple[SessionEvent, ...]
    summary: tuple[SessionEvent, ...] | None = None


class CompactionStrategy(Protocol):
    """Decides what of a session's log is archived; any coroutine function of this shape is one."""

    async def __call__(
        self, events: Sequence[SessionEvent], runtime: Runtime, /
    ) -> Compaction | None:
        """Return what is to become of a log's active events, or None to leave them.

        Args:
            events: All that are active, the synthetic ones first. Only whole turns may be archived
                and never the newest, which may be the one that is running.
            runtime: How the request runs.
        """
        ...


# --- triggers -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TurnCountTrigger:
    """Due when there are more than *most* turns; only the user's are counted.

    Raises:
        UsageError: *most* is less than one.
    """

    most: int

    def __post_init__(self) -> None:
        _check("a trigger's number of turns", self.most)

    def __call__(self, events: Sequence[SessionEvent]) -> bool:
        """Return whether it is time."""
        return len(turn_starts(said(events))) > self.most


@dataclass(frozen=True, slots=True)
class TokenCountTrigger:
    """Due when the events come to *threshold* tokens or more, as *estimator* counts.

    Raises:
        UsageError: *threshold* is less than one.
    """

    threshold: int
    estimator: TokenEstimator = estimated_tokens

    def __post_init__(self) -> None:
        _check("a trigger's number of tokens", self.threshold)
        check_callable("what counts tokens", self.estimator, takes=("message",))

    def __call__(self, events: Sequence[SessionEvent]) -> bool:
        """Return whether it is time."""
        return sum(self.estimator(event.message) for event in events) >= self.threshold


@dataclass(frozen=True, slots=True, init=False)
class AnyTrigger:
    """Due when one of several triggers says so.

    Raises:
        UsageError: No trigger is given.
    """

    triggers: tuple[CompactionTrigger, ...]

    def __init__(self, *triggers: CompactionTrigger) -> None:
        if not triggers:
            msg = "without triggers it is never time to compact; give at least one"
            raise UsageError(msg)
        object.__setattr__(self, "triggers", triggers)

    def __call__(self, events: Sequence[SessionEvent]) -> bool:
        """Return whether it is time."""
        return any(trigger(events) for trigger in self.triggers)


# --- strategies -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """Keeps the newest *most* of the root's events, less what would be half a turn.

    Events of branches are not counted and stay or go with their turn.

    Raises:
        UsageError: *most* is less than one.
    """

    most: int = 20

    def __post_init__(self) -> None:
        _check("a window's number of events", self.most)

    async def __call__(
        self,
        events: Sequence[SessionEvent],
        runtime: Runtime,  # noqa: ARG002 - there is nothing to wait for
    ) -> Compaction | None:
        """Return what is to be archived."""
        log = said(events)
        return _cut(log, window_start(log, self.most))


@dataclass(frozen=True, slots=True)
class TurnWindow:
    """Keeps the newest *most* turns, and whatever stands before the first turn there is.

    Raises:
        UsageError: *most* is less than one.
    """

    most: int = 10

    def __post_init__(self) -> None:
        _check("a window's number of turns", self.most)

    async def __call__(
        self,
        events: Sequence[SessionEvent],
        runtime: Runtime,  # noqa: ARG002
    ) -> Compaction | None:
        """Return what is to be archived."""
        log = said(events)
        starts = turn_starts(log)
        if len(starts) <= self.most:
            return None
        return _cut(log, starts[-self.most], starts[0])


@dataclass(frozen=True, slots=True)
class TokenWindow:
    """Keeps the newest turns that come to *most* tokens, with the synthetic events.

    Raises:
        UsageError: *most* is less than one.
    """

    most: int = 4000
    estimator: TokenEstimator = estimated_tokens

    def __post_init__(self) -> None:
        _check("a window's number of tokens", self.most)
        check_callable("what counts tokens", self.estimator, takes=("message",))

    async def __call__(
        self,
        events: Sequence[SessionEvent],
        runtime: Runtime,  # noqa: ARG002
    ) -> Compaction | None:
        """Return what is to be archived."""
        log = said(events)
        room = self.most - sum(self.estimator(e.message) for e in events if e.synthetic)
        start = len(log)
        while start and (room := room - self.estimator(log[start - 1].message)) >= 0:
            start -= 1
        return _cut(log, turn_from(log, start))


def said(events: Sequence[SessionEvent]) -> list[SessionEvent]:
    """Return those of *events* that were really said."""
    return [event for event in events if not event.synthetic]


def window_start(log: Sequence[SessionEvent], most: int) -> int:
    """Return where the newest *most* of the root's events begin, at the start of a turn."""
    left = most
    start = len(log)
    while start and (left or log[start - 1].branch is not None):
        start -= 1
        left -= log[start].branch is None
    return turn_from(log, start)


def turn_from(log: Sequence[SessionEvent], start: int) -> int:
    """Return where the first turn begins at *start* or behind it, or else the newest turn.

    The newest turn stays whole, however long: it may be the one that is running.
    """
    starts = turn_starts(log)
    if not start or not starts:
        return 0
    return next((at for at in starts if at >= start), starts[-1])


def _cut(log: Sequence[SessionEvent], end: int, start: int = 0) -> Compaction | None:
    return Compaction(tuple(log[start:end])) if end > start else None


def _check(what: str, number: int) -> None:
    check_kind(what, number, int)
    check_number(what, number, least=1)
