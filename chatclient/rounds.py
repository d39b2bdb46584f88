"""One round of a turn: a call of the model, what led to it, and the tools that followed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from chatclient.messages import Message
from chatclient.observation import Step
from chatclient.operations import (
    ANSWERING_MODEL,
    AdvisorPass,
    Fallback,
    ModelCall,
    RetryWait,
    ToolRun,
)
from chatclient.prompt import Prompt
from chatclient.response import NO_USAGE, ChatResponse, Usage


@dataclass(frozen=True, slots=True)
class Change:
    """What an advisor made of a request before it passed it on.

    Attributes:
        advisor: Its name.
        added: Messages that it added.
        removed: Messages that it took away.
        tools_added: Tools that it offered.
        tools_removed: Tools that it hid.
        options: Other options that it changed, by name, with their new values.
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
    """One call of the model and the tools that it led to.

    Attributes:
        number: Which round of the turn, from 1.
        model: The model's name.
        messages: How many messages it was sent.
        offered: The tools it was offered.
        discovered: Those of them that the round before did not offer.
        changes: What advisors changed on the way to it.
        tools: The tool calls that followed.
        usage: What the round cost.
        finish_reason: Why it ended, or None when it failed.
        text: What the model said.
        error: What it failed with, or None.
        seconds: How long the model took.
        retries: Why the request was repeated: the name of the error, each time.
        fallbacks: Which models failed before another one answered: the name and the error, each.
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
    """Return what one round of a turn came to.

    Args:
        number: Which one, from 1.
        before: The steps from the model call of the round before to its own.
        model: Its model call.
        after: The steps from there to the next round's model call.
        offered_before: The tools that the round before offered, if there was one.
    """
    call = model.operation
    assert isinstance(call, ModelCall)  # noqa: S101 - by its place
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
    """Yield what each advisor on the way to the model changed, outermost first."""
    passes = [step.operation for step in before if isinstance(step.operation, AdvisorPass)]
    given = [*(advisor.prompt for advisor in passes[1:]), sent]
    for advisor, passed_on in zip(passes, given, strict=False):  # there may be no advisor
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


def _changed_options(prompt: Prompt, passed_on: Prompt) -> Iterator[tuple[str, Any]]:
    before, after = prompt.options, passed_on.options
    if before is after:
        return
    for name in after.__dataclass_fields__:
        value = getattr(after, name)
        if name not in ("tool_callbacks", "tool_context") and value != getattr(before, name, None):
            yield name, value


def _without(these: Sequence[Any], those: Sequence[Any]) -> tuple[Any, ...]:
    """Return what of *these* is not among *those*; by identity first, which is fast."""
    known = {id(item) for item in those}
    return tuple(item for item in these if id(item) not in known and item not in those)


def _tools(prompt: Prompt) -> tuple[str, ...]:
    return tuple(callback.definition.name for callback in prompt.options.tool_callbacks or ())


def _is_part(step: Step, whole: Step) -> bool:
    around = step.parent
    while around is not None and around is not whole:
        around = around.parent
    return around is whole
