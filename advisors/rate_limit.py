"""Keeps an application within so many requests and tokens in a period."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from chatclient.chain import LOWEST_PRECEDENCE, ChatClientRequest, ChatClientResponse, Next
from chatclient.checks import check_number, check_word, seconds
from chatclient.errors import RateLimitExceededError, UsageError
from chatclient.forks import ForkSafeLock
from chatclient.memory.window import estimated_tokens
from chatclient.prompt import Prompt

RATE_LIMIT_ORDER = LOWEST_PRECEDENCE - 500
"""Where rate limits stand by default: next to the model, so that each of its calls counts."""


@dataclass(slots=True, eq=False)
class _Call:
    """A model call that has begun, or has been given a time to begin.

    Attributes:
        at: That time.
        tokens: How many tokens it takes; estimated, until its answer says.
        counts: Whether its period still runs when the last call in line begins, so that it takes
            room from the call after that.
    """

    at: float
    tokens: int
    counts: bool = True


class RateLimitAdvisor:
    """Limits how many model calls and tokens go through in any *period* of seconds.

    Calls that come too early wait their turn, first come, first served; one advisor shared by
    several clients, threads or loops limits them all together. Tokens are estimated before a call
    and corrected after it. A call that alone exceeds the limit of tokens runs when nothing else
    has in the whole period.

    Args:
        requests: How many calls in a period, or None for any number.
        tokens: How many tokens in a period, input and output together, or None for any number.
        period: How long a period is, in seconds or as a `timedelta`.
        on_exceeded: Whether to `"wait"`, or to `"raise"` at once.
        max_wait: How long a call may wait, in seconds or as a `timedelta`. If it would have to wait
            longer, it is refused.
        order: Where the advisor stands in the chain.
        clock: Gives the time in seconds.

    Raises:
        UsageError: There is nothing to limit, a limit is not positive or not a number, or
            *on_exceeded* is not a known value.
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
        order: int = RATE_LIMIT_ORDER,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        limits = {"requests": requests, "tokens": tokens}
        given = {what: limit for what, limit in limits.items() if limit is not None}
        if not given:
            msg = "nothing would be limited; give a number of requests, of tokens, or both"
            raise UsageError(msg)
        for what, limit in given.items():
            check_number(what, limit, least=1)
        check_word("on_exceeded", on_exceeded, "wait", "raise")
        self._requests = requests
        self._tokens = tokens
        self._period = seconds("period", period)
        waits = on_exceeded == "wait" and max_wait
        self._max_wait = seconds("max_wait", max_wait) if waits else 0.0
        self._clock = clock
        # In the order of their times. The first `_passed` ones do not count any more; the others
        # have `_counted` tokens, which is known without looking at them.
        self._calls: deque[_Call] = deque()
        self._passed = 0
        self._counted = 0
        self._lock = ForkSafeLock()  # held for a moment only, never while waiting
        self.order = order

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        """Return the response, once there is room for the call.

        Raises:
            RateLimitExceededError: There would not be in time.
        """
        tokens = _expected_tokens(request.prompt) if self._tokens is not None else 0
        call, wait = self._reserve(tokens, min(self._max_wait, request.runtime.remaining()))
        try:
            if wait > 0:
                await request.runtime.sleep(wait)
            response = await call_next(request)
        except BaseException:
            if self._clock() < call.at:  # it never began
                self._forget(call)
            raise
        spent = response.chat_response.usage.total_tokens
        if spent:
            self._correct(call, spent)
        return response

    def _reserve(self, tokens: int, max_wait: float) -> tuple[_Call, float]:
        """Take the next place for a call of so many tokens."""
        with self._lock:
            now = self._clock()
            self._drop_until(now - self._period)
            # Never before a call that waits already.
            at = max(now, self._calls[-1].at) if self._calls else now
            at, passed, counted = self._first_room(at, tokens)
            wait = at - now
            if wait > max_wait:
                msg = (
                    f"the rate limit of {self._limits()} in {self._period:g} s is reached;"
                    f" there is room in {wait:.1f} s"
                )
                raise RateLimitExceededError(msg, retry_after=wait)
            for place in range(self._passed, passed):
                self._calls[place].counts = False
            call = _Call(at, tokens)
            self._calls.append(call)
            self._passed, self._counted = passed, counted + tokens
            return call, wait

    def _drop_until(self, end: float) -> None:
        """Forget the calls whose period is over."""
        calls = self._calls
        while calls and calls[0].at <= end:
            call = calls.popleft()
            self._passed -= not call.counts
            self._counted -= call.tokens if call.counts else 0
            call.counts = False
        if not calls:
            self._passed = self._counted = 0

    def _first_room(self, at: float, tokens: int) -> tuple[float, int, int]:
        """Return when a call fits in: at *at*, or as soon as possible after that.

        Returns:
            The time, how many of the calls do not count any more then, and the tokens of the
            others.
        """
        passed, counted = self._passed, self._counted
        while passed < len(self._calls):
            leaving = self._calls[passed]
            number = len(self._calls) - passed
            if leaving.at > at - self._period and self._has_room(number, counted + tokens):
                break
            at = max(at, leaving.at + self._period)
            passed += 1
            counted -= leaving.tokens
        return at, passed, counted

    def _has_room(self, others: int, tokens: int) -> bool:
        if self._requests is not None and others >= self._requests:
            return False
        return self._tokens is None or tokens <= self._tokens

    def _correct(self, call: _Call, spent: int) -> None:
        with self._lock:
            if call.counts:
                self._counted += spent - call.tokens
            call.tokens = spent

    def _forget(self, call: _Call) -> None:
        with self._lock:
            if call not in self._calls:  # its period is over
                return
            self._calls.remove(call)
            self._passed -= not call.counts
            self._counted -= call.tokens if call.counts else 0
            # The next call finds what the call that is now the last one in line had found.
            end = self._calls[-1].at - self._period if self._calls else 0.0
            while self._passed and self._calls[self._passed - 1].at > end:
                self._passed -= 1
                again = self._calls[self._passed]
                again.counts = True
                self._counted += again.tokens

    def _limits(self) -> str:
        named = [(self._requests, "requests"), (self._tokens, "tokens")]
        return " and ".join(f"{limit} {name}" for limit, name in named if limit is not None)


def _expected_tokens(prompt: Prompt) -> int:
    return sum(map(estimated_tokens, prompt.messages)) + (prompt.options.max_tokens or 0)
