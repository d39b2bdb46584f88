"""A `StepRecorder` that keeps JSON in memory, and can stop an execution at any step."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

from chatclient.durable import ExecutionLostError


class Journal:
    """Records steps as JSON texts.

    Attributes:
        steps: The recorded values, by name.
        ran: The names of the steps that were executed, not repeated, since the last `reopen`.
        stop_before: The execution is lost before this step is executed.
        lost: Whether the execution is lost: no step is executed any more.
        stop_after: The execution is lost after this step was executed, before it is recorded.
    """

    def __init__(self) -> None:
        self.steps: dict[str, str] = {}
        self.ran: list[str] = []
        self.lost = False
        self.stop_before: str | None = None
        self.stop_after: str | None = None

    async def step(self, name: str, function: Callable[[], Awaitable[Any]]) -> Any:
        if name not in self.steps:
            if self.lost or self._is(name, self.stop_before):
                self.lost = True
                raise ExecutionLostError
            self.ran.append(name)
            value = json.dumps(await function())
            if self._is(name, self.stop_after):
                self.lost = True
                raise ExecutionLostError
            self.steps[name] = value
        return json.loads(self.steps[name])

    def reopen(self) -> "Journal":
        """Return this journal as another process would see it."""
        self.ran, self.stop_before, self.stop_after, self.lost = [], None, None, False
        return self

    @staticmethod
    def _is(name: str, prefix: str | None) -> bool:
        return prefix is not None and name.startswith(prefix)
