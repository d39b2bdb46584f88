"""`Budget`: limits the tokens, model calls and cost of a turn, or of a user's turns in a day."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Literal

from chatclient._internal.checks import check_callable, check_choice, check_type, seconds
from chatclient.advisors.usage_store import (
    Counters,
    InMemoryUsageStore,
    UsageKey,
    UsageStore,
    checked_key,
    key_of,
)
from chatclient.chain.chain import (
    MEMORY_ORDER,
    ChatClientRequest,
    ChatClientResponse,
    Next,
)
from chatclient.chain.model_call import (
    NOTHING_KNOWN,
    CountedCall,
    UsageEntry,
    UsageLedger,
    current_ledger,
    record_usage,
)
from chatclient.chain.params import ANY
from chatclient.chain.prices import prices_installed, unpriced_models
from chatclient.chat.pending_notes import load_note, save_note
from chatclient.chat.response import ChatResponse, Usage
from chatclient.chat.serialization import usage_from_dict, usage_to_dict
from chatclient.chat.turn import Spent, Turn
from chatclient.errors import BudgetExceededError, MissingExtraError, UnknownPriceError, UsageError
from chatclient.observability.operations import ModelCall
from chatclient.runtime.runtime import Runtime

Period = Literal["hour", "day"] | float | timedelta
"""The length of a period: a name, seconds, or a `timedelta`."""

_NAMED: Mapping[str, float] = {"hour": 3600.0, "day": 86_400.0}
# Stores count integers; costs are counted in billionths.
_BILLION = 1_000_000_000
_TOKENS = ("total_tokens", "input_tokens", "output_tokens")


class Quota:
    """Counts usage by key and period.

    Periods have fixed boundaries, the same for all processes: a day begins at midnight UTC.

    Args:
        period: The length of a period.
        key: Returns the key of a request, or None for one key.
        store: The counters.
        clock: Returns the time in seconds since 1970.

    Raises:
        UsageError: *period* is neither a known name nor a positive duration.
    """

    def __init__(
        self,
        period: Period,
        key: UsageKey | None,
        store: UsageStore,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if isinstance(period, str):
            check_choice("a period", period, *_NAMED)
            period = _NAMED[period]
        self.seconds = seconds("a period", period)
        self.key = key
        self._counters = Counters(store)
        self._clock = clock

    def seconds_left(self) -> float:
        """Return the seconds until the current period ends."""
        return self.seconds - self._clock() % self.seconds

    def period(self) -> int:
        """Return the number of the current period."""
        return int(self._clock() // self.seconds)

    async def spent(self, user: str, unit: str, runtime: Runtime) -> float:
        """Return what *user* has used of *unit* in the current period.

        Raises:
            UsageStoreError: The store failed.
        """
        counted = await self._counters.get(self._counter(user, unit, self.period()), runtime)
        return counted / _BILLION if unit == "cost" else counted

    async def count_call(self, user: str, period: int, runtime: Runtime) -> int:
        """Count a call of *user* in *period*, and return the number of calls.

        Raises:
            UsageStoreError: The store failed.
        """
        counter = self._counter(user, "calls", period)
        return await self._counters.add(counter, 1, self.seconds, runtime)

    async def add(self, user: str, unit: str, amount: float, period: int, runtime: Runtime) -> None:
        """Add *amount* of *unit* for *user* in *period*; if the store fails, that is logged."""
        counted = round(amount * _BILLION) if unit == "cost" else int(amount)
        if counted:
            counter = self._counter(user, unit, period)
            await self._counters.record(counter, counted, self.seconds, runtime)

    def _counter(self, user: str, unit: str, period: int) -> str:
        return f"quota:{unit}:{self.seconds:g}:{period}:{user}"


Price = Callable[[ChatResponse], float]
"""Returns the cost of a response, in the currency of the budget."""


class Budget:
    """Limits the tokens, model calls and cost of a turn, with its rounds and agents.

    With a *period*, it is a quota: it limits all turns of the same *key* in each period together.

    Every model call of the turn counts: those of its rounds, of agents that it calls as tools, and
    those that advisors and memories make with `ask_model` and `ask_decision`. Before each call, the
    budget checks whether a limit has been reached; if so, nothing is sent, and the turn ends with a
    `BudgetExceededError`. A call counts from when it is sent, and its usage from when it ends: of
    one that fails or is cancelled, what the provider has reported until then. A response that has
    arrived is never discarded, even if it was more expensive than expected. A turn that waited for
    approval continues with its previous counts.

    The calls of an agent that has a budget count in both budgets. `Budget()` only counts.

    Args:
        total_tokens: The maximum number of tokens, input and output together.
        input_tokens: The maximum number of input tokens.
        output_tokens: The maximum number of output tokens.
        calls: The maximum number of model calls.
        cost: The maximum cost of the model calls, in the currency of *price*, else in US dollars.
        price: A function that returns the cost of a response; default: `usage.cost`, which needs
            the extra `prices`.
        period: `hour`, `day` (in UTC) or a number of seconds, also as a `timedelta`; None to limit
            each turn by itself.
        key: A function that returns whose usage a request is; default: one quota for all requests.
        store: Where usage is counted; default: in the memory of this process.

    Raises:
        UsageError: A limit is not positive or not a number, there is a cost without a price and
            without the extra, *price* or *key* is not a function, or there is a *key* or *store*
            without a *period*.
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
        period: Period | None = None,
        key: UsageKey | None = None,
        store: UsageStore | None = None,
    ) -> None:
        if cost is not None and price is None and not prices_installed():
            msg = (
                "a limit of cost needs prices: pip install 'chatclient[prices]', or price=, a"
                " function from a response to what it cost"
            )
            raise MissingExtraError(msg)
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
        self.params = () if key is None else (ANY,)
        self.quota: Quota | None = None
        if period is not None:
            # An empty store may be falsy.
            self.quota = Quota(
                period, checked_key(key), InMemoryUsageStore() if store is None else store
            )
        elif key is not None or store is not None:
            msg = "a key and a store are for a quota; say for how long, such as period='day'"
            raise UsageError(msg)

    def cost_of(self, response: ChatResponse) -> float | None:
        """Return the cost of *response*, or None if it is not known."""
        if self.price is not None:
            return max(0.0, self.price(response))
        cost = response.usage.cost
        return None if cost is None else float(cost.amount)

    def shared(self, whose: str) -> tuple[UsageLedger, Callable[[], Spent]]:
        """Return a ledger that limits several turns together, and what returns their usage.

        Args:
            whose: What the turns belong to, in errors.

        Raises:
            UsageError: The budget is a quota.
        """
        if self.quota is not None:
            msg = f"a budget of {whose} has no period; a quota is an advisor of the client"
            raise UsageError(msg)
        ledger = _Ledger(self, current_ledger(), None, whose=whose)
        return ledger, lambda: ledger.spent

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        """Return the response, and record in its turn what that has spent.

        Raises:
            BudgetExceededError: A limit was reached before the last model call.
        """
        turn = request.turn
        user = "" if self.quota is None else key_of(self.quota.key, request)
        ledger = _Ledger(self, current_ledger(), turn, user)
        key = ledger.note_key
        if (note := load_note(key, turn)) is not None:
            try:
                usage, calls, cost = usage_from_dict(note["usage"]), note["calls"], note["cost"]
                valid = usage == _without_negative_counts(usage) and calls >= 0 and cost >= 0
            except (KeyError, TypeError, ValueError) as error:
                msg = f"not a pending turn: the note of a budget is invalid: {error!r}"
                raise UsageError(msg) from error
            if not valid:
                msg = "not a pending turn: the note of a budget has negative numbers"
                raise UsageError(msg)
            ledger.spent = Spent(usage, calls, cost)
        try:
            with record_usage(ledger):
                response = await call_next(request)
        except BaseException:
            ledger.close()
            raise
        spent = turn.spent = ledger.spent

        def spent_so_far() -> dict[str, Any]:
            return {"usage": usage_to_dict(spent.usage), "calls": spent.calls, "cost": spent.cost}

        def finish() -> None:
            ledger.close()
            turn.spent = ledger.spent

        turn.finish_at_end(self, finish)  # memories may call models when they store the turn
        save_note(key, spent_so_far, turn)
        return response


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
        user: The key of the request in the quota.
        whose: What the limits are for, in errors.
        spent: The usage so far.
        closed: Whether the turn has ended; its background work is then not limited any more.
    """

    budget: Budget
    outer: UsageLedger | None
    turn: Turn | None
    user: str = ""
    whose: str = "the turn"
    spent: Spent = field(default_factory=Spent)
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

    async def enter(self, call: CountedCall, runtime: Runtime) -> UsageEntry:
        """Count *call* here and in the ledgers further out.

        Raises:
            BudgetExceededError: A limit is reached.
            UnknownPriceError: There is a limit of cost, and no price of the model.
            UsageStoreError: The store of the quota failed.
        """
        limits = {} if self.closed else self.budget.limits
        if "cost" in limits:
            self._check_price(call)
        for unit, limit in limits.items():
            self._check(unit, limit, await self._spent(unit, runtime))
        # The outer ledgers come after the own limits, so that a refusal leaves nothing to correct
        # there.
        entry = _Entry(self, None if self.outer is None else await self.outer.enter(call, runtime))
        try:
            calls = await entry.count(runtime)
            if "calls" in limits:  # others may have been counted since the check
                self._check("calls", limits["calls"], calls - 1)
        except BaseException:
            # Shielded: the call is not made, so no ledger and no store may keep it, even after a
            # cancellation.
            await runtime.shielded(entry.correct(None, runtime))
            raise
        return entry

    def _check_price(self, call: CountedCall) -> None:
        if self.budget.price is not None:
            return
        if isinstance(call, ModelCall):
            unknown = unpriced_models(call.model, call.prompt.options)
        else:
            unknown = [call.model.name]
        if unknown:
            msg = (
                f"the price of {', '.join(unknown)} is not known, which a limit of cost needs;"
                " nothing was sent. Give the budget a function: Budget(cost=..., price=...)"
            )
            raise UnknownPriceError(msg, models=tuple(unknown))

    async def _spent(self, unit: str, runtime: Runtime) -> float:
        if (quota := self.budget.quota) is not None:
            return await quota.spent(self.user, unit, runtime)
        counts = self.spent if unit in ("calls", "cost") else self.spent.usage
        spent: float = getattr(counts, unit)
        return spent

    def _check(self, unit: str, limit: float, spent: float) -> None:
        if spent < limit:
            return
        quota = self.budget.quota
        whose = self.whose if quota is None else "the quota's user"
        so_far = f"{spent:.12g} of {limit:.12g} ({unit})"
        again = None if quota is None else quota.seconds_left()
        end = "" if again is None else f", until the period ends in {again:.0f} s"
        msg = f"{whose} has spent {so_far}; nothing more was sent{end}"
        raise BudgetExceededError(msg, spent=spent, limit=limit, unit=unit, retry_after=again)

    def replay(self, response: ChatResponse) -> None:
        """Count a call and its *response* from a record, which the quota has counted already."""
        self.add_calls(1)
        self.add_usage(response)
        if self.outer is not None:
            self.outer.replay(response)

    def add_calls(self, calls: int) -> int:
        """Add to the calls of the turn, and return their number."""
        with self.lock:
            self.spent = replace(self.spent, calls=self.spent.calls + calls)
            return self.spent.calls

    def add_usage(self, response: ChatResponse) -> tuple[Usage, float]:
        """Add the usage of *response* to that of the turn, and return it with its cost."""
        usage = _without_negative_counts(response.usage)
        cost = None if response is NOTHING_KNOWN else self.budget.cost_of(response)
        with self.lock:
            spent = self.spent
            self.spent = Spent(spent.usage + usage, spent.calls, spent.cost + (cost or 0.0))
        return usage, cost or 0.0


class _Entry:
    """A call that counts from when it is sent, and is corrected when it ends.

    Args:
        ledger: The ledger that counts it.
        outer: The entry in the ledger further out, or None.
    """

    def __init__(self, ledger: _Ledger, outer: UsageEntry | None) -> None:
        self._ledger = ledger
        self._outer = outer
        self._quota = quota = ledger.budget.quota
        self._period = 0 if quota is None else quota.period()  # in which it is sent
        self._counted = 0

    async def count(self, runtime: Runtime) -> int:
        """Count the call, and return the number of calls of the turn or of the quota.

        Raises:
            UsageStoreError: The store of the quota failed.
        """
        calls = self._ledger.add_calls(1)
        if self._quota is not None and "calls" in self._ledger.budget.limits:
            calls = await self._quota.count_call(self._ledger.user, self._period, runtime)
        self._counted = 1
        return calls

    async def correct(self, response: ChatResponse | None, runtime: Runtime) -> None:
        """Add the usage of *response*; None takes the call back."""
        amounts: dict[str, float] = {}
        if response is None:
            self._ledger.add_calls(-1)
            amounts["calls"] = -self._counted
        else:
            usage, amounts["cost"] = self._ledger.add_usage(response)
            amounts |= {unit: getattr(usage, unit) for unit in _TOKENS}
        if self._quota is not None:
            for unit in self._ledger.budget.limits:
                amount = amounts.get(unit, 0)
                await self._quota.add(self._ledger.user, unit, amount, self._period, runtime)
        if self._outer is not None:
            await self._outer.correct(response, runtime)
