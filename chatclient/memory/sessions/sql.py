"""`SqlSessionRepository`: sessions in an SQL database."""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from chatclient._internal.extras import needed_by
from chatclient.memory.sessions.event import Session, SessionEvent
from chatclient.memory.sessions.filter import EVERYTHING, EventFilter
from chatclient.memory.sessions.repository import SessionLog, SessionRepository
from chatclient.runtime.runtime import Runtime

if TYPE_CHECKING:
    from sqlalchemy import URL, Engine


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
        database: "str | URL | Engine" = "sqlite:///sessions.db",
        *,
        table_prefix: str = "chatclient_",
        create_schema: bool = True,
    ) -> None:
        with needed_by("SqlSessionRepository"):
            from chatclient.memory.sessions.sql_logs import SqlLogs  # noqa: PLC0415 - an extra
        self._logs = SqlLogs(database, table_prefix=table_prefix, create_schema=create_schema)

    async def create(self, session: Session, runtime: Runtime) -> bool:
        """Store a new session."""
        return await runtime.finish(self._logs.create, session)

    async def save(self, session: Session, runtime: Runtime) -> None:
        """Create or update a session."""
        await runtime.finish(self._logs.save, session)

    async def find(self, session_id: str, runtime: Runtime) -> Session | None:
        """Return a session, or None if it does not exist."""
        return await runtime.finish(self._logs.find, session_id)

    async def find_by_user(self, user_id: str, runtime: Runtime) -> list[Session]:
        """Return the sessions of a user, the oldest first."""
        return await runtime.finish(self._logs.find_by_user, user_id)

    async def find_by_metadata(self, name: str, value: str, runtime: Runtime) -> list[Session]:
        """Return the sessions with this metadata, the oldest first."""
        return await runtime.finish(self._logs.find_by_metadata, name, value)

    async def find_expired(self, moment: datetime, runtime: Runtime) -> list[str]:
        """Return the ids of the sessions that have expired at *moment*."""
        return await runtime.finish(self._logs.find_expired, moment)

    async def delete(
        self, session_id: str, runtime: Runtime, *, expired: datetime | None = None
    ) -> bool:
        """Delete a session and its log."""
        return await runtime.finish(self._logs.delete, session_id, expired)

    async def append(
        self,
        session_id: str,
        events: Sequence[SessionEvent],
        runtime: Runtime,
        *,
        expected: int | None = None,
    ) -> bool:
        """Append *events* to the log of a session."""
        return await runtime.finish(self._logs.append, session_id, events, expected)

    async def read(
        self,
        session_id: str,
        runtime: Runtime,
        filter: EventFilter = EVERYTHING,
        *,
        until: int | None = None,
    ) -> SessionLog:
        """Return the events of a session that match *filter*."""
        return await runtime.finish(self._logs.read, session_id, filter, until)

    async def search(
        self, user_id: str, runtime: Runtime, filter: EventFilter = EVERYTHING
    ) -> list[SessionEvent]:
        """Return the matching events of all sessions of a user."""
        return await runtime.finish(self._logs.search, user_id, filter)

    async def delete_older(self, cutoff: datetime, runtime: Runtime) -> int:
        """Delete the events of old turns, and return their number."""
        return await runtime.finish(self._logs.delete_older, cutoff)

    def close(self) -> None:
        """Close the connections if they were opened for a URL."""
        self._logs.close()
