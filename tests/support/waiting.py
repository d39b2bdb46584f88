"""Waiting for a condition, also on a busy machine."""

import time
from collections.abc import Callable


def settled(condition: Callable[[], bool], seconds: float = 30.0) -> bool:
    """Return whether *condition* becomes true within *seconds*."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    return condition()
