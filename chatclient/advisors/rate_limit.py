"""`RateLimitAdvisor`: limits the model calls and tokens in a period."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from chatclient._internal.checks import check_choice, check_number, seconds
from chatclient.advisors.parameter_names import hints_parameter_names
from chatclient.chain.chain import LOWEST_PRECEDENCE, ChatClientRequest, ChatClientResponse, Next
from chatclient.chat.prompt import Prompt
from chatclient.errors import RateLimitExceededError, UsageError
from chatclient.memory.window import estimated_tokens
from chatclient.runtime.fork_safety import ForkSafeLock

RATE_LIMIT_ORDER = LOWEST_PRECEDENCE - 500
"""The default order of rate limits: next to the model, so that each of its calls counts."""


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


@hints_parameter_names
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
        order: The position in the chain.
        clock: Returns the time in seconds.

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
        check_choice("on_exceeded", on_exceeded, "wait", "raise")
        self._requests = requests
        self._tokens = tokens
        self._period = seconds("period", period)
        waits = on_exceeded == "wait" and max_wait
        self._max_wait = seconds("max_wait", max_wait) if waits else 0.0
        self._clock = clock
        # Sorted by time. The first `_passed` calls do not count any more; `_counted` is the sum of
        # the tokens of the others.
        self._calls: deque[_Call] = deque()
        self._passed = 0
        self._counted = 0
        self._lock = ForkSafeLock()  # never held while a call waits
        self.order = order

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        """Return the response, after waiting until the limits allow the call.

        Raises:
            RateLimitExceededError: The wait would be too long.
        """
        tokens = _expected_tokens(request.prompt) if self._tokens is not None else 0
        call, wait = self._reserve(tokens, min(self._max_wait, request.runtime.remaining()))
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
            self._correct(call, spent)
        return response

    def _reserve(self, tokens: int, max_wait: float) -> tuple[_Call, float]:
        """Schedule a call with *tokens*; return it and the seconds to wait."""
        with self._lock:
            now = self._clock()
            self._drop_until(now - self._period)
            # Not before a call that is already waiting.
            at = max(now, self._calls[-1].at) if self._calls else now
            at, passed, counted = self._first_room(at, tokens)
            wait = at - now
            if wait > max_wait:
                msg = (
                    f"the rate limit of {self._limits()} in {self._period:g} s is reached;"
                    f" there is room in {wait:.1f} s"
                )
                raise RateLimitExceededError(msg, retry_after=wait)
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

    def _remove(self, call: _Call) -> None:
        with self._lock:
            if call not in self._calls:  # its period has ended
                return
            self._calls.remove(call)
            self._passed -= not call.counts
            self._counted -= call.tokens if call.counts else 0
            # Restore the counts that the call which is now the last one was scheduled with.
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
