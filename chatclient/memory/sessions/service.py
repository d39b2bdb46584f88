"""Sessions as applications use them: blocking and asynchronous."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypedDict, Unpack

from chatclient.driving import drive
from chatclient.memory.repository import checked_id
from chatclient.memory.sessions.compaction import (
    Compaction,
    CompactionStrategy,
    CompactionTrigger,
)
from chatclient.memory.sessions.event import Session, SessionEvent, now
from chatclient.memory.sessions.filter import ACTIVE, EVERYTHING, EventFilter
from chatclient.memory.sessions.repository import SessionRepository
from chatclient.memory.sessions.sessions import Sessions
from chatclient.messages import Message, flat_messages
from chatclient.runtime import BLOCKING, ON_LOOP


class NewSession(TypedDict, total=False):
    """What can be said of a new session.

    Attributes:
        session_id: What it is called; default: something that nobody can guess.
        time_to_live: How long it lasts, in seconds or as a `timedelta`; default: as long as the
            service's sessions do.
        metadata: What the application knows about it.
    """

    session_id: str | None
    time_to_live: float | timedelta | None
    metadata: Mapping[str, Any]


class NewEvents(TypedDict, total=False):
    """What can be said of what is appended to a log.

    Attributes:
        key: Names the unit, so that it is appended once.
        branch: Which agent it was said by or to; None is the one that talks with the user.
        metadata: What the application knows about it.
    """

    key: str | None
    branch: str | None
    metadata: Mapping[str, Any]


class SessionService:
    """Sessions for applications: blocking, and with an `a` before the name asynchronous.

    `sessions` is what advisors and tools use of it.

    Args:
        repository: Where sessions are kept.
        time_to_live: How long a session lasts after it was created, in seconds or as a
            `timedelta`, unless told otherwise when it is, or None for ever.
        clock: Tells the time, in UTC.
    """

    def __init__(
        self,
        repository: SessionRepository,
        *,
        time_to_live: float | timedelta | None = timedelta(days=60),
        clock: Callable[[], datetime] = now,
    ) -> None:
        self.sessions = Sessions(repository, time_to_live=time_to_live, clock=clock)

    def create(self, user_id: str, **how: Unpack[NewSession]) -> Session:
        """Return a new session, or the one of this id that the user has already.

        Args:
            user_id: Whose it is.
            **how: See `NewSession`.

        Raises:
            UsageError: An id is blank, or the session belongs to another user.
        """
        return drive(self.sessions.create(user_id, BLOCKING, **how))

    async def acreate(self, user_id: str, **how: Unpack[NewSession]) -> Session:
        """Return a new session; see `create`."""
        return await self.sessions.create(user_id, ON_LOOP, **how)

    def find(self, session_id: str) -> Session | None:
        """Return a session, or None if there is none or it has expired."""
        return drive(self.sessions.find(session_id, BLOCKING))

    async def afind(self, session_id: str) -> Session | None:
        """Return a session, or None if there is none or it has expired."""
        return await self.sessions.find(session_id, ON_LOOP)

    def sessions_of(self, user_id: str) -> list[Session]:
        """Return a user's sessions, the oldest first."""
        return drive(self.sessions.of_user(user_id, BLOCKING))

    async def asessions_of(self, user_id: str) -> list[Session]:
        """Return a user's sessions, the oldest first."""
        return await self.sessions.of_user(user_id, ON_LOOP)

    def append(
        self, session_id: str, *messages: Message | Iterable[Message], **how: Unpack[NewEvents]
    ) -> tuple[SessionEvent, ...]:
        """Return the events that *messages* became in the log; none if they were there already.

        Args:
            session_id: Which session; it has to exist.
            *messages: What was said, as a unit; one by one or in collections.
            **how: See `NewEvents`.

        Raises:
            ChatMemoryError: There is no such session.
            WrongTypeError: One of *messages* is something else, such as a text.
        """
        return drive(self.sessions.append(session_id, flat_messages(messages), BLOCKING, **how))

    async def aappend(
        self, session_id: str, *messages: Message | Iterable[Message], **how: Unpack[NewEvents]
    ) -> tuple[SessionEvent, ...]:
        """Return the events that *messages* became in the log; see `append`."""
        return await self.sessions.append(session_id, flat_messages(messages), ON_LOOP, **how)

    def events(self, session_id: str, filter: EventFilter = EVERYTHING) -> tuple[SessionEvent, ...]:
        """Return the events of a session that *filter* means; archived ones too, unless it says."""
        return drive(self.sessions.events(session_id, BLOCKING, filter))

    async def aevents(
        self, session_id: str, filter: EventFilter = EVERYTHING
    ) -> tuple[SessionEvent, ...]:
        """Return the events of a session that *filter* means; see `events`."""
        return await self.sessions.events(session_id, ON_LOOP, filter)

    def messages(self, session_id: str, filter: EventFilter = ACTIVE) -> tuple[Message, ...]:
        """Return what a session's active events say, or those that *filter* means."""
        return _said(self.events(session_id, filter))

    async def amessages(self, session_id: str, filter: EventFilter = ACTIVE) -> tuple[Message, ...]:
        """Return what a session's active events say; see `messages`."""
        return _said(await self.aevents(session_id, filter))

    def search(self, user_id: str, filter: EventFilter) -> list[SessionEvent]:
        """Return what *filter* means of all of a user's sessions, the oldest first."""
        return drive(self.sessions.search(user_id, BLOCKING, filter))

    async def asearch(self, user_id: str, filter: EventFilter) -> list[SessionEvent]:
        """Return what *filter* means of all of a user's sessions; see `search`."""
        return await self.sessions.search(user_id, ON_LOOP, filter)

    def compact(
        self, session_id: str, trigger: CompactionTrigger, strategy: CompactionStrategy
    ) -> Compaction | None:
        """Return what compacting a session's log has changed, or None if nothing has.

        Raises:
            ChatClientError: What the strategy raises; the log is as it was.
        """
        return drive(self.sessions.compact(session_id, trigger, strategy, BLOCKING))

    async def acompact(
        self, session_id: str, trigger: CompactionTrigger, strategy: CompactionStrategy
    ) -> Compaction | None:
        """Return what compacting a session's log has changed; see `compact`."""
        return await self.sessions.compact(session_id, trigger, strategy, ON_LOOP)

    def delete(self, session_id: str) -> bool:
        """Delete a session with its log; return whether there was one.

        Raises:
            UsageError: The id is blank.
        """
        return drive(self.sessions.repository.delete(checked_id(session_id), BLOCKING))

    async def adelete(self, session_id: str) -> bool:
        """Delete a session with its log; see `delete`."""
        return await self.sessions.repository.delete(checked_id(session_id), ON_LOOP)

    def delete_expired(self) -> int:
        """Delete all sessions that have expired and return how many they were."""
        return drive(self.sessions.delete_expired(BLOCKING))

    async def adelete_expired(self) -> int:
        """Delete all sessions that have expired and return how many they were."""
        return await self.sessions.delete_expired(ON_LOOP)


def _said(events: Sequence[SessionEvent]) -> tuple[Message, ...]:
    return tuple(event.message for event in events)
