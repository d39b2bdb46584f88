"""The steps of turns in DBOS, and their JSON.

A turn is one workflow of DBOS, and each of its steps has a unique name. DBOS itself finds recorded
steps by their position, which would have to be the same in each execution; concurrent tools and
advisors that depend on the outside, such as caches, make that impossible. So the recorded steps are
loaded when an execution begins and are found by name, and new steps get positions after them.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextvars import Context
from functools import partial
from typing import Any, NoReturn

from chatclient.durable.extra import DBOS, Serializer, StepInfo, dbos_errors, dbos_serialization
from chatclient.durable.recorded_errors import error_from_dict, error_to_dict
from chatclient.durable.recording import ExecutionLostError
from chatclient.errors import DurableTurnError


class JsonSerializer(Serializer):
    """Stores values and errors as JSON, not as pickles."""

    def name(self) -> str:
        """Return the name of the format."""
        return "chatclient_json"

    def serialize(self, data: Any) -> str:
        """Return *data*, a JSON value or an error, as text."""
        if isinstance(data, BaseException):
            data = {"__error__": error_to_dict(data)}
        return json.dumps(data, separators=(",", ":"))

    def deserialize(self, serialized_data: str) -> Any:
        """Return the value or the error."""
        data = json.loads(serialized_data)
        if isinstance(data, dict) and "__error__" in data:
            return error_from_dict(data["__error__"])
        return data


class _NoPickles(Serializer):
    """Takes the place of DBOS's serializer for pickles: no row names it, and it reads nothing."""

    def name(self) -> str:
        """Return a name that no row has."""
        return "none"

    def serialize(self, data: Any) -> NoReturn:  # noqa: ARG002 - of the base class
        """Refuse *data*."""
        raise TypeError(_PICKLES)

    def deserialize(self, serialized_data: str) -> NoReturn:  # noqa: ARG002 - of the base class
        """Refuse the data."""
        raise TypeError(_PICKLES)


_PICKLES = "values of durable turns are JSON; pickles are refused, because they can run code"


def refuse_pickles() -> None:
    """Let DBOS read only rows in the format of the serializer it was given, or its portable JSON.

    By default it reads a row as a pickle if the row says so, whatever serializer was given: whoever
    can write a row could run code in each process that reads it. Connections of the application to
    DBOS whose serializer is that of pickles still read them.
    """
    dbos_serialization.DBOSDefaultSerializer = _NoPickles()


class DbosSteps:
    """Records the steps of the workflow that runs; a `StepRecorder`.

    Attributes:
        recovered: Whether there are steps of an earlier execution.
        stopped: Why no step is recorded any more, or None.

    Raises:
        DurableTurnError: A step is stored in another format.
    """

    def __init__(self, id: str, steps: list[StepInfo]) -> None:
        self.recovered = bool(steps)
        self.stopped: BaseException | None = None
        self._recorded = {step["function_name"]: step["output"] for step in steps}
        # What DBOS cannot read, it returns as the text that is stored.
        if unread := [name for name, value in self._recorded.items() if isinstance(value, str)]:
            msg = f"steps of turn {id!r} are stored in a form that is not read here: {unread}"
            raise DurableTurnError(msg, turn_id=id)
        for _ in range(max((step["function_id"] for step in steps), default=0)):
            DBOS.reserve_step()

    @classmethod
    async def open(cls) -> "DbosSteps":
        """Return the recorder of the workflow that runs, with its recorded steps."""
        # Within the workflow, the query itself would be a step.
        id = DBOS.workflow_id or ""
        query = partial(Context().run, lambda: DBOS.list_workflow_steps(id))
        return cls(id, await asyncio.get_running_loop().run_in_executor(None, query))

    async def step(self, name: str, function: Callable[[], Awaitable[Any]]) -> Any:
        """Return the value of the step; see `StepRecorder.step`."""
        self._check()
        if name in self._recorded:
            return self._recorded[name]

        async def run() -> Any:
            return await function()

        try:
            value = await DBOS.run_step_async({"name": name, "preemptible": True}, run)
        except (
            dbos_errors.DBOSWorkflowConflictIDError,
            dbos_errors.DBOSWorkflowCancelledError,
        ) as error:
            self.stopped = error
            self._check()
            raise
        self._recorded[name] = value
        return value

    def detach(self) -> None:
        """Record nothing more: this process ends, and another one will continue the turn."""
        self.stopped = ExecutionLostError()

    def _check(self) -> None:
        if isinstance(self.stopped, dbos_errors.DBOSWorkflowCancelledError):
            raise asyncio.CancelledError
        if self.stopped is not None:
            raise ExecutionLostError from self.stopped
