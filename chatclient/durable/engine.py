"""`Engine`: starts, finds, cancels and continues durable turns of this process, on DBOS."""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache
from typing import Any, Literal, Self, TypeVar

from chatclient.durable.dbos_steps import (
    DBOS,
    DBOSClient,
    SetWorkflowAttributes,
    SetWorkflowID,
    WorkflowStatus,
    dbos_errors,
)
from chatclient.durable.events import segments_until
from chatclient.durable.handle import TurnHandle
from chatclient.durable.health import (
    ENDED_STATES,
    OPEN_STATES,
    EndedState,
    TurnHealth,
    TurnInfo,
    TurnMetrics,
)
from chatclient.durable.notices import Notices
from chatclient.durable.queues import APPLICATION
from chatclient.durable.states import ACTIVE, CANCEL, REJECTED, TurnState
from chatclient.durable.tables import WORKFLOW, Tables
from chatclient.durable.workflow import RunningExecutions, is_first_execution, run_turn, running
from chatclient.errors import UsageError
from chatclient.extend import check_choice, get_logger
from chatclient.runtime.threads import LoopThread

log = get_logger(__name__)

_BEATS = 4  # beats that may be missed
_DELETED_AT_ONCE, _BETWEEN_BATCHES, _LOOK_FOR_EXPIRED = 100, 0.5, 60.0  # turns, and seconds
_MOST = 1_000_000  # turns in a list
_LOOK = 0.5  # seconds between looks for requests to cancel a turn


class Liveness:
    """Reports that this process is alive, and lets turns continue whose process is not.

    DBOS continues the turns of a process when a process with the same id starts. This lets others
    continue them as well. A process that is only slow loses its turns, too, and finds out at its
    next step; nothing is executed twice because of that. At each sign of life, what the database
    says this process runs is compared with what it runs.

    Args:
        tables: The tables of this process.
        silent_seconds: How long a process must have been silent.
        running: The turns that this process runs.

    Attributes:
        each_beat: Called after each beat.
    """

    each_beat: Callable[[], None]

    def __init__(self, tables: Tables, silent_seconds: float, running: RunningExecutions) -> None:
        self._tables = tables
        self._silent, self._interval = silent_seconds, silent_seconds / _BEATS
        self._running = running
        self.each_beat = lambda: None
        self._trusted_from = 0.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chatclient-liveness", daemon=True)

    def start(self) -> None:
        """Begin; the first beat is stored before this returns."""
        self._tables.create()
        self._tables.beat()
        self._thread.start()

    def stop(self) -> None:
        """End; other processes may continue the turns of this one immediately."""
        self._stopping.set()
        self._thread.join()
        try:
            self._tables.end()
        except Exception as error:  # noqa: BLE001 - others find out after some time
            log.warning("end of this process not stored", error=repr(error))
        self._tables.close()

    def _run(self) -> None:
        pause, next_beat = min(_LOOK, self._interval), time.monotonic() + self._interval
        while not self._stopping.wait(pause):
            pause = min(_LOOK, self._interval)
            try:
                # More often than the signs of life, because a user waits for a cancellation.
                executed = self._running.executed()
                for id in self._tables.cancelled(executed) if executed else ():
                    self._running.cancel(id)
                if time.monotonic() >= next_beat:
                    next_beat = time.monotonic() + self._interval
                    self._tables.beat()
                    # The ids include turns whose end is still being stored,
                    # which must not start again.
                    own = self._tables.continue_own(self._running.ids())
                    others = (
                        self._tables.continue_others()
                        if time.monotonic() > self._trusted_from
                        else []
                    )
                    running.metrics.count_takeovers(len(others))
                    if own or others:
                        log.info("turns taken over", turns=[*own, *others])
                    self.each_beat()
            except Exception as error:  # noqa: BLE001 - of the database or its driver; the next one
                # Others could not give signs of life either: they may be alive.
                self._trusted_from = time.monotonic() + self._silent
                pause = self._interval
                log.warning("liveness not updated", error=repr(error))


class Retention:
    """Deletes turns that ended long ago, a few at a time, in a thread of its own.

    Turns that wait for decisions have not ended.

    Args:
        tables: The tables of this process.
        seconds: How long ended turns are kept.
        delete: Deletes workflows, with their steps and events.
    """

    def __init__(
        self, tables: Tables, seconds: float, delete: Callable[[list[str]], object]
    ) -> None:
        self._tables, self._seconds, self._delete = tables, seconds, delete
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chatclient-retention", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End after the present batch."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        pause = 0.0
        while not self._stopping.wait(pause):
            pause = min(_LOOK_FOR_EXPIRED, self._seconds)
            try:
                ended = self._tables.ended(self._seconds, _DELETED_AT_ONCE)
                if ended:
                    self._delete([id for each in ended for id in segments_until(each.id)])
                if len(ended) == _DELETED_AT_ONCE:
                    pause = _BETWEEN_BATCHES
            except Exception as error:  # noqa: BLE001 - of the database or its driver; again later
                log.warning("ended turns not deleted", error=repr(error))


T = TypeVar("T")

_IDS_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Enqueued:
    """How a turn is enqueued.

    Attributes:
        queue: The name of the queue, or None to run the turn in this process if possible.
        priority: Turns with lower numbers start first; None is the highest priority.
        delay: Seconds after which it may start.
        limit_key: The key for limits per key, such as a user or tenant.
    """

    queue: str | None = None
    priority: int | None = None
    delay: float | None = None
    limit_key: str | None = None


class Engine:
    """Starts turns and reads their state; of a process that runs turns or of any other.

    Args:
        control: DBOS, if this process runs turns; otherwise a client of DBOS.
        application: The name of the application.
        tables: The tables of the database.
        notices: The readers of this process.
        loop: Runs the turns that are started without a queue, if this process runs turns.
        has_attributes: Whether the database finds turns by their attributes: SQLite does not.
        close: Called by `close` with the seconds to wait for running turns.

    Attributes:
        notices: The readers of this process.
        runs_turns: Whether this process runs turns.
    """

    def __init__(
        self,
        control: type[DBOS] | DBOSClient,
        application: str,
        *,
        tables: Tables,
        notices: Notices,
        loop: LoopThread | None,
        has_attributes: bool,
        close: Callable[[float], None],
    ) -> None:
        self._control: Any = control
        self._has_attributes = has_attributes
        self._default_queue = default_queue(application)
        self._no_version = no_version(application)
        self._tables = tables
        self.notices = notices
        self._loop = loop
        self.runs_turns = loop is not None
        self._close = close
        self._has_key_limits: dict[str, bool] = {}  # of the queues that turns were started in

    def check_queue(self, how: Enqueued) -> None:
        """Check that a turn can be enqueued like this; otherwise no worker would take it.

        Raises:
            UsageError: There is no such queue, or a key is missing or given needlessly.
        """
        name = how.queue
        if name is None:
            return
        if name not in self._has_key_limits:
            queue = outside(self._control.retrieve_queue, name)
            if queue is None:
                msg = (
                    f"there is no queue {name!r} in the database: launch(url, queues=[...]) creates"
                    " it, in a process that runs turns"
                )
                raise UsageError(msg)
            self._has_key_limits[name] = outside(
                lambda: (
                    (queue.partition_concurrency, queue.partition_worker_concurrency)
                    != (None, None)
                    or queue.partition_limiter is not None
                )
            )
        if self._has_key_limits[name] != (how.limit_key is not None):
            needed = (
                "needs a limit_key, for its limits" if how.limit_key is None else "has no limit"
            )
            msg = f"a turn in queue {name!r} {needed} per key"
            raise UsageError(msg)

    def start(
        self,
        id: str,
        data: dict[str, Any],
        how: Enqueued,
        *,
        reject: bool = False,
        attributes: dict[str, Any] | None = None,
    ) -> bool:
        """Start a segment of a turn; return whether the id was new, if *reject*."""
        policy: Literal["reject"] | None = "reject" if reject else None

        async def run_here() -> None:
            is_first_execution.set(True)
            new_id = SetWorkflowID(id, workflow_id_reuse_policy=policy)
            with new_id, SetWorkflowAttributes(attributes):
                await DBOS.start_workflow_async(run_turn, data)

        options: dict[str, Any] = {
            "workflow_name": WORKFLOW,
            "workflow_id": id,
            "queue_name": how.queue or self._default_queue,
            "priority": how.priority,
            # DBOS adds it to the clock of this process.
            "delay_seconds": None if how.delay is None else how.delay + self.now() - time.time(),
            "queue_partition_key": how.limit_key,
            "workflow_id_reuse_policy": policy,
            "attributes": attributes,
        }
        options = {name: value for name, value in options.items() if value is not None}
        enqueue = (
            self._control.enqueue_workflow_with_options
            if self.runs_turns
            else self._control.enqueue
        )
        try:
            # A turn that starts another one must not block the loop that would start it.
            loop = self._loop
            if loop is not None and how == Enqueued() and not loop.is_current:
                loop.run(run_here())
            else:
                outside(enqueue, options, data)
        except dbos_errors.DBOSWorkflowIDInUseError:
            return False
        return True

    def now(self) -> float:
        """Return the seconds since 1970 on the clock of the database."""
        return self._tables.now()

    def existing(self, ids: Sequence[str]) -> set[str]:
        """Return those of *ids* that are ids of workflows, with few queries."""
        found: set[str] = set()
        for at in range(0, len(ids), _IDS_AT_ONCE):
            several = ids[at : at + _IDS_AT_ONCE]
            statuses = self.workflows(workflow_ids=several, load_input=False, load_output=False)
            found.update(status.workflow_id for status in statuses)
        return found

    def workflows(self, **filters: Any) -> list[WorkflowStatus]:
        """Return the workflows that match the filters of `DBOS.list_workflows`.

        Those of turns that wait have succeeded, like those of turns that are done; `turns`
        distinguishes them.
        """
        return outside(lambda: self._control.list_workflows(**filters))

    def steps(self, id: str) -> dict[str, Any]:
        """Return the recorded values of the steps of a workflow, by name."""
        found = outside(lambda: self._control.list_workflow_steps(id))
        return {step["function_name"]: step["output"] for step in found if step["error"] is None}

    def newest(self, attributes: dict[str, str], prefix: str) -> str | None:
        """Return the id of the newest workflow with *attributes*, or with a *prefix* of its id."""
        by: dict[str, Any] = (
            {"attributes": attributes} if self._has_attributes else {"workflow_id_prefix": prefix}
        )
        found = self.workflows(**by, sort_desc=True, limit=1, load_input=False, load_output=False)
        return found[0].workflow_id if found else None

    def version_of(self, status: WorkflowStatus) -> str | None:
        """Return the version of the application that runs a workflow, or None if it has none."""
        return None if status.app_version == self._no_version else status.app_version

    def cancel(self, id: str, *, is_first: bool) -> None:
        """Let the process that runs a segment cancel it.

        Args:
            id: The id of the segment.
            is_first: Whether it is the first one of its turn; then it is cancelled immediately if
                it has done nothing yet.
        """
        # Stored first: if this process ends now, the one that runs the turn finds it.
        self.set_attributes(id, {CANCEL: True})
        if is_first:
            self._tables.cancel_unstarted(id)
            self.notices.tell([id])
        running.cancel(id)

    def reject(self, id: str, reason: str) -> None:
        """End the workflow *id*, which no process runs, without undoing anything."""
        # Before it is cancelled, because the reason distinguishes the two ends.
        self.set_attributes(id, {REJECTED: reason})
        outside(self._control.cancel_workflow, id)

    def delete_workflows(self, ids: list[str]) -> None:
        """Delete workflows, with their steps and events."""
        outside(self._control.delete_workflows, ids)

    # --- operation ---

    def health(self) -> TurnHealth:
        """Return how many turns of the application have not ended, by state, and their age."""
        return self._tables.health()

    def turns(
        self,
        *states: TurnState,
        older_than: timedelta = timedelta(),
        limit: int = 100,
    ) -> list[TurnInfo]:
        """Return turns of the application, the oldest ones first.

        Args:
            states: Their states; default: all of turns that have not ended.
            older_than: The least `TurnInfo.seconds`.
            limit: The maximum number.

        Raises:
            UsageError: A state is unknown.
        """
        for state in states:
            check_choice("a state of turns", state, TurnState)
        least, wanted = older_than.total_seconds(), states or OPEN_STATES
        found = self._tables.open(least, limit, wanted)
        if ended := [state for state in wanted if state in ENDED_STATES]:
            found += self._tables.ended(least, limit, ended)
            found = sorted(found, key=lambda it: it.seconds, reverse=True)[:limit]
        return [
            replace(
                each,
                id=segments_until(each.id)[0],
                version=None if each.version == self._no_version else each.version,
            )
            for each in found
        ]

    def delete(self, *states: EndedState, older_than: timedelta) -> int:
        """Delete turns that have ended, and return how many; those that wait have not.

        Args:
            states: Their states; default: all of turns that have ended.
            older_than: How long ago they have ended at least.

        Raises:
            UsageError: A state is unknown, or is one of turns that have not ended.
        """
        for state in states:
            check_choice("a state of turns that have ended", state, EndedState)
        count = 0
        while ended := self._tables.ended(
            older_than.total_seconds(), _DELETED_AT_ONCE, states or ENDED_STATES
        ):
            self.delete_workflows([id for each in ended for id in segments_until(each.id)])
            count += len(ended)
        return count

    def resume(self, id: str, *, version: str | None = None) -> bool:
        """Let a turn continue now that is stuck, delayed, or failed because processes ended.

        Args:
            id: The id of the turn.
            version: The version of the application that continues it; default: its own.

        Returns:
            Whether it will be continued; otherwise it runs, waits for decisions, or has ended.

        Raises:
            UsageError: There is no such turn.
        """
        return self._tables.let_continue(self._handle(id).last_segment(), version)

    def end(self, id: str, reason: str) -> None:
        """End a turn: cancel it, as `TurnHandle.cancel`; if it is stuck, undo nothing.

        Args:
            id: The id of the turn.
            reason: Why, for the error that `TurnHandle.result` then raises if it was stuck.

        Raises:
            UsageError: There is no such turn.
        """
        turn = self._handle(id)
        last = turn.last_segment()
        stuck = self._tables.open(0.0, _MOST, ("stuck", "cancelling"))
        if any(each.id == last and each.problem is not None for each in stuck):
            self.reject(last, f"turn {id!r} was ended: {reason}")
        else:
            turn.cancel()

    def _handle(self, id: str) -> TurnHandle:
        def check_decisions(*_: object) -> None:
            """Check nothing: this process may not have the client."""

        return TurnHandle(self, id, check_decisions)

    def set_attributes(self, id: str, attributes: dict[str, Any]) -> None:
        """Set attributes of the workflow *id*, and keep others."""
        outside(lambda: self._control.update_workflow_attributes(id, attributes, merge=True))

    def close(self, drain_seconds: float = 0.0) -> None:
        """Stop; turns that still run after *drain_seconds* are continued by other processes."""
        global _current  # noqa: PLW0603 - DBOS is one per process, too
        if _current is self:
            _current = None
        self._close(drain_seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_current: Engine | None = None


@cache
def process_metrics() -> TurnMetrics:
    """Return the metrics of this process; instruments of OpenTelemetry are made once."""
    return TurnMetrics(lambda: None if _current is None else _current.health())


def has_engine() -> bool:
    """Return whether this process has an engine."""
    return _current is not None


def set_engine(engine: Engine) -> Engine:
    """Make *engine* that of this process, and return it."""
    global _current  # noqa: PLW0603 - DBOS is one per process, too
    _current = engine
    return engine


def current_engine() -> Engine:
    """Return the engine of this process.

    Raises:
        UsageError: There is none.
    """
    if _current is None:
        msg = (
            "durable turns need a database: call chatclient.durable.launch(url) in a process that"
            " runs turns, or connect(url) in one that only starts them"
        )
        raise UsageError(msg)
    return _current


def outside(function: Callable[..., T], *args: Any) -> T:
    """Call *function* outside of the workflow that may be running, in which it would be a step."""
    context = Context()
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return context.run(function, *args)
    with ThreadPoolExecutor(1) as thread:  # DBOS refuses blocking calls on the thread of a loop
        return thread.submit(context.run, function, *args).result()


def default_queue(application: str) -> str:
    """Return the queue of turns that are started without one in a process that runs no turns."""
    return application if application == APPLICATION else f"{APPLICATION} {application}"


def no_version(application: str) -> str:
    """Return the version in the database of an application that names none.

    It is that of all of its releases, and of all releases of chatclient. DBOS wants the versions of
    two applications to differ.
    """
    return f"{application} without version"


def reject_older_turns(live: set[str]) -> None:
    """End the turns of versions that are not among *live*."""
    engine = _current
    if engine is None:
        return
    filters = {"name": WORKFLOW, "status": [*ACTIVE], "load_input": False, "load_output": False}
    for status in engine.workflows(**filters):
        if status.app_version is None or status.app_version in live:
            continue
        reason = (
            f"turn {status.workflow_id!r} was started by version {status.app_version!r} of the"
            " application, of which no worker is running"
        )
        engine.reject(status.workflow_id, reason)
