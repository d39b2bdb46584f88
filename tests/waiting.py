"""What comes soon, however busy the machine is."""

import time
from collections.abc import Callable


def settled(condition: Callable[[], bool], seconds: float = 30.0) -> bool:
    """Return whether *condition* comes true within *seconds*."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    return condition()
