"""`RunningExecutions`: the turns that this process runs."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Context

from chatclient._internal.logging import get_logger
from chatclient.durable.dbos_steps import DbosSteps
from chatclient.durable.extra import DBOS
from chatclient.durable.faults import until_stored
from chatclient.durable.handle import PROBLEM
from chatclient.durable.tables import Tables
from chatclient.runtime.fork_safety import ForkSafeLock

log = get_logger(__name__)


class RunningExecutions:
    """The executions of turns in this process, and whether it begins further ones."""

    def __init__(self) -> None:
        self._executions: set[DbosSteps] = set()
        self._ended: set[str] = set()  # since `ids` was last called
        self._is_ending = False
        self._lock = ForkSafeLock()
        self._tables: Tables  # of the engine

    @contextmanager
    def execution(self, steps: DbosSteps) -> Iterator[None]:
        """Add an execution until it has ended."""
        with self._lock:
            self._executions.add(steps)
            if self._is_ending:
                steps.detach()
        try:
            yield
        finally:
            with self._lock:
                self._executions.discard(steps)
                self._ended.add(steps.id)

    def executed(self) -> set[str]:
        """Return the ids of the turns that run."""
        with self._lock:
            return {each.id for each in self._executions}

    def cancel(self, id: str) -> None:
        """Cancel the turn *id* if it runs: nothing new begins, and its calls are undone."""
        with self._lock:
            for steps in self._executions:
                if steps.id == id:
                    steps.cancel()

    async def is_cancelled(self, steps: DbosSteps) -> bool:
        """Return whether a turn that begins or continues is to be cancelled."""
        found = await until_stored(lambda: asyncio.to_thread(self._tables.cancelled, [steps.id]))
        return steps.id in found

    def ids(self) -> set[str]:
        """Return the ids of the turns that run, or have ended since the last call.

        The end of the latter is perhaps being stored.
        """
        with self._lock:
            ended, self._ended = self._ended, set()
            return ended | {each.id for each in self._executions}

    def attach(self, tables: Tables) -> None:
        """Record turns, with the tables of this process."""
        self._is_ending, self._tables = False, tables

    async def postpone(self, steps: DbosSteps, seconds: float, problem: str) -> None:
        """Let another process continue an execution after some time; it records nothing more.

        Args:
            steps: Those of the execution.
            seconds: The time.
            problem: Why this process cannot continue it, for the status of the turn.
        """

        def store() -> None:
            DBOS.update_workflow_attributes(steps.id, {PROBLEM: problem}, merge=True)
            self._tables.postpone(steps.id, seconds)

        # Within the workflow, the first one would be a step.
        await until_stored(lambda: asyncio.to_thread(Context().run, store))
        steps.detach()
        log.warning("turn not continued", turn=steps.id, problem=problem)

    def detach(self) -> None:
        """Stop recording: what is cancelled from now on is continued by other processes."""
        with self._lock:
            self._is_ending = True
            for steps in self._executions:
                steps.detach()

    def drain(self, seconds: float) -> None:
        """Wait until no turn runs that has begun, or *seconds* have passed."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with self._lock:
                if not any(each.begun for each in self._executions):
                    return
            time.sleep(0.05)
