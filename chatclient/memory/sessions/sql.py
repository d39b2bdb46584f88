"""`SqlSessionRepository`: sessions in an SQL database; imports SQLAlchemy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache, partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.schema import CreateColumn

from chatclient._internal.json import dumps, loads
from chatclient.memory.encoding import (
    as_json,
    digest,
    entry_digest,
    message_json,
    message_of,
    microseconds,
    moment_of,
    restored,
    storable,
)
from chatclient.memory.sessions.event import (
    COMPACTION,
    MESSAGE,
    EventPayload,
    Session,
    SessionEvent,
    visible_branches,
)
from chatclient.memory.sessions.log import (
    EVERYTHING,
    EventFilter,
    SessionLog,
    SessionRepository,
    archive_changes,
    checked_events,
    missing_session,
    older_events,
    version_conflict,
)
from chatclient.memory.sql.database import (
    BIG_KEY,
    LONG_TEXT,
    TABLE_OPTIONS,
    Database,
    Schema,
    VersionedRows,
    create_tables,
)
from chatclient.memory.sql.engine import LostRaceError
from chatclient.runtime.runtime import Runtime

_CHUNK = 500  # maximum number of ids in one statement
_MOST = 2**62  # maximum LIMIT and OFFSET that all databases accept
_LAST = 2**31 - 1  # maximum number of an event

# The column `archived`: the place of an event in the view that a model gets. The compactions in the
# log define it; with the column, a view is read without them.
_ACTIVE, _ARCHIVED, _OUTSIDE = 0, 1, 2  # _OUTSIDE: not a message


def _session_row(session: Session) -> dict[str, Any]:
    """Return the columns of *session*, without those of its log."""
    return {
        "digest": digest(session.id),
        "session_id": storable(session.id),
        "user_digest": digest(session.user_id),
        "user_id": storable(session.user_id),
        "created_at": microseconds(session.created_at),
        "expires_at": None if session.expires_at is None else microseconds(session.expires_at),
        "metadata": as_json(session.metadata, "the metadata of a session", session.id),
    }


def _session_of(row: "sa.Row[Any]") -> Session:
    """Return the session of *row*."""
    return Session(
        restored(row.session_id),
        restored(row.user_id),
        moment_of(row.created_at),
        None if row.expires_at is None else moment_of(row.expires_at),
        loads(row.metadata),
    )


def _event_row(event: SessionEvent) -> dict[str, Any]:
    """Return the columns of *event*, without those of its place in the log."""
    content = event.content
    if isinstance(content, EventPayload):
        role, state = "", _OUTSIDE
        stored = as_json(content.data, "the data of an event", event.session_id)
    else:
        role, state = content.role, int(event.archived)
        stored = message_json(content)
    return {
        "digest": digest(event.id),
        "event_id": storable(event.id),
        "moment": microseconds(event.timestamp),
        "type": event.type,
        "role": role,
        "branch": None if event.branch is None else storable(event.branch),
        "synthetic": int(event.synthetic),
        "archived": state,
        "words": _searchable(event.text.casefold()),
        "message": stored,
        "metadata": as_json(event.metadata, "the metadata of an event", event.session_id),
    }


def _event_of(row: "sa.Row[Any]") -> SessionEvent:
    """Return the event of *row*, joined with its session."""
    is_message = row.type == MESSAGE
    return SessionEvent(
        restored(row.event_id),
        restored(row.session_id),
        moment_of(row.moment),
        message_of(row.message) if is_message else EventPayload(row.type, loads(row.message)),
        None if row.branch is None else restored(row.branch),
        loads(row.metadata),
        bool(row.synthetic),
        row.archived == _ARCHIVED,
    )


def _searchable(text: str) -> str:
    """Return *text* with characters replaced that some databases cannot store."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def _index_rows(session: Session) -> list[dict[str, Any]]:
    """Return the rows of *session* in the index of metadata, without the number of its row."""
    return [{"entry": entry_digest(name, value)} for name, value in sorted(session.indexed)]


@dataclass(frozen=True, slots=True)
class _Tables:
    """The tables of sessions. Events of a log count from 0; times are microseconds since 1970."""

    sessions: sa.Table
    events: sa.Table
    index: sa.Table

    @classmethod
    def named(cls, prefix: str) -> "_Tables":
        """Return the tables with names that begin with *prefix*."""
        metadata = sa.MetaData()
        sessions = sa.Table(
            f"{prefix}session",
            metadata,
            sa.Column("id", BIG_KEY, primary_key=True, autoincrement=True),
            sa.Column("digest", sa.String(64), nullable=False, unique=True),
            sa.Column("session_id", LONG_TEXT, nullable=False),
            sa.Column("user_digest", sa.String(64), nullable=False),
            sa.Column("user_id", LONG_TEXT, nullable=False),
            sa.Column("created_at", sa.BigInteger, nullable=False),
            sa.Column("expires_at", sa.BigInteger),
            sa.Column("metadata", LONG_TEXT, nullable=False),
            sa.Column("version", sa.BigInteger, nullable=False),
            sa.Column("length", sa.Integer, nullable=False),  # the version of the log
            sa.Index(f"{prefix}session_user", "user_digest"),
            sa.Index(f"{prefix}session_expires", "expires_at"),
            **TABLE_OPTIONS,
        )
        events = sa.Table(
            f"{prefix}session_event",
            metadata,
            _session_key(sessions),
            sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
            sa.Column("digest", sa.String(64), nullable=False),
            sa.Column("event_id", LONG_TEXT, nullable=False),
            sa.Column("moment", sa.BigInteger, nullable=False),
            sa.Column("type", sa.String(64), nullable=False, server_default=MESSAGE),
            sa.Column("role", sa.String(10), nullable=False),
            sa.Column("branch", LONG_TEXT),
            sa.Column("synthetic", sa.SmallInteger, nullable=False),
            sa.Column("archived", sa.SmallInteger, nullable=False),
            sa.Column("words", LONG_TEXT, nullable=False),
            sa.Column("message", LONG_TEXT, nullable=False),
            sa.Column("metadata", LONG_TEXT, nullable=False),
            sa.UniqueConstraint("session", "digest"),
            sa.Index(f"{prefix}session_event_active", "session", "archived", "number"),
            **TABLE_OPTIONS,
        )
        index = sa.Table(
            f"{prefix}session_index",
            metadata,
            _session_key(sessions),
            sa.Column("entry", sa.String(64), primary_key=True),
            sa.Index(f"{prefix}session_index_entry", "entry"),
            **TABLE_OPTIONS,
        )
        return cls(sessions, events, index)

    def create(self, connection: sa.Connection) -> None:
        """Create the tables and indexes that do not exist."""
        create_tables(connection, self.sessions, self.events, self.index)

    def add_types(self, connection: sa.Connection) -> None:
        """Upgrade to version 2: types of events, compactions as events, and indexed metadata."""
        create_tables(connection, self.index)
        present = sa.inspect(connection).get_columns(self.events.name)
        if "type" not in {column["name"] for column in present}:
            column = CreateColumn(self.events.c.type).compile(connection)
            table = connection.dialect.identifier_preparer.format_table(self.events)
            connection.exec_driver_sql(f"ALTER TABLE {table} ADD COLUMN {column}")
        for session in connection.execute(sa.select(self.sessions)).all():
            self._upgrade(connection, session)

    def _upgrade(self, connection: sa.Connection, row: "sa.Row[Any]") -> None:
        """Index the metadata of a session, and append a compaction of its archived events."""
        if indexed := _index_rows(_session_of(row)):
            connection.execute(sa.delete(self.index).where(self.index.c.session == row.id))
            connection.execute(sa.insert(self.index), [{**it, "session": row.id} for it in indexed])
        events = self.events.c
        mine = events.session == row.id
        archived = sa.select(events.event_id).where(mine & (events.archived == _ARCHIVED))
        ids = [restored(id) for id in connection.scalars(archived.order_by(events.number))]
        compactions = sa.select(events.number).where(mine & (events.type == COMPACTION))
        if not ids or connection.scalar(compactions.limit(1)) is not None:  # done before a crash
            return
        payload = EventPayload(COMPACTION, {"archived": ids, "strategy": "upgrade"})
        event = _event_row(SessionEvent.of(restored(row.session_id), payload))
        place = {"session": row.id, "number": row.length}
        connection.execute(sa.insert(self.events), {**event, **place})
        longer = sa.update(self.sessions).where(self.sessions.c.id == row.id)
        connection.execute(longer.values(length=row.length + 1))


class SqlSessionRepository(SessionRepository):
    """Stores sessions and their logs in the tables of an SQL database, through SQLAlchemy.

    Tested with SQLite, PostgreSQL and MariaDB. Each change is a transaction that first locks the
    row of its session, which serialises changes of one session. The database evaluates filters,
    except for regular expressions, which are applied to its results.

    The arguments are those of `SqlChatMemoryRepository`.

    Raises:
        UsageError: The URL is invalid, or SQLAlchemy or the driver is not installed.
    """

    def __init__(
        self,
        database: "str | sa.URL | sa.Engine" = "sqlite:///sessions.db",
        *,
        table_prefix: str = "chatclient_",
        create_schema: bool = True,
    ) -> None:
        self._tables = tables = _Tables.named(table_prefix)
        schema = Schema(
            "sessions", [tables.create, tables.add_types], prefix=table_prefix, create=create_schema
        )
        self._database = Database(database, schema)
        dialect = self._database.engine.dialect
        self._position = "strpos" if dialect.name == "postgresql" else "instr"
        self._rows = VersionedRows(tables.sessions, tables.sessions.c.expires_at)

    async def create(self, session: Session, runtime: Runtime) -> bool:
        """Store a new session."""

        def work(connection: sa.Connection) -> bool:
            try:
                self._insert_session(connection, session)
            except IntegrityError:
                connection.rollback()
                return False
            return True

        return await runtime.finish(self._database.write, work)

    async def save(self, session: Session, runtime: Runtime) -> None:
        """Create or update a session."""
        table, index = self._tables.sessions, self._tables.index
        row = _session_row(session)
        mine = table.c.digest == row["digest"]
        change, find = sa.update(table).where(mine).values(row), sa.select(table.c.id).where(mine)

        def work(connection: sa.Connection) -> None:
            connection.execute(change)  # MySQL's drivers do not count rows that stay unchanged
            present = connection.scalar(find)
            if present is not None:
                connection.execute(sa.delete(index).where(index.c.session == present))
                self._index(connection, present, session)
                return
            try:
                self._insert_session(connection, session)
            except IntegrityError as error:  # created concurrently
                raise LostRaceError from error

        await runtime.finish(self._database.write, work)

    async def find(self, session_id: str, runtime: Runtime) -> Session | None:
        """Return a session, or None if it does not exist."""
        mine = self._tables.sessions.c.digest == digest(session_id)
        found = await self._sessions(mine, runtime)
        return found[0] if found else None

    async def find_by_user(self, user_id: str, runtime: Runtime) -> list[Session]:
        """Return the sessions of a user, the oldest first."""
        return await self._sessions(self._tables.sessions.c.user_digest == digest(user_id), runtime)

    async def find_by_metadata(self, name: str, value: str, runtime: Runtime) -> list[Session]:
        """Return the sessions with this metadata, the oldest first."""
        index = self._tables.index.c
        found = sa.select(index.session).where(index.entry == entry_digest(name, value))
        return await self._sessions(self._tables.sessions.c.id.in_(found), runtime)

    async def find_expired(self, moment: datetime, runtime: Runtime) -> list[str]:
        """Return the ids of the sessions that have expired at *moment*."""
        table = self._tables.sessions
        query = sa.select(table.c.session_id).where(table.c.expires_at <= microseconds(moment))
        return [restored(row[0]) for row in await runtime.finish(self._database.read, query, {})]

    async def delete(
        self, session_id: str, runtime: Runtime, *, expired: datetime | None = None
    ) -> bool:
        """Delete a session and its log."""
        tables = self._tables

        def work(connection: sa.Connection) -> bool:
            # Locks the row, so that nothing is appended until the log is deleted.
            found = self._rows.advance(connection, session_id, 0)
            if found is None:
                return False
            ends = found.expires_at
            if expired is not None and (ends is None or ends > microseconds(expired)):
                connection.rollback()
                return False
            for table in (tables.events, tables.index):
                connection.execute(sa.delete(table).where(table.c.session == found.id))
            connection.execute(sa.delete(tables.sessions).where(tables.sessions.c.id == found.id))
            return True

        return await runtime.finish(self._database.write, work)

    async def append(
        self,
        session_id: str,
        events: Sequence[SessionEvent],
        runtime: Runtime,
        *,
        expected: int | None = None,
    ) -> bool:
        """Append *events* to the log of a session."""
        events = checked_events(session_id, events)
        if not events:
            return True

        def append() -> bool:  # events are encoded and decoded in the worker thread as well
            rows = [_event_row(event) for event in events]
            changes = archive_changes(events)
            return self._database.write(partial(self._append, session_id, rows, changes, expected))

        return await runtime.finish(append)

    async def read(
        self,
        session_id: str,
        runtime: Runtime,
        filter: EventFilter = EVERYTHING,
        *,
        until: int | None = None,
    ) -> SessionLog:
        """Return the events of a session that match *filter*."""
        return await runtime.finish(self._log, session_id, filter, until)

    async def search(
        self, user_id: str, runtime: Runtime, filter: EventFilter = EVERYTHING
    ) -> list[SessionEvent]:
        """Return the matching events of all sessions of a user."""
        query = _query(self._tables, self._position, filter, "user")
        mine = {"mine": digest(user_id)}
        return await runtime.finish(lambda: _events_of(self._database.read(query, mine), filter))

    async def delete_older(self, cutoff: datetime, runtime: Runtime) -> int:
        """Delete the events of old turns, each log in a transaction; return their number."""
        sessions, events = self._tables.sessions.c, self._tables.events.c
        old = sa.select(events.session).where(events.moment < microseconds(cutoff))
        query = sa.select(sessions.session_id).where(sessions.id.in_(old))
        deleted = 0
        for row in await runtime.finish(self._database.read, query, {}):
            work = partial(self._delete_older, restored(row[0]), cutoff)
            deleted += await runtime.finish(self._database.write, work)
        return deleted

    def close(self) -> None:
        """Close the connections if they were opened for a URL."""
        self._database.close()

    async def _sessions(
        self, condition: "sa.ColumnElement[bool]", runtime: Runtime
    ) -> list[Session]:
        table = self._tables.sessions
        query = sa.select(table).where(condition).order_by(table.c.created_at, table.c.id)

        def find() -> list[Session]:
            return [_session_of(row) for row in self._database.read(query, {})]

        return await runtime.finish(find)

    def _log(self, session_id: str, filter: EventFilter, until: int | None) -> SessionLog:
        mine: dict[str, Any] = {"mine": digest(session_id)}
        query = _query(self._tables, self._position, filter, "session")
        if until is not None:
            query = query.where(self._tables.events.c.number < min(until, _LAST))
        rows = self._database.read(query, mine)
        if not rows:
            table = self._tables.sessions
            known = sa.select(table.c.length).where(table.c.digest == mine["mine"])
            lengths = self._database.read(known, {})
            return SessionLog((), lengths[0][0] if lengths else 0)
        return SessionLog(tuple(_events_of(rows, filter)), rows[0].length)

    def _insert_session(self, connection: sa.Connection, session: Session) -> None:
        row = {**_session_row(session), "version": 0, "length": 0}
        key: Any = connection.execute(sa.insert(self._tables.sessions), row).inserted_primary_key
        self._index(connection, key[0], session)

    def _index(self, connection: sa.Connection, number: Any, session: Session) -> None:
        """Add the metadata of the session with this row number to the index."""
        rows = [{**row, "session": number} for row in _index_rows(session)]
        if rows:
            connection.execute(sa.insert(self._tables.index), rows)

    def _append(
        self,
        session_id: str,
        rows: list[dict[str, Any]],
        changes: Mapping[str, bool],
        expected: int | None,
        connection: sa.Connection,
    ) -> bool:
        found = self._rows.advance(connection, session_id, len(rows))
        if found is None:
            raise missing_session(session_id)
        actual = found.length - len(rows)
        if expected is not None and expected != actual:
            # A repetition is no conflict, although its first attempt has changed the version.
            events = self._tables.events.c
            these = events.digest.in_([row["digest"] for row in rows])
            query = sa.select(events.number).where((events.session == found.id) & these).limit(1)
            repeated = connection.scalar(query) is not None
            connection.rollback()
            if repeated:
                return False
            raise version_conflict(session_id, expected, actual)
        numbered = [
            {**row, "session": found.id, "number": number}
            for number, row in enumerate(rows, actual)
        ]
        try:
            connection.execute(sa.insert(self._tables.events), numbered)
        except IntegrityError:  # the log contains one of the ids
            connection.rollback()
            return False
        self._archive(connection, found.id, changes)
        return True

    def _archive(
        self, connection: sa.Connection, session: int, changes: Mapping[str, bool]
    ) -> None:
        events = self._tables.events
        for before, after in ((_ACTIVE, _ARCHIVED), (_ARCHIVED, _ACTIVE)):
            digests = sorted(digest(id) for id, to in changes.items() if to == (after == _ARCHIVED))
            mine = (events.c.session == session) & (events.c.archived == before)
            for at in range(0, len(digests), _CHUNK):
                these = events.c.digest.in_(digests[at : at + _CHUNK])
                connection.execute(sa.update(events).where(mine & these).values(archived=after))

    def _delete_older(self, session_id: str, cutoff: datetime, connection: sa.Connection) -> int:
        found = self._rows.advance(connection, session_id, 1)  # a new version
        if found is None:  # deleted since
            connection.rollback()
            return 0
        sessions, events = self._tables.sessions, self._tables.events
        mine = events.c.session == found.id
        query = (
            sa.select(sessions.c.session_id, events)
            .join_from(sessions, events, events.c.session == sessions.c.id)
            .where(mine)
            .order_by(events.c.number)
        )
        log = [_event_of(row) for row in connection.execute(query)]
        gone = [digest(event.id) for event in older_events(log, cutoff)]
        for at in range(0, len(gone), _CHUNK):
            these = events.c.digest.in_(gone[at : at + _CHUNK])
            connection.execute(sa.delete(events).where(mine & these))
        return len(gone)


def _session_key(sessions: sa.Table) -> "sa.Column[Any]":
    key = sa.ForeignKey(sessions.c.id, ondelete="CASCADE")
    return sa.Column("session", BIG_KEY, key, primary_key=True, autoincrement=False)


def _events_of(rows: "Sequence[sa.Row[Any]]", filter: EventFilter) -> list[SessionEvent]:
    """Return the events of *rows* in order, after applying conditions that SQL lacks."""
    if not _is_filtered_later(filter):
        return [_event_of(row) for row in (rows if filter.last is None else rows[::-1])]
    return filter.limit([event for event in map(_event_of, rows) if filter(event)])


def _is_filtered_later(filter: EventFilter) -> bool:
    return bool(filter.pattern) or filter.message_id is not None


@lru_cache(maxsize=256)
def _query(tables: _Tables, position: str, filter: EventFilter, whose: str) -> "sa.Select[Any]":
    """Return the query for the matching events of the session or user with the digest `mine`."""
    sessions, events = tables.sessions, tables.events
    query = (
        sa.select(sessions.c.session_id, sessions.c.length, events)
        .join_from(sessions, events, events.c.session == sessions.c.id)
        .where(*_conditions(tables, position, filter))
    )
    if whose == "session":
        query = query.where(sessions.c.digest == sa.bindparam("mine"))
        order, backwards = [events.c.number.asc()], [events.c.number.desc()]
        if filter.exclude_archived:  # a view begins with its summaries
            order.insert(0, events.c.synthetic.desc())
            backwards.insert(0, events.c.synthetic.asc())
    else:
        query = query.where(sessions.c.user_digest == sa.bindparam("mine"))
        keys = (events.c.moment, events.c.session, events.c.number)
        order, backwards = [key.asc() for key in keys], [key.desc() for key in keys]
    if _is_filtered_later(filter):
        return query.order_by(*order)
    if filter.last is not None:
        return query.order_by(*backwards).limit(min(filter.last, _MOST))
    query = query.order_by(*order)
    if filter.bounds is None:
        return query
    start, end = filter.bounds
    return query.slice(min(start, _MOST), min(end, _MOST))


def _conditions(
    tables: _Tables, position: str, filter: EventFilter
) -> "list[sa.ColumnElement[bool]]":
    columns = tables.events.c
    conditions: list[sa.ColumnElement[bool]] = []
    if filter.since is not None:
        conditions.append(columns.moment >= microseconds(filter.since))
    if filter.until is not None:
        conditions.append(columns.moment <= microseconds(filter.until))
    if filter.roles is not None:
        conditions.append(columns.role.in_(sorted(filter.roles)))
    if filter.exclude_synthetic:
        conditions.append(columns.synthetic == 0)
    if filter.selected_types is not None:
        conditions.append(columns.type.in_(sorted(filter.selected_types)))
    if filter.exclude_archived:
        only_messages = filter.selected_types == frozenset({MESSAGE})
        hidden = columns.archived != _ACTIVE if only_messages else columns.archived == _ARCHIVED
        conditions.append(~hidden)
    if filter.branch is not None:
        seen = [storable(branch) for branch in visible_branches(filter.branch)]
        conditions.append(columns.branch.is_(None) | columns.branch.in_(seen))
    contains = getattr(sa.func, position)
    if filter.message_id is not None:  # its JSON may occur elsewhere in the message
        conditions.append(contains(columns.message, dumps(filter.message_id).decode()) > 0)
    conditions += [
        sa.or_(*(contains(columns.words, _searchable(term)) > 0 for term in group))
        for group in filter.terms
    ]
    return conditions
