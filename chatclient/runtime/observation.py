"""`Operation`, `Step` and `Observer`: the observation of requests.

An `Operation` has a name, attributes named after OpenTelemetry's conventions for generative AI (our
own begin with `chatclient.`), and content, which observers record only if the application opts in.
A `Step` is an operation that runs or has run; the steps of a request are its trail. Observers are
part of the request's runtime. The library has two: `chatclient.observability.telemetry` creates
spans and metrics if OpenTelemetry is set up, `chatclient.observability.operation_log` logs at debug
level.
"""

import time
from asyncio import CancelledError
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, ClassVar, Literal, Protocol, Self

from chatclient._internal.frozen import EMPTY
from chatclient._internal.logging import get_logger
from chatclient.runtime.blocking import context_variable

log = get_logger(__name__)

Kind = Literal[
    "client", "advisor", "model", "tool", "undo", "memory", "retrieval", "decision", "retry"
]
Attributes = Mapping[str, str | bool | int | float | Sequence[str]]


class Operation:
    """A part of a request that takes time and may fail, such as a model call."""

    kind: ClassVar[Kind]

    @property
    def name(self) -> str:
        """The name for logs and spans, such as `chat gpt-5-mini`."""
        return self.kind

    @property
    def summary(self) -> str:
        """The text of the operation in that of a trail; empty for no line of its own."""
        return ""

    def attributes(self) -> Attributes:
        """Return the attributes that are known at the start."""
        return EMPTY

    def outcome(self, result: Any) -> Attributes:  # noqa: ARG002 - for subclasses
        """Return the attributes of *result*."""
        return EMPTY

    def failure(self, result: Any) -> BaseException | None:  # noqa: ARG002 - as above
        """Return the error that *result* contains, if the operation fails without raising."""
        return None

    def content(self, result: Any) -> Mapping[str, str]:  # noqa: ARG002 - as above
        """Return the content of the operation as JSON by attribute name.

        *result* is None without one.
        """
        return EMPTY


class Observation(Protocol):
    """An observer's record of one operation.

    It may have two more methods, which receive the raw JSON exchanged with a provider during the
    operation, including all content: `sent(body)` for each request, and `received(data)` for each
    response, or each event of a stream, before it is decoded.
    """

    def end(self, ended: "Step", error: BaseException | None) -> None:
        """Record the end of the operation: with *error*, or with `ended.result`."""
        ...


class Observer(Protocol):
    """Observes the operations of requests; must be thread-safe."""

    def begin(self, operation: Operation) -> Observation:
        """Record the start of *operation*; called in the context of the operation."""
        ...


_StepReference = list["Step | None"]
"""A reference to a running step, a list with one item, which is None after the step has ended.

Contexts may live longer than a request: a pooled connection keeps that in which it was opened.
Without this indirection, they would keep the data of the request alive.
"""

_current: ContextVar[_StepReference | None] = context_variable("chatclient_step", None)


def current_step() -> "Step | None":
    """Return the observed step that the present code is part of, if any."""
    reference = _current.get()
    return None if reference is None else reference[0]


WireListener = Callable[[bytes], None]
"""Receives raw data sent to a provider, or received from it."""


def wire_listener(method: Literal["sent", "received"]) -> WireListener | None:
    """Return a function that calls *method* of the observations of the current step.

    Returns:
        None if no observation has this method.
    """
    step = current_step()
    return None if step is None else step.listener(method)


def detach_from_step() -> None:
    """Make the code that follows part of no step, in a task that outlives the current step."""
    _current.set(None)


class Step:
    """An operation that runs or has run; a context manager around the operation.

    Attributes:
        operation: The operation.
        parent: The step that this one is part of; None for the step of a turn, unless a tool of
            another turn made the request.
        started: Start time in seconds, on the clock of `time.perf_counter`.
        seconds: The duration in seconds; None while the step runs.
        result: The result, or None; set inside the `with` block.
        error: The error, raised or reported by *result*, or None.
        found: Attributes recorded during the operation, by name.
        turns: The steps of nested requests, such as those of agents used as tools; None for a step
            outside of a trail.
    """

    __slots__ = (
        *("operation", "parent", "started", "seconds", "result", "error", "found", "turns"),
        *("_observations", "_observers", "_reference", "_steps", "_token"),
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
        outer = _current.get()
        self.parent = None if outer is None else outer[0]
        self._reference: _StepReference = [self]
        self._token: Token[_StepReference | None] | None = _current.set(self._reference)
        if self._steps is not None:
            self._steps.append(self)
            self._steps = None  # avoids a reference cycle
        if self._observers:
            self._observations: list[Observation] = []
            self._observations += self._begin()  # an observer may itself call a model
        self.started = time.perf_counter()
        return self

    def note(self, name: str, value: str | float) -> None:
        """Record an attribute during the operation."""
        self.found = {**self.found, name: value}

    def listener(self, method: str) -> WireListener | None:
        """Return a function that calls *method* of all observations that have it, else None."""
        if not self._observers:
            return None
        found = [getattr(observation, method, None) for observation in self._observations]
        methods = [each for each in found if callable(each)]

        def call_all(data: bytes) -> None:
            for each in methods:
                try:
                    each(data)
                except Exception as error:  # noqa: BLE001 - observers must not break requests
                    # The text of the error may quote content.
                    kind = type(error).__name__
                    log.warning("observer failed", observer=_qualified_name(each), error=kind)

        return call_all if methods else None

    def link_to_parent(self, steps: "list[Step]") -> None:
        """Add *steps*, those of this request, to the running step that made the request, if any."""
        parent = self.parent
        while parent is not None and parent.turns is None:
            parent = parent.parent
        if parent is not None and parent.turns is not None and parent.seconds is None:
            parent.turns.append(steps)

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.seconds = time.perf_counter() - self.started
        # Most operations fail by raising only.
        if error is None and type(self.operation).failure is not Operation.failure:
            error = None if self.result is None else self.operation.failure(self.result)
        self.error = error
        if self._token is not None:
            _current.reset(self._token)
            self._reference[0] = None
            self._token = None  # references the caller's context
        if self._observers:
            for observation in reversed(self._observations):
                try:
                    observation.end(self, error)
                except Exception as problem:  # noqa: BLE001 - as above
                    name = _qualified_name(observation)
                    log.warning("observer failed", observer=name, error=repr(problem))
            self._observations = []

    def _begin(self) -> Iterator[Observation]:
        for observer in self._observers:
            try:
                yield observer.begin(self.operation)
            except Exception as error:  # noqa: BLE001 - observers must not break requests
                log.warning(
                    "observer failed", observer=_qualified_name(observer), error=repr(error)
                )


def _qualified_name(target: object) -> str:
    """Return the qualified name of *target* or its type; its repr may contain content."""
    name: str = getattr(target, "__qualname__", type(target).__qualname__)
    return name


def last_cancelled(steps: Sequence[Step] | None) -> str | None:
    """Return the name of the innermost of *steps* that was cancelled."""
    cancelled = (s for s in reversed(steps or ()) if isinstance(s.error, CancelledError))
    innermost = next(cancelled, None)
    return None if innermost is None else repr(innermost.operation.name)
