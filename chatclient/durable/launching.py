"""`launch` and `connect`: begin to run durable turns, or to start them, in this process."""

import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

from chatclient.durable.dbos_steps import (
    DBOS,
    DBOSClient,
    DBOSConfig,
    JsonSerializer,
    refuse_pickles,
    sqlalchemy as sa,
)
from chatclient.durable.engine import (
    Engine,
    Liveness,
    Retention,
    default_queue,
    has_engine,
    no_version,
    process_metrics,
    reject_older_turns,
    set_engine,
)
from chatclient.durable.notices import Notices, Outbox
from chatclient.durable.queues import APPLICATION, Pace, TurnQueue
from chatclient.durable.tables import Tables
from chatclient.durable.workflow import PUBLISH_SECONDS, paces, running
from chatclient.errors import UsageError
from chatclient.extend import seconds
from chatclient.runtime.threads import LoopThread

T = TypeVar("T")


def launch(
    database: str,
    *,
    queues: Iterable[TurnQueue] = (),
    listen: Iterable[str] | None = None,
    application: str = APPLICATION,
    version: str | None = None,
    takeover_seconds: float = 30.0,
    reject_older: bool = False,
    keep: timedelta | None = None,
    config: DBOSConfig | None = None,
) -> Engine:
    """Run durable turns in this process, and return the engine; close it at the end.

    Create all durable clients first: turns of earlier processes continue immediately.

    Args:
        database: The URL of a PostgreSQL database, or `sqlite:///file` on a single machine. Its
            tables are created.
        queues: The queues; their limits replace those in the database.
        listen: The names of the queues that this process takes turns from; default: all.
        application: The name of the application, whose processes have the same durable clients.
            Applications with different names may share a database, not a queue.
        version: The version of the application. Turns continue in processes of the version that
            started them only. Default: none; turns continue in every process without a version.
        takeover_seconds: After how many seconds without a sign of life other processes continue
            the turns of this one.
        reject_older: Whether turns of other versions end with a `TurnVersionError` if no process
            of their version is alive; otherwise they wait for one. Turns that wait for decisions
            are not affected: they continue in the version of the process that gets them.
        keep: How long turns are kept after their end; then all that is stored of them is deleted.
            Turns that wait for decisions are kept. Default: for ever.
        config: Further settings of DBOS.

    Raises:
        UsageError: This process has an engine already, or *keep* is not positive.
    """
    kept = None if keep is None else seconds("keep", keep)
    _check_no_engine()
    refuse_pickles()
    executor = uuid4().hex
    url = _url(database)
    settings: DBOSConfig = {
        "name": application,
        "system_database_url": url,
        "serializer": JsonSerializer(),
        "executor_id": executor,
        "log_level": "WARNING",
        "notification_listener_polling_interval_sec": PUBLISH_SECONDS,
        "application_version": version or no_version(application),
        **(config or {}),
    }
    several = [TurnQueue(default_queue(application)), *queues]
    paces.clear()
    paces.update({each.name: Pace(each.worker_rate) for each in several if each.worker_rate})
    DBOS.migrate(url)
    tables = Tables(
        url,
        application,
        executor=executor,
        version=settings["application_version"] or "",
        silent_seconds=takeover_seconds,
        schema=settings.get("dbos_system_schema") or "dbos",
    )
    process = _Process(tables, takeover_seconds, reject_older=reject_older)
    process.start(settings, several, listen)
    engine = Engine(
        DBOS,
        application,
        tables=tables,
        notices=process.notices,
        loop=process.loop,
        has_attributes=_has_attributes(url),
        close=process.close,
    )
    if kept is not None:
        process.retention = Retention(tables, kept, engine.delete_workflows)
    return set_engine(engine)


class _Process:
    """What runs the turns of this process, from `start` to `close`.

    Attributes:
        notices: Tells readers in this process of new events.
        loop: The event loop of the turns.
        retention: Deletes old turns, if they are not kept for ever.
    """

    def __init__(self, tables: Tables, takeover_seconds: float, *, reject_older: bool) -> None:
        self.notices = Notices(tables)
        self.loop = LoopThread("chatclient-turns")
        self.retention: Retention | None = None
        self._outbox = Outbox(tables, self.notices)
        self._alive = Liveness(tables, takeover_seconds, running)
        if reject_older:
            self._alive.each_beat = lambda: reject_older_turns(tables.live_versions())
        running.attach(tables, self._outbox, process_metrics())

    def start(
        self, settings: DBOSConfig, queues: Sequence[TurnQueue], listen: Iterable[str] | None
    ) -> None:
        """Take turns from the queues, and continue those of earlier processes."""

        def start() -> None:
            DBOS(config=settings)
            if listen is not None:
                DBOS.listen_queues([*listen])
            DBOS.launch()
            for queue in queues:
                _register(queue)

        self._alive.start()  # first, so that each turn has a known process
        try:
            # In a thread without an event loop: DBOS would run the turns on the loop of the
            # caller, and blocking calls there would wait for themselves.
            outside_loop(start)
        except BaseException:
            self.close(0)
            raise

    def close(self, drain_seconds: float) -> None:
        """Stop running turns; wait for those that run up to *drain_seconds*."""
        if self.retention is not None:
            self.retention.stop()
        with ThreadPoolExecutor(1) as thread:
            if drain_seconds > 0:
                # No new turns are taken, and running ones have a second more than needed.
                longest = math.ceil(drain_seconds) + 1
                destroy = partial(DBOS.destroy, workflow_completion_timeout_sec=longest)
                destroyed = thread.submit(Context().run, destroy)
                running.drain(drain_seconds)
                # After the drain: what still runs is continued by other processes.
                running.detach()
                self.loop.close()
                destroyed.result()
            else:
                running.detach()
                self.loop.close()
                thread.submit(Context().run, DBOS.destroy).result()
        # Last: the end of a turn is still published, and others wait for the last sign of life.
        self._outbox.close()
        self.notices.close()
        self._alive.stop()


def connect(database: str, *, application: str = APPLICATION) -> Engine:
    """Connect to the database of durable turns, to start turns and read their results.

    The turns run in processes that have called `launch`, which also creates the tables.

    Args:
        database: The URL, as in `launch`.
        application: The name of the application, as in `launch`.

    Raises:
        UsageError: This process has an engine already.
    """
    _check_no_engine()
    refuse_pickles()
    url = _url(database)
    client = DBOSClient(
        system_database_url=url,
        serializer=JsonSerializer(),
        application_name=application,
    )
    tables = Tables(url, application)
    notices = Notices(tables)

    def close(_: float) -> None:
        client.destroy()
        notices.close()
        tables.close()

    engine = Engine(
        client,
        application,
        tables=tables,
        notices=notices,
        loop=None,
        has_attributes=_has_attributes(url),
        close=close,
    )
    return set_engine(engine)


def outside_loop(function: Callable[[], T]) -> T:
    """Call *function* in a thread without an event loop."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(Context().run, function).result()


def _check_no_engine() -> None:
    if has_engine():
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


def _has_attributes(url: str) -> bool:
    return not url.startswith("sqlite")


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
