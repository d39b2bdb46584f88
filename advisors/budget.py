"""Ends a turn that costs too much, whatever it is doing."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from chatclient.advisors.notes import note_of, noted
from chatclient.chain import MEMORY_ORDER, ChatClientRequest, ChatClientResponse, Next
from chatclient.checks import check_callable, check_kind
from chatclient.errors import BudgetExceededError, UsageError
from chatclient.model_calls import Ledger, booked_in, present_ledger
from chatclient.observation import Step
from chatclient.response import NO_USAGE, ChatResponse, Usage
from chatclient.serialization import usage_from_dict, usage_to_dict

SPENT = "spent"
"""The key in a response's context of what the turn has spent, a `Spent`."""

Price = Callable[[ChatResponse], float]
"""Says what a response cost, in whatever currency the budget is in."""


@dataclass(frozen=True, slots=True)
class Spent:
    """What has been spent.

    Attributes:
        usage: How many tokens.
        calls: How many model calls.
        cost: What the budget's *price* adds up to; 0.0 without one.
    """

    usage: Usage = NO_USAGE
    calls: int = 0
    cost: float = 0.0


class Budget:
    """Limits what a turn may spend, over all its rounds and the agents it asks as tools.

    Every model call of the turn counts: those of its rounds, of agents that it asks as tools, and
    those that advisors and memories make with `ask_model`. Before each call, the budget checks
    whether a limit has been reached; if so, nothing is sent, and the turn ends with a
    `BudgetExceededError`. An answer that has arrived is never thrown away, even if it was more
    expensive than expected. A turn that waited for approval continues with what it has spent.

    What an agent with a budget of its own spends counts for both. `Budget()` only counts.

    Args:
        total_tokens: How many tokens, input and output together.
        input_tokens: How many tokens of input.
        output_tokens: How many tokens of output.
        calls: How many model calls.
        cost: What the model calls may cost together, in the currency of *price*.
        price: A function from a response to what it cost.

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
            check_kind(unit, limit, (int, float))
        if price is not None:
            check_callable("a price", price, takes=("response",))
        if any(limit <= 0 for limit in self.limits.values()):
            msg = f"the limits of a budget must be positive, but these are {self.limits}"
            raise UsageError(msg)
        self.price = price

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        """Return the response, with what it cost in its context.

        Raises:
            BudgetExceededError: A limit was reached, and there is more to be sent.
        """
        ledger = _Ledger(self, present_ledger(), request.runtime.steps)
        key = ledger.note
        if note := note_of(key, request):
            ledger.spent = Spent(usage_from_dict(note["usage"]), note["calls"], note["cost"])
        try:
            with booked_in(ledger):
                response = await call_next(request)
        finally:
            ledger.close()
        spent = ledger.spent

        def noting() -> dict[str, Any]:
            return {"usage": usage_to_dict(spent.usage), "calls": spent.calls, "cost": spent.cost}

        response = noted(key, noting, request, response) or response
        return response.mutate(context={SPENT: spent})


@dataclass(slots=True, eq=False)
class _Ledger:
    """What one turn has spent so far.

    Attributes:
        budget: Says how much that may be.
        around: The ledger further out, if any: that of another budget of the same turn, or of the
            turn in which this one is made.
        steps: What the turn consists of; tells it from others while it goes on.
        spent: How much it is.
        closed: Whether the turn is over: what it has begun for later is not booked any more.
    """

    budget: Budget
    around: Ledger | None
    steps: list[Step] | None
    spent: Spent = Spent()
    closed: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def note(self) -> str:
        """The key of what is noted of this one while the turn waits for approval."""
        budgets, around = 1, self.around
        while isinstance(around, _Ledger) and around.steps is self.steps:
            budgets, around = budgets + 1, around.around
        return f"budget {budgets}"

    def close(self) -> None:
        """Book nothing more, and hold nothing of the turn: a context may hold this for long."""
        self.closed, self.steps = True, None

    def check(self) -> None:
        """Make sure that no limit is reached, here or further out.

        Raises:
            BudgetExceededError: One is.
        """
        for unit, limit in () if self.closed else self.budget.limits.items():
            of = self.spent if unit in ("calls", "cost") else self.spent.usage
            spent = getattr(of, unit)
            if spent >= limit:
                so_far = f"{spent:.12g} of {limit:.12g} ({unit})"
                msg = f"the turn has spent {so_far}; nothing more was sent"
                raise BudgetExceededError(msg, spent=spent, limit=limit, unit=unit)
        if self.around is not None:
            self.around.check()

    def add(self, answer: ChatResponse) -> None:
        """Book *answer*, here and further out."""
        price = self.budget.price
        cost = 0.0 if price is None else price(answer)
        with self.lock:
            spent = self.spent
            self.spent = Spent(spent.usage + answer.usage, spent.calls + 1, spent.cost + cost)
        if self.around is not None:
            self.around.add(answer)
