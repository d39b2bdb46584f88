"""The engine of durable turns in this process: DBOS, which runs turns, or a connection to it."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeVar
from uuid import uuid4
from weakref import WeakValueDictionary

try:
    import sqlalchemy as sa
    from dbos import (
        DBOS,
        DBOSClient,
        DBOSConfig,
        SetWorkflowID,
        WorkflowStatus,
        error as dbos_errors,
    )
except ImportError as error:
    msg = "durable turns need DBOS; pip install 'chatclient[dbos]'"
    raise ImportError(msg) from error

from chatclient._internal.logging import get_logger
from chatclient._internal.version import __version__
from chatclient.chat.events import StreamEvent, TextDelta
from chatclient.durable.dbos_steps import DbosSteps, JsonSerializer
from chatclient.durable.events import event_to_dict
from chatclient.durable.liveness import Liveness
from chatclient.durable.queues import TurnQueue
from chatclient.durable.recording import Publisher, StepRecorder
from chatclient.errors import TurnVersionError, UsageError

log = get_logger(__name__)

T = TypeVar("T")

WORKFLOW = "chatclient_turn"
DEFAULT_QUEUE = "chatclient"
"""The queue of turns that are started without a queue in a process that does not run turns."""
EVENTS = "events"

RUNNING = ("PENDING", "ENQUEUED", "DELAYED")


class TurnRunner(Protocol):
    """Runs the turns of one client."""

    async def run(
        self, data: Mapping[str, Any], steps: StepRecorder, *, recovered: bool, publisher: Publisher
    ) -> dict[str, Any]:
        """Return the outcome of a segment of a turn, as JSON values."""
        ...


runners: WeakValueDictionary[str, TurnRunner] = WeakValueDictionary()
"""The clients of this process by name."""

_active: set[DbosSteps] = set()


class _StreamPublisher:
    """Writes events to the stream of the workflow, several at a time.

    It is used within steps only: outside of them, each write would be a step.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._events: list[StreamEvent | str] = []
        self._written = time.monotonic()

    async def publish(self, event: StreamEvent | str) -> None:
        """Add an event, or the name of a step."""
        last = self._events[-1] if self._events else None
        if isinstance(event, TextDelta) and isinstance(last, TextDelta):
            self._events[-1] = TextDelta(last.text + event.text)
        else:
            self._events.append(event)
        if time.monotonic() - self._written > _PUBLISH_SECONDS:
            await self.flush()

    async def flush(self) -> None:
        """Write the events so far."""
        async with self._lock:  # concurrent writes to a stream wait for each other
            events, self._events = self._events, []
            self._written = time.monotonic()
            values = [each for each in map(event_to_dict, events) if each is not None]
            if values:
                await DBOS.write_stream_async(EVENTS, values)


_PUBLISH_SECONDS = 0.1


@DBOS.workflow(name=WORKFLOW)
async def _run_turn(data: dict[str, Any]) -> dict[str, Any]:
    runner = runners.get(data["client"])
    if runner is None:
        msg = (
            f"this process has no durable client {data['client']!r}: create it before the worker"
            f" starts, with durable(client, name={data['client']!r})"
        )
        raise TurnVersionError(msg, turn_id=data["turn"])
    steps = await DbosSteps.open()
    _active.add(steps)
    try:
        return await runner.run(
            data, steps, recovered=steps.recovered, publisher=_StreamPublisher()
        )
    except BaseException:
        if steps.stopped is not None:  # whatever the turn made of it
            raise steps.stopped from None
        raise
    finally:
        _active.discard(steps)


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
        runs_turns: Whether this process runs turns.
        close: Called by `close` with the seconds to wait for running turns.
    """

    def __init__(
        self,
        control: type[DBOS] | DBOSClient,
        *,
        runs_turns: bool,
        close: Callable[[float], None],
    ) -> None:
        self._control: Any = control
        self.runs_turns = runs_turns
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

    def start(self, id: str, data: dict[str, Any], how: Enqueued, *, reject: bool = False) -> bool:
        """Start a segment of a turn; return whether the id was new, if *reject*."""
        here = self.runs_turns and how == Enqueued() and not reject

        def run_here() -> None:
            with SetWorkflowID(id):
                DBOS.start_workflow(_run_turn, data)

        if here:
            outside(run_here)
            return True
        options: dict[str, Any] = {
            "workflow_name": WORKFLOW,
            "workflow_id": id,
            "queue_name": how.queue or DEFAULT_QUEUE,
            "priority": how.priority,
            "delay_seconds": how.delay,
            "queue_partition_key": how.limit_key,
            "workflow_id_reuse_policy": "reject" if reject else None,
        }
        options = {name: value for name, value in options.items() if value is not None}
        enqueue = (
            self._control.enqueue_workflow_with_options
            if self.runs_turns
            else self._control.enqueue
        )
        try:
            outside(enqueue, options, data)
        except dbos_errors.DBOSWorkflowIDInUseError:
            return False
        return True

    def status(self, id: str) -> WorkflowStatus | None:
        """Return the status of the workflow *id*, or None if there is none."""
        found = self.statuses(workflow_ids=[id])
        return found[0] if found else None

    def statuses(self, **filters: Any) -> list[WorkflowStatus]:
        """Return the workflows that match the filters of `DBOS.list_workflows`."""
        return outside(lambda: self._control.list_workflows(**filters))

    def cancel(self, id: str) -> None:
        """Cancel the workflow *id*."""
        outside(self._control.cancel_workflow, id)

    def delete(self, ids: list[str]) -> None:
        """Delete workflows, with their steps and events."""
        outside(self._control.delete_workflows, ids)

    def set_attributes(self, id: str, attributes: dict[str, Any]) -> None:
        """Set attributes of the workflow *id*."""
        outside(self._control.update_workflow_attributes, id, attributes)

    def events(self, id: str) -> Iterable[Any]:
        """Yield the published events of the workflow *id*, until it has ended."""
        stream = outside(
            lambda: self._control.read_stream(id, EVENTS, polling_interval_sec=_PUBLISH_SECONDS)
        )
        while (events := outside(lambda: next(stream, None))) is not None:
            yield from events

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


def launch(
    database: str,
    *,
    queues: Iterable[TurnQueue] = (),
    listen: Iterable[str] | None = None,
    version: str | None = None,
    takeover_seconds: float = 30.0,
    reject_older: bool = False,
    config: DBOSConfig | None = None,
) -> Engine:
    """Run durable turns in this process, and return the engine; close it at the end.

    Create all durable clients first: turns of earlier processes continue immediately.

    Args:
        database: The URL of a PostgreSQL database, or `sqlite:///file` on a single machine. Its
            tables are created.
        queues: The queues; their limits replace those in the database.
        listen: The names of the queues that this process takes turns from; default: all.
        version: The version of the application. Turns continue in processes of the version that
            started them only. Default: that of chatclient.
        takeover_seconds: After how many seconds without a sign of life other processes continue
            the turns of this one.
        reject_older: Whether turns of other versions end with a `TurnVersionError` if no process
            of their version is alive; otherwise they wait for one. Turns that wait for decisions
            are not affected: they continue in the version of the process that gets them.
        config: Further settings of DBOS.

    Raises:
        UsageError: This process has an engine already.
    """
    global _current  # noqa: PLW0603 - DBOS is one per process, too
    _check_no_engine()
    executor = uuid4().hex
    url = _url(database)
    settings: DBOSConfig = {
        "name": "chatclient",
        "system_database_url": url,
        "serializer": JsonSerializer(),
        "executor_id": executor,
        "log_level": "WARNING",
        "notification_listener_polling_interval_sec": _PUBLISH_SECONDS,
        "application_version": version or f"chatclient {__version__}",
        **(config or {}),
    }
    several = [TurnQueue(DEFAULT_QUEUE), *queues]

    def recover(silent: str) -> None:
        # What the control plane of DBOS calls; it has no public name.
        handles = outside(DBOS._recover_pending_workflows, [silent])  # noqa: SLF001
        if handles:
            log.info("turns taken over", executor=silent, turns=len(handles))

    DBOS.migrate(url)
    version = settings["application_version"] or ""
    alive = Liveness(url, executor, version, takeover_seconds, recover)
    if reject_older:
        alive.each_beat = lambda: _reject_older(alive.live_versions())

    def start() -> None:
        DBOS(config=settings)
        if listen is not None:
            DBOS.listen_queues([*listen])
        DBOS.launch()
        for queue in several:
            _register(queue)

    alive.start()  # first, so that no turn belongs to an unknown process
    try:
        # In a thread without an event loop: DBOS would run the turns on the loop of the caller,
        # and blocking calls there would wait for themselves.
        outside_loop(start)
    except BaseException:
        outside_loop(DBOS.destroy)
        alive.stop()
        raise

    def close(drain_seconds: float) -> None:
        _drain(drain_seconds)
        for steps in tuple(_active):
            steps.detach()
        outside_loop(DBOS.destroy)
        alive.stop()

    _current = Engine(DBOS, runs_turns=True, close=close)
    return _current


def connect(database: str) -> Engine:
    """Connect to the database of durable turns, to start turns and read their results.

    The turns run in processes that have called `launch`, which also creates the tables.

    Raises:
        UsageError: This process has an engine already.
    """
    global _current  # noqa: PLW0603 - as in `launch`
    _check_no_engine()
    client = DBOSClient(
        system_database_url=_url(database),
        serializer=JsonSerializer(),
        application_name="chatclient",
    )
    _current = Engine(client, runs_turns=False, close=lambda _: client.destroy())
    return _current


def outside_loop(function: Callable[[], T]) -> T:
    """Call *function* in a thread without an event loop."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(Context().run, function).result()


def _check_no_engine() -> None:
    if _current is not None:
        msg = "this process has an engine of durable turns already; close it first"
        raise UsageError(msg)


def _url(database: str) -> str:
    url = sa.make_url(database)
    if url.get_backend_name() == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    elif url.get_backend_name() != "sqlite":
        msg = f"durable turns need PostgreSQL or SQLite, not {url.get_backend_name()!r}"
        raise UsageError(msg)
    return url.render_as_string(hide_password=False)


def _register(queue: TurnQueue) -> None:
    def rate(value: tuple[int, float] | None) -> Any:
        return None if value is None else {"limit": value[0], "period": value[1]}

    DBOS.register_queue(
        queue.name,
        global_concurrency=queue.concurrency,
        worker_concurrency=queue.worker_concurrency,
        limiter=rate(queue.rate),
        partition_concurrency=queue.key_concurrency,
        partition_worker_concurrency=queue.key_worker_concurrency,
        partition_limiter=rate(queue.key_rate),
        polling_interval_sec=queue.poll_seconds,
    )


def _reject_older(live: set[str]) -> None:
    """End the turns of versions that are not among *live*."""
    engine = _current
    if engine is None:
        return
    filters = {"name": WORKFLOW, "status": [*RUNNING], "load_input": False, "load_output": False}
    for status in engine.statuses(**filters):
        if status.app_version is None or status.app_version in live:
            continue
        reason = (
            f"turn {status.workflow_id!r} was started by version {status.app_version!r} of the"
            " application, of which no worker is running"
        )
        engine.set_attributes(status.workflow_id, {"rejected": reason})
        engine.cancel(status.workflow_id)


def _drain(seconds: float) -> None:
    end = time.monotonic() + seconds
    while _active and time.monotonic() < end:
        time.sleep(0.05)
