"""`RateLimitAdvisor`: limits the model calls and tokens in a period, for one process or several."""

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

from chatclient._internal.checks import check_choice, check_number, seconds
from chatclient.advisors.usage_store import Counters, UsageKey, UsageStore, checked_key, key_of
from chatclient.chain.chain import LOWEST_PRECEDENCE, ChatClientRequest, ChatClientResponse, Next
from chatclient.chain.params import ANY
from chatclient.chat.prompt import Prompt
from chatclient.errors import RateLimitExceededError, UsageError
from chatclient.memory.window import estimated_tokens
from chatclient.runtime.runtime import Runtime
from chatclient.runtime.threads import ForkSafeLock


@dataclass(frozen=True, slots=True)
class RateLimits:
    """The limits of a rate limit.

    Attributes:
        requests: The maximum number of calls in a period, or None.
        tokens: The maximum number of tokens in a period, or None.
        period: The length of a period in seconds.
        max_wait: The maximum wait of a call in seconds.
    """

    requests: int | None
    tokens: int | None
    period: float
    max_wait: float

    def exceeded(self, wait: float) -> RateLimitExceededError:
        """Return the error for a call that would have to wait for *wait* seconds."""
        named = [(self.requests, "requests"), (self.tokens, "tokens")]
        limits = " and ".join(f"{limit} {name}" for limit, name in named if limit is not None)
        msg = (
            f"the rate limit of {limits} in {self.period:g} s is reached;"
            f" there is room in {wait:.1f} s"
        )
        return RateLimitExceededError(msg, retry_after=wait)


@dataclass(slots=True, eq=False)
class _Call:
    """A model call that has started, or is scheduled to start.

    Attributes:
        at: The time of its start.
        tokens: The number of its tokens; estimated until the response reports them.
        counts: Whether its period has not ended when the last scheduled call starts, so that it
            counts towards the limits of the next call.
    """

    at: float
    tokens: int
    counts: bool = True


class SlidingWindow:
    """The exact limits of one process, in first-in, first-out order.

    Args:
        limits: The limits.
        clock: Returns the time in seconds.
    """

    def __init__(self, limits: RateLimits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        # Sorted by time. The first `_passed` calls do not count any more; `_counted` is the sum of
        # the tokens of the others.
        self._calls: deque[_Call] = deque()
        self._passed = 0
        self._counted = 0
        self._lock = ForkSafeLock()  # never held while a call waits

    async def run(
        self, request: ChatClientRequest, call_next: Next, tokens: int
    ) -> ChatClientResponse:
        """Return the response, after waiting until the limits allow a call with *tokens*.

        Raises:
            RateLimitExceededError: The wait would be too long.
        """
        max_wait = min(self._limits.max_wait, request.runtime.remaining())
        call, wait = self._reserve(tokens, max_wait)
        try:
            if wait > 0:
                await request.runtime.sleep(wait)
            response = await call_next(request)
        except BaseException:
            if self._clock() < call.at:  # the call never started
                self._remove(call)
            raise
        spent = response.chat_response.usage.total_tokens
        if spent:
            with self._lock:
                # A call whose period has passed is not in the sum any more.
                if call.counts:
                    self._counted += spent - call.tokens
                call.tokens = spent
        return response

    def _reserve(self, tokens: int, max_wait: float) -> tuple[_Call, float]:
        """Schedule a call with *tokens*; return it and the seconds to wait."""
        with self._lock:
            now = self._clock()
            self._drop_until(now - self._limits.period)
            # Not before a call that is already waiting.
            at = max(now, self._calls[-1].at) if self._calls else now
            at, passed, counted = self._first_room(at, tokens)
            wait = at - now
            if wait > max_wait:
                raise self._limits.exceeded(wait)
            for index in range(self._passed, passed):
                self._calls[index].counts = False
            call = _Call(at, tokens)
            self._calls.append(call)
            self._passed, self._counted = passed, counted + tokens
            return call, wait

    def _drop_until(self, end: float) -> None:
        """Remove the calls that started at *end* or before."""
        calls = self._calls
        while calls and calls[0].at <= end:
            call = calls.popleft()
            self._passed -= not call.counts
            self._counted -= call.tokens if call.counts else 0
            call.counts = False
        if not calls:
            self._passed = self._counted = 0

    def _first_room(self, at: float, tokens: int) -> tuple[float, int, int]:
        """Return the earliest time from *at* on at which the limits allow a call.

        Returns:
            The time, the number of calls that do not count any more at that time, and the tokens of
            the others.
        """
        passed, counted = self._passed, self._counted
        while passed < len(self._calls):
            leaving = self._calls[passed]
            number = len(self._calls) - passed
            if leaving.at > at - self._limits.period and self._has_room(number, counted + tokens):
                break
            at = max(at, leaving.at + self._limits.period)
            passed += 1
            counted -= leaving.tokens
        return at, passed, counted

    def _has_room(self, others: int, tokens: int) -> bool:
        if self._limits.requests is not None and others >= self._limits.requests:
            return False
        return self._limits.tokens is None or tokens <= self._limits.tokens

    def _remove(self, call: _Call) -> None:
        with self._lock:
            if call not in self._calls:  # its period has ended
                return
            self._calls.remove(call)
            self._passed -= not call.counts
            self._counted -= call.tokens if call.counts else 0
            # Restore the counts that the call which is now the last one was scheduled with.
            end = self._calls[-1].at - self._limits.period if self._calls else 0.0
            while self._passed and self._calls[self._passed - 1].at > end:
                self._passed -= 1
                again = self._calls[self._passed]
                again.counts = True
                self._counted += again.tokens


_LEAST_WAIT = 0.01  # seconds between two attempts


@dataclass(slots=True, eq=False)
class SharedWindow:
    """The limits of all processes that share a store, by counters of two periods.

    The calls of the previous period count by the part of it that lies within the last period, as if
    they had been spread evenly. Waiting calls have no order.

    Attributes:
        limits: The limits.
        counters: The shared counters.
        user: The key of the requests.
        clock: Returns the time in seconds since 1970.
    """

    limits: RateLimits
    counters: Counters
    user: str
    clock: Callable[[], float] = field(default=time.time)

    async def run(
        self, request: ChatClientRequest, call_next: Next, tokens: int
    ) -> ChatClientResponse:
        """Return the response, after waiting until the limits allow a call with *tokens*.

        Raises:
            RateLimitExceededError: The wait would be too long.
            UsageStoreError: The store failed.
        """
        runtime, waited = request.runtime, 0.0
        # A call that needs more than the limit runs alone.
        limits, amounts = self.limits, {}
        if limits.requests is not None:
            amounts["requests"] = 1
        if limits.tokens is not None:
            amounts["tokens"] = min(tokens, limits.tokens)
        while True:
            index = int(self.clock() // self.limits.period)
            wait = await self._enter(index, amounts, runtime)
            if not wait:
                break
            if waited + wait > self.limits.max_wait or wait > runtime.remaining():
                raise self.limits.exceeded(wait)
            await runtime.sleep(wait)
            waited += wait
        response = await call_next(request)
        spent = response.chat_response.usage.total_tokens
        if spent and "tokens" in amounts and spent != amounts["tokens"]:
            counter, next_page = self._counter("tokens", index), spent - amounts["tokens"]
            await self.counters.record(counter, next_page, 2 * self.limits.period, runtime)
        return response

    async def _enter(self, index: int, amounts: Mapping[str, int], runtime: Runtime) -> float:
        """Count a call in the period *index*, or return the seconds until there may be room."""
        counted: list[str] = []
        for unit, amount in amounts.items():
            before = await self.counters.get(self._counter(unit, index - 1), runtime)
            counter = self._counter(unit, index)
            # Counted before the check, because others count at the same time; taken back if there
            # is no room.
            now = await self.counters.add(counter, amount, 2 * self.limits.period, runtime)
            counted.append(unit)
            wait = self._wait(unit, index, before, now - amount, amount)
            if wait > 0:
                for each in counted:
                    await self.counters.record(
                        self._counter(each, index),
                        -amounts[each],
                        2 * self.limits.period,
                        runtime,
                    )
                return max(wait, _LEAST_WAIT)
        return 0.0

    def _wait(self, unit: str, index: int, before: int, now: int, amount: int) -> float:
        """Return the seconds until *amount* has room next to what was counted in two periods."""
        limit: int = getattr(self.limits, unit)
        period = self.limits.period
        passed = self.clock() - index * period
        room = limit - amount - now
        if room >= 0:
            share = 1 - room / before if before > room else 0.0
            return share * period - passed
        share = 1 - (limit - amount) / now
        return period - passed + share * period

    def _counter(self, unit: str, index: int) -> str:
        return f"rate:{unit}:{self.limits.period:g}:{index}:{self.user}"


RATE_LIMIT_ORDER = LOWEST_PRECEDENCE - 500
"""The default order of rate limits: next to the model, so that each of its calls counts."""

_MAX_KEYS = 10_000


class RateLimitAdvisor:
    """Limits the number of model calls and tokens in a sliding *period* of seconds.

    Calls that exceed a limit wait in first-in, first-out order; one advisor shared by several
    clients, threads or loops limits them together. Tokens are estimated before a call and
    corrected after it. A call that exceeds the token limit alone runs when no other call counts in
    the period.

    Args:
        requests: The maximum number of calls in a period, or None for no limit.
        tokens: The maximum number of input and output tokens in a period, or None for no limit.
        period: The length of a period, in seconds or as a `timedelta`.
        on_exceeded: `"wait"` waits until the call is possible; `"raise"` raises immediately.
        max_wait: The maximum wait, in seconds or as a `timedelta`. A call that would have to wait
            longer is refused.
        key: A function that returns whose call a request is; each key has its own limits. Default:
            one limit for all requests.
        store: Where calls are counted, to share limits between processes; default: in the memory of
            this process, which keeps the limits of the 10,000 keys used last. With a store, the
            limits are approximate, and waiting calls have no order.
        order: The position in the chain.
        clock: Returns the time in seconds; with a store, since 1970.

    Raises:
        UsageError: There is nothing to limit, a limit is not positive or not a number,
            *on_exceeded* is not a known value, *key* is not a function of a request, or *store* has
            no methods `add` and `get`.
    """

    name = "RateLimitAdvisor"

    def __init__(
        self,
        *,
        requests: int | None = None,
        tokens: int | None = None,
        period: float | timedelta = 60.0,
        on_exceeded: Literal["wait", "raise"] = "wait",
        max_wait: float | timedelta = float("inf"),
        key: UsageKey | None = None,
        store: UsageStore | None = None,
        order: int = RATE_LIMIT_ORDER,
        clock: Callable[[], float] | None = None,
    ) -> None:
        limits = {"requests": requests, "tokens": tokens}
        given = {what: limit for what, limit in limits.items() if limit is not None}
        if not given:
            msg = "nothing would be limited; give a number of requests, of tokens, or both"
            raise UsageError(msg)
        for what, limit in given.items():
            check_number(what, limit, least=1)
        check_choice("on_exceeded", on_exceeded, "wait", "raise")
        waits = on_exceeded == "wait" and max_wait
        self._limits = RateLimits(
            requests,
            tokens,
            seconds("period", period),
            seconds("max_wait", max_wait) if waits else 0.0,
        )
        self._key = checked_key(key)
        self.params = () if key is None else (ANY,)
        self._counters = None if store is None else Counters(store)
        self._clock = clock or (time.monotonic if store is None else time.time)
        self._windows: OrderedDict[str, SlidingWindow] = OrderedDict()
        self._lock = ForkSafeLock()
        self.order = order

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        """Return the response, after waiting until the limits allow the call.

        Raises:
            RateLimitExceededError: The wait would be too long.
            UsageStoreError: The shared store failed.
        """
        tokens = _expected_tokens(request.prompt) if self._limits.tokens is not None else 0
        window = self._window(key_of(self._key, request))
        return await window.run(request, call_next, tokens)

    def _window(self, user: str) -> SlidingWindow | SharedWindow:
        if self._counters is not None:
            return SharedWindow(self._limits, self._counters, user, self._clock)
        with self._lock:
            window = self._windows.pop(user, None) or SlidingWindow(self._limits, self._clock)
            self._windows[user] = window  # the last one used is the last in order
            if len(self._windows) > _MAX_KEYS:
                self._windows.popitem(last=False)
            return window


def _expected_tokens(prompt: Prompt) -> int:
    return sum(map(estimated_tokens, prompt.messages)) + (prompt.options.max_tokens or 0)
