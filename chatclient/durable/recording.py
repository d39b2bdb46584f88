"""`Recording`: the record of one turn, with which another process can continue it.

An engine for durable execution implements `StepRecorder`. Model calls and tool calls are its steps:
a step that has finished is not executed again when the turn is run again from its beginning.
"""

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Literal, Protocol

from chatclient._internal.checks import check_choice
from chatclient.chat.turn import Work
from chatclient.durable.recorded_errors import error_from_dict, error_to_dict
from chatclient.errors import ChatMemoryUnavailableError, DeadlineExceededError
from chatclient.runtime.runtime import Runtime

OnInterrupted = Literal["ask", "repeat", "tell_model"]
"""What happens with a call of a tool that writes, if the process ended while the tool ran: the turn
waits for a decision, the tool is run again, or the model is told that the outcome is unknown."""


_STORE_ATTEMPTS = 8
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0  # seconds


class StepRecorder(Protocol):
    """Records the steps of one turn; implemented for each engine."""

    async def step(self, name: str, function: Callable[[], Awaitable[Any]]) -> Any:
        """Return the recorded value of the step *name*, or run *function* and record its value.

        Steps of a turn may run concurrently. No two of them have the same name, and in each
        execution of the turn a step has the same name, but their order may differ.

        Args:
            name: Identifies the step within the turn.
            function: Returns a JSON value, and raises only when it is cancelled. If it raises,
                nothing is recorded.

        Raises:
            ExecutionLostError: Another process executes the turn now.
            CancelledError: The turn was cancelled.
        """
        ...


class Publisher(Protocol):
    """Receives the events of steps while they run, for consumers in other processes."""

    async def publish(self, event: object) -> None:
        """Add *event*; a text is the name of a step that begins, perhaps not for the first time.

        Besides the events of the library there may be others, which tools emit.
        """
        ...

    async def flush(self) -> None:
        """Make all events so far visible to consumers."""
        ...


class ExecutionLostError(BaseException):
    """This process must not continue the turn: another one does, or will.

    No error that code may handle: nothing is undone, and nothing else is recorded.
    """


class Recording:
    """The record of one execution of a turn.

    Args:
        recorder: Records the steps.
        started: When the turn was started, in seconds since 1970; default: now.
        deadline: When it must have ended, or None.
        on_interrupted: What happens with interrupted calls of tools that write.
        publisher: Receives the events of steps.

    Attributes:
        interrupted: The ids of calls that wait for a decision because they were interrupted.
        published: The ids of calls whose results this execution has published.
    """

    def __init__(
        self,
        recorder: StepRecorder,
        *,
        started: float | None = None,
        deadline: float | None = None,
        on_interrupted: OnInterrupted = "ask",
        publisher: Publisher | None = None,
    ) -> None:
        check_choice("on_interrupted", on_interrupted, OnInterrupted)
        self.on_interrupted = on_interrupted
        self.publisher = publisher
        self.interrupted: list[str] = []
        self.published: set[str] = set()
        self._recorder = recorder
        self._deadline = deadline
        self._time = time.time() if started is None else started
        self._live = False
        self._uses: Counter[str] = Counter()
        self._execution = secrets.token_hex(8)

    @property
    def live(self) -> bool:
        """Whether a step was run that was not recorded."""
        return self._live

    def clock(self) -> float:
        """Return the time in seconds: that of the last step while recorded steps are repeated."""
        return time.time() if self._live else self._time

    async def step(self, name: str, function: Callable[[], Awaitable[Any]]) -> tuple[Any, bool]:
        """Return the value of a step, and whether it was recorded before.

        If a turn uses a name again, the step gets a number as well.
        """
        self._uses[name] += 1
        if self._uses[name] > 1:
            name = f"{name} #{self._uses[name]}"
        ran = False

        async def run() -> dict[str, Any]:
            nonlocal ran
            ran = self._live = True
            return {"value": await function(), "at": time.time()}

        record = await self._recorder.step(name, run)
        if not self._live:
            self._time = max(self._time, record["at"])
        return record["value"], not ran

    async def was_started(self, name: str) -> bool:
        """Record that something begins, and return whether an earlier execution has begun it."""

        async def mark() -> str:
            return self._execution

        execution, _ = await self.step(name, mark)
        return bool(execution != self._execution)

    async def undo(self, key: str, undo: Callable[[], Awaitable[None]]) -> None:
        """Undo a tool call, once; also in a turn that was cancelled."""
        begun = False

        async def run() -> dict[str, Any] | None:
            nonlocal begun
            begun = True
            try:
                await undo()
            except Exception as error:  # noqa: BLE001 - recorded
                return error_to_dict(error)
            return None

        try:
            failure, _ = await self.step(f"undo {key}", run)
        except asyncio.CancelledError:
            if begun:
                raise
            await undo()  # a cancelled turn is not executed again
        else:
            if failure is not None:
                raise error_from_dict(failure)

    async def pause(self, name: str, seconds: float, runtime: Runtime) -> None:
        """Wait for *seconds*, counted from the first execution."""

        async def until() -> float:
            return time.time() + seconds

        end, _ = await self.step(name, until)
        if (left := end - time.time()) > 0:
            await runtime.sleep(left)

    async def store(self, work: Work, runtime: Runtime) -> object:
        """Let a memory store the turn; again if its database cannot be reached.

        A memory stores a turn once, under its key.
        """
        for attempt in range(_STORE_ATTEMPTS - 1):
            try:
                return await work(runtime)
            except ChatMemoryUnavailableError:
                await runtime.sleep(min(_FIRST_PAUSE * 2.0**attempt, _LONGEST_PAUSE))
        return await work(runtime)

    def check_deadline(self) -> None:
        """Check the deadline before something is run that was not recorded.

        Raises:
            DeadlineExceededError: It has passed.
        """
        if self._deadline is not None and time.time() > self._deadline:
            msg = "the deadline of the turn has passed; finished steps were not repeated"
            raise DeadlineExceededError(msg)
