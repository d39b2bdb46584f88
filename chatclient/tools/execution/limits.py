"""The limits of a tool loop, and what happens when one is reached."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from chatclient._internal.checks import check_choice, check_number, names, seconds
from chatclient._internal.frozen import EMPTY, freeze_fields
from chatclient.chat.tool import Effect

OnLimit = Literal["partial", "raise", "tell_model", "final_answer"]
"""End the turn with the results so far; raise; refuse the call and continue; or call the model once
more, without tools."""


@dataclass(frozen=True, slots=True)
class ToolLimits:
    """Limits of one turn, from the user's message to the final answer; None is no limit.

    Attributes:
        max_rounds: The number of model calls.
        max_calls_per_tool: The number of calls of each tool whose effect is not `"read"`; calls of
            tools that only read count towards the total.
        max_total_calls: The number of calls of all tools together.
        max_seconds: Seconds since the turn started; checked between rounds.
        per_tool: The number of calls of single tools, by name, instead of `max_calls_per_tool`.
        excluded: Names of tools that count towards the total only, and may be repeated.
        max_repeats: The number of equal calls with equal results after which the model gets a
            reminder instead of a result. Twice as many end the turn.
        on_exceeded: What happens when a limit is reached.

    Raises:
        UsageError: A bound is not a number or not greater than 0, or *on_exceeded* is not a known
            value.
    """

    max_rounds: int | None = 100
    max_calls_per_tool: int | None = 40
    max_total_calls: int | None = 150
    max_seconds: float | None = None
    per_tool: Mapping[str, int | None] = EMPTY
    excluded: str | Collection[str] = frozenset()
    max_repeats: int | None = 3
    on_exceeded: OnLimit = "partial"

    def __post_init__(self) -> None:
        freeze_fields(self, "per_tool")
        object.__setattr__(self, "excluded", names(self.excluded))
        check_choice("on_exceeded", self.on_exceeded, OnLimit)
        if self.max_seconds is not None:
            object.__setattr__(self, "max_seconds", seconds("max_seconds", self.max_seconds))
        counts = {
            "max_rounds": self.max_rounds,
            "max_calls_per_tool": self.max_calls_per_tool,
            "max_total_calls": self.max_total_calls,
            "max_repeats": self.max_repeats,
            **self.per_tool,
        }
        for name, bound in counts.items():
            if bound is not None:
                check_number(f"the limit {name} (None for no limit)", bound, least=1)

    def breach(self, tool_name: str, effect: Effect, calls: Counter[str]) -> str | None:
        """Return why a tool may not be run, given the numbers of calls including this one."""
        default = None if effect == "read" else self.max_calls_per_tool
        bound = self.per_tool.get(tool_name, default)
        if bound is not None and calls[tool_name] > bound and tool_name not in self.excluded:
            return (
                f"Tool call limit ({bound}) exceeded for tool '{tool_name}'. "
                "No further calls to this tool are allowed in this turn."
            )
        if self.max_total_calls is not None and calls.total() > self.max_total_calls:
            return (
                f"Total tool call limit ({self.max_total_calls}) exceeded for this turn. "
                "No further tool calls are allowed."
            )
        return None

    def breach_between_rounds(self, rounds: int, seconds: float) -> str | None:
        """Return why the model may not be called again, or None."""
        if self.max_rounds is not None and rounds >= self.max_rounds:
            return f"Round limit ({self.max_rounds}) reached for this turn."
        if self.max_seconds is not None and seconds >= self.max_seconds:
            return f"Time limit ({self.max_seconds:g} s) reached for this turn."
        return None
