"""Compaction by summaries: what is archived lives on in a few words."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from chatclient.checks import check_kind
from chatclient.errors import UsageError
from chatclient.logs import get_logger
from chatclient.memory.sessions.compaction import Compaction, said, window_start
from chatclient.memory.sessions.event import COMPACTION_SOURCE, SessionEvent, turn_starts
from chatclient.memory.summary import (
    INSTRUCTIONS,
    QUESTION,
    check_writer,
    noted_and_said,
    summary_that_fits,
    written_summary,
)
from chatclient.memory.transcript import transcript
from chatclient.messages import AssistantMessage, Message, SystemMessage, UserMessage
from chatclient.model import ChatModel
from chatclient.options import NO_OPTIONS, ChatOptions
from chatclient.prompt import Prompt
from chatclient.runtime import Runtime

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RecursiveSummary:
    """Keeps the newest events and has a model summarise those before, with the summary before.

    The summary is a question of the user's and the assistant's answer, both synthetic. What was
    said in branches is archived with its turn, but not summarised: a summary is shown to all
    agents, and branches are not.

    When the model says nothing, or what it says is cut off or withheld, that is logged and
    everything stays as it is. Of more than the model has room for, the older half is summarised.

    Attributes:
        model: Writes the summaries.
        most: How many of the root's newest events are kept, less what would be half a turn.
        overlap: How many of these the model is shown, so that the summary leads up to them.
        instructions: What the model is told.
        options: Options of the model's for this task.

    Raises:
        UsageError: The overlap is not smaller than the window, there are no instructions, or
            something is of the wrong kind.
    """

    model: ChatModel
    most: int = 10
    overlap: int = 2
    instructions: str = INSTRUCTIONS
    options: ChatOptions = NO_OPTIONS

    source: ClassVar[str] = "recursive_summary"

    def __post_init__(self) -> None:
        check_writer(self.model, self.instructions, self.options)
        check_kind("a window's number of events", self.most, int)
        check_kind("the overlap", self.overlap, int)
        if not 0 <= self.overlap < self.most:
            msg = (
                f"the overlap ({self.overlap}) must be smaller than the window ({self.most}) "
                "and not negative"
            )
            raise UsageError(msg)

    async def __call__(self, events: Sequence[SessionEvent], runtime: Runtime) -> Compaction | None:
        """Return what is to be archived, and the summary.

        Raises:
            ProviderError: The model's side failed.
        """
        active = said(events)
        start = window_start(active, self.most)
        ends = _ends_of(active[:start])
        if not ends:
            return None
        before = [event.message for event in events if event.synthetic]

        async def summary_of(end: int) -> str:
            return await self._summary(
                before, _of_root(active[:end]), _of_root(active[end:]), runtime
            )

        end, text = await summary_that_fits(ends, summary_of)
        archived = active[:end]
        if not text:
            log.warning("summary is empty or not whole", session_id=archived[0].session_id)
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
        text = noted_and_said(notes, archived)
        if self.overlap:
            following = transcript(kept[: self.overlap])
            text += (
                "\nThe conversation then goes on as follows. The assistant will see that itself; "
                "it is here only so that the notes lead up to it.\n"
                f"<continuation>\n{following}\n</continuation>"
            )
        prompt = Prompt([SystemMessage(self.instructions), UserMessage(text)], self.options)
        return await written_summary(self.model, prompt, runtime)


def _ends_of(log: Sequence[SessionEvent]) -> list[int]:
    """Return where turns end in *log*."""
    return [end for end in (*turn_starts(log), len(log)) if end]


def _of_root(events: Sequence[SessionEvent]) -> list[Message]:
    return [event.message for event in events if event.branch is None]
