"""`TurnHealth` and `TurnInfo`: durable turns as an operator sees them; `TurnMetrics`."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Observation

from chatclient.durable.states import TurnState
from chatclient.extend import get_logger

log = get_logger(__name__)

EndedState: TypeAlias = Literal["done", "failed", "cancelled"]
"""The state of a turn that has ended."""

OPEN_STATES: tuple[TurnState, ...] = ("queued", "running", "waiting", "stuck", "cancelling")
ENDED_STATES: tuple[EndedState, ...] = get_args(EndedState)


@dataclass(frozen=True, slots=True)
class TurnInfo:
    """A turn in a list of turns.

    Attributes:
        id: The id of the turn.
        state: Where it is.
        seconds: The time since it was started or continued, has begun to wait, or has ended.
        version: The version of the application that runs it, or None if it has none or has not run.
        queue: The queue that it waits in or was taken from, or None.
        problem: Why it is stuck, or None. It may be `cancelling` at the same time.
    """

    id: str
    state: TurnState
    seconds: float
    version: str | None
    queue: str | None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class TurnHealth:
    """The turns of an application that have not ended.

    Attributes:
        turns: The number of turns in each state.
        oldest: The `TurnInfo.seconds` of the oldest turn in each state; 0.0 without one.
        workers: The number of processes that run turns.
    """

    turns: Mapping[TurnState, int]
    oldest: Mapping[TurnState, float]
    workers: int

    @property
    def stuck(self) -> int:
        """The number of turns that do not continue until an operator or a deployment acts."""
        return self.turns["stuck"]


class TurnMetrics:
    """Metrics of durable turns: those of an application that are open, and what a process does.

    | instrument | what it has |
    |---|---|
    | `chatclient.durable.turns` | the turns of the application that have not ended, by `state` |
    | `chatclient.durable.oldest` | the seconds of the oldest one, by `state` |
    | `chatclient.durable.ended` | the turns that this process has run to an end or until they wait,
      by `state` |
    | `chatclient.durable.taken_over` | the turns of ended processes that this one let continue |

    Args:
        health: Returns the health of the application, or None without an engine.
        provider: The provider of meters; default: the application's.
    """

    def __init__(
        self,
        health: Callable[[], TurnHealth | None],
        provider: metrics.MeterProvider | None = None,
    ) -> None:
        self._health = health
        meter = (provider or metrics.get_meter_provider()).get_meter("chatclient")
        meter.create_observable_gauge(
            "chatclient.durable.turns", [self._turns], "{turn}", "Durable turns that have not ended"
        )
        meter.create_observable_gauge(
            "chatclient.durable.oldest", [self._oldest], "s", "Age of the oldest durable turn"
        )
        self._ended = meter.create_counter(
            "chatclient.durable.ended", "{turn}", "Durable turns that ended, or began to wait"
        )
        self._taken_over = meter.create_counter(
            "chatclient.durable.taken_over", "{turn}", "Durable turns of ended processes"
        )

    def count_end(self, state: TurnState) -> None:
        """Count a turn that this process has run until *state*."""
        self._ended.add(1, {"state": state})

    def count_takeovers(self, number: int) -> None:
        """Count turns of processes that have ended."""
        self._taken_over.add(number)

    def _turns(self, _: CallbackOptions) -> Iterator[Observation]:
        if (health := self._read()) is not None:
            yield from _by_state(health.turns)

    def _oldest(self, _: CallbackOptions) -> Iterator[Observation]:
        if (health := self._read()) is not None:
            yield from _by_state(health.oldest)

    def _read(self) -> TurnHealth | None:
        try:
            return self._health()
        except Exception as error:  # noqa: BLE001 - of the database or its driver; the next time
            log.warning("state of turns not measured", error=repr(error))
            return None


def _by_state(values: Mapping[TurnState, float]) -> Iterator[Observation]:
    for state, value in values.items():
        yield Observation(value, {"state": state})


def age(seconds: float) -> str:
    """Return a duration as a short text, such as `3 d` or `20 min`."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
