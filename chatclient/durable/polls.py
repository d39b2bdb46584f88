"""`Polls`: the pauses between queries for what other processes write to the database."""

import time

RESULT_SECONDS = 0.01
"""The first pause of a reader who waits for a result."""

EVENT_SECONDS = 0.1
"""The first pause of a reader of events, which are published about as often."""

_LONGEST = 0.5  # seconds
_SLOWER = 1.2  # factor


class Polls:
    """The pauses of one reader: short at first.

    Args:
        first: The first pause in seconds.
        timeout: How long the reader waits in seconds, or None for ever.
    """

    def __init__(self, first: float, timeout: float | None = None) -> None:
        self._pause = first
        self._end = None if timeout is None else time.monotonic() + timeout

    def next_pause(self) -> float:
        """Return the seconds to wait.

        Raises:
            TimeoutError: The time is up.
        """
        if self._end is not None and time.monotonic() >= self._end:
            msg = "the durable turn has no result yet; it continues"
            raise TimeoutError(msg)
        pause, self._pause = self._pause, min(self._pause * _SLOWER, _LONGEST)
        return pause
