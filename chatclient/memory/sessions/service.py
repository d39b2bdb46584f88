"""`SessionService`: the operations on sessions for applications, blocking and async."""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, TypedDict, Unpack

from chatclient._internal.checks import checked_id
from chatclient.chat.messages import Message
from chatclient.memory.sessions.compaction import (
    Compaction,
    CompactionStrategy,
    CompactionTrigger,
)
from chatclient.memory.sessions.event import Content, Session, SessionEvent, contents_of, now
from chatclient.memory.sessions.filter import ACTIVE, MESSAGES, EventFilter
from chatclient.memory.sessions.repository import SessionLog, SessionRepository
from chatclient.memory.sessions.sessions import Sessions
from chatclient.runtime.blocking import drive
from chatclient.runtime.runtime import BLOCKING, ON_LOOP


class NewSession(TypedDict, total=False):
    """Optional arguments of `SessionService.create`.

    Attributes:
        session_id: The id; default: a random one that cannot be guessed.
        time_to_live: Time to expiry, in seconds or as a `timedelta`; default: the one of the
            service.
        metadata: JSON values of the application.
    """

    session_id: str | None
    time_to_live: float | timedelta | None
    metadata: Mapping[str, Any]


class NewEvents(TypedDict, total=False):
    """Optional arguments of `SessionService.append`.

    Attributes:
        key: Idempotency key: a second call with the same key and branch has no effect.
        branch: The agent that sent or received the messages; None for the root agent.
        metadata: JSON values of the application.
        expected_version: The version that the log must have: that of the `SessionLog` on which
            the new events are based. None for any.
    """

    key: str | None
    branch: str | None
    metadata: Mapping[str, Any]
    expected_version: int | None


class SessionService:
    """Operations on sessions; a method whose name begins with `a` is the async variant.

    Advisors and tools use the attribute `sessions`.

    Args:
        repository: The store.
        time_to_live: Default time from the creation to the expiry of a session, in seconds or
            as a `timedelta`, or None for no expiry.
        clock: Returns the current time in UTC.
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
        """Return a new session, or the existing session of the user with this id.

        Args:
            user_id: The owner.
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

    def find_by_metadata(self, name: str, value: str) -> list[Session]:
        """Return the sessions whose metadata has the text *value* as *name*, the oldest first.

        Raises:
            WrongTypeError: *value* is not a text; other values are not indexed.
        """
        return drive(self.sessions.with_metadata(name, value, BLOCKING))

    async def afind_by_metadata(self, name: str, value: str) -> list[Session]:
        """Return the sessions with this metadata; see `find_by_metadata`."""
        return await self.sessions.with_metadata(name, value, ON_LOOP)

    def append(
        self,
        session_id: str,
        *contents: Content | Iterable[Message],
        **how: Unpack[NewEvents],
    ) -> tuple[SessionEvent, ...]:
        """Append *contents* atomically and return their events; none if the key was used before.

        Args:
            session_id: The id of an existing session.
            *contents: Messages, collections of messages, and payloads of other types.
            **how: See `NewEvents`.

        Raises:
            VersionConflictError: The log has another version than `expected_version`.
            ChatMemoryError: The session does not exist.
            UsageError: A payload has a type of this library.
            WrongTypeError: One of *contents* is neither a message nor a payload, such as a text.
        """
        return drive(self.sessions.append(session_id, contents_of(contents), BLOCKING, **how))

    async def aappend(
        self,
        session_id: str,
        *contents: Content | Iterable[Message],
        **how: Unpack[NewEvents],
    ) -> tuple[SessionEvent, ...]:
        """Append *contents*; see `append`."""
        return await self.sessions.append(session_id, contents_of(contents), ON_LOOP, **how)

    def read(
        self, session_id: str, filter: EventFilter = MESSAGES, *, version: int | None = None
    ) -> SessionLog:
        """Return the events of a session that match *filter*, and the version of the log.

        Args:
            session_id: The session.
            filter: The filter; by default, all messages, also archived ones.
            version: An earlier version of the log: the result is what the same call returned
                then, apart from events that were deleted.
        """
        return drive(self.sessions.read(session_id, BLOCKING, filter, version=version))

    async def aread(
        self, session_id: str, filter: EventFilter = MESSAGES, *, version: int | None = None
    ) -> SessionLog:
        """Return the events of a session, and the version of the log; see `read`."""
        return await self.sessions.read(session_id, ON_LOOP, filter, version=version)

    def events(self, session_id: str, filter: EventFilter = MESSAGES) -> tuple[SessionEvent, ...]:
        """Return the events of a session that match *filter*; by default all messages."""
        return self.read(session_id, filter).events

    async def aevents(
        self, session_id: str, filter: EventFilter = MESSAGES
    ) -> tuple[SessionEvent, ...]:
        """Return the events of a session; see `events`."""
        return (await self.aread(session_id, filter)).events

    def messages(
        self, session_id: str, filter: EventFilter = ACTIVE, *, version: int | None = None
    ) -> tuple[Message, ...]:
        """Return the messages of a session that match *filter*; by default the active ones.

        Args:
            session_id: The session.
            filter: The filter.
            version: An earlier version of the log; see `read`.

        Raises:
            UsageError: *filter* selects events that are not messages.
        """
        return _messages_of(self.read(session_id, filter, version=version))

    async def amessages(
        self, session_id: str, filter: EventFilter = ACTIVE, *, version: int | None = None
    ) -> tuple[Message, ...]:
        """Return the messages of a session; see `messages`."""
        return _messages_of(await self.aread(session_id, filter, version=version))

    def search(self, user_id: str, filter: EventFilter) -> list[SessionEvent]:
        """Return the matching events of all sessions of a user, the oldest first.

        Raises:
            UsageError: *filter* asks for whole turns.
        """
        return drive(self.sessions.search(user_id, BLOCKING, filter))

    async def asearch(self, user_id: str, filter: EventFilter) -> list[SessionEvent]:
        """Return the matching events of all sessions of a user; see `search`."""
        return await self.sessions.search(user_id, ON_LOOP, filter)

    def compact(
        self, session_id: str, trigger: CompactionTrigger, strategy: CompactionStrategy
    ) -> Compaction | None:
        """Compact the log of a session and return the change, or None if there is none.

        Raises:
            ChatClientError: *strategy* failed; the log is unchanged.
        """
        return drive(self.sessions.compact(session_id, trigger, strategy, BLOCKING))

    async def acompact(
        self, session_id: str, trigger: CompactionTrigger, strategy: CompactionStrategy
    ) -> Compaction | None:
        """Compact the log of a session; see `compact`."""
        return await self.sessions.compact(session_id, trigger, strategy, ON_LOOP)

    def delete(self, session_id: str) -> bool:
        """Delete a session with its log; return whether it existed.

        Raises:
            UsageError: The id is blank.
        """
        return drive(self.sessions.repository.delete(checked_id(session_id), BLOCKING))

    async def adelete(self, session_id: str) -> bool:
        """Delete a session with its log; see `delete`."""
        return await self.sessions.repository.delete(checked_id(session_id), ON_LOOP)

    def delete_older_than(self, cutoff: datetime) -> int:
        """Delete the events before *cutoff* in all sessions, and return their number.

        Turns are deleted as a whole, archived or not, so that each log stays valid.

        Raises:
            UsageError: *cutoff* has no time zone, or the repository cannot delete single events.
        """
        return drive(self.sessions.delete_older(cutoff, BLOCKING))

    async def adelete_older_than(self, cutoff: datetime) -> int:
        """Delete the events before *cutoff*; see `delete_older_than`."""
        return await self.sessions.delete_older(cutoff, ON_LOOP)

    def delete_expired(self) -> int:
        """Delete all expired sessions and return their number."""
        return drive(self.sessions.delete_expired(BLOCKING))

    async def adelete_expired(self) -> int:
        """Delete all expired sessions and return their number."""
        return await self.sessions.delete_expired(ON_LOOP)


def _messages_of(log: SessionLog) -> tuple[Message, ...]:
    return tuple(event.message for event in log.events)
