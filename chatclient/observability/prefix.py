"""`PrefixReport`: what changed first in a request, compared with an earlier one."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from chatclient._internal.json import dumps
from chatclient._internal.text import on_one_line
from chatclient.chat.messages import (
    AssistantMessage,
    Message,
    SystemMessage,
    ToolResponseMessage,
    system_messages,
    without_system,
)
from chatclient.chat.prompt import Prompt
from chatclient.chat.serialization import message_to_dict
from chatclient.chat.stored_values import to_stored
from chatclient.observability.operations import AdvisorPass, ModelCall
from chatclient.runtime.observation import Step
from chatclient.runtime.threads import ForkSafeLock

if TYPE_CHECKING:  # the trail imports this module
    from chatclient.observability.trail import Trail

CHANGED_SINCE = "chatclient.prompt.changed"
"""The note of a turn's first round that does not begin with the last request of the turn before."""

_MOST_CONVERSATIONS = 1000
_NOT_SENT = ("id", "stored_at", "metadata")
_TEXT_LENGTH = 60  # maximum number of characters of a piece in a report


class PromptPiece(NamedTuple):
    """A part of a request that a provider's prompt cache finds completely or not at all.

    Attributes:
        kind: What it is.
        text: About what is sent of it.
    """

    kind: Literal["tool", "system text", "message"]
    text: str


def prompt_pieces(
    prompt: Prompt, known: dict[int, PromptPiece] | None = None
) -> Iterator[PromptPiece]:
    """Yield the pieces of *prompt* in the order in which providers cache them.

    Tools come first, then the system text, then the other messages.

    Args:
        prompt: The prompt.
        known: Pieces of messages that exist, by the identity of the message; the others are added.
    """
    known = {} if known is None else known
    for callback in prompt.options.tool_callbacks or ():
        tool = callback.definition
        text = dumps([tool.name, tool.description, tool.input_schema]).decode()
        yield PromptPiece("tool", text)
    for message in (*system_messages(prompt.messages), *without_system(prompt.messages)):
        if (piece := known.get(id(message))) is None:
            kind: Literal["system text", "message"]
            kind = "system text" if isinstance(message, SystemMessage) else "message"
            sent = {k: v for k, v in message_to_dict(message).items() if k not in _NOT_SENT}
            for result in sent.get("responses", ()):
                result.pop("metadata", None)
            piece = known[id(message)] = PromptPiece(kind, dumps(to_stored(sent)).decode())
        yield piece


@dataclass(frozen=True, slots=True)
class PrefixReport:
    """Whether a request begins with all of an earlier one, and what changed first if not.

    Providers serve the beginning of a prompt that they have seen before from a cache. After the
    first difference, nothing of the later request is in it.

    Attributes:
        before: The first piece of the earlier request that is not at its place in the later one;
            None if the later request begins with all of the earlier one.
        after: The piece of the later request at that place, or None if it has none.
        number: The place of the piece, counted from 1 among those of its kind.
        cached: The share of the later request's characters that are in the common beginning.
        advisor: The name of the advisor that put the piece into the later request, or None if it
            was there before the first advisor, or if that is not known.
    """

    before: PromptPiece | None
    after: PromptPiece | None
    number: int
    cached: float
    advisor: str | None = None

    @property
    def stable(self) -> bool:
        """Whether the later request begins with all of the earlier one."""
        return self.before is None

    @classmethod
    def between(cls, earlier: "Trail", later: "Trail") -> "PrefixReport":
        """Compare the last request of a turn with the first one of a later turn.

        Args:
            earlier: The trail of a turn of a conversation.
            later: The trail of a later turn, usually the next one.

        Raises:
            ValueError: One of the turns asked no model.
        """
        before, after = rounds_of(earlier.steps), rounds_of(later.steps)
        if not before or not after:
            msg = "a trail without a model call has no request to compare"
            raise ValueError(msg)
        return compare_rounds(before[-1], after[0], later.steps)

    def __str__(self) -> str:
        if self.before is None:
            return f"the prompt begins with the previous one ({self.cached:.0%} can be cached)"
        by = "" if self.advisor is None else f" by {self.advisor}"
        now = "nothing" if self.after is None else on_one_line(self.after.text, _TEXT_LENGTH)
        return (
            f"the prompt changed from {self.before.kind} {self.number} on{by}"
            f" ({self.cached:.0%} can be cached):"
            f" {on_one_line(self.before.text, _TEXT_LENGTH)} became {now}"
        )


def rounds_of(steps: Sequence[Step]) -> list[Step]:
    """Return the model calls in *steps* that are rounds of the turn."""
    return [s for s in steps if isinstance(s.operation, ModelCall) and not s.operation.auxiliary]


def compare_rounds(
    earlier: Step,
    later: Step,
    steps: Sequence[Step],
    known: dict[int, PromptPiece] | None = None,
) -> PrefixReport:
    """Compare the requests of two rounds.

    Args:
        earlier: A round.
        later: A later one.
        steps: The steps of the later round's turn.
        known: Pieces of messages of earlier comparisons, to which this one adds its own.
    """
    known = {} if known is None else known
    old = list(prompt_pieces(_prompt(earlier), known))
    new = list(prompt_pieces(_prompt(later), known))
    same = 0
    while same < min(len(old), len(new)) and old[same] == new[same]:
        same += 1
    size = sum(len(piece.text) for piece in new)
    cached = sum(len(piece.text) for piece in new[:same]) / size if size else 1.0
    if same == len(old):
        return PrefixReport(None, None, 0, cached)
    before, after = old[same], new[same] if same < len(new) else None
    number = 1 + sum(piece.kind == before.kind for piece in old[:same])
    return PrefixReport(before, after, number, cached, origin_of(after, later, steps, known))


class LastPrompts:
    """What the last request of each of the latest conversations began with, as hashes.

    Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        self._known: OrderedDict[str, list[tuple[str, int]]] = OrderedDict()

    def record(self, conversation_id: str, steps: Sequence[Step]) -> None:
        """Record the last request of a turn.

        If its first request does not begin with the last one of the turn before, its step has a
        note of that.

        Args:
            conversation_id: The conversation.
            steps: The steps of the turn.
        """
        rounds = rounds_of(steps)
        if not rounds:
            return
        first = last = _hashes(_prompt(rounds[0]))
        if len(rounds) > 1:
            last = _hashes(_prompt(rounds[-1]))
        with self._lock:
            before = self._known.pop(conversation_id, None)
            self._known[conversation_id] = last
            if len(self._known) > _MOST_CONVERSATIONS:
                self._known.popitem(last=False)
        if before is not None and first[: len(before)] != before:
            rounds[0].note(CHANGED_SINCE, _change_since(before, first, rounds[0], steps))


def _hashes(prompt: Prompt) -> list[tuple[str, int]]:
    """Return the kind and a hash of each piece of *prompt*; much faster than the pieces."""
    tools = [("tool", hash(tool.definition)) for tool in prompt.options.tool_callbacks or ()]
    system = [("system text", hash(each.text)) for each in system_messages(prompt.messages)]
    return [*tools, *system, *[("message", _hash(m)) for m in without_system(prompt.messages)]]


def _hash(message: Message) -> int:
    if isinstance(message, AssistantMessage):
        calls = [(call.id, call.name, call.arguments) for call in message.tool_calls]
        return hash((message.text, *calls))
    if isinstance(message, ToolResponseMessage):
        return hash(tuple([(each.id, each.data) for each in message.responses]))
    return hash((message.role, message.text))


def _change_since(
    before: list[tuple[str, int]], now: list[tuple[str, int]], step: Step, steps: Sequence[Step]
) -> str:
    same = 0
    while same < min(len(before), len(now)) and before[same] == now[same]:
        same += 1
    known: dict[int, PromptPiece] = {}
    pieces = list(prompt_pieces(_prompt(step), known))
    kind = before[same][0]
    number = 1 + sum(each[0] == kind for each in before[:same])
    name = origin_of(pieces[same] if same < len(pieces) else None, step, steps, known)
    by = "" if name is None else f" by {name}"
    size = sum(len(piece.text) for piece in pieces)
    cached = sum(len(piece.text) for piece in pieces[:same]) / size if size else 1.0
    return (
        f"since the turn before, the prompt changed from {kind} {number} on{by}"
        f" ({cached:.0%} can be cached)"
    )


def origin_of(
    piece: PromptPiece | None, later: Step, steps: Sequence[Step], known: dict[int, PromptPiece]
) -> str | None:
    """Return the advisor whose request to the next one is the first that has *piece*.

    Args:
        piece: A part of the request of *later*, or None.
        later: The step of a model call.
        steps: The steps of its turn.
        known: As in `prompt_pieces`.
    """
    if piece is None:
        return None
    name: str | None = None
    for step in steps:
        if step is later:
            break
        if isinstance(step.operation, ModelCall) and not step.operation.auxiliary:
            name = None  # an earlier round
        if isinstance(step.operation, AdvisorPass):
            if piece in prompt_pieces(step.operation.prompt, known):
                return name
            name = step.operation.advisor
    return name


def _prompt(round_: Step) -> Prompt:
    assert isinstance(round_.operation, ModelCall)  # noqa: S101 - for type checkers
    return round_.operation.prompt
