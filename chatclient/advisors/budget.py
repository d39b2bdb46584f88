"""`Budget`: limits the tokens, model calls and cost of a turn."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from chatclient._internal.checks import check_callable, check_type
from chatclient.advisors.tool_loop.pending_notes import load_note, save_note
from chatclient.chain.chain import (
    MEMORY_ORDER,
    ChatClientRequest,
    ChatClientResponse,
    Next,
    turn_of,
)
from chatclient.chain.model_call import UsageLedger, current_ledger, record_usage
from chatclient.chat.response import NO_USAGE, ChatResponse, Usage
from chatclient.chat.serialization import usage_from_dict, usage_to_dict
from chatclient.chat.turn import Turn
from chatclient.errors import BudgetExceededError, UsageError

SPENT = "spent"
"""The key in a response's context of the `Spent` of the turn."""

Price = Callable[[ChatResponse], float]
"""Returns the cost of a response, in the currency of the budget."""


@dataclass(frozen=True, slots=True)
class Spent:
    """The usage, calls and cost of a turn.

    Attributes:
        usage: The number of tokens.
        calls: The number of model calls.
        cost: The sum of the budget's *price* over all calls; 0.0 without a price.
    """

    usage: Usage = NO_USAGE
    calls: int = 0
    cost: float = 0.0


class Budget:
    """Limits the tokens, model calls and cost of a turn, with its rounds and agents.

    Every model call of the turn counts: those of its rounds, of agents that it calls as tools, and
    those that advisors and memories make with `ask_model`. Before each call, the budget checks
    whether a limit has been reached; if so, nothing is sent, and the turn ends with a
    `BudgetExceededError`. A response that has arrived is never discarded, even if it was more
    expensive than expected. A turn that waited for approval continues with its previous counts.

    The calls of an agent that has a budget count in both budgets. `Budget()` only counts.

    Args:
        total_tokens: The maximum number of tokens, input and output together.
        input_tokens: The maximum number of input tokens.
        output_tokens: The maximum number of output tokens.
        calls: The maximum number of model calls.
        cost: The maximum cost of the model calls, in the currency of *price*.
        price: A function that returns the cost of a response.

    Raises:
        UsageError: A limit is not positive or not a number, there is a cost without a price, or the
            price is not a function of a response.
    """

    name = "Budget"
    order = MEMORY_ORDER - 60  # guardrails and memories may ask models, too

    def __init__(
        self,
        *,
        total_tokens: int | None = None,
        input_tokens: int | None = None,
        output_tokens: int | None = None,
        calls: int | None = None,
        cost: float | None = None,
        price: Price | None = None,
    ) -> None:
        if cost is not None and price is None:
            msg = "a limit of cost needs a price, a function from a response to what it cost"
            raise UsageError(msg)
        limits = {
            "total_tokens": total_tokens,
            "input_tokens": input_tokens,
            "output_tokens": output_tokens,
            "calls": calls,
            "cost": cost,
        }
        self.limits = {unit: limit for unit, limit in limits.items() if limit is not None}
        for unit, limit in self.limits.items():
            check_type(unit, limit, (int, float))
        if price is not None:
            check_callable("a price", price, takes=("response",))
        if any(limit <= 0 for limit in self.limits.values()):
            msg = f"the limits of a budget must be positive, but these are {self.limits}"
            raise UsageError(msg)
        self.price = price

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        """Return the response, with the `Spent` of the turn in its context.

        Raises:
            BudgetExceededError: A limit was reached before the last model call.
        """
        turn = turn_of(request)
        ledger = _Ledger(self, current_ledger(), turn)
        key = ledger.note_key
        if (note := load_note(key, request)) is not None:
            ledger.spent = _spent_in(note)
        try:
            with record_usage(ledger):
                response = await call_next(request)
        except BaseException:
            ledger.close()
            raise
        spent = ledger.spent

        def spent_so_far() -> dict[str, Any]:
            return {"usage": usage_to_dict(spent.usage), "calls": spent.calls, "cost": spent.cost}

        def finish() -> dict[str, Any]:
            ledger.close()
            return {SPENT: ledger.spent}

        turn.finish_at_end(self, finish)  # memories may call models when they store the turn
        response = save_note(key, spent_so_far, request, response) or response
        return response.mutate(context={SPENT: spent})


def _spent_in(note: Any) -> Spent:
    """Return what a suspended turn has spent, from its *note*.

    Raises:
        UsageError: The note is not that of a budget: somebody has changed it.
    """
    try:
        usage, calls, cost = usage_from_dict(note["usage"]), note["calls"], note["cost"]
        valid = usage == _without_negative_counts(usage) and calls >= 0 and cost >= 0
    except (KeyError, TypeError, ValueError) as error:
        msg = f"not a pending turn: the note of a budget is invalid: {error!r}"
        raise UsageError(msg) from error
    if not valid:
        msg = "not a pending turn: the note of a budget has negative numbers"
        raise UsageError(msg)
    return Spent(usage, calls, cost)


def _without_negative_counts(usage: Usage) -> Usage:
    """Return *usage* without negative numbers, which would increase a budget."""
    if usage.input_tokens >= 0 and usage.output_tokens >= 0:
        return usage
    return replace(
        usage,
        input_tokens=max(0, usage.input_tokens),
        output_tokens=max(0, usage.output_tokens),
    )


@dataclass(slots=True, eq=False)
class _Ledger:
    """Counts the usage of one turn.

    Attributes:
        budget: The budget with the limits.
        outer: The ledger further out, if any: that of another budget of the same turn, or of the
            turn whose tool calls this one.
        turn: The record of the turn; None when it has ended.
        spent: The usage so far.
        closed: Whether the turn has ended; its background work is then not limited any more.
    """

    budget: Budget
    outer: UsageLedger | None
    turn: Turn | None
    spent: Spent = Spent()
    closed: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def note_key(self) -> str:
        """The key of this ledger's note in a suspended turn."""
        budgets, outer = 1, self.outer
        while isinstance(outer, _Ledger) and outer.turn is self.turn:
            budgets, outer = budgets + 1, outer.outer
        return f"budget {budgets}"

    def close(self) -> None:
        """End the limits, and release the turn: a context variable may reference the ledger."""
        self.closed, self.turn = True, None

    def check(self) -> None:
        """Check the limits of this ledger and the outer ones.

        Raises:
            BudgetExceededError: A limit is reached.
        """
        for unit, limit in () if self.closed else self.budget.limits.items():
            counts = self.spent if unit in ("calls", "cost") else self.spent.usage
            spent = getattr(counts, unit)
            if spent >= limit:
                so_far = f"{spent:.12g} of {limit:.12g} ({unit})"
                msg = f"the turn has spent {so_far}; nothing more was sent"
                raise BudgetExceededError(msg, spent=spent, limit=limit, unit=unit)
        if self.outer is not None:
            self.outer.check()

    def add(self, response: ChatResponse) -> None:
        """Add the usage of *response*, also to the budgets around this one."""
        price = self.budget.price
        cost = 0.0 if price is None else max(0.0, price(response))
        usage = _without_negative_counts(response.usage)
        with self.lock:
            spent = self.spent
            self.spent = Spent(spent.usage + usage, spent.calls + 1, spent.cost + cost)
        if self.outer is not None:
            self.outer.add(response)
