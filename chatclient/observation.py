"""What those are told who watch requests: that an operation begins, and how it ended.

An `Operation` describes itself: by a name, by attributes named as in OpenTelemetry's conventions
for generative AI (our own begin with `chatclient.`), and by its content, which is for opted-in eyes
only. A `Step` is an operation while it runs, and what is known of it afterwards; the steps of a
request are its trail. Observers travel with the request's runtime. There are two in the library:
`chatclient.telemetry`, which makes spans and metrics when the application has set up OpenTelemetry,
and `chatclient.operation_log`, which writes a line of each while somebody listens at debug.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, ClassVar, Literal, Protocol, Self

from chatclient.context_variables import context_variable
from chatclient.logs import get_logger
from chatclient.values import EMPTY

log = get_logger(__name__)

Kind = Literal["client", "advisor", "model", "tool", "memory", "retrieval", "retry"]
Attributes = Mapping[str, str | bool | int | float | Sequence[str]]


class Operation:
    """Something that takes time and may fail."""

    kind: ClassVar[Kind]

    @property
    def name(self) -> str:
        """What it is called in a list of operations, such as `chat gpt-5-mini`."""
        return self.kind

    def attributes(self) -> Attributes:
        """Return what is known when it begins."""
        return EMPTY

    def outcome(self, result: Any) -> Attributes:  # noqa: ARG002 - for those that have one
        """Return what is known once it came to *result*."""
        return EMPTY

    def failure(self, result: Any) -> BaseException | None:  # noqa: ARG002 - as above
        """Return the error that *result* reports although nothing was raised."""
        return None

    def content(self, result: Any) -> Mapping[str, str]:  # noqa: ARG002 - as above
        """Return what was said, as JSON; *result* is None when there is none."""
        return EMPTY


class Observation(Protocol):
    """An operation that an observer watches.

    It may have two more methods, which get the JSON that goes to a provider and comes from it
    within the operation, byte for byte: `sent(body)` that of each request, and `received(data)`
    that of each whole answer, or of each event of a stream, before it is read. It holds all that
    was said.
    """

    def end(self, ended: "Step", error: BaseException | None) -> None:
        """Take note of how it ended: with *error*, or else with `ended.result`."""
        ...


class Observer(Protocol):
    """Watches the operations of requests; must be safe to use from several threads at once."""

    def begin(self, operation: Operation) -> Observation:
        """Take note that *operation* begins, in the present context."""
        ...


class _Place:
    """Where a step is under way; nowhere, once it has ended.

    A context may be kept for long: a connection that was opened in a request has its context for as
    long as it is in its pool. It must not keep all that the request was about.
    """

    __slots__ = ("step",)

    def __init__(self, step: "Step") -> None:
        self.step: Step | None = step


_place: ContextVar[_Place | None] = context_variable("chatclient_step", None)


def present_step() -> "Step | None":
    """Return what is being done here and now, as far as it is observed."""
    place = _place.get()
    return None if place is None else place.step


Tell = Callable[[bytes], None]


def present_listener(method: Literal["sent", "received"]) -> Tell | None:
    """Return what tells those who want to know what goes over the wire here and now.

    Args:
        method: Which method of an `Observation` is told.

    Returns:
        None where nobody wants to know, as a rule: then there is nothing to do.
    """
    step = present_step()
    return None if step is None else step.listener(method)


def forget_present_step() -> None:
    """Make what follows part of no step, in a task that outlives the step that began it."""
    _place.set(None)


class Step:
    """An operation while it runs, as a context manager around it, and afterwards.

    Attributes:
        operation: What is done.
        parent: The step that this is a part of; None for the whole turn, unless a tool of another
            turn asked for it.
        started: When it began, in seconds on a clock that is never set.
        seconds: How long it took; None while it runs.
        result: What it came to, or None; set within.
        error: What it failed with, or None. That may be an error that *result* reports.
        found: What became known on the way, by attribute name.
        turns: The steps of requests that were made within, such as those of agents asked as tools;
            None for a step that is in no trail.
    """

    __slots__ = (
        *("operation", "parent", "started", "seconds", "result", "error", "found", "turns"),
        *("_observations", "_observers", "_place", "_steps", "_token"),
    )

    parent: "Step | None"
    started: float
    seconds: float | None
    error: BaseException | None
    found: Attributes

    def __init__(
        self,
        operation: Operation,
        steps: "list[Step] | None" = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.operation = operation
        self.result: Any = None
        self.error = self.seconds = None
        self.found = EMPTY
        self.turns: list[list[Step]] | None = None if steps is None else []
        self._steps: list[Step] | None = steps
        self._observers = observers

    def __enter__(self) -> Self:
        self.parent = present_step()
        self._place = _Place(self)
        self._token: Token[_Place | None] | None = _place.set(self._place)  # what begins is a part
        if self._steps is not None:
            self._steps.append(self)
            self._steps = None  # they know each other only as long as there is need
        if self._observers:
            self._observations: list[Observation] = []
            self._observations += self._begun()  # one of them may itself ask a model
        self.started = time.perf_counter()
        return self

    def note(self, name: str, value: str | float) -> None:
        """Take note of something that becomes known on the way, by its attribute's name."""
        self.found = {**self.found, name: value}

    def listener(self, method: str) -> Tell | None:
        """Return what calls *method* of all observations that have it, or None if none has."""
        if not self._observers:
            return None
        found = [getattr(observation, method, None) for observation in self._observations]
        told = [each for each in found if callable(each)]

        def tell(data: bytes) -> None:
            for each in told:
                try:
                    each(data)
                except Exception as error:  # noqa: BLE001 - whoever watches must not disturb
                    # Not its text, which may quote what was said.
                    kind = type(error).__name__
                    log.warning("observer failed", observer=_called(each), error=kind)

        return tell if told else None

    def add_to_asker(self, steps: "list[Step]") -> None:
        """Take note where this request was made, as long as that goes on: these are its *steps*."""
        asker = self.parent
        while asker is not None and asker.turns is None:
            asker = asker.parent
        if asker is not None and asker.turns is not None and asker.seconds is None:
            asker.turns.append(steps)

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.seconds = time.perf_counter() - self.started
        if error is None and self.result is not None:
            error = self.operation.failure(self.result)
        self.error = error
        if self._token is not None:
            _place.reset(self._token)
            self._place.step = None
            self._token = None  # it holds the caller's context
        if self._observers:
            self._end(error)

    def _begun(self) -> Iterator[Observation]:
        for observer in self._observers:
            try:
                yield observer.begin(self.operation)
            except Exception as error:  # noqa: BLE001 - whoever watches must not disturb
                log.warning("observer failed", observer=_called(observer), error=repr(error))

    def _end(self, error: BaseException | None) -> None:
        for observation in reversed(self._observations):
            try:
                observation.end(self, error)
            except Exception as problem:  # noqa: BLE001 - as above
                log.warning("observer failed", observer=_called(observation), error=repr(problem))
        self._observations = []


def _called(watcher: object) -> str:
    """Return what *watcher* is called; how it shows itself may be all that it has heard."""
    name: str = getattr(watcher, "__qualname__", type(watcher).__qualname__)
    return name
