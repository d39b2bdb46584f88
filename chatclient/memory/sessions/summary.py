"""`RecursiveSummary`: a compaction strategy that summarises the archived events."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from chatclient._internal.checks import check_type
from chatclient._internal.logging import get_logger
from chatclient.chat.messages import AssistantMessage, Message, SystemMessage, UserMessage
from chatclient.chat.model import ChatModel
from chatclient.chat.options import NO_OPTIONS, ChatOptions
from chatclient.chat.prompt import Prompt
from chatclient.errors import UsageError
from chatclient.memory.conversation import transcript
from chatclient.memory.sessions.compaction import Compaction, window_start, without_synthetic
from chatclient.memory.sessions.event import COMPACTION_SOURCE, SessionEvent
from chatclient.memory.sessions.turns import turn_starts
from chatclient.memory.summary import (
    INSTRUCTIONS,
    QUESTION,
    ask_for_summary,
    check_summarizer,
    summarize_what_fits,
    summary_input,
)
from chatclient.runtime.runtime import Runtime

log = get_logger(__name__)


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
