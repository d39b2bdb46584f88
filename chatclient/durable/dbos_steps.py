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
from typing import Any

from chatclient.durable.extra import DBOS, Serializer, StepInfo, dbos_errors
from chatclient.durable.recorded_errors import error_from_dict, error_to_dict
from chatclient.durable.recording import ExecutionLostError


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


class DbosSteps:
    """Records the steps of the workflow that runs; a `StepRecorder`.

    Attributes:
        recovered: Whether there are steps of an earlier execution.
        stopped: Why no step is recorded any more, or None.
    """

    def __init__(self, steps: list[StepInfo]) -> None:
        self.recovered = bool(steps)
        self.stopped: BaseException | None = None
        self._recorded = {step["function_name"]: step["output"] for step in steps}
        for _ in range(max((step["function_id"] for step in steps), default=0)):
            DBOS.reserve_step()

    @classmethod
    async def open(cls) -> "DbosSteps":
        """Return the recorder of the workflow that runs, with its recorded steps."""
        # Within the workflow, the query itself would be a step.
        id = DBOS.workflow_id or ""
        query = partial(Context().run, lambda: DBOS.list_workflow_steps(id))
        return cls(await asyncio.get_running_loop().run_in_executor(None, query))

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
