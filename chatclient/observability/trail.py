"""`Trail`: the operations of a turn, as data, as text, as `Round`s, and as a table for notebooks.

While the request runs, only the steps are recorded; everything else is computed on access.
"""

from asyncio import CancelledError
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from chatclient._internal.text import on_one_line, printable_line
from chatclient.chat.messages import Message
from chatclient.chat.prompt import Prompt
from chatclient.chat.response import NO_USAGE, ChatResponse, Usage
from chatclient.observability.operations import (
    ANSWERING_MODEL,
    WAITS,
    AdvisorPass,
    ClientCall,
    Fallback,
    MemoryAccess,
    ModelCall,
    RetryWait,
    ToolRun,
    ToolUndo,
)
from chatclient.observability.prefix import CHANGED_SINCE, PromptPiece, compare_rounds
from chatclient.runtime.observation import Operation, Step


@dataclass(frozen=True, slots=True)
class Change:
    """The changes of a request by an advisor.

    Attributes:
        advisor: The name of the advisor.
        added: The messages that it added.
        removed: The messages that it removed.
        tools_added: The names of tools that it added.
        tools_removed: The names of tools that it removed.
        options: The names and new values of other options that it changed.
    """

    advisor: str
    added: tuple[Message, ...] = ()
    removed: tuple[Message, ...] = ()
    tools_added: tuple[str, ...] = ()
    tools_removed: tuple[str, ...] = ()
    options: tuple[tuple[str, Any], ...] = ()

    def __bool__(self) -> bool:
        return bool(
            self.added or self.removed or self.tools_added or self.tools_removed or self.options
        )


@dataclass(frozen=True, slots=True)
class Round:
    """One model call and its tool calls.

    Attributes:
        number: The number of the round in the turn, from 1.
        model: The name of the model.
        messages: The number of messages sent.
        offered: The names of the tools offered.
        discovered: Those that the previous round did not offer.
        changes: The changes by advisors before the model call.
        tools: The steps of the tool calls.
        usage: The tokens used by the model call.
        finish_reason: The finish reason, or None if the call failed.
        text: The text of the answer.
        error: The error of the model call, or None.
        seconds: The duration of the model call in seconds.
        retries: The error names of the attempts that were retried.
        fallbacks: The models that failed before another one answered, with the error name.
    """

    number: int
    model: str
    messages: int
    offered: tuple[str, ...]
    discovered: tuple[str, ...]
    changes: tuple[Change, ...]
    tools: tuple[Step, ...]
    usage: Usage
    finish_reason: str | None
    text: str
    error: BaseException | None
    seconds: float | None
    retries: tuple[str, ...]
    fallbacks: tuple[str, ...] = ()


def round_of(
    number: int,
    before: Sequence[Step],
    model: Step,
    after: Sequence[Step],
    offered_before: tuple[str, ...] | None,
) -> Round:
    """Return the round of the step *model*.

    Args:
        number: The number of the round, from 1.
        before: The steps between the previous model call and this one.
        model: The step of the model call.
        after: The steps from this model call to that of the next round.
        offered_before: The tools that the previous round offered; None for the first round.
    """
    call = model.operation
    assert isinstance(call, ModelCall)  # noqa: S101 - for type checkers
    offered = _tools(call.prompt)
    response: ChatResponse | None = model.result
    parts = [step.operation for step in after if _is_part(step, model)]
    name = model.found.get(ANSWERING_MODEL) or call.prompt.options.model or call.model.name
    return Round(
        number=number,
        model=str(name),
        messages=len(call.prompt.messages),
        offered=offered,
        discovered=() if offered_before is None else _without(offered, offered_before),
        changes=tuple(_changes(before, call.prompt)),
        tools=tuple(step for step in after if isinstance(step.operation, ToolRun)),
        usage=NO_USAGE if response is None else response.usage,
        finish_reason=None if response is None else response.finish_reason,
        text="" if response is None else response.text,
        error=model.error,
        seconds=model.seconds,
        retries=tuple(p.reason for p in parts if isinstance(p, RetryWait)),
        fallbacks=tuple(f"{p.failed.name} ({p.reason})" for p in parts if isinstance(p, Fallback)),
    )


def _changes(before: Sequence[Step], sent: Prompt) -> Iterator[Change]:
    """Yield the changes by each advisor, outermost first; the model call has the prompt *sent*."""
    passes = [step.operation for step in before if isinstance(step.operation, AdvisorPass)]
    outputs = [*(advisor.prompt for advisor in passes[1:]), sent]
    for advisor, passed_on in zip(passes, outputs, strict=False):  # there may be no advisor
        if advisor.prompt is not passed_on and (change := _change(advisor, passed_on)):
            yield change


def _change(advisor: AdvisorPass, passed_on: Prompt) -> Change:
    prompt = advisor.prompt
    tools, new_tools = _tools(prompt), _tools(passed_on)
    return Change(
        advisor.advisor,
        _without(passed_on.messages, prompt.messages),
        _without(prompt.messages, passed_on.messages),
        _without(new_tools, tools),
        _without(tools, new_tools),
        tuple(_changed_options(prompt, passed_on)),
    )


_NOT_SHOWN = ("tool_callbacks", "tool_context", "defaults")


def _changed_options(prompt: Prompt, passed_on: Prompt) -> Iterator[tuple[str, Any]]:
    before, after = prompt.options, passed_on.options
    if before is after:
        return
    for name in after.__dataclass_fields__:
        value = getattr(after, name)
        if name not in _NOT_SHOWN and value != getattr(before, name, None):
            yield name, value


def _without(items: Sequence[Any], others: Sequence[Any]) -> tuple[Any, ...]:
    """Return the *items* that are not in *others*; compared by identity first, which is fast."""
    known = {id(item) for item in others}
    return tuple(item for item in items if id(item) not in known and item not in others)


def _tools(prompt: Prompt) -> tuple[str, ...]:
    return tuple(callback.definition.name for callback in prompt.options.tool_callbacks or ())


def _is_part(step: Step, ancestor: Step) -> bool:
    parent = step.parent
    while parent is not None and parent is not ancestor:
        parent = parent.parent
    return parent is ancestor


_TEXT_LENGTH = 60  # maximum number of characters of a text in a line
_TOOL_NAMES = 10  # maximum number of tool names in a line


class Trail:
    """The operations of one turn, in the order of their start.

    `rounds`, `usage` and `messages` are data; `str(trail)` is a readable text. The trail of a
    failed turn is at `error.trail`.

    Args:
        steps: The list of operations, which grows while the turn runs.
    """

    __slots__ = ("steps",)

    def __init__(self, steps: list[Step] | None = None) -> None:
        self.steps: list[Step] = [] if steps is None else steps

    def tree(self) -> Iterator[tuple[int, Step]]:
        """Yield every step with its depth, each after its parent.

        The steps of agents called as tools are below the tool calls.
        """
        depths: dict[int, int] = {}
        for step in _with_inner(self.steps):  # parents come first
            parent = step.parent
            while parent is not None and id(parent) not in depths:  # a step outside of the trail
                parent = parent.parent
            depth = 0 if parent is None else depths[id(parent)] + 1
            depths[id(step)] = depth
            yield depth, step

    @property
    def rounds(self) -> "tuple[Round, ...]":
        """The rounds of the turn: model calls with their tool calls."""
        starts = [at for at, step in enumerate(self.steps) if _is_round(step)]
        ends = [*starts[1:], len(self.steps)]
        rounds: list[Round] = []
        since = 0
        for number, (start, end) in enumerate(zip(starts, ends, strict=False), 1):
            offered = rounds[-1].offered if rounds else None
            before, model, after = self.steps[since:start], self.steps[start], self.steps[start:end]
            rounds.append(round_of(number, before, model, after, offered))
            since = start + 1
        return tuple(rounds)

    @property
    def auxiliary_calls(self) -> tuple[Step, ...]:
        """The model calls of advisors and memories, for a summary for example.

        The response of each is at `step.result`.
        """
        return tuple(s for s in self.steps if _is(s, ModelCall) and not _is_round(s))

    @property
    def executions(self) -> tuple[Any, ...]:
        """The `ToolExecution`s of the tool calls, in the order of their start."""
        runs = [step for step in self.steps if _is(step, ToolRun)]
        return tuple(run.result for run in runs if run.result is not None)

    @property
    def inner(self) -> "tuple[Trail, ...]":
        """The trails of nested requests, made by tools or advisors, in their order."""
        return tuple(trail for step in self.steps for trail in _trails_in(step))

    @property
    def usage(self) -> Usage:
        """The sum of the usage of all model calls: rounds, auxiliary calls and inner trails."""
        calls = [step for step in _with_inner(self.steps) if _is(step, ModelCall)]
        return sum((call.result.usage for call in calls if call.result is not None), NO_USAGE)

    @property
    def request_messages(self) -> tuple[Message, ...]:
        """The messages of the request, without system messages and default messages."""
        call = self._call
        return () if call is None else call.turn.messages()[: len(call.turn.request_messages)]

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages of the request and of the completed rounds, without the final answer.

        A request with these messages continues a failed turn without repeating its tool calls.
        """
        call = self._call
        return () if call is None else call.turn.messages()

    @property
    def _call(self) -> ClientCall | None:
        operation = self.steps[0].operation if self.steps else None
        return operation if isinstance(operation, ClientCall) else None

    @property
    def parent(self) -> Step | None:
        """The step of another turn that made this request, or None."""
        return self.steps[0].parent if self.steps else None

    @property
    def seconds(self) -> float | None:
        """The duration of the turn in seconds; None while it runs."""
        return self.steps[0].seconds if self.steps else None

    def __str__(self) -> str:
        return "\n".join(map(printable_line, _lines(self)))

    def _repr_html_(self) -> str:
        """Return the steps as a table with a time line, which notebooks show."""
        return html_of(self)

    def __repr__(self) -> str:
        return f"Trail({len(self.rounds)} rounds, {len(self.steps)} steps)"


def _is(step: Step, kind: type[Operation]) -> bool:
    return isinstance(step.operation, kind)


def _is_round(step: Step) -> bool:
    return isinstance(step.operation, ModelCall) and not step.operation.auxiliary


def _trails_in(step: Step) -> Iterator[Trail]:
    """Yield the trails of requests that were made directly in *step*."""
    return (Trail(steps) for steps in step.turns or ())


def _with_inner(steps: Sequence[Step]) -> Iterator[Step]:
    """Yield *steps*, each followed by the steps of its nested requests."""
    for step in steps:
        yield step
        for inner in step.turns or ():
            yield from _with_inner(inner)


# --- text -----------------------------------------------------------------------------------


def _lines(trail: Trail) -> Iterator[str]:
    rounds, previous = iter(trail.rounds), None
    pieces: dict[int, PromptPiece] = {}  # a message that all rounds have is encoded once
    for step in tuple(trail.steps):  # a running turn may add steps
        if isinstance(step.operation, ClientCall):
            first = step is trail.steps[0]
            client = (
                ""
                if step.operation.client is None
                else f" {'of' if first else 'to'} {step.operation.client}"
            )
            names = " → ".join(step.operation.advisors)
            line = f"{'turn' if first else 'handed over'}{client}{_duration(step)}"
            yield (f"{line}: {names}" if names else line)
        elif _is_round(step) and (round_ := next(rounds, None)) is not None:
            yield from _round_lines(round_, step)
            if previous is None and CHANGED_SINCE in step.found:
                yield f"    {step.found[CHANGED_SINCE]}"
            if previous is not None:
                report = compare_rounds(previous, step, trail.steps, pieces)
                yield from () if report.stable else (f"    {report}",)
            previous = step
    for step in trail.steps:
        if not _is(step, ToolRun):  # tool runs are in the rounds
            yield from _inner_lines(step, "    ")
        if _is(step, ModelCall) and not _is_round(step):
            yield f"auxiliary call: {step.operation.name}: {_outcome(step)}"
        if summary := step.operation.summary:
            problem = "" if step.error is None else f" failed: {step.error!r}"
            yield f"{summary}{problem}{_duration(step)}"
        if isinstance(step.operation, ToolUndo):
            problem = "" if step.error is None else f" failed: {step.error!r}"
            yield f"undone: {step.operation.call.name} because {step.operation.cause}{problem}"
        if isinstance(step.operation, MemoryAccess) and not step.error:
            access, id = step.operation.access, step.operation.conversation_id
            yield f"memory: {access} {_message_count(len(step.result or ()))} of {id!r}"
    usage = trail.usage
    cost = f", {usage.cost}" if usage.cost is not None and usage.cost.amount else ""
    yield f"in all: {usage.tokens_text()}{cost}"


def _inner_lines(step: Step, indent: str) -> Iterator[str]:
    for trail in _trails_in(step):
        yield from (f"{indent}{line}" for line in _lines(trail))


def _outcome(call: Step) -> str:
    """Return the result of a model call as text."""
    if call.seconds is None:
        return "running"
    response: ChatResponse | None = call.result
    cancelled = isinstance(call.error, GeneratorExit | CancelledError)
    if response is None or (call.error is not None and not cancelled):
        return f"failed: {call.error!r}"
    usage = response.usage
    reason = "left" if cancelled else response.finish_reason or "ended"
    text = f": {_short(response.text)}" if response.text else ""
    return f"{reason}{text} ({usage.tokens_text()}, {call.seconds or 0.0:.2f} s)"


def _round_lines(round_: "Round", call: Step) -> Iterator[str]:
    tools = f", tools: {', '.join(round_.offered)}" if round_.offered else ""
    yield f"round {round_.number}: {round_.model}, {_message_count(round_.messages)}{tools}"
    for change in round_.changes:
        yield f"    {change.advisor} {_change_text(change)}"
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


def _change_text(change: "Change") -> str:
    parts = [
        f"added {_message_count(len(change.added))}" if change.added else "",
        f"removed {_message_count(len(change.removed))}" if change.removed else "",
        f"offered {_listed(change.tools_added)}" if change.tools_added else "",
        f"hid {_listed(change.tools_removed)}" if change.tools_removed else "",
        *(f"set {name}={_short(repr(value))}" for name, value in change.options),
    ]
    return "; ".join(part for part in parts if part)


def _listed(names: Sequence[str]) -> str:
    """Return the first of *names*: a tool search may hide hundreds of tools."""
    hidden = len(names) - _TOOL_NAMES
    return ", ".join(names[:_TOOL_NAMES]) + (f" and {hidden} more" if hidden > 0 else "")


def _tool_line(step: Step) -> str:
    run = step.operation
    assert isinstance(run, ToolRun)  # noqa: S101 - for type checkers
    if WAITS in step.found:
        return f"{run.call.name}({_short(run.call.arguments)}) waits for {step.found[WAITS]}"
    if step.seconds is None:
        return f"{run.call.name}({_short(run.call.arguments)}) running"
    result = "" if step.result is None else _short(step.result.response.data)
    by = None if step.result is None else step.result.decided_by
    notes = "" if by is None else f" decided by {by}"
    if step.error is not None:
        notes += f" failed: {step.error!r}"
    return f"{run.call.name}({_short(run.call.arguments)}){notes} -> {result}{_duration(step)}"


def _duration(step: Step) -> str:
    return "" if step.seconds is None else f" ({step.seconds:.2f} s)"


def _short(text: str) -> str:
    return on_one_line(text, _TEXT_LENGTH)


def _message_count(count: int) -> str:
    return "1 message" if count == 1 else f"{count} messages"


_LONGEST = 120  # characters of a result
_TEXT = "text-align:left;max-width:20em;overflow:hidden;text-overflow:ellipsis;white-space:nowrap"
_BAR = "display:inline-block;height:.8em;background:currentColor;opacity:.5"


def html_of(trail: "Trail") -> str:
    """Return a row for each step: what it is, its result, its seconds and when it ran."""
    rows = [*trail.tree()]
    begin = rows[0][1].started if rows else 0.0
    whole = max((s.started - begin + (s.seconds or 0.0) for _, s in rows), default=0.0) or 1.0
    names = ("step", "result", "seconds", "time line")
    head = "".join(f'<th style="text-align:left">{name}</th>' for name in names)
    body = "".join(_row(depth, step, begin, whole) for depth, step in rows)
    return (
        f'<div style="overflow-x:auto"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
        f"<p>{escape(trail.usage.tokens_text())}</p>"
    )


def _row(depth: int, step: Step, begin: float, whole: float) -> str:
    taken = step.seconds or 0.0
    left, width = 100 * (step.started - begin) / whole, max(100 * taken / whole, 0.5)
    bar = f'<span style="{_BAR};margin-left:{left:.1f}%;width:{width:.1f}%"></span>'
    seconds = "" if step.seconds is None else f"{taken:.3f}"
    name, result = escape(step.operation.name), escape(" ".join(_result(step)))
    cells = (
        f'<td style="{_TEXT};padding-left:{1 + depth}em">{name}</td>',
        f'<td style="{_TEXT}" title="{result}">{result}</td>',
        f"<td>{seconds}</td>",
        f'<td style="text-align:left;min-width:12em">{bar}</td>',
    )
    return f"<tr>{''.join(cells)}</tr>"


def _result(step: Step) -> Iterator[str]:
    """Yield what has become of a step: the beginning of the text, and the error."""
    if step.seconds is None:
        yield "running"
    response = getattr(step.result, "chat_response", step.result)
    text = response.text if isinstance(response, ChatResponse) else None
    if text is None:
        text = getattr(getattr(step.result, "response", None), "data", "")
    if text:
        yield on_one_line(text, _LONGEST)
    if step.error is not None:
        yield f"failed: {type(step.error).__name__}: {on_one_line(str(step.error), _LONGEST)}"
