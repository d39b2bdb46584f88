"""The queries of `SqlSessionRepository`; imports SQLAlchemy."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache, partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from chatclient._internal.json import dumps
from chatclient.memory.encoding import digest, entry_digest, microseconds, restored, storable
from chatclient.memory.sessions.event import MESSAGE, Session, SessionEvent, visible_branches
from chatclient.memory.sessions.filter import EventFilter
from chatclient.memory.sessions.repository import (
    SessionLog,
    checked_events,
    missing_session,
    version_conflict,
)
from chatclient.memory.sessions.sql_rows import (
    ACTIVE,
    ARCHIVED,
    event_of,
    index_rows,
    new_row,
    row_of_event,
    row_of_session,
    searchable,
    session_of,
)
from chatclient.memory.sessions.sql_tables import SessionTables
from chatclient.memory.sessions.turns import archive_changes, older_events
from chatclient.memory.sql.database import Database, VersionedRows
from chatclient.memory.sql.errors import LostRaceError
from chatclient.memory.sql.schema import Schema

_CHUNK = 500  # maximum number of ids in one statement
_MOST = 2**62  # maximum LIMIT and OFFSET that all databases accept
_LAST = 2**31 - 1  # maximum number of an event


class SqlLogs:
    """The operations of `SqlSessionRepository`, each in one transaction."""

    def __init__(
        self, database: "str | sa.URL | sa.Engine", *, table_prefix: str, create_schema: bool
    ) -> None:
        self._tables = tables = SessionTables.named(table_prefix)
        schema = Schema(
            "sessions", [tables.create, tables.add_types], prefix=table_prefix, create=create_schema
        )
        self._database = Database(database, schema)
        dialect = self._database.engine.dialect
        self._position = "strpos" if dialect.name == "postgresql" else "instr"
        self._rows = VersionedRows(tables.sessions, tables.sessions.c.expires_at)

    def create(self, session: Session) -> bool:
        """Store a new session."""

        def work(connection: sa.Connection) -> bool:
            try:
                self._insert_session(connection, session)
            except IntegrityError:
                connection.rollback()
                return False
            return True

        return self._database.write(work)

    def save(self, session: Session) -> None:
        """Create or update a session."""
        table, index = self._tables.sessions, self._tables.index
        row = row_of_session(session)
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

        self._database.write(work)

    def find(self, session_id: str) -> Session | None:
        """Return a session, or None if it does not exist."""
        found = self._sessions(self._tables.sessions.c.digest == digest(session_id))
        return found[0] if found else None

    def find_by_user(self, user_id: str) -> list[Session]:
        """Return the sessions of a user, the oldest first."""
        return self._sessions(self._tables.sessions.c.user_digest == digest(user_id))

    def find_by_metadata(self, name: str, value: str) -> list[Session]:
        """Return the sessions with this metadata, the oldest first."""
        index = self._tables.index.c
        found = sa.select(index.session).where(index.entry == entry_digest(name, value))
        return self._sessions(self._tables.sessions.c.id.in_(found))

    def find_expired(self, moment: datetime) -> list[str]:
        """Return the ids of the sessions that have expired at *moment*."""
        table = self._tables.sessions
        query = sa.select(table.c.session_id).where(table.c.expires_at <= microseconds(moment))
        return [restored(row[0]) for row in self._database.read(query, {})]

    def delete(self, session_id: str, expired: datetime | None) -> bool:
        """Delete a session and its log."""
        tables = self._tables

        def work(connection: sa.Connection) -> bool:
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

        return self._database.write(work)

    def append(self, session_id: str, events: Sequence[SessionEvent], expected: int | None) -> bool:
        """Append *events* to the log of a session."""
        rows = [row_of_event(event) for event in checked_events(session_id, events)]
        if not rows:
            return True
        changes = archive_changes(events)
        return self._database.write(partial(self._append, session_id, rows, changes, expected))

    def read(self, session_id: str, filter: EventFilter, until: int | None) -> SessionLog:
        """Return the events of a session that match *filter*."""
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

    def search(self, user_id: str, filter: EventFilter) -> list[SessionEvent]:
        """Return the matching events of all sessions of a user."""
        mine = {"mine": digest(user_id)}
        query = _query(self._tables, self._position, filter, "user")
        return _events_of(self._database.read(query, mine), filter)

    def delete_older(self, cutoff: datetime) -> int:
        """Delete the events of old turns, each log in a transaction; return their number."""
        sessions, events = self._tables.sessions.c, self._tables.events.c
        old = sa.select(events.session).where(events.moment < microseconds(cutoff))
        query = sa.select(sessions.session_id).where(sessions.id.in_(old))
        ids = [restored(row[0]) for row in self._database.read(query, {})]
        return sum(self._database.write(partial(self._delete_older, id, cutoff)) for id in ids)

    def close(self) -> None:
        """Close the connections if they were opened for a URL."""
        self._database.close()

    def _sessions(self, condition: "sa.ColumnElement[bool]") -> list[Session]:
        table = self._tables.sessions
        query = sa.select(table).where(condition).order_by(table.c.created_at, table.c.id)
        return [session_of(row) for row in self._database.read(query, {})]

    def _insert_session(self, connection: sa.Connection, session: Session) -> None:
        insert = sa.insert(self._tables.sessions).values(new_row(session))
        key: Any = connection.execute(insert).inserted_primary_key
        self._index(connection, key[0], session)

    def _index(self, connection: sa.Connection, number: Any, session: Session) -> None:
        """Add the metadata of the session with this row number to the index."""
        rows = [{**row, "session": number} for row in index_rows(session)]
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
            repeated = self._holds_any(connection, found.id, rows)
            connection.rollback()
            if repeated:
                return False
            raise version_conflict(session_id, expected, actual)
        try:
            self._insert(connection, found, rows)
        except IntegrityError:  # the log contains one of the ids
            connection.rollback()
            return False
        self._archive(connection, found.id, changes)
        return True

    def _holds_any(self, connection: sa.Connection, session: int, rows: list[Any]) -> bool:
        events = self._tables.events.c
        these = events.digest.in_([row["digest"] for row in rows])
        query = sa.select(events.number).where((events.session == session) & these).limit(1)
        return connection.scalar(query) is not None

    def _archive(
        self, connection: sa.Connection, session: int, changes: Mapping[str, bool]
    ) -> None:
        events = self._tables.events
        for before, after in ((ACTIVE, ARCHIVED), (ARCHIVED, ACTIVE)):
            digests = sorted(digest(id) for id, to in changes.items() if to == (after == ARCHIVED))
            mine = (events.c.session == session) & (events.c.archived == before)
            for at in range(0, len(digests), _CHUNK):
                these = events.c.digest.in_(digests[at : at + _CHUNK])
                connection.execute(sa.update(events).where(mine & these).values(archived=after))

    def _insert(self, connection: sa.Connection, session: Any, rows: list[dict[str, Any]]) -> None:
        """Insert events at the end of a log whose length already includes them."""
        start = session.length - len(rows)
        numbered = [
            {**row, "session": session.id, "number": number}
            for number, row in enumerate(rows, start)
        ]
        connection.execute(sa.insert(self._tables.events), numbered)

    def _delete_older(self, session_id: str, cutoff: datetime, connection: sa.Connection) -> int:
        found = self._rows.advance(connection, session_id, 1)  # a new version
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
        log = [event_of(row) for row in connection.execute(query)]
        gone = [digest(event.id) for event in older_events(log, cutoff)]
        for at in range(0, len(gone), _CHUNK):
            these = events.c.digest.in_(gone[at : at + _CHUNK])
            connection.execute(sa.delete(events).where(mine & these))
        return len(gone)


def _events_of(rows: "Sequence[sa.Row[Any]]", filter: EventFilter) -> list[SessionEvent]:
    """Return the events of *rows* in order, after applying conditions that SQL lacks."""
    if not _is_filtered_later(filter):
        return [event_of(row) for row in (rows if filter.last is None else rows[::-1])]
    return filter.limit([event for event in map(event_of, rows) if filter(event)])


def _is_filtered_later(filter: EventFilter) -> bool:
    return bool(filter.pattern) or filter.message_id is not None


@lru_cache(maxsize=256)
def _query(
    tables: SessionTables, position: str, filter: EventFilter, whose: str
) -> "sa.Select[Any]":
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
    tables: SessionTables, position: str, filter: EventFilter
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
        hidden = columns.archived != ACTIVE if only_messages else columns.archived == ARCHIVED
        conditions.append(~hidden)
    if filter.branch is not None:
        seen = [storable(branch) for branch in visible_branches(filter.branch)]
        conditions.append(columns.branch.is_(None) | columns.branch.in_(seen))
    contains = getattr(sa.func, position)
    if filter.message_id is not None:  # its JSON may occur elsewhere in the message
        conditions.append(contains(columns.message, dumps(filter.message_id).decode()) > 0)
    conditions += [
        sa.or_(*(contains(columns.words, searchable(term)) > 0 for term in group))
        for group in filter.terms
    ]
    return conditions
