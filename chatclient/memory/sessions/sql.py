"""Sessions in an SQL database."""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from chatclient.errors import UsageError
from chatclient.memory.sessions.event import Session, SessionEvent
from chatclient.memory.sessions.filter import EVERYTHING, EventFilter
from chatclient.memory.sessions.repository import SessionLog, SessionRepository
from chatclient.runtime import Runtime

if TYPE_CHECKING:
    from sqlalchemy import URL, Engine


class SqlSessionRepository(SessionRepository):
    """Keeps sessions and their logs in the tables of an SQL database, through SQLAlchemy.

    Verified with SQLite, PostgreSQL and MariaDB. Each change is one transaction that begins with
    the session's row, so that changes of one session come one after another. Filters are applied
    by the database, but for regular expressions, which are applied to what it finds.

    Args:
        database: A URL such as `sqlite:///sessions.db`, `postgresql://user:password@host/name` or
            `mysql://user:password@host/name`, or an SQLAlchemy engine. What is opened for a URL
            is closed by `close`; an engine stays its owner's.
            One for SQLite in memory has to have one database for all threads.
        table_prefix: What the names of the tables begin with.
        create_schema: Whether missing tables are created, and older ones brought up to date, with
            the first operation. Several processes may do so at once.

    Raises:
        UsageError: The URL cannot be used, or SQLAlchemy or its driver is not installed.
    """

    def __init__(
        self,
        database: "str | URL | Engine" = "sqlite:///sessions.db",
        *,
        table_prefix: str = "chatclient_",
        create_schema: bool = True,
    ) -> None:
        try:
            from chatclient.memory.sessions.sql_logs import SqlLogs  # noqa: PLC0415 - an extra
        except ModuleNotFoundError as error:
            msg = "SQL needs SQLAlchemy; pip install 'chatclient[sql]' (or [postgres], [mysql])"
            raise UsageError(msg) from error
        self._logs = SqlLogs(database, table_prefix=table_prefix, create_schema=create_schema)

    async def create(self, session: Session, runtime: Runtime) -> bool:
        """Keep a new session."""
        return await runtime.finish(self._logs.create, session)

    async def save(self, session: Session, runtime: Runtime) -> None:
        """Keep what is known of a session, new or not."""
        await runtime.finish(self._logs.save, session)

    async def find(self, session_id: str, runtime: Runtime) -> Session | None:
        """Return a session, or None if there is none."""
        return await runtime.finish(self._logs.find, session_id)

    async def find_by_user(self, user_id: str, runtime: Runtime) -> list[Session]:
        """Return the sessions of a user, the oldest first."""
        return await runtime.finish(self._logs.find_by_user, user_id)

    async def find_expired(self, moment: datetime, runtime: Runtime) -> list[str]:
        """Return the ids of the sessions that are gone at *moment*."""
        return await runtime.finish(self._logs.find_expired, moment)

    async def delete(
        self, session_id: str, runtime: Runtime, *, expired: datetime | None = None
    ) -> bool:
        """Delete a session and its log."""
        return await runtime.finish(self._logs.delete, session_id, expired)

    async def append(
        self, session_id: str, events: Sequence[SessionEvent], runtime: Runtime
    ) -> bool:
        """Add *events* at the end of a session's log."""
        return await runtime.finish(self._logs.append, session_id, events)

    async def read(
        self, session_id: str, runtime: Runtime, filter: EventFilter = EVERYTHING
    ) -> SessionLog:
        """Return those events of a session that *filter* means."""
        return await runtime.finish(self._logs.read, session_id, filter)

    async def search(
        self, user_id: str, runtime: Runtime, filter: EventFilter = EVERYTHING
    ) -> list[SessionEvent]:
        """Return the events of all of a user's sessions that *filter* means."""
        return await runtime.finish(self._logs.search, user_id, filter)

    async def compact(
        self,
        session_id: str,
        archived: Sequence[str],
        summary: Sequence[SessionEvent] | None,
        expected: int,
        runtime: Runtime,
    ) -> bool:
        """Archive events and put a summary in the place of the one before."""
        return await runtime.finish(self._logs.compact, session_id, archived, summary, expected)

    def close(self) -> None:
        """Close the connections, if a URL was given."""
        self._logs.close()
