"""`SessionRepository`: the contract of a store for sessions."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from chatclient._internal.closeable import Closeable
from chatclient.errors import ChatMemoryError, UsageError, VersionConflictError
from chatclient.memory.sessions.event import Session, SessionEvent
from chatclient.memory.sessions.filter import EVERYTHING, EventFilter
from chatclient.runtime.runtime import Runtime


@dataclass(frozen=True, slots=True)
class SessionLog:
    """Selected events of a session, and the version of its log.

    Attributes:
        events: The events, in the order of the log; a view begins with its summaries.
        version: Increased by each change of the log, by an append at the number of its events. 0
            for an empty log and for a session that does not exist.
    """

    events: tuple[SessionEvent, ...] = ()
    version: int = 0


class SessionRepository(Closeable, ABC):
    """Stores sessions, each with an append-only log of events.

    Implement the coroutines below. They serve blocking and async callers and wait only through
    the given runtime; call a blocking driver with `await runtime.finish(function, ...)`. Each
    operation is atomic, isolated from concurrent ones, and permanent when it returns.
    """

    @abstractmethod
    async def create(self, session: Session, runtime: Runtime) -> bool:
        """Store a new session.

        Returns:
            Whether it was stored; False if the id exists, and then nothing is changed.
        """

    @abstractmethod
    async def save(self, session: Session, runtime: Runtime) -> None:
        """Create or update a session, without its log."""

    @abstractmethod
    async def find(self, session_id: str, runtime: Runtime) -> Session | None:
        """Return a session, even if it has expired, or None if it does not exist."""

    @abstractmethod
    async def find_by_user(self, user_id: str, runtime: Runtime) -> list[Session]:
        """Return the sessions of a user, the oldest first."""

    @abstractmethod
    async def find_by_metadata(self, name: str, value: str, runtime: Runtime) -> list[Session]:
        """Return the sessions whose metadata has the text *value* as *name*, the oldest first.

        This uses an index, of `Session.indexed`.
        """

    @abstractmethod
    async def find_expired(self, moment: datetime, runtime: Runtime) -> list[str]:
        """Return the ids of the sessions that have expired at *moment*."""

    @abstractmethod
    async def delete(
        self, session_id: str, runtime: Runtime, *, expired: datetime | None = None
    ) -> bool:
        """Delete a session and its log.

        Args:
            session_id: The session.
            runtime: The runtime of the request.
            expired: Delete it only if it has expired at this time, so that a session that was
                renewed concurrently is kept.

        Returns:
            Whether it was deleted.
        """

    @abstractmethod
    async def append(
        self,
        session_id: str,
        events: Sequence[SessionEvent],
        runtime: Runtime,
        *,
        expected: int | None = None,
    ) -> bool:
        """Append *events* to the log of a session.

        A `COMPACTION` event among them archives the messages in its `archived`, and shows those in
        its `restored` again, for all later reads; their events are not changed.

        Args:
            session_id: The session.
            events: The events.
            runtime: The runtime of the request.
            expected: The required version of the log; None for any.

        Returns:
            Whether they were appended; False if the log contains one of their ids, because then
            this is a repetition, whatever the version is.

        Raises:
            VersionConflictError: The log has another version than *expected*.
            ChatMemoryError: The session does not exist.
            UsageError: An event has another session id, or two have the same id.
        """

    @abstractmethod
    async def read(
        self,
        session_id: str,
        runtime: Runtime,
        filter: EventFilter = EVERYTHING,
        *,
        until: int | None = None,
    ) -> SessionLog:
        """Return the events of a session that match *filter*, and the version of the log.

        Args:
            session_id: The session.
            runtime: The runtime of the request.
            filter: The filter. `complete_turns` is left to the caller, `Sessions`, and may be
                ignored.
            until: A version of the log: later events are not returned. Whether an event is
                archived depends on the present version nevertheless.
        """

    @abstractmethod
    async def search(
        self, user_id: str, runtime: Runtime, filter: EventFilter = EVERYTHING
    ) -> list[SessionEvent]:
        """Return the matching events of all sessions of a user, the oldest first."""

    async def delete_older(self, cutoff: datetime, runtime: Runtime) -> int:  # noqa: ARG002
        """Delete the events of turns before *cutoff* in all logs; see `older_events`.

        Optional: a repository without it only deletes whole sessions.

        Returns:
            The number of deleted events. The version of each changed log increases.
        """
        msg = f"{type(self).__name__} cannot delete single events, only whole sessions"
        raise UsageError(msg)


def missing_session(session_id: str) -> ChatMemoryError:
    """Return the error for a session that does not exist."""
    msg = f"there is no session {session_id!r}; create it first"
    return ChatMemoryError(msg, conversation_id=session_id)


def version_conflict(session_id: str, expected: int, actual: int) -> VersionConflictError:
    """Return the error for a log that has another version than expected."""
    msg = (
        f"the log of session {session_id!r} has version {actual}, not {expected}: it was changed "
        "meanwhile; read it again"
    )
    return VersionConflictError(msg, conversation_id=session_id, expected=expected, actual=actual)


def checked_events(session_id: str, events: Sequence[SessionEvent]) -> Sequence[SessionEvent]:
    """Return *events* after checking that they can be appended to the log of a session.

    Raises:
        UsageError: One has another session id, or two have the same id.
    """
    strays = sorted({e.session_id for e in events if e.session_id != session_id})
    if strays:
        msg = f"events of the sessions {strays} do not belong in the log of {session_id!r}"
        raise UsageError(msg)
    if len({event.id for event in events}) < len(events):
        msg = "two events have the same id; give each event a unique id"
        raise UsageError(msg)
    return events
