"""`Tables`: the processes that run turns, turns that none of them runs, and published events."""

import json
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple
from uuid import uuid4

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.exc import SQLAlchemyError

from chatclient.durable.events import FORMAT, FORMAT_VERSION
from chatclient.durable.health import ENDED_STATES, OPEN_STATES, TurnHealth, TurnInfo
from chatclient.durable.states import ACTIVE, CANCEL, PROBLEM, REJECTED, WAITS
from chatclient.extend import write_ahead

WORKFLOW = "chatclient_turn"
"""The name of the workflow of turns in the database."""

_PROCESSES = sa.Table(
    "chatclient_executors",
    sa.MetaData(),
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("version", sa.String(255), nullable=False),
    sa.Column("seen_at", sa.Double, nullable=False),  # seconds since 1970, by `Tables.now`
)
# What DBOS has no function for is done in its table; it has more columns.
_TURNS = sa.Table(
    "workflow_status",
    sa.MetaData(),
    *(
        sa.Column(name, sa.Text)
        for name in (
            *("workflow_uuid", "name", "status", "executor_id", "owner_xid", "queue_name"),
            *("application_version", "application_name"),
        )
    ),
    *(
        sa.Column(name, sa.BigInteger)
        for name in (
            *("recovery_attempts", "started_at_epoch_ms", "delay_until_epoch_ms"),
            *("updated_at", "completed_at"),
        )
    ),
    sa.Column("attributes", sa.JSON().with_variant(JSONB(), "postgresql")),
    schema="dbos",
)
_STEPS = sa.Table(
    "operation_outputs", sa.MetaData(), sa.Column("workflow_uuid", sa.Text), schema="dbos"
)
_QUEUE_OF_DIRECT_TURNS = "_dbos_internal_queue"  # of those that were started without a queue
_NOW = {
    "postgresql": sa.literal_column("extract(epoch from now())", sa.Double),
    "sqlite": sa.literal_column("(julianday('now') - 2440587.5) * 86400.0", sa.Double),
}
_CLOCK = {  # also within a transaction
    "postgresql": sa.literal_column("extract(epoch from clock_timestamp())", sa.Double),
    "sqlite": _NOW["sqlite"],
}
_CHANNEL = "chatclient_turns"  # of notifications: the sender, a space, and the id of a workflow
# The news of many workflows in one query: their ids and offsets are the keys and values of a JSON
# object.
_PAIRS = {
    "postgresql": "json_each_text(cast(:pairs as json)) as pairs",
    "sqlite": "json_each(:pairs) as pairs",
}
_STATUSES = """
select pairs.key, turns.status from {pairs}
left join {schema}workflow_status as turns on turns.workflow_uuid = pairs.key
"""
_PUBLISHED = """
select events.workflow_uuid, events."offset", events.value, events.serialization from {pairs}
join {schema}streams as events on events.workflow_uuid = pairs.key and events.key = 'events'
    and events."offset" >= cast(pairs.value as integer)
order by events."offset"
"""
_PUBLISH = """
insert into {schema}streams (workflow_uuid, key, function_id, value, serialization, "offset")
select turns.workflow_uuid, 'events', :step, :value, :format, 1 + coalesce(
    (select max("offset") from {schema}streams where workflow_uuid = :id and key = 'events'), -1)
from {schema}workflow_status as turns
where turns.workflow_uuid = :id and turns.executor_id = :executor
"""
# Turns that have ended. An output with a pending turn is that of a segment that waits, or that was
# continued. What has no output in this format may be of another release, and is no turn that ended.
_ENDED = """
select id, state, (select {now}) - completed_at / 1000.0, queue, version from (
select turns.workflow_uuid as id, turns.completed_at, turns.queue_name as queue,
    turns.application_version as version,
    case when turns.status = 'SUCCESS' then 'done'
        when turns.status = 'CANCELLED' and {rejected} is null
            or turns.status = 'ERROR' and turns.serialization = :format
            and outputs.error like '%"name":"TurnCancelledError"%' then 'cancelled'
        else 'failed' end as state
from {schema}workflow_status as turns
left join {schema}workflow_output as outputs on outputs.workflow_uuid = turns.workflow_uuid
where turns.name = :name and turns.completed_at < (select {now}) * 1000.0 - :milliseconds
    and coalesce(turns.application_name, :application) = :application
    and (turns.status in ('ERROR', 'CANCELLED', 'MAX_RECOVERY_ATTEMPTS_EXCEEDED')
        or turns.status = 'SUCCESS' and outputs.output is not null
        and case when turns.serialization = :format
            then {pending} is null and coalesce({version}, '1') = :version else false end)
) as ended where state in :states order by completed_at limit :limit
"""
# The last segments of turns that have not ended. Of the segments that have begun to wait, those
# were continued that are followed by another one: the id of a segment ends with # and its number,
# and each # in a key is doubled.
_OPEN = """
with alive as (
    select id, version from chatclient_executors where seen_at >= (select {now}) - :silent
), segments as (
    select turns.workflow_uuid as id, turns.status, turns.queue_name as queue,
        turns.application_version as version, {problem} as problem, {cancel} as cancel,
        rtrim(turns.workflow_uuid, '0123456789') as stem,
        (select {now}) - case when turns.status = 'SUCCESS' then turns.completed_at
            else turns.created_at end / 1000.0 as seconds,
        exists (select 1 from alive where alive.id = turns.executor_id) as is_run,
        exists (select 1 from alive where turns.application_version is null
            or alive.version = turns.application_version) as has_worker
    from {schema}workflow_status as turns
    where turns.name = :name and coalesce(turns.application_name, :application) = :application
        and (turns.status in ('PENDING', 'ENQUEUED', 'DELAYED')
            or turns.status = 'SUCCESS' and {waits})
), open as (
    select *, status = 'DELAYED' and problem is not null or not has_worker
        and (status = 'ENQUEUED' or status = 'PENDING' and not is_run) as is_stuck
    from segments
    where status <> 'SUCCESS' or not exists (
        select 1 from {schema}workflow_status as later
        where later.workflow_uuid = case
            when stem <> id and (length(stem) - length(rtrim(stem, '#'))) % 2 = 1
            then stem || cast(cast(substr(id, length(stem) + 1) as integer) + 1 as text)
            else id || '#2' end)
), states as (
    select *, case when cancel is not null then 'cancelling' when status = 'SUCCESS' then 'waiting'
        when is_stuck then 'stuck' when status = 'PENDING' then 'running' else 'queued' end as state
    from open
)
"""
_LIST = """
select id, state, seconds, queue, version, case when status = 'DELAYED' then problem end, is_stuck
from states
where state in :states and seconds >= :seconds order by seconds desc limit :limit
"""
_LONELY = "no process runs turns of its version"
_COUNT = "select state, count(*), max(seconds) from states group by state"
# Of an output: as text, whatever it is.
_FIELD = {
    "postgresql": "(cast(outputs.output as json) ->> '{}')",
    "sqlite": "cast(json_extract(outputs.output, '$.{}') as text)",
}
_ATTRIBUTE = {
    "postgresql": "turns.attributes ->> '{}'",
    "sqlite": "json_extract(turns.attributes, '$.{}')",
}
_WAITS = {  # for the index of attributes
    "postgresql": f"""turns.attributes @> '{{"{WAITS}": true}}'""",
    "sqlite": f"json_extract(turns.attributes, '$.{WAITS}')",
}
_NOTIFY = "select pg_notify(:channel, id) from unnest(cast(:ids as text[])) as told(id)"
_FORGET = 86_400.0  # seconds
_MEASURED = 60.0  # seconds after which the clock of the database is read again
_BEGIN = 5.0  # seconds in which a busy process begins a turn that it has taken from a queue
_IDS_AT_ONCE = 500


class Published(NamedTuple):
    """A value that a workflow has published.

    Attributes:
        offset: Its position among those of the workflow.
        value: The value as it is stored.
        format: The name of the format, or None.
    """

    offset: int
    value: str
    format: str | None


class Tables:
    """The tables of one process, with connections that turns do not use.

    Args:
        url: The database.
        application: The name of the application.
        executor: The id of this process, if it runs turns.
        version: The version of the application.
        silent_seconds: After how many seconds without a sign of life a process has ended.
        schema: The schema of DBOS's tables on PostgreSQL.

    Attributes:
        notifies: Whether the database has notifications.
    """

    def __init__(
        self,
        url: str,
        application: str,
        *,
        executor: str = "",
        version: str = "",
        silent_seconds: float = 30.0,
        schema: str = "dbos",
    ) -> None:
        is_sqlite = url.startswith("sqlite")
        waits = {"timeout": silent_seconds} if is_sqlite else {}  # for locks
        engine = sa.create_engine(
            url, pool_size=3, max_overflow=1, pool_pre_ping=True, connect_args=waits
        )
        schemas = {"dbos": None if is_sqlite else schema}
        self._engine = engine.execution_options(schema_translate_map=schemas)
        self._executor, self._version = executor, version
        self._application, self._silent = application, silent_seconds
        self._offset, self._measured = 0.0, -math.inf  # of `now`, and when it was measured
        self._now, self._read_clock = _NOW[engine.dialect.name], _CLOCK[engine.dialect.name]
        self.notifies = not is_sqlite
        self._sender = uuid4().hex
        quote = engine.dialect.identifier_preparer.quote
        attribute = _ATTRIBUTE[engine.dialect.name].format
        names = {
            "schema": "" if is_sqlite else f"{quote(schema)}.",
            "pairs": _PAIRS[engine.dialect.name],
            "pending": _FIELD[engine.dialect.name].format("pending"),
            "version": _FIELD[engine.dialect.name].format("format"),
            "now": str(self._now),
            "problem": attribute(PROBLEM),
            "cancel": attribute(CANCEL),
            "rejected": attribute(REJECTED),
            "waits": _WAITS[engine.dialect.name],
        }
        self._statuses, self._published, self._publish, self._count = (
            sa.text(query.format(**names))
            for query in (_STATUSES, _PUBLISHED, _PUBLISH, _OPEN + _COUNT)
        )
        states: sa.BindParameter[Any] = sa.bindparam("states", expanding=True)
        self._ended, self._list = (
            sa.text(query.format(**names)).bindparams(states) for query in (_ENDED, _OPEN + _LIST)
        )

    def create(self) -> None:
        """Create the table of processes unless it exists; DBOS creates its own tables."""
        if self._engine.dialect.name == "sqlite":  # readers and the writer then do not wait
            with self._engine.connect() as connection:
                write_ahead(connection.connection.dbapi_connection)
        try:
            _PROCESSES.create(self._engine, checkfirst=True)
        except SQLAlchemyError:  # another process has just created it, or this fails again
            _PROCESSES.create(self._engine, checkfirst=True)

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    def beat(self) -> None:
        """Store that this process is alive, and remove processes that ended long ago.

        Also let turns begin whose delay is over: DBOS does so by the clocks of processes.
        """
        with self._begin() as connection:
            mine = _PROCESSES.c.id == self._executor
            update = sa.update(_PROCESSES).where(mine).values(seen_at=self._now)
            if not connection.execute(update).rowcount:
                values = {"id": self._executor, "version": self._version, "seen_at": self._now}
                connection.execute(sa.insert(_PROCESSES).values(values))
            # Much later than it is regarded as ended: until then, its turns may have to be
            # continued.
            forgotten = _PROCESSES.c.seen_at < self._now - _FORGET
            connection.execute(sa.delete(_PROCESSES).where(forgotten))
            is_delayed = (_TURNS.c.name == WORKFLOW, _TURNS.c.status == "DELAYED")
            is_over = _TURNS.c.delay_until_epoch_ms <= self._now * 1000.0
            begin = sa.update(_TURNS).where(*is_delayed, is_over).values(status="ENQUEUED")
            connection.execute(begin)
            self._measure(connection)

    def now(self) -> float:
        """Return the seconds since 1970 on the clock of the database, which is that of all turns.

        Clocks of processes differ. It is read at each beat; a process without beats reads it here,
        if the last time is some time ago.
        """
        if time.monotonic() > self._measured + _MEASURED and not self._executor:
            with self._begin() as connection:
                self._measure(connection)
        return time.monotonic() + self._offset

    def _measure(self, connection: sa.Connection) -> None:
        now = connection.execute(sa.select(self._read_clock)).scalar_one()
        self._measured = time.monotonic()
        self._offset = float(now) - self._measured

    def end(self) -> None:
        """Store that this process has ended: others may continue its turns immediately."""
        with self._begin() as connection:
            # In one transaction with the removal of the process, after which others would count a
            # crash.
            update = sa.update(_TURNS).where(*self._is_mine)
            connection.execute(update.values(self._queued(crashed=False)))
            connection.execute(sa.delete(_PROCESSES).where(_PROCESSES.c.id == self._executor))

    def postpone(self, id: str, seconds: float) -> None:
        """Let a turn that this process has taken continue after some time, in any process."""
        begin_at = sa.cast((self._now + seconds) * 1000.0, sa.BigInteger)
        delayed = {"status": "DELAYED", "delay_until_epoch_ms": begin_at}
        update = sa.update(_TURNS).where(_TURNS.c.workflow_uuid == id, *self._is_mine)
        with self._begin() as connection:
            connection.execute(update.values({**self._queued(crashed=False), **delayed}))

    def cancel_unstarted(self, id: str) -> None:
        """Cancel a turn that no process runs and that has recorded nothing."""
        is_queued = _TURNS.c.status.in_(("ENQUEUED", "DELAYED"))
        has_steps = sa.exists().where(_STEPS.c.workflow_uuid == id)
        now = sa.cast(self._now * 1000.0, sa.BigInteger)
        values = {"status": "CANCELLED", "queue_name": None, "updated_at": now, "completed_at": now}
        update = sa.update(_TURNS).where(_TURNS.c.workflow_uuid == id, is_queued, ~has_steps)
        with self._begin() as connection:
            connection.execute(update.values(values))
            self._notify(connection, [id])

    def cancelled(self, ids: Iterable[str]) -> set[str]:
        """Return those of *ids* that should be cancelled, or were cancelled in DBOS itself."""
        several, found = [*ids], set[str]()
        is_marked = _TURNS.c.attributes[CANCEL].as_string().is_not(None)
        query = sa.select(_TURNS.c.workflow_uuid).where(
            sa.or_(is_marked, _TURNS.c.status == "CANCELLED")
        )
        for at in range(0, len(several), _IDS_AT_ONCE):
            these = _TURNS.c.workflow_uuid.in_(several[at : at + _IDS_AT_ONCE])
            with self._begin() as connection:
                found.update(connection.execute(query.where(these)).scalars())
        return found

    def event_row(self, id: str, step: int, value: str) -> dict[str, object]:
        """Return what `publish` takes for a value that the step *step* of a workflow publishes."""
        about = {"executor": self._executor, "format": FORMAT}
        return {"id": id, "step": step, "value": value, **about}

    def publish(self, rows: Sequence[Mapping[str, object]], ended: Iterable[str]) -> None:
        """Store what workflows of this process publish, and tell other processes.

        What workflows publish that another process has taken over is left out.

        Args:
            rows: Results of `event_row`.
            ended: The ids of workflows that have ended.
        """
        with self._begin() as connection:
            if rows:
                connection.execute(self._publish, rows)
            self._notify(connection, [*ended, *(str(row["id"]) for row in rows)])

    def ended(
        self, seconds: float, limit: int, states: Iterable[str] = ENDED_STATES
    ) -> list[TurnInfo]:
        """Return turns that ended longer ago than *seconds*, with the ids of their last segments.

        The oldest ones come first.
        """
        values = {**self._of_turns, "milliseconds": seconds * 1000, "limit": limit}
        values |= {"format": FORMAT, "version": str(FORMAT_VERSION), "states": [*states]}
        with self._begin() as connection:
            rows = connection.execute(self._ended, values)
            return [
                TurnInfo(id, state, float(age), version, queue)
                for id, state, age, queue, version in rows
            ]

    def open(self, seconds: float, limit: int, states: Iterable[str]) -> list[TurnInfo]:
        """Return turns that have not ended, with the ids of their last segments; see `ended`."""
        values = {**self._of_turns, "silent": self._silent, "seconds": seconds, "limit": limit}
        with self._begin() as connection:
            rows = connection.execute(self._list, {**values, "states": [*states]}).all()
        return [
            TurnInfo(id, state, float(age), version, queue, problem or (_LONELY if stuck else None))
            for id, state, age, queue, version, problem, stuck in rows
        ]

    def health(self) -> TurnHealth:
        """Return the turns that have not ended, and the number of processes."""
        values = {**self._of_turns, "silent": self._silent}
        with self._begin() as connection:
            rows = connection.execute(self._count, values).all()
            alive = sa.select(sa.func.count()).select_from(_PROCESSES).where(self._is_alive)
            workers = connection.execute(alive).scalar_one()
        counts, ages = dict.fromkeys(OPEN_STATES, 0), dict.fromkeys(OPEN_STATES, 0.0)
        counts |= {row[0]: row[1] for row in rows}
        ages |= {row[0]: float(row[2]) for row in rows}
        return TurnHealth(counts, ages, workers)

    def let_continue(self, id: str, version: str | None) -> bool:
        """Let a turn continue now that no process runs; return whether there is one.

        Args:
            id: The id of its last segment.
            version: The version of the application that continues it; None: its own.
        """
        runs = sa.exists().where(_PROCESSES.c.id == _TURNS.c.executor_id, self._is_alive)
        waits = _TURNS.c.status.in_(("DELAYED", "ENQUEUED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED"))
        is_lost = (_TURNS.c.status == "PENDING") & ~runs
        update = sa.update(_TURNS).where(_TURNS.c.workflow_uuid == id, waits | is_lost)
        values = {**self._queued(crashed=False), "recovery_attempts": 0, "completed_at": None}
        if version is not None:
            values["application_version"] = version
        with self._begin() as connection:
            return connection.execute(update.values(values)).rowcount > 0

    def news(self, offsets: Mapping[str, int | None]) -> dict[str, tuple[list[Published], bool]]:
        """Return what workflows have published, and whether they have ended.

        Args:
            offsets: The ids of the workflows, each with the position of the first value to return,
                or None to return no values.
        """
        found: dict[str, list[Published]] = {id: [] for id in offsets}
        reads = {id: offset for id, offset in offsets.items() if offset is not None}
        with self._begin() as connection:
            # Before the values: those of a workflow that has ended are complete.
            pairs = {"pairs": json.dumps(offsets)}
            rows = connection.execute(self._statuses, pairs).all()
            statuses = {row[0]: row[1] for row in rows}
            if reads:
                pairs = {"pairs": json.dumps(reads)}
                for id, *value in connection.execute(self._published, pairs):
                    found[id].append(Published(*value))
        return {id: (found[id], statuses[id] not in ACTIVE) for id in offsets}

    @contextmanager
    def listening(self) -> Iterator[Callable[[float], list[str]]]:
        """Yield a function that waits up to some seconds for what other processes tell.

        It returns the ids of workflows with news.
        """
        pooled = self._engine.raw_connection()
        connection: Any = pooled.driver_connection
        pooled.detach()
        try:
            connection.autocommit = True
            connection.execute(f"LISTEN {_CHANNEL}")

            def told(seconds: float) -> list[str]:
                found: list[str] = []
                for notice in connection.notifies(timeout=seconds, stop_after=1):
                    sender, _, id = notice.payload.partition(" ")
                    if sender != self._sender:
                        found.append(id)
                return found

            yield told
        finally:
            connection.close()

    def _notify(self, connection: sa.Connection, ids: Sequence[str]) -> None:
        if self.notifies and ids:
            told = [f"{self._sender} {id}" for id in dict.fromkeys(ids)]
            connection.execute(sa.text(_NOTIFY), {"channel": _CHANNEL, "ids": told})

    def live_versions(self) -> set[str]:
        """Return the versions of all processes that are alive."""
        query = sa.select(_PROCESSES.c.version).where(self._is_alive)
        with self._begin() as connection:
            return set(connection.execute(query).scalars())

    def continue_own(self, running: Collection[str]) -> list[str]:
        """Let turns of this process that it does not run be continued, and return their ids.

        Their end could not be stored, or they were taken from a queue and could not be started.

        Args:
            running: The ids of the turns that it runs.
        """
        return self._continue(_TURNS.c.executor_id == self._executor, running, crashed=False)

    def continue_others(self) -> list[str]:
        """Let turns of processes that have ended be continued, and return their ids."""
        of_live = sa.exists().where(_PROCESSES.c.id == _TURNS.c.executor_id, self._is_alive)
        others = _TURNS.c.executor_id != self._executor
        return self._continue(others & ~of_live, (), crashed=True)

    def _continue(
        self, condition: sa.ColumnElement[bool], running: Collection[str], *, crashed: bool
    ) -> list[str]:
        conditions = [
            condition,
            _TURNS.c.status == "PENDING",
            _TURNS.c.application_version == self._version,
            sa.func.coalesce(_TURNS.c.application_name, self._application) == self._application,
        ]
        if crashed:
            taken_before = (
                self._now - self._silent
            )  # later, that it took the turn is a sign of life
        else:
            taken_before = self._now - max(self._silent, _BEGIN)
            # It does not know whether it runs other workflows of the application.
            conditions.append(_TURNS.c.name == WORKFLOW)
        conditions.append(_TURNS.c.updated_at < taken_before * 1000.0)
        ids = _TURNS.c.workflow_uuid
        continued: list[str] = []
        with self._begin() as connection:
            found = connection.execute(sa.select(ids).where(*conditions)).scalars()
            lost = [id for id in found if id not in running]
            for at in range(0, len(lost), _IDS_AT_ONCE):
                several = ids.in_(lost[at : at + _IDS_AT_ONCE])
                # The conditions are repeated: another process may have taken some of them since the
                # query.
                update = sa.update(_TURNS).where(several, *conditions).returning(ids)
                rows = connection.execute(update.values(self._queued(crashed=crashed)))
                continued += rows.scalars()
        return continued

    def _queued(self, *, crashed: bool) -> dict[str, Any]:
        """Return the values of a turn that a worker may take; only crashes are counted."""
        attempts, queue = _TURNS.c.recovery_attempts, _TURNS.c.queue_name
        return {
            "status": "ENQUEUED",
            "owner_xid": None,
            "started_at_epoch_ms": None,
            "updated_at": sa.cast(self._now * 1000.0, sa.BigInteger),
            "queue_name": sa.func.coalesce(queue, _QUEUE_OF_DIRECT_TURNS),
            "recovery_attempts": attempts if crashed else attempts - 1,
        }

    @property
    def _of_turns(self) -> dict[str, Any]:
        return {"name": WORKFLOW, "application": self._application}

    @property
    def _is_mine(self) -> tuple[sa.ColumnElement[bool], ...]:
        return _TURNS.c.executor_id == self._executor, _TURNS.c.status == "PENDING"

    @property
    def _is_alive(self) -> sa.ColumnElement[bool]:
        return _PROCESSES.c.seen_at >= self._now - self._silent

    def _begin(self) -> AbstractContextManager[sa.Connection]:
        return self._engine.begin()
