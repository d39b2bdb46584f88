"""The workflow of DBOS that executes a turn, and the executions of this process."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Context, ContextVar
from dataclasses import replace
from functools import partial
from typing import Any, Protocol
from weakref import WeakValueDictionary

from chatclient.chat.events import TextDelta
from chatclient.chat.tool import ToolProgress
from chatclient.durable.dbos_steps import DBOS, DbosSteps, JsonSerializer, until_stored
from chatclient.durable.events import event_to_dict, unread_reason
from chatclient.durable.health import TurnMetrics
from chatclient.durable.notices import Outbox
from chatclient.durable.queues import Pace
from chatclient.durable.recording import Publisher, StepRecorder
from chatclient.durable.states import PROBLEM, WAITS, TurnState
from chatclient.durable.tables import WORKFLOW, Tables
from chatclient.errors import TurnCancelledError, TurnVersionError
from chatclient.extend import ForkSafeLock, get_logger

log = get_logger(__name__)


class RunningExecutions:
    """The executions of turns in this process, and whether it begins further ones.

    Attributes:
        outbox: Stores what they publish.
        metrics: Counts their ends.
    """

    def __init__(self) -> None:
        self._executions: set[DbosSteps] = set()
        self._ended: set[str] = set()  # since `ids` was last called
        self._is_ending = False
        self._lock = ForkSafeLock()
        self._tables: Tables  # of the engine
        self.outbox: Outbox  # of the engine
        self.metrics: TurnMetrics  # of the process

    @contextmanager
    def execution(self, steps: DbosSteps) -> Iterator[None]:
        """Add an execution until it has ended."""
        with self._lock:
            self._executions.add(steps)
            # DBOS may start an execution while this process already ends.
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

    def now(self) -> float:
        """Return the time on the clock of the database."""
        return self._tables.now()

    async def is_cancelled(self, steps: DbosSteps) -> bool:
        """Return whether a turn that begins or continues should be cancelled."""
        found = await until_stored(lambda: asyncio.to_thread(self._tables.cancelled, [steps.id]))
        return steps.id in found

    def ids(self) -> set[str]:
        """Return the ids of the turns that run, or have ended since the last call.

        The end of the latter is perhaps being stored.
        """
        with self._lock:
            ended, self._ended = self._ended, set()
            return ended | {each.id for each in self._executions}

    def attach(self, tables: Tables, outbox: Outbox, metrics: TurnMetrics) -> None:
        """Record turns, with the tables, the outbox and the metrics of this process."""
        self._is_ending, self._tables, self.outbox = False, tables, outbox
        self.metrics = metrics

    async def postpone(self, steps: DbosSteps, seconds: float, problem: str) -> None:
        """Let another process continue an execution after some time; it records nothing more.

        Args:
            steps: Those of the execution.
            seconds: The time.
            problem: Why this process cannot continue it, for the status of the turn.
        """
        await self.set_attributes(steps, {PROBLEM: problem})
        # After the problem is stored: another process may take the turn from now on.
        await until_stored(lambda: asyncio.to_thread(self._tables.postpone, steps.id, seconds))
        steps.detach()
        log.warning("turn not continued", turn=steps.id, problem=problem)

    async def set_attributes(self, steps: DbosSteps, attributes: Mapping[str, Any]) -> None:
        """Set attributes of the workflow of an execution, and keep others."""
        store = partial(DBOS.update_workflow_attributes, steps.id, {**attributes}, merge=True)
        # Within the workflow, it would be a step.
        await until_stored(lambda: asyncio.to_thread(Context().run, store))

    def detach(self) -> None:
        """Stop recording: what is cancelled from now on is continued by other processes."""
        with self._lock:
            self._is_ending = True
            for steps in self._executions:
                steps.detach()

    def drain(self, seconds: float) -> None:
        """Wait until no started turn runs, or *seconds* have passed."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with self._lock:
                if not any(each.begun for each in self._executions):
                    return
            time.sleep(0.05)


PUBLISH_SECONDS = 0.1
"""How long events are collected before they are published."""


class RunsSegments(Protocol):
    """Runs the segments of one client's turns."""

    def check(self, data: Mapping[str, Any], recorded: Mapping[str, Any]) -> None:
        """Raise a `TurnVersionError` if this version cannot continue a segment of a turn."""
        ...

    async def run(
        self,
        data: Mapping[str, Any],
        steps: StepRecorder,
        *,
        recovered: bool,
        publisher: Publisher,
        now: Callable[[], float],
    ) -> dict[str, Any]:
        """Return the outcome of a segment of a turn, as JSON values."""
        ...


runners: WeakValueDictionary[str, RunsSegments] = WeakValueDictionary()
"""The clients of this process by name."""

paces: dict[str, Pace] = {}
"""The queues of this process that limit how often a worker starts turns."""

running = RunningExecutions()
"""The turns that this process runs."""


is_first_execution: ContextVar[bool] = ContextVar("is_first_execution", default=False)
"""Whether a workflow has just been started in this process, so that it has no recorded steps."""

_FORM = JsonSerializer()


class _StreamPublisher:
    """Writes events to the stream of the workflow *id*, several at a time."""

    def __init__(self, id: str) -> None:
        self._id = id
        self._lock = asyncio.Lock()
        self._events: list[object] = []
        self._timer: asyncio.Task[None] | None = None  # until the next write

    async def publish(self, event: object) -> None:
        """Add an event, or the name of a step."""
        joined = _joined(self._events[-1], event) if self._events else None
        if joined is None:
            self._events.append(event)
        else:
            self._events[-1] = joined
        if self._timer is None:
            self._timer = asyncio.create_task(self._write_later())

    async def flush(self) -> None:
        """Write the events so far."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self._write()

    async def _write_later(self) -> None:
        # At the same time as the other turns, so that all are stored together.
        await asyncio.sleep(PUBLISH_SECONDS - time.monotonic() % PUBLISH_SECONDS)
        self._timer = None  # while it writes, it must not be cancelled
        with contextlib.suppress(Exception):  # the next write fails as well, and raises
            await self._write()

    async def _write(self) -> None:
        async with self._lock:  # concurrent writes to a stream wait for each other
            # Taken before the write, during which other steps may add events.
            events, self._events = self._events, []
            values = [each for each in map(event_to_dict, events) if each is not None]
            try:
                if values:
                    value = _FORM.serialize(values)
                    await running.outbox.publish(self._id, DBOS.step_id or 0, value)
            except Exception:
                # The next write sends them, before those that were added since.
                self._events = [*events, *self._events]
                raise


def _joined(last: object, event: object) -> object | None:
    """Return one event for two that follow each other, or None; also for those of an agent."""
    match last, event:
        case TextDelta(text=text), TextDelta(text=more):
            return TextDelta(text + more)
        case ToolProgress(tool_call_id=id), ToolProgress() if event.tool_call_id == id:
            inner = _joined(last.event, event.event)
            return None if inner is None else replace(event, event=inner)
    return None


@DBOS.workflow(name=WORKFLOW)
async def run_turn(data: dict[str, Any]) -> dict[str, Any]:
    """Run a segment; *data* is what `DurableClient.start` stores."""
    id = DBOS.workflow_id or ""
    steps, outbox = DbosSteps(id), running.outbox

    def tell_end(task: "asyncio.Task[Any]") -> None:
        is_known = not task.cancelled() and task.exception() is None
        outbox.end(id, _FORM.serialize(task.result()) if is_known else None)
        if steps.stopped is None and not task.cancelled():
            running.metrics.count_end(_end_state(task))

    if (task := asyncio.current_task()) is not None:  # which stores the outcome at its end
        task.add_done_callback(tell_end)
    with running.execution(steps):
        try:
            try:
                runner = await _runner_of(data, steps)
            except TurnVersionError as error:
                # A new turn of a client that no process has would wait for ever.
                if steps.begun and not _has_begun(data, steps) and data["client"] not in runners:
                    raise
                # This release must not end a turn that another one can continue.
                waited = running.now() - data.get("started", 0.0)
                await running.postpone(steps, min(max(waited / 4, 5.0), 300.0), str(error))
                raise
            # Otherwise it is soon found out, and the query saved.
            cancelled = _has_begun(data, steps) and await running.is_cancelled(steps)
            turn = runner.run(
                data,
                steps,
                recovered=bool(steps.recorded),
                publisher=_StreamPublisher(id),
                now=running.now,
            )
            outcome = await steps.execute(turn, cancelled=cancelled)
            if outcome["pending"] is not None:
                await running.set_attributes(steps, {WAITS: True})
        except BaseException as error:
            if steps.stopped is not None:  # even if the turn caught it
                raise steps.stopped from None
            if steps.is_cancelled and isinstance(error, asyncio.CancelledError):
                raise _cancelled(data["turn"], steps.interrupted) from None
            raise
        else:
            return outcome


def _end_state(task: "asyncio.Task[Any]") -> TurnState:
    if (error := task.exception()) is not None:
        return "cancelled" if isinstance(error, TurnCancelledError) else "failed"
    return "done" if task.result()["pending"] is None else "waiting"


async def _runner_of(data: Mapping[str, Any], steps: DbosSteps) -> RunsSegments:
    """Return what runs a segment, when it may begin; its recorded steps are loaded.

    Raises:
        TurnVersionError: This process cannot run it.
    """
    if (reason := unread_reason(data)) is not None:
        msg = f"turn {steps.id!r} is not continued here: {reason}"
        raise TurnVersionError(msg, turn_id=steps.id)
    if (pace := paces.get(data["queue"])) is not None:
        await pace.wait()
    # DBOS ends delays by the clocks of processes.
    if (delay := (data.get("not_before") or 0.0) - running.now()) > 0:
        await asyncio.sleep(delay)
    is_first = is_first_execution.get()
    if is_first:
        steps.begun = True
    else:
        await steps.load()
    client, turn = data["client"], data["turn"]
    runner = runners.get(client)
    if runner is None:
        msg = (
            f"this process has no durable client {client!r}: create it before the worker starts,"
            f" with durable(client, name={client!r})"
        )
        raise TurnVersionError(msg, turn_id=turn)
    if not is_first or _has_begun(data, steps):
        runner.check(data, steps.recorded)
    return runner


def _has_begun(data: Mapping[str, Any], steps: DbosSteps) -> bool:
    return bool(steps.recorded) or data["resume"] is not None


def _cancelled(turn: str, interrupted: Sequence[str]) -> TurnCancelledError:
    msg = f"turn {turn!r} was cancelled"
    if interrupted:
        msg += f"; it is unknown whether it has run {', '.join(interrupted)}, which was interrupted"
    return TurnCancelledError(msg, turn_id=turn, interrupted=interrupted)
