"""The queries of `SqlSessionRepository`; imports SQLAlchemy."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from chatclient._internal.json import loads
from chatclient.memory.encoding import as_json, digest, message_json, message_of, restored, storable
from chatclient.memory.sessions.event import Session, SessionEvent, older_events, visible_branches
from chatclient.memory.sessions.filter import EventFilter
from chatclient.memory.sessions.repository import SessionLog, checked_events, missing_session
from chatclient.memory.sessions.sql_tables import SessionTables
from chatclient.memory.sql.database import Database, VersionedRows
from chatclient.memory.sql.errors import LostRaceError
from chatclient.memory.sql.schema import Schema

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_CHUNK = 500  # maximum number of ids in one statement
_MOST = 2**62  # maximum LIMIT and OFFSET that all databases accept


class SqlLogs:
    """The operations of `SqlSessionRepository`, each in one transaction."""

    def __init__(
        self, database: "str | sa.URL | sa.Engine", *, table_prefix: str, create_schema: bool
    ) -> None:
        self._tables = tables = SessionTables.named(table_prefix)
        schema = Schema("sessions", [tables.create], prefix=table_prefix, create=create_schema)
        self._database = Database(database, schema)
        dialect = self._database.engine.dialect
        self._position = "strpos" if dialect.name == "postgresql" else "instr"
        self._rows = VersionedRows(tables.sessions, tables.sessions.c.expires_at)

    def create(self, session: Session) -> bool:
        """Store a new session."""

        def work(connection: sa.Connection) -> bool:
            try:
                connection.execute(sa.insert(self._tables.sessions), _new_row(session))
            except IntegrityError:
                connection.rollback()
                return False
            return True

        return self._database.write(work)

    def save(self, session: Session) -> None:
        """Create or update a session."""
        table = self._tables.sessions
        row = _row_of_session(session)
        mine = table.c.digest == row["digest"]
        change, find = sa.update(table).where(mine).values(row), sa.select(table.c.id).where(mine)

        def work(connection: sa.Connection) -> None:
            # MySQL's drivers do not count rows that the update leaves unchanged.
            if connection.execute(change).rowcount or connection.scalar(find) is not None:
                return
            try:
                connection.execute(sa.insert(table), _new_row(session))
            except IntegrityError as error:  # created concurrently
                raise LostRaceError from error

        self._database.write(work)

    def find(self, session_id: str) -> Session | None:
        """Return a session, or None if it does not exist."""
        found = self._sessions(self._tables.sessions.c.digest == digest(session_id))
        return found[0] if found else None

    def find_by_user(self, user_id: str) -> list[Session]:
        """Return the sessions of a user, the oldest first."""
        return self._sessions(self._tables.sessions.c.user_digest == digest(user_id))

    def find_expired(self, moment: datetime) -> list[str]:
        """Return the ids of the sessions that have expired at *moment*."""
        table = self._tables.sessions
        query = sa.select(table.c.session_id).where(table.c.expires_at <= _number(moment))
        return [restored(row[0]) for row in self._database.read(query, {})]

    def delete(self, session_id: str, expired: datetime | None) -> bool:
        """Delete a session and its log."""
        tables = self._tables

        def work(connection: sa.Connection) -> bool:
            found = self._rows.advance(connection, session_id, 0)
            if found is None:
                return False
            ends = found.expires_at
            if expired is not None and (ends is None or ends > _number(expired)):
                connection.rollback()
                return False
            connection.execute(sa.delete(tables.events).where(tables.events.c.session == found.id))
            connection.execute(sa.delete(tables.sessions).where(tables.sessions.c.id == found.id))
            return True

        return self._database.write(work)

    def append(self, session_id: str, events: Sequence[SessionEvent]) -> bool:
        """Append *events* to the log of a session."""
        rows = [_row_of_event(event) for event in checked_events(session_id, events)]
        if not rows:
            return True
        return self._database.write(partial(self._append, session_id, rows))

    def read(self, session_id: str, filter: EventFilter) -> SessionLog:
        """Return the events of a session that match *filter*."""
        mine = {"mine": digest(session_id)}
        rows = self._database.read(_query(self._tables, self._position, filter, "session"), mine)
        if not rows:
            table = self._tables.sessions
            known = sa.select(table.c.version).where(table.c.digest == mine["mine"])
            versions = self._database.read(known, {})
            return SessionLog((), versions[0][0] if versions else 0)
        return SessionLog(tuple(_events_of(rows, filter)), rows[0].version)

    def search(self, user_id: str, filter: EventFilter) -> list[SessionEvent]:
        """Return the matching events of all sessions of a user."""
        mine = {"mine": digest(user_id)}
        query = _query(self._tables, self._position, filter, "user")
        return _events_of(self._database.read(query, mine), filter)

    def compact(
        self,
        session_id: str,
        archived: Sequence[str],
        summary: Sequence[SessionEvent] | None,
        expected: int,
    ) -> bool:
        """Archive events, and replace the active synthetic events."""
        rows = None
        if summary is not None:
            rows = [_row_of_event(event) for event in checked_events(session_id, summary)]
        leaving = sorted({digest(id) for id in archived})
        return self._database.write(partial(self._compact, session_id, leaving, rows, expected))

    def delete_older(self, cutoff: datetime) -> int:
        """Delete the events of old turns, each log in a transaction; return their number."""
        sessions, events = self._tables.sessions.c, self._tables.events.c
        old = sa.select(events.session).where(events.moment < _number(cutoff))
        query = sa.select(sessions.session_id).where(sessions.id.in_(old))
        ids = [restored(row[0]) for row in self._database.read(query, {})]
        return sum(self._database.write(partial(self._delete_older, id, cutoff)) for id in ids)

    def close(self) -> None:
        """Close the connections if they were opened for a URL."""
        self._database.close()

    def _sessions(self, condition: "sa.ColumnElement[bool]") -> list[Session]:
        table = self._tables.sessions
        query = sa.select(table).where(condition).order_by(table.c.created_at, table.c.id)
        return [_session_of(row) for row in self._database.read(query, {})]

    def _append(
        self, session_id: str, rows: list[dict[str, Any]], connection: sa.Connection
    ) -> bool:
        found = self._rows.advance(connection, session_id, len(rows))
        if found is None:
            raise missing_session(session_id)
        try:
            self._insert(connection, found, rows)
        except IntegrityError:  # the log contains one of the ids
            connection.rollback()
            return False
        return True

    def _insert(self, connection: sa.Connection, session: Any, rows: list[dict[str, Any]]) -> None:
        """Insert events at the end of a log whose length already includes them."""
        start = session.length - len(rows)
        numbered = [
            {**row, "session": session.id, "number": number}
            for number, row in enumerate(rows, start)
        ]
        connection.execute(sa.insert(self._tables.events), numbered)

    def _delete_older(self, session_id: str, cutoff: datetime, connection: sa.Connection) -> int:
        found = self._rows.advance(connection, session_id, 0)
        if found is None:  # deleted meanwhile
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

    def _compact(
        self,
        session_id: str,
        leaving: list[str],
        summary: list[dict[str, Any]] | None,
        expected: int,
        connection: sa.Connection,
    ) -> bool:
        found = self._rows.advance(connection, session_id, len(summary or ()))
        if found is None or found.version - 1 != expected:
            connection.rollback()
            return False
        events = self._tables.events
        mine = (events.c.session == found.id) & (events.c.archived == 0)
        archived = 0
        for at in range(0, len(leaving), _CHUNK):
            these = events.c.digest.in_(leaving[at : at + _CHUNK])
            change = sa.update(events).where(mine & these).values(archived=1)
            archived += connection.execute(change).rowcount
        if archived < len(leaving):
            connection.rollback()
            return False
        if summary is not None:
            before = mine & (events.c.synthetic == 1)
            connection.execute(sa.delete(events).where(before))
        if summary:
            self._insert(connection, found, summary)
        return True


# --- rows -----------------------------------------------------------------------------------


def _number(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND


def _moment(number: int) -> datetime:
    return _EPOCH + number * _MICROSECOND


def _row_of_session(session: Session) -> dict[str, Any]:
    return {
        "digest": digest(session.id),
        "session_id": storable(session.id),
        "user_digest": digest(session.user_id),
        "user_id": storable(session.user_id),
        "created_at": _number(session.created_at),
        "expires_at": None if session.expires_at is None else _number(session.expires_at),
        "metadata": as_json(session.metadata, "the metadata of a session", session.id),
    }


def _new_row(session: Session) -> dict[str, Any]:
    return {**_row_of_session(session), "version": 0, "length": 0}


def _session_of(row: "sa.Row[Any]") -> Session:
    return Session(
        restored(row.session_id),
        restored(row.user_id),
        _moment(row.created_at),
        None if row.expires_at is None else _moment(row.expires_at),
        loads(row.metadata),
    )


def _row_of_event(event: SessionEvent) -> dict[str, Any]:
    return {
        "digest": digest(event.id),
        "event_id": storable(event.id),
        "moment": _number(event.timestamp),
        "role": event.message.role,
        "branch": None if event.branch is None else storable(event.branch),
        "synthetic": int(event.synthetic),
        "archived": int(event.archived),
        "words": _searchable(event.message.text.casefold()),
        "message": message_json(event.message, event.session_id),
        "metadata": as_json(event.metadata, "the metadata of an event", event.session_id),
    }


def _event_of(row: "sa.Row[Any]") -> SessionEvent:
    return SessionEvent(
        restored(row.event_id),
        restored(row.session_id),
        _moment(row.moment),
        message_of(row.message),
        None if row.branch is None else restored(row.branch),
        loads(row.metadata),
        bool(row.synthetic),
        bool(row.archived),
    )


def _searchable(text: str) -> str:
    """Return *text* with characters replaced that some databases cannot store."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


# --- queries --------------------------------------------------------------------------------


def _events_of(rows: "Sequence[sa.Row[Any]]", filter: EventFilter) -> list[SessionEvent]:
    """Return the events of *rows* in order, after applying the regular expression."""
    if filter.last is not None and not filter.pattern:
        rows = rows[::-1]
    events = [_event_of(row) for row in rows]
    if not filter.pattern:
        return events
    return filter.limit([event for event in events if filter.matches_text(event.message.text)])


@lru_cache(maxsize=256)
def _query(
    tables: SessionTables, position: str, filter: EventFilter, whose: str
) -> "sa.Select[Any]":
    """Return the query for the matching events of the session or user with the digest `mine`."""
    sessions, events = tables.sessions, tables.events
    query = (
        sa.select(sessions.c.session_id, sessions.c.version, events)
        .join_from(sessions, events, events.c.session == sessions.c.id)
        .where(*_conditions(tables, position, filter))
    )
    if whose == "session":
        query = query.where(sessions.c.digest == sa.bindparam("mine"))
        order = [events.c.synthetic.desc(), events.c.number.asc()]
        backwards = [events.c.synthetic.asc(), events.c.number.desc()]
    else:
        query = query.where(sessions.c.user_digest == sa.bindparam("mine"))
        keys = (events.c.moment, events.c.session, events.c.number)
        order, backwards = [key.asc() for key in keys], [key.desc() for key in keys]
    if filter.pattern:  # applied to all rows afterwards
        return query.order_by(*order)
    if filter.last is not None:
        return query.order_by(*backwards).limit(min(filter.last, _MOST))
    query = query.order_by(*order)
    if filter.bounds is None:
        return query
    start, end = filter.bounds
    return query.slice(min(start, _MOST), min(end, _MOST))


def _conditions(
    tables: SessionTables, position: str, filter: EventFilter
) -> "list[sa.ColumnElement[bool]]":
    columns = tables.events.c
    conditions: list[sa.ColumnElement[bool]] = []
    if filter.since is not None:
        conditions.append(columns.moment >= _number(filter.since))
    if filter.until is not None:
        conditions.append(columns.moment <= _number(filter.until))
    if filter.roles is not None:
        conditions.append(columns.role.in_(sorted(filter.roles)))
    if filter.exclude_synthetic:
        conditions.append(columns.synthetic == 0)
    if filter.exclude_archived:
        conditions.append(columns.archived == 0)
    if filter.branch is not None:
        seen = [storable(branch) for branch in visible_branches(filter.branch)]
        conditions.append(columns.branch.is_(None) | columns.branch.in_(seen))
    contains = getattr(sa.func, position)
    conditions += [
        sa.or_(*(contains(columns.words, _searchable(term)) > 0 for term in group))
        for group in filter.terms
    ]
    return conditions
