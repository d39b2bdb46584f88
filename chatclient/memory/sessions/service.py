"""`SessionService`: the operations on sessions for applications, blocking and async."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypedDict, Unpack

from chatclient._internal.checks import checked_id
from chatclient.chat.messages import Message, flat_messages
from chatclient.memory.sessions.compaction import (
    Compaction,
    CompactionStrategy,
    CompactionTrigger,
)
from chatclient.memory.sessions.event import Session, SessionEvent, now
from chatclient.memory.sessions.filter import ACTIVE, EVERYTHING, EventFilter
from chatclient.memory.sessions.repository import SessionRepository
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
    """

    key: str | None
    branch: str | None
    metadata: Mapping[str, Any]


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

    def append(
        self, session_id: str, *messages: Message | Iterable[Message], **how: Unpack[NewEvents]
    ) -> tuple[SessionEvent, ...]:
        """Append *messages* atomically and return their events; none if the key was used before.

        Args:
            session_id: The id of an existing session.
            *messages: Messages or collections of messages.
            **how: See `NewEvents`.

        Raises:
            ChatMemoryError: The session does not exist.
            WrongTypeError: One of *messages* is not a message, for example a text.
        """
        return drive(self.sessions.append(session_id, flat_messages(messages), BLOCKING, **how))

    async def aappend(
        self, session_id: str, *messages: Message | Iterable[Message], **how: Unpack[NewEvents]
    ) -> tuple[SessionEvent, ...]:
        """Append *messages*; see `append`."""
        return await self.sessions.append(session_id, flat_messages(messages), ON_LOOP, **how)

    def events(self, session_id: str, filter: EventFilter = EVERYTHING) -> tuple[SessionEvent, ...]:
        """Return the events of a session that match *filter*; by default also archived ones."""
        return drive(self.sessions.events(session_id, BLOCKING, filter))

    async def aevents(
        self, session_id: str, filter: EventFilter = EVERYTHING
    ) -> tuple[SessionEvent, ...]:
        """Return the events of a session; see `events`."""
        return await self.sessions.events(session_id, ON_LOOP, filter)

    def messages(self, session_id: str, filter: EventFilter = ACTIVE) -> tuple[Message, ...]:
        """Return the messages of a session that match *filter*; by default the active ones."""
        return _messages_of(self.events(session_id, filter))

    async def amessages(self, session_id: str, filter: EventFilter = ACTIVE) -> tuple[Message, ...]:
        """Return the messages of a session; see `messages`."""
        return _messages_of(await self.aevents(session_id, filter))

    def search(self, user_id: str, filter: EventFilter) -> list[SessionEvent]:
        """Return the matching events of all sessions of a user, the oldest first."""
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


def _messages_of(events: Sequence[SessionEvent]) -> tuple[Message, ...]:
    return tuple(event.message for event in events)
