"""`RateLimitAdvisor`: limits the model calls and tokens in a period."""

import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import timedelta
from typing import Literal

from chatclient._internal.checks import check_choice, check_number, seconds
from chatclient.advisors.sliding_window import RateLimits, SharedWindow, SlidingWindow
from chatclient.advisors.usage_store import Counters, UsageKey, UsageStore, checked_key, key_of
from chatclient.chain.chain import LOWEST_PRECEDENCE, ChatClientRequest, ChatClientResponse, Next
from chatclient.chain.params import ANY
from chatclient.chat.prompt import Prompt
from chatclient.errors import UsageError
from chatclient.memory.window import estimated_tokens
from chatclient.runtime.threads import ForkSafeLock

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
