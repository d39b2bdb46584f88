"""A line at debug for every operation of a request; nothing that was said is in it."""

from collections.abc import Mapping

from chatclient.logs import get_logger
from chatclient.observation import Kind, Observation, Observer, Operation, Step
from chatclient.operations import ModelCall, ToolRun

log = get_logger(__name__)

_EVENTS: Mapping[Kind, str] = {
    "client": "turn",
    "advisor": "advisor",
    "model": "model call",
    "tool": "tool call",
    "memory": "memory access",
    "retrieval": "retrieval",
    "retry": "retry wait",
}


class OperationLog:
    """Writes a line when an operation ends; one for each turn, because it counts its rounds.

    Args:
        conversation_id: The conversation that the turn belongs to, if there is one.
    """

    def __init__(self, conversation_id: str | None) -> None:
        self._conversation_id = conversation_id
        self._round = 0

    def begin(self, operation: Operation) -> Observation:
        """Take note of the round that the operation belongs to."""
        if isinstance(operation, ModelCall) and not operation.aside:
            self._round += 1
        return _Line(self._conversation_id, self._round)


class _Line:
    """What will be written of an operation."""

    __slots__ = ("_conversation_id", "_round")

    def __init__(self, conversation_id: str | None, round_: int) -> None:
        self._conversation_id = conversation_id
        self._round = round_

    def end(self, ended: Step, error: BaseException | None) -> None:
        """Write the line."""
        operation = ended.operation
        log.debug(
            _EVENTS[operation.kind],
            operation=operation.name,
            conversation_id=self._conversation_id,
            round=self._round or None,
            tool=operation.call.name if isinstance(operation, ToolRun) else None,
            seconds=ended.seconds,
            error=None if error is None else type(error).__name__,
        )


def log_observers(conversation_id: str | None) -> tuple[Observer, ...]:
    """Return what writes a turn's operations to the log, if anybody reads it at debug."""
    return (OperationLog(conversation_id),) if log.is_enabled_for_debug() else ()
