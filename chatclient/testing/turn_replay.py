"""Replays a recorded turn with a client of today, and names the first difference."""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

from chatclient._internal.checks import check_number, check_type
from chatclient._internal.json import loads_comparable
from chatclient.chat.message_merging import ARRIVED, STARTED
from chatclient.chat.messages import ToolCall
from chatclient.chat.pending_turn import ApprovalRequired
from chatclient.chat.recorder import TurnStep, Work
from chatclient.chat.serialization import (
    call_from_dict,
    response_from_dict,
    tool_response_from_dict,
)
from chatclient.chat.stored_values import from_stored
from chatclient.chat.tool import ToolResult
from chatclient.chat.turn import WithinStep
from chatclient.errors import ChatClientError
from chatclient.observability.operations import ModelCall
from chatclient.observability.prefix import PromptPiece, origin_of, prompt_pieces
from chatclient.observability.trail import Trail
from chatclient.runtime.blocking import drive
from chatclient.runtime.observation import Step
from chatclient.runtime.runtime import BLOCKING, ON_LOOP, Runtime, within_callers_deadline
from chatclient.testing.recording import ReplayError
from chatclient.testing.turn_recording import (
    RecordedStep,
    StepPath,
    TurnRecording,
    options_of,
    pieces_of,
    steps_within,
)

T = TypeVar("T")

_AROUND = 30  # characters before and after the place where two texts begin to differ
_MODEL_KINDS = ("model", "question")


@dataclass(frozen=True, slots=True)
class TurnReplay:
    """A recorded turn, and what happened when it was replayed.

    Attributes:
        recording: The recording.
        trail: The trail of the replay.
        answer: The text of the answer; empty if the turn has failed or waits.
        error: The error of the replay, or None. If the turn asked for more than was recorded, it is
            a `ReplayError`.
    """

    recording: TurnRecording
    trail: Trail
    answer: str
    error: Exception | None = None

    @property
    def prompt_difference(self) -> str | None:
        """The first difference in what models were sent; None if all prompts are equal."""
        recorded = [step for step in self.recording.steps if step.kind in _MODEL_KINDS]
        calls = [(path, step, steps) for path, step, steps in _calls_in(self.trail.steps)]
        paths = {path for path, _, _ in calls}
        # What a tool asked is not replayed with its result.
        recorded = [step for step in recorded if step.path in paths or not step.path]
        for number, (before, (_, now, steps)) in enumerate(zip(recorded, calls, strict=False), 1):
            if (difference := _changed(before, now, steps, self.recording)) is not None:
                return f"model call {number}: {difference}"
        if len(calls) != len(recorded):
            return f"{len(calls)} model calls instead of {len(recorded)}"
        return None

    @property
    def answer_difference(self) -> str | None:
        """The first difference in what models answered or in the final answer; None if equal."""
        before = [_answer_of(s) for s in self.recording.steps if s.kind == "model" and not s.path]
        now = [
            _described(step.result)
            for path, step, _ in _calls_in(self.trail.steps)
            if not path and isinstance(step.operation, ModelCall) and not step.operation.auxiliary
        ]
        for number, (old, new) in enumerate(zip(before, now, strict=False), 1):
            if old != new:
                return f"answer {number}: {_changed_text(old, new)}"
        if len(before) != len(now):
            return f"{len(now)} answers of the model instead of {len(before)}"
        if self.recording.answer != self.answer:
            return f"the final answer: {_changed_text(self.recording.answer, self.answer)}"
        return None

    @property
    def difference(self) -> str | None:
        """The first difference in prompts, or what was not recorded, or the first one in answers.

        None if there is none.
        """
        missing = str(self.error) if isinstance(self.error, ReplayError) else None
        return self.prompt_difference or missing or self.answer_difference

    def __str__(self) -> str:
        prompt = self.prompt_difference or "none"
        answer = self.answer_difference or "none"
        error = "" if self.error is None else f"\nerror: {self.error!r}"
        return (
            f"first difference in prompts: {prompt}\nfirst difference in answers: {answer}{error}"
        )


def replay_turn(
    recording: TurnRecording, request: Any, *, fork_at: int | None = None
) -> TurnReplay:
    """Replay a recorded turn with a client of today.

    The client prepares its prompts, with its advisors and tools, as it does today. Models, tools,
    decisions and memories are not asked: they give what was recorded, in that order, and nothing is
    stored. So the replay shows whether the same prompts, byte for byte, would be sent.

    From the model call *fork_at* on, models answer themselves, and so do tools that were not called
    with the same arguments in the recorded turn. No call is undone. With another system text, model
    or tool in *request*, this shows what would have become of the turn.

    Args:
        recording: The recording.
        request: The client, or a request of it with what the recorded one had in addition to
            its messages and params, such as `client.prompt().system("...")`.
        fork_at: The number of a model call of the turn, from 1; those before it are recorded.

    Returns:
        The replay, also if the turn fails; its `difference` is None if nothing has changed.

    Raises:
        UsageError: *fork_at* is less than 1.
    """
    replay = _Replay(recording, request, fork_at)
    try:
        response = drive(replay.run(within_callers_deadline(BLOCKING)))
    except (ChatClientError, ReplayError) as error:
        return replay.failed(error)
    return replay.ended(response)


async def areplay_turn(
    recording: TurnRecording, request: Any, *, fork_at: int | None = None
) -> TurnReplay:
    """Replay a recorded turn; see `replay_turn`."""
    replay = _Replay(recording, request, fork_at)
    try:
        response = await replay.run(within_callers_deadline(ON_LOOP))
    except (ChatClientError, ReplayError) as error:
        return replay.failed(error)
    return replay.ended(response)


class _Replay:
    """One replay: the request with a recorder, and its trail."""

    def __init__(self, recording: TurnRecording, request: Any, fork_at: int | None) -> None:
        check_type("the recording", recording, TurnRecording)
        if fork_at is not None:
            check_number("fork_at", fork_at, least=1)
        self._recording = recording
        self._trail = Trail()
        prompt = getattr(request, "prompt", None)  # of a client
        request = prompt() if prompt is not None else request
        request = request.messages(recording.messages).advisor_params(recording.params)
        settings = request.settings
        recorder = _Replayer(_Record(list(recording.steps), fork_at))
        self._pipeline = request.pipeline
        self._settings = replace(settings, turn=replace(settings.turn, recorder=recorder))

    async def run(self, runtime: Runtime) -> Any:
        return await self._pipeline.run(self._settings, replace(runtime, steps=self._trail.steps))

    def ended(self, response: Any) -> TurnReplay:
        text = "" if response.turn.pending is not None else response.chat_response.text
        return TurnReplay(self._recording, self._trail, text)

    def failed(self, error: Exception) -> TurnReplay:
        return TurnReplay(self._recording, self._trail, "", error)


@dataclass(slots=True)
class _Record:
    """The recorded steps that are left, and whether the turn is forked."""

    unused: list[RecordedStep]
    fork_at: int | None
    rounds: int = 0
    live: bool = False


class _Replayer:
    """The recorder of a replayed turn: gives what was recorded in place of each step."""

    def __init__(self, record: _Record, path: StepPath = (), name: str = "") -> None:
        self._record = record
        self._path = path
        self.name = name

    def clock(self) -> float:
        """Return the time in seconds."""
        return time.monotonic()

    def inside(self, name: str, tool_call: ToolCall | None = None) -> Self:
        """Return the recorder of an agent, or of a client that an advisor asks."""
        path = (*self._path, "" if tool_call is None else tool_call.id)
        return type(self)(self._record, path, f"{self.name}/{name}" if self.name else name)

    async def step(self, step: TurnStep[T], runtime: Runtime) -> T:
        """Return what was recorded of *step*, or run it after the fork.

        Raises:
            ReplayError: It was not recorded.
        """
        record = self._record
        if step.kind in ("agent", "lookup"):  # consists of steps; costs nothing
            return await step.run(runtime)
        if step.kind == "background" and not record.live:
            return await step.load({"value": self._background(step)})
        if step.kind == "undo":  # most calls were not made here
            return None  # type: ignore[return-value]
        if step.kind == "model" and not self._path:
            record.rounds += 1
            record.live = record.live or record.rounds == record.fork_at
        if step.kind == "tool":
            return await self._tool(step, runtime)
        if record.live and step.kind != "memory":
            with WithinStep():
                return await step.run(runtime)
        for at, each in enumerate(record.unused):
            if (each.kind, each.path) == (step.kind, self._path):
                return await step.load(dict(record.unused.pop(at).result))
        raise ReplayError(self._missing(step.name))

    def _background(self, step: TurnStep[Any]) -> Any:
        """Return whether a call was started, or the ids of those that had ended.

        The next prompt says it.
        """
        record = self._record
        models = (each for each in record.unused if each.kind == "model")
        following = next((each for each in models if each.path == self._path), None)
        text = "" if following is None else "".join(piece.text for piece in following.pieces)
        if step.tool_call is not None:
            return STARTED.format(id=step.tool_call.id) in text
        return re.findall(ARRIVED.format(id="")[:-1] + "([^']*)'", text)

    async def _tool(self, step: TurnStep[T], runtime: Runtime) -> T:
        call = step.tool_call
        assert call is not None  # noqa: S101 - for type checkers
        record = self._record
        for at, each in enumerate(record.unused):
            if (each.kind, each.path) != ("tool", self._path):
                continue
            known = call_from_dict(from_stored(each.result["call"]))
            if (record.live or known.id == call.id) and _equal(known, call):
                del record.unused[at]
                if each.result["response"] is None:
                    raise ApprovalRequired
                given = tool_response_from_dict(from_stored(each.result["response"]))
                return ToolResult(given.data, given.media, given.is_error)  # type: ignore[return-value]
        if self._record.live:
            with WithinStep():
                return await step.run(runtime)
        raise ReplayError(self._missing(f"{call.name}({call.arguments})"))

    def _missing(self, what: str) -> str:
        return f"this was not recorded: {what}; fork_at= lets the turn go on from a model call"

    async def store(self, _work: Work, _runtime: Runtime) -> None:
        """Store nothing."""

    async def confirm(self) -> None:
        """Do nothing: the turn runs in this process only."""


def _equal(first: ToolCall, second: ToolCall) -> bool:
    if first.name != second.name or first.arguments == second.arguments:
        return first.name == second.name
    try:
        return bool(loads_comparable(first.arguments) == loads_comparable(second.arguments))
    except ValueError:
        return False


def _calls_in(steps: Sequence[Step]) -> list[tuple[StepPath, Step, Sequence[Step]]]:
    """Return the model calls of a turn with their paths and the steps of their turns."""
    turns: dict[int, Sequence[Step]] = {}

    def note(own: Sequence[Step]) -> None:
        for step in own:
            turns[id(step)] = own
            for inner in step.turns or ():
                note(inner)

    note(steps)
    return [
        (path, step, turns[id(step)])
        for path, step in steps_within(steps)
        if isinstance(step.operation, ModelCall)
    ]


def _changed(
    before: RecordedStep, now: Step, steps: Sequence[Step], recording: TurnRecording
) -> str | None:
    """Return the first difference between a recorded prompt and one of the replay."""
    call = now.operation
    assert isinstance(call, ModelCall)  # noqa: S101 - for type checkers
    pieces = pieces_of(call.prompt, recording.redact)
    old = before.pieces
    same = 0
    while same < min(len(old), len(pieces)) and old[same] == pieces[same]:
        same += 1
    if same < max(len(old), len(pieces)):
        first = old[same] if same < len(old) else None
        new = pieces[same] if same < len(pieces) else None
        original = list(prompt_pieces(call.prompt))[same] if new is not None else None
        return _changed_piece(first, new, old[:same], origin_of(original, now, steps, {}))
    options = options_of(call.prompt, recording.redact)
    for name in sorted(before.options.keys() | options.keys()):
        if before.options.get(name) != options.get(name):
            return f"option {name}: {before.options.get(name)!r} became {options.get(name)!r}"
    return None


def _changed_piece(
    old: PromptPiece | None,
    new: PromptPiece | None,
    common: Sequence[PromptPiece],
    origin: str | None,
) -> str:
    """Return how the pieces of two prompts differ after those that they have in *common*."""
    by = "" if origin is None else f" (by {origin})"
    # Tools precede system texts, and these the messages.
    if new is not None and (old is None or _rank(new) < _rank(old)):
        return f"{_place(new, common)}{by} was added: {_short(new.text)}"
    assert old is not None  # noqa: S101 - one of them exists
    if new is None or _rank(old) < _rank(new):
        return f"{_place(old, common)} is missing: {_short(old.text)}"
    return f"{_place(old, common)}{by}: {_changed_text(old.text, new.text)}"


def _rank(piece: PromptPiece) -> int:
    return ("tool", "system text", "message").index(piece.kind)


def _place(piece: PromptPiece, common: Sequence[PromptPiece]) -> str:
    return f"{piece.kind} {1 + sum(each.kind == piece.kind for each in common)}"


def _answer_of(step: RecordedStep) -> str:
    if "response" not in step.result:
        return "an error"
    return _described(response_from_dict(from_stored(step.result["response"])))


def _described(response: Any) -> str:
    """Return what a model has answered: its text and tool calls."""
    if response is None:
        return "an error"
    message = response.output
    calls = [] if message is None else message.tool_calls
    return "\n".join([response.text, *(f"{call.name}({call.arguments})" for call in calls)]).strip()


def _changed_text(old: str, new: str) -> str:
    """Return the surroundings of the first character in which two texts differ."""
    same = 0
    while same < min(len(old), len(new)) and old[same] == new[same]:
        same += 1
    start = max(0, same - _AROUND)
    return f"{_short(old[start:], start)} became {_short(new[start:], start)}"


def _short(text: str, start: int = 0) -> str:
    shown = text[: 2 * _AROUND]
    return repr(f"{'...' if start else ''}{shown}{'...' if len(text) > len(shown) else ''}")
