"""The parts of DBOS that durable turns use: steps, events, and faults of its database."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context
from functools import partial
from typing import Any, NoReturn, TypeVar

from chatclient.chat.serialization import error_from_dict, error_to_dict
from chatclient.durable.events import FORMAT, unread_reason
from chatclient.durable.recording import UNDO, ExecutionLostError
from chatclient.errors import TurnVersionError
from chatclient.extend import get_logger, needed_by

with needed_by("a durable turn", extra="dbos"):
    from dbos import (
        DBOS,
        DBOSClient,
        DBOSConfig,
        Serializer,
        SetWorkflowAttributes,
        SetWorkflowID,
        StepInfo,
        WorkflowStatus,
        _serialization as dbos_serialization,
        error as dbos_errors,
    )

with needed_by("a durable turn", extra="dbos"):
    import sqlalchemy
    from sqlalchemy import exc as sqlalchemy_errors

__all__ = [
    "DBOS",
    "DBOSClient",
    "DBOSConfig",
    "Serializer",
    "SetWorkflowAttributes",
    "SetWorkflowID",
    "StepInfo",
    "WorkflowStatus",
    "dbos_errors",
    "dbos_serialization",
    "sqlalchemy",
    "sqlalchemy_errors",
]


log = get_logger(__name__)

T = TypeVar("T")

FAULTS = (
    sqlalchemy_errors.OperationalError,
    sqlalchemy_errors.InternalError,
    sqlalchemy_errors.InterfaceError,
    sqlalchemy_errors.TimeoutError,
    dbos_errors.DBOSQueryTimeoutError,
)
"""Errors of the database that pass."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0  # seconds


async def until_stored(work: Callable[[], Awaitable[T]]) -> T:
    """Return the result of *work*, which is repeated while the database has a fault.

    A turn must not end, undo its calls or lose a paid answer because its own database failed. DBOS
    itself waits for lost connections only.
    """
    pause = 0.0
    while True:
        try:
            return await work()
        except FAULTS as error:
            if not pause:
                log.warning("the turn waits for its database", error=repr(error))
        pause = min(max(pause * 2, _FIRST_PAUSE), _LONGEST_PAUSE)
        await asyncio.sleep(pause)


class JsonSerializer(Serializer):
    """Stores values and errors as JSON, not as pickles."""

    def name(self) -> str:
        """Return the name of the format."""
        return FORMAT

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

    By default it reads a row as a pickle if the row is marked so, with any serializer: whoever
    can write a row could run code in each process that reads it. Connections of the application to
    DBOS whose serializer is that of pickles still read them.
    """
    dbos_serialization.DBOSDefaultSerializer = _NoPickles()


class DbosSteps:
    """Records the steps of one execution of a workflow; a `StepRecorder`.

    Args:
        id: The id of the workflow.

    Attributes:
        id: The id of the workflow.
        begun: Whether it has started, and does not wait any more for its time in this process.
        recorded: The recorded values of steps by name, also those of earlier executions.
        stopped: Why no step is recorded any more, or None.
        is_cancelled: Whether it is being cancelled.
        interrupted: The tools that write and were interrupted by a crash, if the turn is cancelled:
            it is unknown whether they took effect.
    """

    def __init__(self, id: str) -> None:
        self.id = id
        self.begun = False
        self.stopped: BaseException | None = None
        self.recorded: dict[str, Any] = {}
        self.interrupted: list[str] = []
        self.is_cancelled = False
        self._is_past_record = False  # whether a step was called that was not recorded
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[Any] | None = None

    async def load(self) -> None:
        """Load the steps that earlier executions have recorded.

        Raises:
            TurnVersionError: A step is stored in a format that this release does not read.
        """
        # Within the workflow, the query itself would be a step.
        query = partial(Context().run, lambda: DBOS.list_workflow_steps(self.id))
        loop = asyncio.get_running_loop()
        steps: list[StepInfo] = await until_stored(lambda: loop.run_in_executor(None, query))
        # DBOS may have recorded an error of its database as that of the step.
        stored = [step for step in steps if step["error"] is None]
        self.recorded = {step["function_name"]: step["output"] for step in stored}
        for name, value in self.recorded.items():
            if (reason := unread_reason(value)) is not None:
                msg = f"turn {self.id!r} is not continued here, for its step {name!r}: {reason}"
                raise TurnVersionError(msg, turn_id=self.id)
        self.begun = True
        # DBOS numbers steps, and would repeat recorded ones of the same number; here they go by
        # name.
        for _ in range(max((step["function_id"] for step in steps), default=0)):
            DBOS.reserve_step()

    async def has(self, name: str) -> bool:
        """Return whether the step *name* is recorded."""
        return name in self.recorded

    async def step(self, name: str, function: Callable[[], Awaitable[Any]]) -> Any:
        """Return the value of the step; see `StepRecorder.step`."""
        self._check()
        if name in self.recorded:
            return self.recorded[name]
        if self.is_cancelled and not name.rpartition("/")[2].startswith(UNDO):
            # End a cancelled turn where its record ends.
            # The steps of agents have names of their own, after those of the agents.
            path, slash, own = name.rpartition("/")
            kind, _, call = own.partition(" ")
            if kind == "tool" and f"{path}{slash}begin {call}" in self.recorded:
                self.interrupted.append(call.partition(" ")[0])
            self._is_past_record = True
            self._cancel_task()  # so that the request ends if an advisor catches the error
            raise asyncio.CancelledError
        self._is_past_record = True
        values: list[Any] = []

        async def run() -> Any:
            if not values:  # otherwise, its value could not be stored
                values.append(await function())
            return values[0]

        async def record() -> Any:
            # Again, because another process may have taken the turn while the database was away.
            self._check()
            return await DBOS.run_step_async({"name": name}, run)

        try:
            value = await until_stored(record)
        except asyncio.CancelledError:
            if self.is_cancelled and values:  # it could not be stored yet, and is needed to undo
                await until_stored(record)
            raise
        except (
            dbos_errors.DBOSWorkflowConflictIDError,
            dbos_errors.DBOSWorkflowCancelledError,
        ) as error:
            self.stopped = error
            self._check()
            raise
        # Only what is stored counts as recorded.
        self.recorded[name] = value
        return value

    async def execute(self, turn: Coroutine[Any, Any, T], *, cancelled: bool) -> T:
        """Return the result of *turn*, whose steps these are.

        Args:
            turn: The turn.
            cancelled: Whether it is to be cancelled: it repeats what is recorded, and undoes it.

        Raises:
            CancelledError: It was cancelled, and its calls were undone.
        """
        self.is_cancelled = self.is_cancelled or cancelled
        task = asyncio.create_task(turn)
        self._task = task
        return await task

    def cancel(self) -> None:
        """Cancel the turn, from any thread: nothing new begins, and its calls are undone."""
        self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        self.is_cancelled = True
        # A turn that still repeats its record continues to its end, where it is refused: calls that
        # it has not repeated yet could not be undone.
        if self._is_past_record or not self.recorded:
            self._cancel_task()

    def _cancel_task(self) -> None:
        if self._task is not None and not self._task.cancelling():  # or it would cancel the undoing
            self._task.cancel()

    def detach(self) -> None:
        """Record nothing more: this process ends, and another one will continue the turn."""
        self.stopped = ExecutionLostError()

    def _check(self) -> None:
        if isinstance(self.stopped, dbos_errors.DBOSWorkflowCancelledError):
            raise asyncio.CancelledError
        if self.stopped is not None:
            raise ExecutionLostError from self.stopped
