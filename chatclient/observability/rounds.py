"""`Round`: a model call of a turn, the changes of advisors before it, and its tool calls."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from chatclient.chat.messages import Message
from chatclient.chat.prompt import Prompt
from chatclient.chat.response import NO_USAGE, ChatResponse, Usage
from chatclient.observability.operations import (
    ANSWERING_MODEL,
    AdvisorPass,
    Fallback,
    ModelCall,
    RetryWait,
    ToolRun,
)
from chatclient.runtime.observation import Step


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
