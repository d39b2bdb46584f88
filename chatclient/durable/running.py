"""`RunningTurns`: the turns that this process runs."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from chatclient.durable.dbos_steps import DbosSteps


class RunningTurns:
    """The executions of turns in this process, and whether it begins further ones."""

    def __init__(self) -> None:
        self._executions: set[DbosSteps] = set()
        self._ended: set[str] = set()  # since `ids` was last called
        self._is_ending = False
        self._lock = threading.Lock()

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

    def ids(self) -> set[str]:
        """Return the ids of the turns that run, or have ended since the last call.

        The end of the latter is perhaps being stored.
        """
        with self._lock:
            ended, self._ended = self._ended, set()
            return ended | {each.id for each in self._executions}

    def attach(self) -> None:
        """Record turns again, after `detach`."""
        self._is_ending = False

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
