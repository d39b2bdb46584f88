"""The observers of a request: the client's own, OpenTelemetry, and the debug log."""

import os
import sys
from collections.abc import Callable, Mapping, MutableMapping
from functools import cache
from typing import Any

from chatclient._internal.logging import get_logger
from chatclient.observability.operations import ModelCall, ToolRun
from chatclient.runtime.observation import Kind, Observation, Observer, Operation, Step

log = get_logger(__name__)

_EVENTS: Mapping[Kind, str] = {
    "client": "turn",
    "advisor": "advisor",
    "model": "model call",
    "tool": "tool call",
    "undo": "tool call undone",
    "memory": "memory access",
    "retrieval": "retrieval",
    "decision": "decision",
    "retry": "retry wait",
}


class OperationLog:
    """Logs an event when an operation ends; one instance per turn, because it counts rounds.

    Args:
        conversation_id: The id of the conversation, or None.
        client: The name of the client, or None.
    """

    def __init__(self, conversation_id: str | None, client: str | None) -> None:
        self._conversation_id = conversation_id
        self._client = client
        self._round = 0

    def begin(self, operation: Operation) -> Observation:
        """Count the rounds, and return the observation that logs *operation*."""
        if isinstance(operation, ModelCall) and not operation.auxiliary:
            self._round += 1
        return _LogObservation(self._conversation_id, self._client, self._round)


class _LogObservation:
    """Logs the end of an operation."""

    __slots__ = ("_client", "_conversation_id", "_round")

    def __init__(self, conversation_id: str | None, client: str | None, round_: int) -> None:
        self._conversation_id = conversation_id
        self._client = client
        self._round = round_

    def end(self, ended: Step, error: BaseException | None) -> None:
        """Log the event."""
        operation = ended.operation
        log.debug(
            _EVENTS[operation.kind],
            operation=operation.name,
            client=self._client,
            conversation_id=self._conversation_id,
            round=self._round or None,
            tool=operation.call.name if isinstance(operation, ToolRun) else None,
            seconds=ended.seconds,
            error=None if error is None else type(error).__name__,
        )


def log_observers(conversation_id: str | None, client: str | None) -> tuple[Observer, ...]:
    """Return an `OperationLog` for a turn, if debug events are written."""
    return (OperationLog(conversation_id, client),) if log.is_enabled_for_debug() else ()


def all_observers(
    observers: tuple[Observer, ...] = (),
    conversation_id: str | None = None,
    client: str | None = None,
) -> tuple[Observer, ...]:
    """Return *observers*, and those for OpenTelemetry and debug logging if these are set up."""
    return (*observers, *_telemetry_observers(observers), *log_observers(conversation_id, client))


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


def log_fields(
    _logger: object, _method: str, event_dict: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Replace the text of a record of this library by its event and its fields.

    For `foreign_pre_chain` of `structlog.stdlib.ProcessorFormatter`. The message of a record is a
    text that contains the fields, for plain formatters; with this processor, each field is a key of
    the output, and occurs once. Records of other libraries are left as they are.

    Returns:
        The given mapping, changed.
    """
    fields: object = getattr(event_dict.get("_record"), "chatclient", None)
    if isinstance(fields, dict):
        event_dict.pop("chatclient", None)  # of `structlog.stdlib.ExtraAdder`
        event_dict.update({key: value for key, value in fields.items() if value is not None})
    return event_dict
