"""Retry policy for failed requests."""

import random
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import tenacity

from chatclient._internal.checks import check_number, check_type
from chatclient._internal.logging import described, get_logger
from chatclient.errors import ProviderError
from chatclient.observability.operations import RetryWait
from chatclient.runtime.runtime import Runtime

log = get_logger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Retries after connection failures and the statuses 408, 409, 425, 429 and 5xx.

    The delay is the one that the provider asks for. If that is longer than `longest_wait`, the
    error is raised immediately, with `retry_after`. Otherwise delays grow exponentially from
    `first_wait`, with up to 50 % random jitter. A stream is retried only before its first content.

    Attributes:
        max_retries: Maximum number of retries.
        first_wait: Maximum seconds before the first retry.
        longest_wait: Maximum seconds before any retry.
        multiplier: Factor between consecutive delays.
        on_codes: HTTP statuses that are always retried.
        excluded_codes: HTTP statuses that are never retried.
        on_client_errors: Whether to retry all other statuses from 400 to 499.

    Raises:
        UsageError: A number is negative, or a value has the wrong type.
    """

    max_retries: int = 2
    first_wait: float = 0.5
    longest_wait: float = 60.0
    multiplier: float = 2.0
    on_codes: Collection[int] = frozenset()
    excluded_codes: Collection[int] = frozenset()
    on_client_errors: bool = False

    def __post_init__(self) -> None:
        # Without these checks, an invalid value would only raise after a failure, and mask it.
        for name in ("max_retries", "first_wait", "longest_wait", "multiplier"):
            check_number(name, getattr(self, name))
        for name in ("on_codes", "excluded_codes"):
            check_type(name, codes := getattr(self, name), Collection, "put statuses into a set")
            for code in codes:
                check_type(f"a status in {name}", code, int)

    def retries(self, error: object) -> bool:
        """Return whether to retry after *error*."""
        if not isinstance(error, ProviderError):
            return False
        status = error.status
        if status is None:
            return error.retryable
        if status in self.on_codes:
            return True
        if status in self.excluded_codes:
            return False
        client_error = 400 <= status < 500  # noqa: PLR2004
        return error.retryable or (self.on_client_errors and client_error)


def as_retry_policy(max_retries: int | RetryPolicy) -> RetryPolicy:
    """Return *max_retries* as a `RetryPolicy`."""
    return max_retries if isinstance(max_retries, RetryPolicy) else RetryPolicy(max_retries)


async def with_retries(
    attempt: Callable[[], Coroutine[Any, Any, T]],
    policy: RetryPolicy,
    runtime: Runtime,
    provider: str,
) -> T:
    """Return the result of the first successful *attempt*, or raise the last error."""
    try:
        return await attempt()
    except ProviderError as error:
        first_error: ProviderError | None = error

    async def replay_then_attempt() -> T:
        # The first attempt runs without tenacity, whose overhead successful requests avoid. After a
        # failure its error is replayed to tenacity.
        nonlocal first_error
        if first_error is not None:
            error, first_error = first_error, None
            raise error
        return await attempt()

    return await _retrying(policy, runtime, provider)(replay_then_attempt)


def _retrying(policy: RetryPolicy, runtime: Runtime, provider: str) -> tenacity.AsyncRetrying:
    backoff = tenacity.wait_exponential(policy.first_wait, policy.longest_wait, policy.multiplier)
    out_of_attempts = tenacity.stop_after_attempt(policy.max_retries + 1)

    def wait(state: tenacity.RetryCallState) -> float:
        retry_after: float | None = getattr(_error_in(state), "retry_after", None)
        # Jitter spreads the retries of clients that failed at the same time.
        return retry_after or backoff(state) * random.uniform(0.5, 1.0)  # noqa: S311 - no secret

    def stop(state: tenacity.RetryCallState) -> bool:
        # A retry before the requested delay would fail again.
        longest = min(policy.longest_wait, runtime.remaining())
        return out_of_attempts(state) or state.upcoming_sleep > longest

    last_error: BaseException | None = None

    def log_retry(state: tenacity.RetryCallState) -> None:
        nonlocal last_error
        last_error = _error_in(state)
        log.info("retry", provider=provider, error=described(last_error), wait=state.upcoming_sleep)

    async def sleep(seconds: float) -> None:
        with runtime.observe(RetryWait(provider, type(last_error).__name__, seconds)):
            await runtime.sleep(seconds)

    return tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception(policy.retries),
        stop=stop,
        wait=wait,
        before_sleep=log_retry,
        sleep=sleep,
        reraise=True,
    )


def _error_in(state: tenacity.RetryCallState) -> BaseException | None:
    return state.outcome.exception() if state.outcome is not None else None
