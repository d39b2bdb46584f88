"""Why a turn went as it did: the steps of every request, which read well afterwards.

While the request runs, it only notes who did what and when. What changed, what was offered and what
it cost is worked out when somebody asks.
"""

from asyncio import CancelledError
from collections.abc import Iterator, Sequence
from typing import Any

from chatclient.messages import Message, without_system
from chatclient.observation import Operation, Step
from chatclient.operations import (
    WAITS,
    ClientCall,
    MemoryAccess,
    ModelCall,
    ToolRun,
)
from chatclient.prompt import DEFAULT_MESSAGES
from chatclient.response import NO_USAGE, ChatResponse, Usage
from chatclient.rounds import Change, Round, round_of
from chatclient.texts import on_one_line

__all__ = ["Change", "Round", "Trail"]

_SHOWN = 60  # characters of a text that a line of the trail repeats
_NAMED = 10  # tools that an advisor has added or taken away, by name


class Trail:
    """The operations of one turn, in the order in which they began.

    `rounds`, `usage` and `messages` are data; `str(trail)` is text for people. The trail of a turn
    that failed is at `error.trail`.

    Args:
        steps: The operations; more are added while the turn runs.
    """

    __slots__ = ("steps",)

    def __init__(self, steps: list[Step] | None = None) -> None:
        self.steps: list[Step] = [] if steps is None else steps

    def tree(self) -> Iterator[tuple[int, Step]]:
        """Yield every step with its depth, parts below what they are parts of.

        The steps of agents that were asked as tools are parts of these tool calls.
        """
        depths: dict[int, int] = {}
        for step in _with_inner(self.steps):  # those around a step began before it
            around = step.parent
            while around is not None and id(around) not in depths:  # somebody's own, in no trail
                around = around.parent
            depth = 0 if around is None else depths[id(around)] + 1
            depths[id(step)] = depth
            yield depth, step

    @property
    def rounds(self) -> tuple[Round, ...]:
        """The turn, model call by model call."""
        starts = [at for at, step in enumerate(self.steps) if _is_round(step)]
        ends = [*starts[1:], len(self.steps)]
        rounds: list[Round] = []
        since = 0
        for number, (start, end) in enumerate(zip(starts, ends, strict=False), 1):
            before = rounds[-1].offered if rounds else None
            way, model, after = self.steps[since:start], self.steps[start], self.steps[start:end]
            rounds.append(round_of(number, way, model, after, before))
            since = start + 1
        return tuple(rounds)

    @property
    def asides(self) -> tuple[Step, ...]:
        """The model calls that are no rounds: advisors and memories made them, for a summary, say.

        What was said in each is at `step.result`.
        """
        return tuple(s for s in self.steps if _is(s, ModelCall) and not _is_round(s))

    @property
    def executions(self) -> tuple[Any, ...]:
        """What became of the tool calls, a `ToolExecution` each, in the order they began."""
        runs = [step for step in self.steps if _is(step, ToolRun)]
        return tuple(run.result for run in runs if run.result is not None)

    @property
    def inner(self) -> "tuple[Trail, ...]":
        """The trails of requests that were made within, by tools or advisors, in their order."""
        return tuple(trail for step in self.steps for trail in _trails_in(step))

    @property
    def usage(self) -> Usage:
        """What all model calls cost together: rounds, asides, and those of the inner trails."""
        calls = [step for step in _with_inner(self.steps) if _is(step, ModelCall)]
        return sum((call.result.usage for call in calls if call.result is not None), NO_USAGE)

    @property
    def asked(self) -> tuple[Message, ...]:
        """What the request carried that its successor will not bring of its own."""
        call = self._call
        if call is None:
            return ()
        said = without_system(call.asked)
        defaults = without_system(call.context.get(DEFAULT_MESSAGES, ()))
        return said[len(defaults) :] if said[: len(defaults)] == defaults else said

    @property
    def messages(self) -> tuple[Message, ...]:
        """What the request carried, and what models and tools have said since in whole rounds.

        The answer that ends the turn is not among it. When the turn has failed, these are the
        messages of a request that goes on with it, instead of running its tools once more.
        """
        call = self._call
        return () if call is None else (*self.asked, *call.said)

    @property
    def _call(self) -> ClientCall | None:
        operation = self.steps[0].operation if self.steps else None
        return operation if isinstance(operation, ClientCall) else None

    @property
    def parent(self) -> Step | None:
        """What asked for the turn: a step of another one, or None."""
        return self.steps[0].parent if self.steps else None

    @property
    def seconds(self) -> float | None:
        """How long the turn took; None while it runs."""
        return self.steps[0].seconds if self.steps else None

    def __str__(self) -> str:
        return "\n".join(_lines(self))

    def __repr__(self) -> str:
        return f"Trail({len(self.rounds)} rounds, {len(self.steps)} steps)"


def _is(step: Step, kind: type[Operation]) -> bool:
    return isinstance(step.operation, kind)


def _is_round(step: Step) -> bool:
    return isinstance(step.operation, ModelCall) and not step.operation.aside


def _trails_in(step: Step) -> Iterator[Trail]:
    """Yield the trails of requests that were made right in *step*."""
    return (Trail(steps) for steps in step.turns or ())


def _with_inner(steps: Sequence[Step]) -> Iterator[Step]:
    """Yield *steps*, each with those of the requests that were made in it behind it."""
    for step in steps:
        yield step
        for inner in step.turns or ():
            yield from _with_inner(inner)


# --- text -----------------------------------------------------------------------------------


def _lines(trail: Trail) -> Iterator[str]:
    for step in trail.steps:
        if isinstance(step.operation, ClientCall):
            names = " → ".join(step.operation.advisors)
            yield f"turn{_took(step)}: {names}" if names else f"turn{_took(step)}"
    calls = filter(_is_round, trail.steps)
    for round_, call in zip(trail.rounds, calls, strict=False):  # the turn may go on meanwhile
        yield from _round_lines(round_, call)
    for step in trail.steps:
        if not _is(step, ToolRun):  # those are in the rounds
            yield from _inner_lines(step, "    ")
        if _is(step, ModelCall) and not _is_round(step):
            yield f"aside: {step.operation.name}: {_outcome(step)}"
        if isinstance(step.operation, MemoryAccess) and not step.error:
            access, id = step.operation.access, step.operation.conversation_id
            yield f"memory: {access} {_messages(len(step.result or ()))} of {id!r}"
    usage = trail.usage
    yield f"in all: {usage.input_tokens} + {usage.output_tokens} tokens"


def _inner_lines(step: Step, indent: str) -> Iterator[str]:
    for trail in _trails_in(step):
        yield from (f"{indent}{line}" for line in _lines(trail))


def _outcome(call: Step) -> str:
    """Return what a model's call came to."""
    response: ChatResponse | None = call.result
    left = isinstance(call.error, GeneratorExit | CancelledError)
    if response is None or (call.error is not None and not left):
        return f"failed: {call.error!r}"
    usage = response.usage
    ended = "left" if left else response.finish_reason or "ended"
    spoke = f": {_short(response.text)}" if response.text else ""
    tokens = f"{usage.input_tokens} + {usage.output_tokens} tokens"
    return f"{ended}{spoke} ({tokens}, {call.seconds or 0.0:.2f} s)"


def _round_lines(round_: Round, call: Step) -> Iterator[str]:
    tools = f", tools: {', '.join(round_.offered)}" if round_.offered else ""
    yield f"round {round_.number}: {round_.model}, {_messages(round_.messages)}{tools}"
    for change in round_.changes:
        yield f"    {change.advisor} {_words(change)}"
    if round_.discovered:
        yield f"    discovered {', '.join(round_.discovered)}"
    if round_.retries:
        yield f"    retried after {', '.join(round_.retries)}"
    if round_.fallbacks:
        yield f"    in place of {', '.join(round_.fallbacks)}"
    yield f"    {_outcome(call)}"
    for step in round_.tools:
        yield f"    {_tool_line(step)}"
        yield from _inner_lines(step, "        ")


def _words(change: Change) -> str:
    words = [
        f"added {_messages(len(change.added))}" if change.added else "",
        f"removed {_messages(len(change.removed))}" if change.removed else "",
        f"offered {_listed(change.tools_added)}" if change.tools_added else "",
        f"hid {_listed(change.tools_removed)}" if change.tools_removed else "",
        *(f"set {name}={_short(repr(value))}" for name, value in change.options),
    ]
    return "; ".join(word for word in words if word)


def _listed(names: Sequence[str]) -> str:
    """Return the first of *names*: a tool search hides hundreds in each turn."""
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _tool_line(step: Step) -> str:
    run = step.operation
    assert isinstance(run, ToolRun)  # noqa: S101 - by its place
    if WAITS in step.found:
        return f"{run.call.name}({_short(run.call.arguments)}) waits for {step.found[WAITS]}"
    told = "" if step.result is None else _short(step.result.response.data)
    problem = f" failed: {step.error!r}" if step.error is not None else ""
    return f"{run.call.name}({_short(run.call.arguments)}){problem} -> {told}{_took(step)}"


def _took(step: Step) -> str:
    return "" if step.seconds is None else f" ({step.seconds:.2f} s)"


def _short(text: str) -> str:
    return on_one_line(text, _SHOWN)


def _messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count} messages"
