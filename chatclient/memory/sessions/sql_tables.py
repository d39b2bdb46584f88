"""The tables of `SqlSessionRepository`; imports SQLAlchemy."""

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.schema import CreateColumn

from chatclient.memory.encoding import restored
from chatclient.memory.sessions.event import COMPACTION, MESSAGE, EventPayload, SessionEvent
from chatclient.memory.sessions.sql_rows import ARCHIVED, index_rows, row_of_event, session_of
from chatclient.memory.sql.schema import BIG_KEY, LONG_TEXT, TABLE_OPTIONS, create_tables


@dataclass(frozen=True, slots=True)
class SessionTables:
    """The tables of sessions. Events of a log count from 0; times are microseconds since 1970."""

    sessions: sa.Table
    events: sa.Table
    index: sa.Table

    @classmethod
    def named(cls, prefix: str) -> "SessionTables":
        """Return the tables with names that begin with *prefix*."""
        metadata = sa.MetaData()
        sessions = _sessions(prefix, metadata)
        events = _events(prefix, metadata, sessions)
        return cls(sessions, events, _index(prefix, metadata, sessions))

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
        if indexed := index_rows(session_of(row)):
            connection.execute(sa.delete(self.index).where(self.index.c.session == row.id))
            connection.execute(sa.insert(self.index), [{**it, "session": row.id} for it in indexed])
        events = self.events.c
        mine = events.session == row.id
        archived = sa.select(events.event_id).where(mine & (events.archived == ARCHIVED))
        ids = [restored(id) for id in connection.scalars(archived.order_by(events.number))]
        compactions = sa.select(events.number).where(mine & (events.type == COMPACTION))
        if not ids or connection.scalar(compactions.limit(1)) is not None:  # done before a crash
            return
        payload = EventPayload(COMPACTION, {"archived": ids, "strategy": "upgrade"})
        event = row_of_event(SessionEvent.of(restored(row.session_id), payload))
        place = {"session": row.id, "number": row.length}
        connection.execute(sa.insert(self.events), {**event, **place})
        longer = sa.update(self.sessions).where(self.sessions.c.id == row.id)
        connection.execute(longer.values(length=row.length + 1))


def _sessions(prefix: str, metadata: sa.MetaData) -> sa.Table:
    return sa.Table(
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


def _events(prefix: str, metadata: sa.MetaData, sessions: sa.Table) -> sa.Table:
    session = sa.ForeignKey(sessions.c.id, ondelete="CASCADE")
    return sa.Table(
        f"{prefix}session_event",
        metadata,
        sa.Column("session", BIG_KEY, session, primary_key=True, autoincrement=False),
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


def _index(prefix: str, metadata: sa.MetaData, sessions: sa.Table) -> sa.Table:
    session = sa.ForeignKey(sessions.c.id, ondelete="CASCADE")
    return sa.Table(
        f"{prefix}session_index",
        metadata,
        sa.Column("session", BIG_KEY, session, primary_key=True, autoincrement=False),
        sa.Column("entry", sa.String(64), primary_key=True),
        sa.Index(f"{prefix}session_index_entry", "entry"),
        **TABLE_OPTIONS,
    )
