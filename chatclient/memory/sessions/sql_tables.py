"""The tables of `SqlSessionRepository`; imports SQLAlchemy."""

from dataclasses import dataclass

import sqlalchemy as sa

from chatclient.memory.sql.schema import BIG_KEY, LONG_TEXT, TABLE_OPTIONS, create_tables


@dataclass(frozen=True, slots=True)
class SessionTables:
    """The tables of sessions. Events of a log count from 0; times are microseconds since 1970."""

    sessions: sa.Table
    events: sa.Table

    @classmethod
    def named(cls, prefix: str) -> "SessionTables":
        """Return the tables with names that begin with *prefix*."""
        metadata = sa.MetaData()
        sessions = _sessions(prefix, metadata)
        return cls(sessions, _events(prefix, metadata, sessions))

    def create(self, connection: sa.Connection) -> None:
        """Create the tables and indexes that do not exist."""
        create_tables(connection, self.sessions, self.events)


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
        sa.Column("length", sa.Integer, nullable=False),
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
