"""Compaction of session logs: triggers, and strategies that archive old turns."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from chatclient._internal.checks import check_callable, check_number, check_type
from chatclient._internal.logging import get_logger
from chatclient.chat.messages import AssistantMessage, Message, SystemMessage, UserMessage
from chatclient.chat.model import ChatModel
from chatclient.chat.options import NO_OPTIONS, ChatOptions
from chatclient.chat.prompt import Prompt
from chatclient.errors import UsageError
from chatclient.memory.conversation import transcript
from chatclient.memory.sessions.event import COMPACTION_SOURCE, SessionEvent
from chatclient.memory.sessions.log import turn_starts
from chatclient.memory.summary import (
    INSTRUCTIONS,
    QUESTION,
    ask_for_summary,
    check_summarizer,
    summarize_what_fits,
    summary_input,
)
from chatclient.memory.window import TokenEstimator, estimated_tokens
from chatclient.runtime.runtime import Runtime

CompactionTrigger = Callable[[Sequence[SessionEvent]], bool]
"""A function that returns whether a log with these active events should be compacted."""

log = get_logger(__name__)


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


@dataclass(frozen=True, slots=True)
class RecursiveSummary:
    """Keeps the newest events; a model summarises earlier ones and the previous summary.

    The summary is a synthetic user message and a synthetic assistant message. Events of branches
    are archived with their turn but not summarised, because all agents see the summary.

    If the answer of the model is empty, truncated or filtered, a warning is logged and the log
    is not changed. If the text exceeds the context of the model, the older half is summarised.

    Attributes:
        model: Writes the summaries.
        most: The number of events of the root agent to keep, without an incomplete turn.
        overlap: The number of these that *model* reads as well, for a smooth transition.
        instructions: The system message for *model*.
        options: Options for *model*.

    Raises:
        UsageError: *overlap* is not smaller than *most*, *instructions* is blank, or an argument
            has the wrong type.
    """

    model: ChatModel
    most: int = 10
    overlap: int = 2
    instructions: str = INSTRUCTIONS
    options: ChatOptions = NO_OPTIONS

    source: ClassVar[str] = "recursive_summary"

    def __post_init__(self) -> None:
        check_summarizer(self.model, self.instructions, self.options)
        check_type("a window's number of events", self.most, int)
        check_type("the overlap", self.overlap, int)
        if not 0 <= self.overlap < self.most:
            msg = (
                f"the overlap ({self.overlap}) must be smaller than the window ({self.most}) "
                "and not negative"
            )
            raise UsageError(msg)

    async def __call__(self, events: Sequence[SessionEvent], runtime: Runtime) -> Compaction | None:
        """Return the events to archive, and the summary.

        Raises:
            ProviderError: The model could not be called.
        """
        active = without_synthetic(events)
        start = window_start(active, self.most)
        ends = _turn_ends(active[:start])
        if not ends:
            return None
        before = [event.message for event in events if event.synthetic]

        async def summarize_until(end: int) -> str:
            return await self._summary(
                before, _root_messages(active[:end]), _root_messages(active[end:]), runtime
            )

        end, text = await summarize_what_fits(ends, summarize_until)
        archived = active[:end]
        if not text:
            log.warning("summary is empty or truncated", session_id=archived[0].session_id)
            return None
        pair: tuple[Message, ...] = (UserMessage(QUESTION), AssistantMessage(text))
        newest = archived[-1]
        summary = tuple(
            SessionEvent.of(
                newest.session_id,
                message,
                timestamp=newest.timestamp,
                metadata={COMPACTION_SOURCE: self.source},
                synthetic=True,
            )
            for message in pair
        )
        return Compaction(tuple(archived), summary)

    async def _summary(
        self,
        before: Sequence[Message],
        archived: Sequence[Message],
        kept: Sequence[Message],
        runtime: Runtime,
    ) -> str:
        notes = [m for m in before if isinstance(m, AssistantMessage)]
        text = summary_input(notes, archived)
        if self.overlap:
            following = transcript(kept[: self.overlap])
            text += (
                "\nThe conversation then goes on as follows. The assistant will see that itself; "
                "it is here only so that the notes lead up to it.\n"
                f"<continuation>\n{following}\n</continuation>"
            )
        prompt = Prompt([SystemMessage(self.instructions), UserMessage(text)], self.options)
        return await ask_for_summary(self.model, prompt, runtime)


def _turn_ends(log: Sequence[SessionEvent]) -> list[int]:
    """Return the end indexes of the turns in *log*."""
    return [end for end in (*turn_starts(log), len(log)) if end]


def _root_messages(events: Sequence[SessionEvent]) -> list[Message]:
    return [event.message for event in events if event.branch is None]
