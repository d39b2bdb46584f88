"""Where sessions are kept: the contract of a repository."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from chatclient.closing import Closeable
from chatclient.errors import UsageError
from chatclient.memory.sessions.event import Session, SessionEvent
from chatclient.memory.sessions.filter import EVERYTHING, EventFilter
from chatclient.runtime import Runtime


@dataclass(frozen=True, slots=True)
class SessionLog:
    """Events of a session, and the state of it that they were read in.

    Attributes:
        events: Those that were asked for: synthetic ones first, then in the order of the log.
        version: Changes with every change of the log. 0 while nothing has been appended, and for
            a session that does not exist.
    """

    events: tuple[SessionEvent, ...] = ()
    version: int = 0


class SessionRepository(Closeable, ABC):
    """Keeps sessions, and for each a log of events that only grows.

    An implementor writes the coroutines below, which serve blocking and asynchronous callers
    alike and do all waiting through the runtime they are given: a plain driver is reached with
    `await runtime.finish(function, ...)`. Each of them happens as a whole or not at all, whoever
    else works on the same session, and what has returned has happened.
    """

    @abstractmethod
    async def create(self, session: Session, runtime: Runtime) -> bool:
        """Keep a new session.

        Returns:
            Whether that was done; False when there is one of its id, which stays as it is.
        """

    @abstractmethod
    async def save(self, session: Session, runtime: Runtime) -> None:
        """Keep what is known of a session, new or not; its log stays as it is."""

    @abstractmethod
    async def find(self, session_id: str, runtime: Runtime) -> Session | None:
        """Return a session, or None if there is none; also one that has expired."""

    @abstractmethod
    async def find_by_user(self, user_id: str, runtime: Runtime) -> list[Session]:
        """Return the sessions of a user, the oldest first."""

    @abstractmethod
    async def find_expired(self, moment: datetime, runtime: Runtime) -> list[str]:
        """Return the ids of the sessions that are gone at *moment*."""

    @abstractmethod
    async def delete(
        self, session_id: str, runtime: Runtime, *, expired: datetime | None = None
    ) -> bool:
        """Delete a session and its log.

        Args:
            session_id: Which session.
            runtime: How the request runs.
            expired: Leave it unless it is gone at this moment. So one that somebody has renewed
                meanwhile stays.

        Returns:
            Whether it was deleted.
        """

    @abstractmethod
    async def append(
        self, session_id: str, events: Sequence[SessionEvent], runtime: Runtime
    ) -> bool:
        """Add *events* at the end of a session's log, as a unit.

        Returns:
            Whether they were added. False when the log has any of their ids already: then this is
            a repetition, and nothing is added.

        Raises:
            ChatMemoryError: There is no such session.
            UsageError: An event is of another session, or two have the same id.
        """

    @abstractmethod
    async def read(
        self, session_id: str, runtime: Runtime, filter: EventFilter = EVERYTHING
    ) -> SessionLog:
        """Return those events of a session that *filter* means, with the log's version."""

    @abstractmethod
    async def search(
        self, user_id: str, runtime: Runtime, filter: EventFilter = EVERYTHING
    ) -> list[SessionEvent]:
        """Return the events of all of a user's sessions that *filter* means, the oldest first."""

    @abstractmethod
    async def compact(
        self,
        session_id: str,
        archived: Sequence[str],
        summary: Sequence[SessionEvent] | None,
        expected: int,
        runtime: Runtime,
    ) -> bool:
        """Archive events and put a summary in the place of the one before.

        What was archived before stays so.

        Args:
            session_id: Which session.
            archived: The ids of the events to archive, which are in the log and active.
            summary: New synthetic events, which replace all others there are; None leaves those.
            expected: The version that the log must still have.
            runtime: How the request runs.

        Returns:
            Whether that was done; False when the log has another version by now, or has not all
            of these events.
        """


def no_session(session_id: str) -> str:
    """Return what to say when there is no such session."""
    return f"there is no session {session_id!r}; create it first"


def checked_events(session_id: str, events: Sequence[SessionEvent]) -> Sequence[SessionEvent]:
    """Return *events* once it is known that they can be appended to a session's log together.

    Raises:
        UsageError: One belongs to another session, or two have the same id.
    """
    strays = sorted({e.session_id for e in events if e.session_id != session_id})
    if strays:
        msg = f"events of the sessions {strays} do not belong in the log of {session_id!r}"
        raise UsageError(msg)
    if len({event.id for event in events}) < len(events):
        msg = "two events of one unit have the same id; give each an id of its own"
        raise UsageError(msg)
    return events
