"""The observers of a request: the client's own, OpenTelemetry, and the debug log."""

import os
import sys
from collections.abc import Callable
from functools import cache

from chatclient.observability.operation_log import log_observers
from chatclient.runtime.observation import Observer


def all_observers(
    own: tuple[Observer, ...] = (), conversation_id: str | None = None, client: str | None = None
) -> tuple[Observer, ...]:
    """Return *own* observers, and those for OpenTelemetry and debug logging if these are set up."""
    return (*own, *_telemetry_observers(own), *log_observers(conversation_id, client))


def _telemetry_observers(observers: tuple[Observer, ...]) -> tuple[Observer, ...]:
    """Return the observer for OpenTelemetry; imports it only if the application has set it up."""
    if "opentelemetry.trace" not in sys.modules and not _set_up_by_environment():
        return ()
    return _load_default_observers()(observers)


@cache
def _load_default_observers() -> Callable[[tuple[Observer, ...]], tuple[Observer, ...]]:
    from chatclient.observability.telemetry import default_observers  # noqa: PLC0415 - loads OpenTelemetry

    return default_observers


@cache
def _set_up_by_environment() -> bool:
    """Return whether environment variables make OpenTelemetry's API load an SDK."""
    return "OTEL_PYTHON_TRACER_PROVIDER" in os.environ or "OTEL_PYTHON_METER_PROVIDER" in os.environ
