"""Who is told of a request's operations: the client's own observers, OpenTelemetry, the log."""

import os
import sys
from collections.abc import Callable
from functools import cache

from chatclient.observation import Observer
from chatclient.operation_log import log_observers


def all_observers(
    own: tuple[Observer, ...] = (), conversation_id: str | None = None
) -> tuple[Observer, ...]:
    """Return *own* observers, and those that the application has by its setup."""
    return (*own, *_telemetry_observers(own), *log_observers(conversation_id))


def _telemetry_observers(observers: tuple[Observer, ...]) -> tuple[Observer, ...]:
    """Return what makes spans and metrics, if the application has set up OpenTelemetry.

    An application that has not does not pay for its import.
    """
    if "opentelemetry.trace" not in sys.modules and not _set_up_by_environment():
        return ()
    return _load_default_observers()(observers)


@cache
def _load_default_observers() -> Callable[[tuple[Observer, ...]], tuple[Observer, ...]]:
    from chatclient.telemetry import default_observers  # noqa: PLC0415 - loads OpenTelemetry

    return default_observers


@cache
def _set_up_by_environment() -> bool:
    """Return whether OpenTelemetry's API would load an SDK by itself."""
    return "OTEL_PYTHON_TRACER_PROVIDER" in os.environ or "OTEL_PYTHON_METER_PROVIDER" in os.environ
