"""`TurnQueue`: how many turns run in parallel, and how often they start; `Pace` of one worker."""

import asyncio
import time
from collections import deque
from dataclasses import dataclass

from chatclient._internal.checks import checked_id
from chatclient.errors import UsageError
from chatclient.extend import check_number

APPLICATION = "chatclient"
"""The name of an application whose database no other one shares."""

Rate = tuple[int, float]
"""The maximum number of turns that start within a number of seconds."""


@dataclass(frozen=True, slots=True)
class TurnQueue:
    """A queue of turns, which workers take in the order of their priority.

    Turns that wait for a decision are in no queue and count in no limit.

    Attributes:
        name: The name of the queue.
        concurrency: The maximum number of its turns that run in parallel on all workers.
        worker_concurrency: The same for each worker.
        rate: The maximum number of turns that start in a period: `(100, 60.0)` per minute.
        worker_rate: The same for each worker. It needs *worker_concurrency*: turns that a worker
            has taken wait in it until they may start.
        key_concurrency: Like *concurrency*, for turns with the same `limit_key`.
        key_worker_concurrency: Like *worker_concurrency*, for turns with the same `limit_key`.
        key_rate: Like *rate*, for turns with the same `limit_key`.
        poll_seconds: The seconds between two queries of a worker for turns to run.

    Raises:
        UsageError: A value is not a positive number, or *worker_concurrency* is missing.
    """

    name: str
    concurrency: int | None = None
    worker_concurrency: int | None = None
    rate: Rate | None = None
    worker_rate: Rate | None = None
    key_concurrency: int | None = None
    key_worker_concurrency: int | None = None
    key_rate: Rate | None = None
    poll_seconds: float = 0.2

    def __post_init__(self) -> None:
        checked_id(self.name, "the name of a queue")
        names = ("concurrency", "worker_concurrency", "key_concurrency", "key_worker_concurrency")
        for name in names:
            if (value := getattr(self, name)) is not None:
                check_number(name, value, least=1)
        if self.worker_rate is not None and self.worker_concurrency is None:
            msg = f"queue {self.name!r} has a worker_rate, which needs a worker_concurrency"
            raise UsageError(msg)
        for name in ("rate", "worker_rate", "key_rate"):
            if (rate := getattr(self, name)) is not None:
                check_number(f"the number of turns of {name}", rate[0], least=1)
                check_number(f"the seconds of {name}", rate[1], least=0.001)
        check_number("poll_seconds", self.poll_seconds, least=0.001)


class Pace:
    """Lets a number of turns start within any period, for one event loop.

    Args:
        rate: The number, and the seconds of the period.
    """

    def __init__(self, rate: Rate) -> None:
        count, self._seconds = rate
        self._starts: deque[float] = deque(maxlen=count)  # the last ones, on the monotonic clock

    async def wait(self) -> None:
        """Wait until the next turn may start; turns start in the order of their calls."""
        start = now = time.monotonic()
        if len(self._starts) == self._starts.maxlen:
            start = max(now, self._starts[0] + self._seconds)
        self._starts.append(start)
        if start > now:
            await asyncio.sleep(start - now)
