"""Logs every operation of a request at debug level, without content."""

from collections.abc import Mapping

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
