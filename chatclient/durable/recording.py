"""`Recording`: the record of one turn, with which another process can continue it.

An engine for durable execution implements `StepRecorder`. Model calls and tool calls are its steps:
a step that has finished is not executed again when the turn is run again from its beginning.
"""

import asyncio
import contextlib
import copy
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, Self, TypeVar, runtime_checkable

from chatclient.chat.events import ToolCallFinished
from chatclient.chat.parts import ToolCall
from chatclient.chat.pending_turn import ApprovalRequired
from chatclient.chat.recorder import TurnStep, Work
from chatclient.chat.tool import ToolProgress
from chatclient.chat.turn import WithinStep, present_turn
from chatclient.durable.events import FORMAT_VERSION
from chatclient.errors import (
    ChatMemoryUnavailableError,
    DeadlineExceededError,
    ProviderError,
    ToolInterruptedError,
    UsageError,
)
from chatclient.extend import check_choice, check_number, seconds
from chatclient.runtime.runtime import Runtime

T = TypeVar("T")

OnInterrupted = Literal["ask", "repeat", "tell_model"]
"""What happens with a call of a tool that writes, if the process ended while the tool ran: the turn
waits for a decision, the tool is run again, or the model is told that the outcome is unknown."""


UNDO = "undo "
"""How the names of steps begin that undo a call; a cancelled turn has them, too."""

_STORE_ATTEMPTS = 8
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0  # seconds
_LONGEST_EXPONENT = 32


@dataclass(frozen=True, slots=True)
class TurnRetries:
    """How often a turn waits and continues when the provider fails or is busy.

    A retry repeats the failed model call only, after the retries of the model itself. The pauses
    survive restarts.

    Attributes:
        attempts: The maximum number of attempts of each model call, the first one included.
        seconds: The first pause; each further one is twice as long. A `retry_after` of the provider
            that is longer takes precedence.
        longest: The longest pause in seconds.
    """

    attempts: int = 5
    seconds: float = 30.0
    longest: float = 3600.0

    def __post_init__(self) -> None:
        check_number("attempts", self.attempts, least=1)
        for name in ("seconds", "longest"):
            object.__setattr__(self, name, seconds(name, getattr(self, name)))

    def pause_after(self, attempt: int, error: Exception) -> float | None:
        """Return the seconds to wait after failed attempt number *attempt*, or None to give up."""
        if not isinstance(error, ProviderError) or not error.retryable or attempt >= self.attempts:
            return None
        pause = self.seconds * 2.0 ** min(attempt - 1, _LONGEST_EXPONENT)
        return max(min(pause, self.longest), error.retry_after or 0.0)


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


@runtime_checkable
class KnowsSteps(Protocol):
    """A `StepRecorder` that knows which steps are recorded.

    With it, an agent whose call was recorded is not run again from its record.
    """

    async def has(self, name: str) -> bool:
        """Return whether the step *name* is recorded."""
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


@dataclass(slots=True)
class _Execution:
    """What all recorders of one execution of a turn share.

    Attributes:
        time: When the last recorded step ended, in seconds since 1970.
        live: Whether a step was run that was not recorded.
        uses: How often each name was used.
        id: Identifies the execution.
    """

    time: float
    live: bool = False
    uses: Counter[str] = field(default_factory=Counter)
    id: str = field(default_factory=lambda: secrets.token_hex(8))


class Recording:
    """The record of one execution of a turn: its `Recorder`.

    Args:
        recorder: Records the steps.
        started: When the turn was started, in seconds since 1970; default: now.
        deadline: When it must have ended, or None.
        on_interrupted: What happens with interrupted calls of tools that write.
        retries: Whether failed model calls are repeated.
        publisher: Receives the events of steps.
        now: Returns the time in seconds since 1970, on the clock of *started* and *deadline*.

    Attributes:
        interrupted: The ids of calls that wait for a decision because they were interrupted.
        name: The name of the turn among the steps of the outermost one; empty for that one.
        now: Returns the time.
    """

    def __init__(
        self,
        recorder: StepRecorder,
        *,
        started: float | None = None,
        deadline: float | None = None,
        on_interrupted: OnInterrupted = "ask",
        retries: TurnRetries | None = None,
        publisher: Publisher | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        check_choice("on_interrupted", on_interrupted, OnInterrupted)
        self.on_interrupted = on_interrupted
        self.retries = retries or TurnRetries(attempts=1)
        self.interrupted: list[str] = []
        self._publisher = publisher
        self._published: set[str] = set()  # the ids of calls whose results were published
        self._recorder = recorder
        self._deadline = deadline
        self.now = now
        self._execution = _Execution(now() if started is None else started)
        self.name = self._ids = ""  # precede the names of steps, and the ids of calls
        self._calls: tuple[ToolCall, ...] = ()  # to the agents that the steps are of

    def inside(self, name: str, tool_call: ToolCall | None = None) -> Self:
        """Return the recorder of a turn inside of this one; see `Recorder.inside`."""
        inner = copy.copy(self)
        inner.name = self._name(name)
        if tool_call is None:
            inner._publisher = None  # noqa: SLF001 - as above
        else:
            inner._ids = f"{self._ids}{tool_call.id}/"  # noqa: SLF001 - as above
            inner._calls = (*self._calls, tool_call)  # noqa: SLF001 - as above
        return inner

    @property
    def live(self) -> bool:
        """Whether a step was run that was not recorded."""
        return self._execution.live

    def clock(self) -> float:
        """Return the time in seconds: that of the last step while recorded steps are repeated."""
        return self.now() if self.live else self._execution.time

    async def step(self, step: TurnStep[T], runtime: Runtime) -> T:
        """Return the recorded result of *step*, or execute and record it.

        Model calls that fail are repeated after a pause, according to *retries*. The reading of a
        memory is not recorded.
        """
        if step.kind == "memory":
            return await step.run(runtime)
        retries = self.retries if step.kind in ("model", "question") else None
        attempt = 1
        while True:
            try:
                return await self._once(step, runtime)
            except Exception as error:
                pause = None if retries is None else retries.pause_after(attempt, error)
                if pause is None:
                    raise
            attempt += 1
            await self._pause(f"retry {step.name}", pause, runtime)

    async def _once(self, step: TurnStep[T], runtime: Runtime) -> T:
        """Return the recorded result of *step*, or execute it once.

        An agent is no step of the engine, because it consists of steps: the engine records what it
        has returned, once it has.
        """
        name = self._name(step.name)
        begun = (
            step.writes and self.on_interrupted != "repeat" and await self._record_start(step.name)
        )
        # Outside of `execute`: an agent runs before it, and an engine may call it again.
        began, outcomes = time.monotonic(), list[T | Exception]()
        if step.kind == "agent" and not await self._has(name):
            outcomes.append(await _outcome_of(step.run(runtime)))

        async def execute() -> dict[str, Any]:
            if not outcomes:
                running: Awaitable[T] = self._execute(step, runtime, begun=begun)
                outcomes.append(await _outcome_of(running))
            (outcome,) = outcomes
            if step.after is not None and self._publisher is not None:
                # Before the step is recorded: a recorded step is not executed again, so its events
                # would be lost.
                await self._publish(step.after(outcome, time.monotonic() - began))
                await self._publisher.flush()
            asks = begun and self.on_interrupted == "ask"
            return {**({"interrupted": True} if asks else {}), **step.dump(outcome)}

        try:
            recorded, replayed = await self._record(name, execute)
        except asyncio.CancelledError:
            if step.kind != "undo" or outcomes:
                raise
            return await step.run(runtime)  # a cancelled turn is not executed again
        if recorded is not None and "interrupted" in recorded and step.tool_call is not None:
            self.interrupted.append(f"{self._ids}{step.tool_call.id}")
        if replayed:
            stored: Any = recorded  # what `dump` of the step has returned, or None of older ones
            return await step.load(stored)
        # Not from the record, which lacks the original objects.
        (outcome,) = outcomes
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def _execute(self, step: TurnStep[T], runtime: Runtime, *, begun: bool) -> T:
        """Execute *step*, unless an earlier execution has started it (*begun*)."""
        # Calls are undone after the deadline, too.
        if step.kind != "undo":
            self._check_deadline()
        if begun and self.on_interrupted == "ask":
            raise ApprovalRequired
        if begun and step.tool_call is not None:
            name = step.tool_call.name
            msg = (
                f"The process ended while {name} ran. It is unknown whether the call took effect:"
                " find out before you repeat it"
            )
            raise ToolInterruptedError(msg, tool_name=name)
        if self._publisher is not None:
            if step.before is not None:
                await self._publish(filter(self._is_new, step.before()))
            if step.kind == "model" and not self.name:
                await self._publisher.publish(step.name)
            emit = runtime.emitter

            async def publish_and_emit(event: Any) -> None:
                await self._publish([event])
                await emit(event)

            runtime = runtime.with_emitter(publish_and_emit)
        with WithinStep():
            return await step.run(runtime)

    async def _publish(self, events: Iterable[Any]) -> None:
        """Publish *events*; those of an agent as the progress of the call to it."""
        assert self._publisher is not None  # noqa: S101 - for type checkers
        for event in events:
            if isinstance(event, ToolCallFinished):
                self._published.add(f"{self._ids}{event.tool_call.id}")
            published = event
            for call in reversed(self._calls):
                published = ToolProgress(call.id, call.name, published)
            await self._publisher.publish(published)

    def _is_new(self, event: Any) -> bool:
        """Return whether *event* is not the end of a call that has published it itself."""
        is_end = isinstance(event, ToolCallFinished)
        return not is_end or f"{self._ids}{event.tool_call.id}" not in self._published

    async def _has(self, name: str) -> bool:
        steps = self._recorder
        return isinstance(steps, KnowsSteps) and await steps.has(name)

    def _name(self, name: str) -> str:
        """Return the name of a step for the engine; with a number if it was used before."""
        name, uses = f"{self.name}/{name}" if self.name else name, self._execution.uses
        uses[name] += 1
        return name if uses[name] == 1 else f"{name} #{uses[name]}"

    async def _record(self, name: str, function: Callable[[], Awaitable[Any]]) -> tuple[Any, bool]:
        """Return the value of a step of the engine, and whether it was recorded before."""
        ran, execution = False, self._execution

        async def run() -> dict[str, Any]:
            nonlocal ran
            ran = execution.live = True
            value = await function()
            return {"value": value, "at": self.now(), "format": FORMAT_VERSION}

        record = await self._recorder.step(name, run)
        # Recorded steps set the clock, so that time limits decide as they did before.
        if not execution.live:
            execution.time = max(execution.time, record["at"])
        return record["value"], not ran

    async def _record_start(self, name: str) -> bool:
        """Record that a tool call starts, and return whether another execution has started it."""

        async def mark() -> str:
            return self._execution.id

        execution, _ = await self._record(self._name(f"begin {name.removeprefix('tool ')}"), mark)
        return bool(execution != self._execution.id)

    async def _pause(self, name: str, seconds: float, runtime: Runtime) -> None:
        """Wait for *seconds*, counted from the first execution."""

        async def until() -> float:
            return self.now() + seconds

        end, _ = await self._record(self._name(name), until)
        if (left := end - self.now()) > 0:
            await runtime.sleep(left)

    async def confirm(self) -> None:
        """Check that the turn ends in this process; see `Recorder.confirm`.

        Raises:
            ExecutionLostError: Another process continues it.
        """

        async def mark() -> None: ...

        with contextlib.suppress(asyncio.CancelledError):  # it is not executed again
            await self._record(self._name("ended early"), mark)

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

    def _check_deadline(self) -> None:
        """Check the deadline before something is run that was not recorded.

        Raises:
            DeadlineExceededError: It has passed.
        """
        if self._deadline is not None and self.now() > self._deadline:
            msg = "the deadline of the turn has passed; finished steps were not repeated"
            raise DeadlineExceededError(msg)


class RecordedSteps:
    """A `StepRecorder` that only has what was recorded.

    Args:
        steps: The recorded values of the steps, by name.

    Attributes:
        missing: The name of a step that was asked for and is not recorded, or None.
    """

    def __init__(self, steps: Mapping[str, Any]) -> None:
        self._steps = steps
        self.missing: str | None = None

    async def step(
        self,
        name: str,
        function: Callable[[], Awaitable[Any]],  # noqa: ARG002 - nothing is executed
    ) -> Any:
        """Return the recorded value of the step *name*.

        Raises:
            UsageError: It is not recorded.
        """
        if name not in self._steps:
            self.missing = name
            msg = f"the turn has not ended, or was recorded by another client: no step {name!r}"
            raise UsageError(msg)
        return self._steps[name]


class RecordedTurn(Recording):
    """Repeats a turn that has ended, from its record; nothing is stored."""

    async def step(self, step: TurnStep[T], runtime: Runtime) -> T:
        """Return the recorded result of *step*; what a memory has held before the turn."""
        result = await super().step(step, runtime)
        if step.kind != "memory":
            return result
        messages: Any = result
        turn = present_turn()
        own = "" if turn is None else f"{turn.id}-"
        ids = [message.id or "" for message in messages]
        start = next((at for at, id in enumerate(ids) if id.startswith(own)), len(ids))
        before: Any = messages[:start]
        return before  # type: ignore[no-any-return]

    async def store(self, work: Work, runtime: Runtime) -> None:
        """Store nothing."""

    async def confirm(self) -> None:
        """Do nothing: the turn has ended."""


async def _outcome_of(running: Awaitable[T]) -> T | Exception:
    """Return what *running* returns, or the error that it raises."""
    try:
        return await running
    except Exception as error:  # noqa: BLE001 - recorded, and raised later
        return error
