"""When a provider is asked again."""

import random
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import tenacity

from chatclient.checks import check_kind, check_number
from chatclient.errors import ProviderError
from chatclient.logs import described, get_logger
from chatclient.operations import RetryWait
from chatclient.runtime import Runtime

log = get_logger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When to ask again: after connection failures, 408, 409, 425, 429 and 5xx.

    A wait that the provider asks for is kept; where it is longer than `longest_wait`, the failure
    is raised at once, with `retry_after`. Otherwise the wait grows from `first_wait` on, less up
    to a half by chance. A stream that has said something is not begun again.

    Attributes:
        max_retries: How often to ask again.
        first_wait: Seconds before the first retry, at most.
        longest_wait: Seconds before any retry, at most.
        multiplier: How many times longer each wait is than the one before.
        on_codes: HTTP statuses after which to ask again in any case.
        excluded_codes: HTTP statuses after which not to.
        on_client_errors: Whether to ask again after every other status from 400 to 499.

    Raises:
        UsageError: One of the numbers is none, or negative; or the statuses are not whole numbers.
    """

    max_retries: int = 2
    first_wait: float = 0.5
    longest_wait: float = 60.0
    multiplier: float = 2.0
    on_codes: Collection[int] = frozenset()
    excluded_codes: Collection[int] = frozenset()
    on_client_errors: bool = False

    def __post_init__(self) -> None:
        # What is wrong would show only once a provider fails, and in place of its failure.
        for name in ("max_retries", "first_wait", "longest_wait", "multiplier"):
            check_number(name, getattr(self, name))
        for name in ("on_codes", "excluded_codes"):
            check_kind(name, codes := getattr(self, name), Collection, "put statuses into a set")
            for code in codes:
                check_kind(f"a status in {name}", code, int)

    def retries(self, error: object) -> bool:
        """Return whether to ask again after *error*."""
        if not isinstance(error, ProviderError):
            return False
        status = error.status
        if status is None:
            return error.retryable
        if status in self.on_codes:
            return True
        if status in self.excluded_codes:
            return False
        client_error = 400 <= status < 500  # noqa: PLR2004 - as HTTP divides them
        return error.retryable or (self.on_client_errors and client_error)


def as_retry_policy(max_retries: int | RetryPolicy) -> RetryPolicy:
    """Return the policy that *max_retries* stands for."""
    return max_retries if isinstance(max_retries, RetryPolicy) else RetryPolicy(max_retries)


async def with_retries(
    attempt: Callable[[], Coroutine[Any, Any, T]],
    policy: RetryPolicy,
    runtime: Runtime,
    provider: str,
) -> T:
    """Return the result of the first *attempt* that succeeds.

    Raises:
        ProviderError: None did; this is the last one's failure.
    """
    try:
        return await attempt()
    except ProviderError as error:
        first: ProviderError | None = error

    async def again() -> T:
        # The first failure is replayed into tenacity, which is only called upon when there is
        # one: asking it beforehand would cost every request.
        nonlocal first
        if first is not None:
            failed, first = first, None
            raise failed
        return await attempt()

    return await _retrying(policy, runtime, provider)(again)


def _retrying(policy: RetryPolicy, runtime: Runtime, provider: str) -> tenacity.AsyncRetrying:
    backoff = tenacity.wait_exponential(policy.first_wait, policy.longest_wait, policy.multiplier)
    enough = tenacity.stop_after_attempt(policy.max_retries + 1)

    def wait(state: tenacity.RetryCallState) -> float:
        asked: float | None = getattr(_error_in(state), "retry_after", None)
        # Many clients that failed together come back apart, none of them at once.
        return asked or backoff(state) * random.uniform(0.5, 1.0)  # noqa: S311 - no secret

    def stop(state: tenacity.RetryCallState) -> bool:
        # To come back earlier than asked would only be refused again.
        longest = min(policy.longest_wait, runtime.remaining())
        return enough(state) or state.upcoming_sleep > longest

    failure: BaseException | None = None

    def note(state: tenacity.RetryCallState) -> None:
        nonlocal failure
        failure = _error_in(state)
        log.info("retry", provider=provider, error=described(failure), wait=state.upcoming_sleep)

    async def pause(seconds: float) -> None:
        with runtime.observe(RetryWait(provider, type(failure).__name__, seconds)):
            await runtime.sleep(seconds)

    return tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception(policy.retries),
        stop=stop,
        wait=wait,
        before_sleep=note,
        sleep=pause,
        reraise=True,
    )


def _error_in(state: tenacity.RetryCallState) -> BaseException | None:
    return state.outcome.exception() if state.outcome is not None else None
