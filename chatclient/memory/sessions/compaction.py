"""Compaction of session logs: triggers, and strategies that archive old turns."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from chatclient._internal.checks import check_callable, check_number, check_type
from chatclient.errors import UsageError
from chatclient.memory.sessions.event import SessionEvent
from chatclient.memory.sessions.turns import turn_starts
from chatclient.memory.window import TokenEstimator, estimated_tokens
from chatclient.runtime.runtime import Runtime

CompactionTrigger = Callable[[Sequence[SessionEvent]], bool]
"""A function that returns whether a log with these active events should be compacted."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """The result of a strategy: changes to the active events of a log.

    Attributes:
        archived: The events to archive.
        summary: Synthetic events that replace all previous synthetic events, or None to keep
            those.
    """

    archived: tuple[SessionEvent, ...]
    summary: tuple[SessionEvent, ...] | None = None


class CompactionStrategy(Protocol):
    """A coroutine function that decides which events of a log are archived."""

    async def __call__(
        self, events: Sequence[SessionEvent], runtime: Runtime, /
    ) -> Compaction | None:
        """Return the changes to the active events of a log, or None for no change.

        Args:
            events: The active events, synthetic ones first. Only complete turns may be archived,
                and never the newest turn, which may be in progress.
            runtime: The runtime of the request.
        """
        ...


# --- triggers -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TurnCountTrigger:
    """Compacts when there are more than *most* turns of the user.

    Raises:
        UsageError: *most* is less than one.
    """

    most: int

    def __post_init__(self) -> None:
        _check_count("a trigger's number of turns", self.most)

    def __call__(self, events: Sequence[SessionEvent]) -> bool:
        """Return whether the log should be compacted."""
        return len(turn_starts(without_synthetic(events))) > self.most


@dataclass(frozen=True, slots=True)
class TokenCountTrigger:
    """Compacts when the model sees at least *threshold* tokens, counted by *estimator*.

    These are the tokens of the root agent's events and of summaries; those of branches do not
    count.

    Raises:
        UsageError: *threshold* is less than one.
    """

    threshold: int
    estimator: TokenEstimator = estimated_tokens

    def __post_init__(self) -> None:
        _check_count("a trigger's number of tokens", self.threshold)
        check_callable("a token estimator", self.estimator, takes=("message",))

    def __call__(self, events: Sequence[SessionEvent]) -> bool:
        """Return whether the log should be compacted."""
        return sum(_root_tokens(self.estimator, event) for event in events) >= self.threshold


@dataclass(frozen=True, slots=True, init=False)
class AnyTrigger:
    """Compacts when any of several triggers requires it.

    Raises:
        UsageError: No trigger is given.
    """

    triggers: tuple[CompactionTrigger, ...]

    def __init__(self, *triggers: CompactionTrigger) -> None:
        if not triggers:
            msg = "AnyTrigger() without triggers never compacts; pass at least one"
            raise UsageError(msg)
        object.__setattr__(self, "triggers", triggers)

    def __call__(self, events: Sequence[SessionEvent]) -> bool:
        """Return whether the log should be compacted."""
        return any(trigger(events) for trigger in self.triggers)


# --- strategies -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """Keeps the newest *most* events of the root agent, without an incomplete turn.

    Events of branches do not count and are kept or archived with their turn.

    Raises:
        UsageError: *most* is less than one.
    """

    most: int = 20

    def __post_init__(self) -> None:
        _check_count("a window's number of events", self.most)

    async def __call__(
        self,
        events: Sequence[SessionEvent],
        runtime: Runtime,  # noqa: ARG002 - nothing waits
    ) -> Compaction | None:
        """Return the events to archive."""
        log = without_synthetic(events)
        return _archive(log, window_start(log, self.most))


@dataclass(frozen=True, slots=True)
class TurnWindow:
    """Keeps the newest *most* turns, and events before the first turn.

    Raises:
        UsageError: *most* is less than one.
    """

    most: int = 10

    def __post_init__(self) -> None:
        _check_count("a window's number of turns", self.most)

    async def __call__(
        self,
        events: Sequence[SessionEvent],
        runtime: Runtime,  # noqa: ARG002
    ) -> Compaction | None:
        """Return the events to archive."""
        log = without_synthetic(events)
        starts = turn_starts(log)
        if len(starts) <= self.most:
            return None
        return _archive(log, starts[-self.most], starts[0])


@dataclass(frozen=True, slots=True)
class TokenWindow:
    """Keeps the newest turns that, with the synthetic events, have at most *most* tokens.

    Events of branches do not count and are kept or archived with their turn.

    Raises:
        UsageError: *most* is less than one.
    """

    most: int = 4000
    estimator: TokenEstimator = estimated_tokens

    def __post_init__(self) -> None:
        _check_count("a window's number of tokens", self.most)
        check_callable("a token estimator", self.estimator, takes=("message",))

    async def __call__(
        self,
        events: Sequence[SessionEvent],
        runtime: Runtime,  # noqa: ARG002
    ) -> Compaction | None:
        """Return the events to archive."""
        log = without_synthetic(events)
        room = self.most - sum(self.estimator(e.message) for e in events if e.synthetic)
        start = len(log)
        while start and (room := room - _root_tokens(self.estimator, log[start - 1])) >= 0:
            start -= 1
        return _archive(log, turn_from(log, start))


def without_synthetic(events: Sequence[SessionEvent]) -> list[SessionEvent]:
    """Return *events* without synthetic ones."""
    return [event for event in events if not event.synthetic]


def window_start(log: Sequence[SessionEvent], most: int) -> int:
    """Return the start index, at a turn, of the newest *most* events of the root agent."""
    left = most
    start = len(log)
    while start and (left or log[start - 1].branch is not None):
        start -= 1
        left -= log[start].branch is None
    return turn_from(log, start)


def turn_from(log: Sequence[SessionEvent], start: int) -> int:
    """Return the start index of the first turn at or after *start*, or else of the newest turn.

    The newest turn is always kept, because it may be in progress.
    """
    starts = turn_starts(log)
    if not start or not starts:
        return 0
    return next((at for at in starts if at >= start), starts[-1])


def _root_tokens(estimator: TokenEstimator, event: SessionEvent) -> int:
    """Return the tokens of *event* for the root agent's model, which sees no branches."""
    return estimator(event.message) if event.branch is None else 0


def _archive(log: Sequence[SessionEvent], end: int, start: int = 0) -> Compaction | None:
    return Compaction(tuple(log[start:end])) if end > start else None


def _check_count(what: str, number: int) -> None:
    check_type(what, number, int)
    check_number(what, number, least=1)
