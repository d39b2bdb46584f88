"""Checks of the way to an answer: its tool calls, and what it spent.

They are evaluators without a model, for `assert_passes` and everything that takes an `Evaluator`.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from chatclient._internal.checks import check_choice, check_number, check_type
from chatclient._internal.json import loads
from chatclient.chat.messages import ToolCall
from chatclient.chat.response import NO_USAGE, Usage
from chatclient.errors import UsageError
from chatclient.observability.operations import ModelCall, ToolRun
from chatclient.runtime.observation import Step
from chatclient.runtime.runtime import Runtime
from chatclient.testing.evaluation import (
    EvaluationRequest,
    EvaluationResponse,
    Evaluator,
    call_line,
)

CallOrder: TypeAlias = Literal["exact", "in_order", "any_order"]
"""How calls are compared with the expected ones: exactly these, or among others."""

_RESULT_LENGTH = 60  # maximum number of characters of a tool's result in a problem


@dataclass(frozen=True, slots=True)
class ToolCallPattern:
    """Describes tool calls.

    Attributes:
        name: The name of the tool.
        arguments: All arguments by name, each a value or a predicate of the value; or a predicate
            of the mapping of arguments; or None for any.
    """

    name: str
    arguments: Mapping[str, Any] | Callable[[Mapping[str, Any]], bool] | None = None

    def matches(self, call: ToolCall) -> bool:
        """Return whether *call* is as described; arguments that are no JSON object never are."""
        if call.name != self.name or self.arguments is None:
            return call.name == self.name
        try:
            given = loads(call.arguments or "{}")
        except ValueError:
            return False
        if not isinstance(given, dict):
            return False
        if not isinstance(self.arguments, Mapping):
            return bool(self.arguments(given))
        return given.keys() == self.arguments.keys() and all(
            bool(value(given[name])) if callable(value) else given[name] == value
            for name, value in self.arguments.items()
        )

    def __str__(self) -> str:
        if self.arguments is None:
            return f"{self.name}(...)"
        if not isinstance(self.arguments, Mapping):
            return f"{self.name}({_named(self.arguments)})"
        return f"{self.name}({', '.join(f'{k}={_named(v)}' for k, v in self.arguments.items())})"


def _named(value: object) -> str:
    return getattr(value, "__name__", repr(value)) if callable(value) else repr(value)


ExpectedCall = str | ToolCall | ToolCallPattern
"""A tool by name, a call with equal arguments (made with `call`), or a pattern."""


def _pattern_of(expected: ExpectedCall) -> ToolCallPattern:
    check_type("an expected call", expected, (str, ToolCall, ToolCallPattern))
    if isinstance(expected, str):
        return ToolCallPattern(expected)
    if isinstance(expected, ToolCall):
        return ToolCallPattern(expected.name, loads(expected.arguments or "{}"))
    return expected


class TrailCheck(Evaluator):
    """Judges turns by their trails; a subclass implements `problem`."""

    @abstractmethod
    def problem(self, request: EvaluationRequest) -> str:
        """Return what is not as expected in `request.trails`; empty if everything is."""

    def can_judge(self, request: EvaluationRequest) -> bool:
        """Return whether there is a trail."""
        return bool(request.trails)

    async def judge(
        self,
        request: EvaluationRequest,
        runtime: Runtime,  # noqa: ARG002 - no I/O
    ) -> EvaluationResponse:
        """Return whether the turns are as expected, and what they were if not.

        Raises:
            UsageError: There is no trail.
        """
        if not request.trails:
            msg = f"{self!r} needs a trail, and the request has none: use EvaluationRequest.of"
            raise UsageError(msg)
        return EvaluationResponse.of(self.problem(request))


def _with_calls(problem: str, steps: Sequence[Step]) -> str:
    """Return *problem* with the calls that were made, one to a line."""
    lines = [f"  {n}. {call_line(step, _RESULT_LENGTH)}" for n, step in enumerate(steps, 1)]
    return "\n".join([f"{problem}; the calls were:", *lines] if lines else [f"{problem}; no call"])


def _call_of(step: Step) -> ToolCall:
    assert isinstance(step.operation, ToolRun)  # noqa: S101 - for type checkers
    return step.operation.call


class ExpectedToolCalls(TrailCheck):
    """Checks that tools were called.

    Args:
        *calls: The expected calls.
        order: `"in_order"`: these in this order, others may be between them; `"any_order"`: these,
            others may be among them; `"exact"`: these in this order, and no others.

    Raises:
        UsageError: Without calls, the order is not `"exact"`, so that everything would pass.
        WrongTypeError: A call is something else.
    """

    def __init__(self, *calls: ExpectedCall, order: CallOrder = "in_order") -> None:
        check_choice("order", order, CallOrder)
        if not calls and order != "exact":
            msg = 'name the expected calls; none at all: ExpectedToolCalls(order="exact")'
            raise UsageError(msg)
        self._patterns = tuple(map(_pattern_of, calls))
        self._order = order

    def __repr__(self) -> str:
        patterns = "".join(f"{pattern}, " for pattern in self._patterns)
        return f"ExpectedToolCalls({patterns}order={self._order!r})"

    def problem(self, request: EvaluationRequest) -> str:
        """Return what is not as expected; empty if everything is."""
        steps = request.tool_calls
        calls = [_call_of(step) for step in steps]
        find = {"exact": _not_exact, "in_order": _not_in_order, "any_order": _not_among}
        problem = find[self._order](self._patterns, calls)
        return _with_calls(problem, steps) if problem else ""


def _not_exact(patterns: Sequence[ToolCallPattern], calls: Sequence[ToolCall]) -> str:
    for number, (pattern, call) in enumerate(zip(patterns, calls, strict=False), 1):
        if not pattern.matches(call):
            return f"call {number} is not {pattern}"
    if len(calls) > len(patterns):
        return f"call {len(patterns) + 1} was not expected"
    missing = patterns[len(calls) :]
    return f"call {len(calls) + 1} is missing: {missing[0]}" if missing else ""


def _not_in_order(patterns: Sequence[ToolCallPattern], calls: Sequence[ToolCall]) -> str:
    at = 0
    for pattern in patterns:
        found = next((n for n, call in enumerate(calls[at:], at + 1) if pattern.matches(call)), 0)
        if not found:
            return f"no call is {pattern}" + (f" after call {at}" if at else "")
        at = found
    return ""


def _not_among(patterns: Sequence[ToolCallPattern], calls: Sequence[ToolCall]) -> str:
    """Return a pattern that is left over if as many as possible have a call of their own."""
    taken: dict[int, int] = {}  # the number of the pattern, by that of the call

    def take(number: int, seen: set[int]) -> bool:
        for at, call in enumerate(calls):
            if at not in seen and patterns[number].matches(call):
                seen.add(at)
                if at not in taken or take(taken[at], seen):
                    taken[at] = number
                    return True
        return False

    missing = [pattern for number, pattern in enumerate(patterns) if not take(number, set())]
    return f"no call of its own is {missing[0]}" if missing else ""


class ToolCallCount(TrailCheck):
    """Checks how often a tool was called, or that it was not.

    Args:
        expected: The calls that count.
        least: The least number of calls.
        most: The greatest number of calls; default: *least*, so `ToolCallCount("pay", 0)` is never.

    Raises:
        UsageError: A number is negative, or *most* is less than *least*.
        WrongTypeError: *expected* is no call.
    """

    def __init__(self, expected: ExpectedCall, least: int, most: int | None = None) -> None:
        self._pattern = _pattern_of(expected)
        self._least = least
        self._most = least if most is None else most
        check_number("least", least, least=0)
        check_number("most", self._most, least=least)

    def __repr__(self) -> str:
        return f"ToolCallCount({self._pattern}, {self._least}, {self._most})"

    def problem(self, request: EvaluationRequest) -> str:
        """Return what is not as expected; empty if everything is."""
        steps = request.tool_calls
        count = sum(self._pattern.matches(_call_of(step)) for step in steps)
        if self._least <= count <= self._most:
            return ""
        expected = str(self._least) + (f" to {self._most}" if self._most > self._least else "")
        return _with_calls(f"calls of {self._pattern}: {count}, not {expected}", steps)


class SpendingLimit(TrailCheck):
    """Checks what turns spent at most, with the agents that they called.

    Args:
        model_calls: The greatest number of model calls, also those of advisors and memories.
        tool_calls: The greatest number of tool calls.
        tokens: The greatest number of tokens, of prompts and answers together.
        cost: The greatest cost, in the currency of the [prices](production.md#cost).
        seconds: The greatest duration.

    Raises:
        UsageError: There is no limit, or one is negative.
    """

    def __init__(
        self,
        *,
        model_calls: int | None = None,
        tool_calls: int | None = None,
        tokens: int | None = None,
        cost: float | None = None,
        seconds: float | None = None,
    ) -> None:
        given = {
            "model_calls": model_calls,
            "tool_calls": tool_calls,
            "tokens": tokens,
            "cost": cost,
            "seconds": seconds,
        }
        self._limits = {name: limit for name, limit in given.items() if limit is not None}
        if not self._limits:
            msg = "a SpendingLimit needs a limit, such as model_calls=5"
            raise UsageError(msg)
        for name, limit in self._limits.items():
            check_number(name, limit, least=0)

    def __repr__(self) -> str:
        return f"SpendingLimit({', '.join(f'{k}={v}' for k, v in self._limits.items())})"

    def problem(self, request: EvaluationRequest) -> str:
        """Return what is not as expected; empty if everything is."""
        steps = [step for trail in request.trails for _, step in trail.tree()]
        usage: Usage = sum((trail.usage for trail in request.trails), NO_USAGE)
        spent: dict[str, Any] = {
            "model_calls": sum(isinstance(step.operation, ModelCall) for step in steps),
            "tool_calls": sum(isinstance(step.operation, ToolRun) for step in steps),
            "tokens": usage.total_tokens,
            "cost": None if usage.cost is None else float(usage.cost.amount),
            "seconds": sum(trail.seconds or 0.0 for trail in request.trails),
        }
        problems = [
            f"the {name} is not known"
            if spent[name] is None
            else f"{name}: {spent[name]:g}, not {limit:g} at most"
            for name, limit in self._limits.items()
            if spent[name] is None or spent[name] > limit
        ]
        return "; ".join(problems)
