"""`TurnQueue`: how many turns run at once, and how often they start."""

from dataclasses import dataclass

from chatclient._internal.checks import check_number, checked_id

Rate = tuple[int, float]
"""The maximum number of turns that start within a number of seconds."""


@dataclass(frozen=True, slots=True)
class TurnQueue:
    """A queue of turns, which workers take in the order of their priority.

    Turns that wait for a decision are in no queue and count in no limit.

    Attributes:
        name: The name of the queue.
        concurrency: The maximum number of its turns that run at once on all workers.
        worker_concurrency: The same for each worker.
        rate: The maximum number of turns that start in a period: `(100, 60.0)` per minute.
        key_concurrency: Like *concurrency*, for turns with the same `limit_key`.
        key_worker_concurrency: Like *worker_concurrency*, for turns with the same `limit_key`.
        key_rate: Like *rate*, for turns with the same `limit_key`.
        poll_seconds: The seconds between two queries of a worker for turns to run.

    Raises:
        UsageError: A value is not a positive number.
    """

    name: str
    concurrency: int | None = None
    worker_concurrency: int | None = None
    rate: Rate | None = None
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
        for name in ("rate", "key_rate"):
            if (rate := getattr(self, name)) is not None:
                check_number(f"the number of turns of {name}", rate[0], least=1)
                check_number(f"the seconds of {name}", rate[1], least=0.001)
        check_number("poll_seconds", self.poll_seconds, least=0.001)
