"""Ends a turn that costs too much, whatever it is doing."""

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from chatclient.advisors.notes import note_of, noted
from chatclient.chain import (
    LOWEST_PRECEDENCE,
    TOOL_CALLING_ORDER,
    Advisor,
    ChatClientRequest,
    ChatClientResponse,
    Next,
)
from chatclient.errors import BudgetExceededError, UsageError
from chatclient.observation import Step
from chatclient.response import NO_USAGE, ChatResponse, Usage
from chatclient.serialization import usage_from_dict, usage_to_dict

SPENT = "spent"
"""The key in a response's context of what the turn has spent, a `Spent`."""

_TURN_ORDER = TOOL_CALLING_ORDER - 50
_CALL_ORDER = LOWEST_PRECEDENCE - 400

Price = Callable[[ChatResponse], float]
"""Says what a response cost, in whatever currency the budget is in."""


@dataclass(frozen=True, slots=True)
class Spent:
    """What has been spent.

    Attributes:
        usage: Tokens.
        calls: Model calls.
        cost: As the budget's price says; 0.0 without one.
    """

    usage: Usage = NO_USAGE
    calls: int = 0
    cost: float = 0.0


class Budget:
    """Limits what a turn may spend, over all its rounds and the agents it asks as tools.

    A turn that waits for approval goes on with what it has spent before.

    Given to a client as it is: `default_advisors(Budget(total_tokens=50_000))`. It is two advisors,
    one around the turn and one around each model call. Before each call it is looked whether a
    limit has been reached; then nothing is sent and the turn ends with an error. An answer that is
    there is never thrown away, even when it was more expensive than expected.

    What a client spends inside another one's turn (as its tool, say) counts for both, if it has a
    budget of its own; `Budget()` limits nothing, and counts.

    Args:
        total_tokens: Input and output together.
        input_tokens: Input.
        output_tokens: Output.
        calls: Model calls.
        cost: What the model calls may cost together, as *price* says.
        price: Says what a response cost, from its model and usage.

    Raises:
        UsageError: A limit is not positive, or there is a cost without a price.
    """

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
        if any(limit <= 0 for limit in self.limits.values()):
            msg = f"the limits of a budget are positive, but these are {self.limits}"
            raise UsageError(msg)
        self.price = price

    def __iter__(self) -> Iterator[Advisor]:
        """Yield the advisors that the budget consists of."""
        turn = _BudgetOfTurn(self)
        yield turn
        yield _BudgetOfCall(turn)


@dataclass(slots=True, eq=False)
class _Ledger:
    """What one turn has spent so far.

    Attributes:
        budget: Says how much that may be.
        opened_by: The half of the budget that stands around the turn.
        around: The ledger of another budget of the same turn, or of the turn in which this one is
            made, if there is one.
        steps: What the turn consists of; tells it from others.
    """

    budget: Budget
    opened_by: "_BudgetOfTurn"
    around: "_Ledger | None"
    steps: list[Step] | None
    spent: Spent = Spent()
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def note(self) -> str:
        """The key of what is noted of this one while the turn waits for approval."""
        budgets, around = 1, self.around
        while around is not None and around.steps is self.steps:
            budgets, around = budgets + 1, around.around
        return f"budget {budgets}"

    def check(self) -> None:
        """Raise when a limit is reached, here or around."""
        usage = self.spent.usage
        for unit, limit in self.budget.limits.items():
            spent = getattr(self.spent, unit) if unit in ("calls", "cost") else getattr(usage, unit)
            if spent >= limit:
                msg = f"the turn has spent {spent:g} of {limit:g} ({unit}); nothing more was sent"
                raise BudgetExceededError(msg, spent=spent, limit=limit, unit=unit)
        if self.around is not None:
            self.around.check()

    def add(self, answer: ChatResponse) -> None:
        """Book *answer*, here and around."""
        price = self.budget.price
        cost = 0.0 if price is None else price(answer)
        with self.lock:
            spent = self.spent
            self.spent = Spent(spent.usage + answer.usage, spent.calls + 1, spent.cost + cost)
        if self.around is not None:
            self.around.add(answer)


_ledger: ContextVar[_Ledger | None] = ContextVar("chatclient_budget", default=None)


@contextmanager
def _booked(ledger: _Ledger) -> Generator[None, None, None]:
    token = _ledger.set(ledger)
    try:
        yield
    finally:
        _ledger.reset(token)


class _BudgetOfTurn:
    """Opens a ledger for each turn."""

    name = "Budget"
    order = _TURN_ORDER

    def __init__(self, budget: Budget) -> None:
        self._budget = budget

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        ledger = _Ledger(self._budget, self, _ledger.get(), request.runtime.steps)
        if note := note_of(ledger.note, request):
            ledger.spent = Spent(usage_from_dict(note["usage"]), note["calls"], note["cost"])
        with _booked(ledger):
            response = await call_next(request)
        spent = ledger.spent

        def noting() -> dict[str, Any]:
            return {"usage": usage_to_dict(spent.usage), "calls": spent.calls, "cost": spent.cost}

        response = noted(ledger.note, noting, request, response) or response
        return response.mutate(context={SPENT: spent})


class _BudgetOfCall:
    """Books each model call, and refuses those that nobody can pay for any more."""

    name = "Budget, each call"
    order = _CALL_ORDER

    def __init__(self, turn: _BudgetOfTurn) -> None:
        self._turn = turn

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        ledger = _ledger.get()
        # The other half is not there, or the rest of the chain runs elsewhere; or the call is
        # booked by the budget whose turn is the innermost, also for those around.
        if ledger is None or ledger.opened_by is not self._turn:
            return await call_next(request)
        ledger.check()
        response = await call_next(request)
        ledger.add(response.chat_response)
        return response
