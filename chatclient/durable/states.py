"""States of durable turns, from what DBOS knows about their workflows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from chatclient.durable.events import unread_reason
from chatclient.errors import DurableTurnError, TurnCancelledError

if TYPE_CHECKING:
    from chatclient.durable.dbos_steps import WorkflowStatus

TurnState: TypeAlias = Literal[
    "queued", "running", "waiting", "stuck", "done", "failed", "cancelling", "cancelled"
]
"""Where a durable turn is; `waiting` means for decisions about its tool calls.

It is `stuck` while no process can continue or read it, such as one of the release that started it.
It is `cancelling` until nothing of it runs any more and its calls were undone, then `cancelled`.
"""

_STATES: dict[str, TurnState] = {
    "DELAYED": "queued",
    "ENQUEUED": "queued",
    "PENDING": "running",
    "ERROR": "failed",
    "CANCELLED": "cancelled",
    "MAX_RECOVERY_ATTEMPTS_EXCEEDED": "failed",
}
PROBLEM = "problem"
"""The attribute of a workflow with `TurnStatus.problem`."""

REJECTED = "rejected"
"""The attribute of a workflow that was ended although its turn had not: the reason."""

WAITS = "waits"
"""The attribute of a workflow whose turn waits for decisions, or was continued by them."""

CANCEL = "cancel"
"""The attribute of a workflow that is to be cancelled."""

ACTIVE = ("PENDING", "ENQUEUED", "DELAYED")
"""The statuses of workflows that have not ended."""


@dataclass(frozen=True, slots=True)
class TurnStatus:
    """The status of a durable turn.

    Attributes:
        state: Where it is.
        version: The version of the application that runs it, or None if it has none or has not run.
        queue: The queue that it waits in or was taken from, or None.
        problem: Why it is stuck: no worker that has seen it has the tools that it has called, for
            example, or reads its format. Workers try again.
    """

    state: TurnState
    version: str | None
    queue: str | None
    problem: str | None = None


def state_of(status: "WorkflowStatus") -> TurnState:
    """Return the state of a turn whose last segment has *status*."""
    if isinstance(status.error, TurnCancelledError):
        return "cancelled"
    state: TurnState | None = "failed"
    if attribute_of(status, REJECTED) is None:
        state = "stuck" if problem_of(status) is not None else _STATES.get(status.status)
    if state is None:  # success
        state = "done" if output_of(status)["pending"] is None else "waiting"
    is_marked = attribute_of(status, CANCEL) is not None
    cancellable = ("queued", "running", "waiting", "stuck")
    return "cancelling" if is_marked and state in cancellable else state


def problem_of(status: "WorkflowStatus") -> str | None:
    """Return why a segment is not continued or read, or None."""
    if status.status == "SUCCESS":
        return unread_reason(status.output)
    return attribute_of(status, PROBLEM) if status.status == "DELAYED" else None


def attribute_of(status: "WorkflowStatus", name: str) -> Any:
    """Return an attribute of a workflow, or None."""
    return (status.attributes or {}).get(name)


def output_of(status: "WorkflowStatus") -> Mapping[str, Any]:
    """Return the output of a workflow that has succeeded."""
    return _readable(status.output, status)


def input_of(status: "WorkflowStatus") -> Mapping[str, Any]:
    """Return the input of a workflow."""
    (data,) = _readable(status.input, status)["args"]
    return _readable(data, status)


def error_of(status: "WorkflowStatus") -> BaseException:
    """Return the error of a workflow that has failed."""
    if isinstance(status.error, BaseException):
        return status.error
    return unreadable(status.workflow_id, unread_reason(status.error))


def _readable(value: Any, status: "WorkflowStatus") -> Mapping[str, Any]:
    if (reason := unread_reason(value)) is not None:
        raise unreadable(status.workflow_id, reason)
    data: Mapping[str, Any] = value
    return data


def unreadable(id: str, reason: str | None) -> DurableTurnError:
    """Return the error about the workflow *id*, which is not read for *reason*."""
    return DurableTurnError(f"turn {id!r} is not read: {reason}", turn_id=id)
