"""Keeps an application within so many requests and tokens in a period."""

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from chatclient.chain import LOWEST_PRECEDENCE, ChatClientRequest, ChatClientResponse, Next
from chatclient.checks import check_word
from chatclient.errors import RateLimitExceededError, UsageError
from chatclient.forks import ForkSafeLock
from chatclient.memory.window import estimated_tokens
from chatclient.prompt import Prompt

RATE_LIMIT_ORDER = LOWEST_PRECEDENCE - 500
"""Where rate limits stand by default: next to the model, so that each of its calls counts."""


@dataclass(slots=True, eq=False)
class _Call:
    """A model call that counts: when it began or will begin, and its tokens as far as known."""

    at: float
    tokens: int


class RateLimitAdvisor:
    """Lets only so many model calls and tokens through in any *period* of seconds.

    Calls that come too early wait their turn, first come, first served; one advisor shared by
    several clients, threads or loops limits them all together. Tokens are estimated before a call
    and corrected after it. A call that alone exceeds the limit of tokens runs when nothing else
    has in the whole period.

    Args:
        requests: How many calls in a period, or None for any number.
        tokens: How many tokens, input and output together, or None for any number.
        period: Seconds.
        on_limit: Whether to wait, or to raise at once.
        max_wait: Seconds to wait at most; longer ones raise.
        order: Where the advisor stands in the chain.
        clock: Gives the time in seconds.

    Raises:
        UsageError: There is nothing to limit, a limit is not positive, or *on_limit* is no value
            that is known.
    """

    name = "RateLimitAdvisor"

    def __init__(
        self,
        *,
        requests: int | None = None,
        tokens: int | None = None,
        period: float = 60.0,
        on_limit: Literal["wait", "raise"] = "wait",
        max_wait: float = float("inf"),
        order: int = RATE_LIMIT_ORDER,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        limits = [limit for limit in (requests, tokens) if limit is not None]
        if not limits or min(*limits, period) <= 0:
            msg = "a rate limit needs a positive number of requests or tokens, and a period"
            raise UsageError(msg)
        check_word("on_limit", on_limit, "wait", "raise")
        self._requests = requests
        self._tokens = tokens
        self._period = period
        self._max_wait = 0.0 if on_limit == "raise" else max_wait
        self._clock = clock
        self._calls: deque[_Call] = deque()
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
            call.tokens = spent
        return response

    def _reserve(self, tokens: int, max_wait: float) -> tuple[_Call, float]:
        """Take the next place for a call of so many tokens."""
        with self._lock:
            now = self._clock()
            while self._calls and self._calls[0].at <= now - self._period:
                self._calls.popleft()
            # Never before a call that waits already.
            at = max([now, *(call.at for call in list(self._calls)[-1:])])
            at = self._first_room(at, tokens)
            wait = at - now
            if wait > max_wait:
                msg = (
                    f"the rate limit of {self._limits()} in {self._period:g} s is reached;"
                    f" there is room in {wait:.1f} s"
                )
                raise RateLimitExceededError(msg, retry_after=wait)
            call = _Call(at, tokens)
            self._calls.append(call)
            return call, wait

    def _first_room(self, at: float, tokens: int) -> float:
        """Return the earliest time from *at* on at which a call fits in."""
        counted = [call for call in self._calls if call.at > at - self._period]
        for leaving in [*counted]:
            if self._has_room(counted, tokens):
                break
            at = max(at, leaving.at + self._period)
            counted.remove(leaving)
        return at

    def _has_room(self, counted: list[_Call], tokens: int) -> bool:
        if self._requests is not None and len(counted) >= self._requests:
            return False
        if self._tokens is None or not counted:
            return True
        return sum(call.tokens for call in counted) + tokens <= self._tokens

    def _forget(self, call: _Call) -> None:
        with self._lock, suppress(ValueError):  # its period may be over
            self._calls.remove(call)

    def _limits(self) -> str:
        named = [(self._requests, "requests"), (self._tokens, "tokens")]
        return " and ".join(f"{limit} {name}" for limit, name in named if limit is not None)


def _expected_tokens(prompt: Prompt) -> int:
    return sum(map(estimated_tokens, prompt.messages)) + (prompt.options.max_tokens or 0)
