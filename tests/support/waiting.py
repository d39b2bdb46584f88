"""Waiting for a condition, also on a busy machine."""

import asyncio
import time
from collections.abc import Callable, Iterator

# Far more than anything takes, also on a busy machine; a test that needs so much has failed.
LONG = 120.0


def settled(condition: Callable[[], object], seconds: float = LONG) -> bool:
    """Return whether *condition* becomes true within *seconds*."""
    end = time.perf_counter() + seconds
    while not condition() and time.perf_counter() < end:
        time.sleep(0.005)
    return bool(condition())


async def asettled(condition: Callable[[], object], seconds: float = LONG) -> bool:
    """Return whether *condition* becomes true within *seconds*, while other tasks run."""
    end = time.perf_counter() + seconds
    while not condition() and time.perf_counter() < end:  # noqa: ASYNC110 - set by threads, too
        await asyncio.sleep(0.001)
    return bool(condition())


def longer_and_longer() -> Iterator[float]:
    """Yield times in seconds for a test in which something has to begin before a time is over.

    The test repeats its attempt with the next one until that is so: on a busy machine later.
    """
    yield from (0.05, 0.5, 5.0, 50.0)
    raise AssertionError("nothing began within 50 seconds")
