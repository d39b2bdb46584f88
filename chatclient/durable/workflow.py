"""The workflow of DBOS that executes a turn, and the executions of this process."""

import asyncio
import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Context, ContextVar
from dataclasses import replace
from typing import Any, Protocol
from weakref import WeakValueDictionary

from chatclient.chat.events import TextDelta
from chatclient.chat.tool import ToolProgress
from chatclient.durable.dbos_steps import DBOS, DbosSteps, JsonSerializer, until_stored
from chatclient.durable.events import PROBLEM, event_to_dict
from chatclient.durable.notices import Outbox
from chatclient.durable.queues import Pace
from chatclient.durable.recording import Publisher, StepRecorder
from chatclient.durable.tables import WORKFLOW, Tables
from chatclient.errors import TurnCancelledError, TurnVersionError
from chatclient.extend import ForkSafeLock, get_logger

log = get_logger(__name__)


class RunningExecutions:
    """The executions of turns in this process, and whether it begins further ones.

    Attributes:
        outbox: Stores what they publish.
    """

    def __init__(self) -> None:
        self._executions: set[DbosSteps] = set()
        self._ended: set[str] = set()  # since `ids` was last called
        self._is_ending = False
        self._lock = ForkSafeLock()
        self._tables: Tables  # of the engine
        self.outbox: Outbox  # of the engine

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

    def attach(self, tables: Tables, outbox: Outbox) -> None:
        """Record turns, with the tables and the outbox of this process."""
        self._is_ending, self._tables, self.outbox = False, tables, outbox

    async def postpone(self, steps: DbosSteps, seconds: float, problem: str) -> None:
        """Let another process continue an execution after some time; it records nothing more.

        Args:
            steps: Those of the execution.
            seconds: The time.
            problem: Why this process cannot continue it, for the status of the turn.
        """

        def store() -> None:
            DBOS.update_workflow_attributes(steps.id, {PROBLEM: problem}, merge=True)
            # After the problem is stored: another process may take the turn from now on.
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
        self, data: Mapping[str, Any], steps: StepRecorder, *, recovered: bool, publisher: Publisher
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

    if (task := asyncio.current_task()) is not None:  # which stores the outcome at its end
        task.add_done_callback(tell_end)
    with running.execution(steps):
        if (pace := paces.get(data["queue"])) is not None:
            await pace.wait()
        try:
            if is_first_execution.get():
                steps.begun = True
            else:
                await steps.load()
            has_begun = bool(steps.recorded) or data["resume"] is not None
            # Otherwise it is soon found out, and the query saved.
            cancelled = has_begun and await running.is_cancelled(steps)
            try:
                runner = _runner_of(data["client"], data["turn"])
                runner.check(data, steps.recorded)
            except TurnVersionError as error:
                if not has_begun:
                    raise
                # A release without a tool must not end a turn that another release can continue.
                pause = min(max((time.time() - data["started"]) / 4, 5.0), 300.0)
                await running.postpone(steps, pause, str(error))
                raise
            publisher, recovered = _StreamPublisher(id), bool(steps.recorded)
            turn = runner.run(data, steps, recovered=recovered, publisher=publisher)
            return await steps.execute(turn, cancelled=cancelled)
        except BaseException as error:
            if steps.stopped is not None:  # even if the turn caught it
                raise steps.stopped from None
            if steps.is_cancelled and isinstance(error, asyncio.CancelledError):
                raise _cancelled(data["turn"], steps.interrupted) from None
            raise


def _runner_of(client: str, turn: str) -> RunsSegments:
    runner = runners.get(client)
    if runner is None:
        msg = (
            f"this process has no durable client {client!r}: create it before the worker starts,"
            f" with durable(client, name={client!r})"
        )
        raise TurnVersionError(msg, turn_id=turn)
    return runner


def _cancelled(turn: str, interrupted: Sequence[str]) -> TurnCancelledError:
    msg = f"turn {turn!r} was cancelled"
    if interrupted:
        msg += f"; it is unknown whether it has run {', '.join(interrupted)}, which was interrupted"
    return TurnCancelledError(msg, turn_id=turn, interrupted=interrupted)
