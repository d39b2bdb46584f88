"""`Sessions`: the operations on sessions, for advisors and tools."""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Any
from uuid import uuid4

from chatclient._internal.checks import check_moment, check_type, checked_id, duration
from chatclient._internal.frozen import EMPTY
from chatclient._internal.json import dumps
from chatclient.chat.messages import Message, UserMessage, as_messages
from chatclient.errors import UsageError
from chatclient.memory.encoding import stamped
from chatclient.memory.sessions.compaction import (
    Compaction,
    CompactionStrategy,
    CompactionTrigger,
)
from chatclient.memory.sessions.event import (
    Session,
    SessionEvent,
    checked_branch,
    now,
)
from chatclient.memory.sessions.filter import ACTIVE, EVERYTHING, EventFilter
from chatclient.memory.sessions.repository import SessionRepository, missing_session
from chatclient.runtime.runtime import Runtime


class Sessions:
    """Operations on sessions for callers with a runtime, such as advisors and tools.

    An expired session is treated as if it did not exist.

    Args:
        repository: The store.
        time_to_live: Time from the creation to the expiry of a session, in seconds or as a
            `timedelta`, or None for no expiry.
        clock: Returns the current time in UTC.
    """

    def __init__(
        self,
        repository: SessionRepository,
        *,
        time_to_live: float | timedelta | None = timedelta(days=60),
        clock: Callable[[], datetime] = now,
    ) -> None:
        check_type("a repository of sessions", repository, SessionRepository)
        self.repository = repository
        self.time_to_live = duration("time_to_live", time_to_live)
        self.clock = clock

    async def create(
        self,
        user_id: str,
        runtime: Runtime,
        *,
        session_id: str | None = None,
        time_to_live: float | timedelta | None = None,
        metadata: Mapping[str, Any] = EMPTY,
    ) -> Session:
        """Return a new session, or the existing session of the user with this id.

        Raises:
            UsageError: An id is blank, or the session belongs to another user.
        """
        created = self.clock()
        lasts = duration("time_to_live", time_to_live) or self.time_to_live
        expires = None if lasts is None else created + lasts
        session = Session(session_id or uuid4().hex, user_id, created, expires, metadata)
        while not await self.repository.create(session, runtime):
            present = await self.repository.find(session.id, runtime)
            if present is None:
                continue
            if not present.expired(created):
                return _owned(present, user_id)
            await self.repository.delete(session.id, runtime, expired=created)
        return session

    async def find(self, session_id: str, runtime: Runtime) -> Session | None:
        """Return a session, or None if there is none or it has expired."""
        session = await self.repository.find(checked_id(session_id), runtime)
        return None if session is None or session.expired(self.clock()) else session

    async def of_user(self, user_id: str, runtime: Runtime) -> list[Session]:
        """Return a user's sessions, the oldest first."""
        moment = self.clock()
        found = await self.repository.find_by_user(user_id, runtime)
        return [session for session in found if not session.expired(moment)]

    async def append(
        self,
        session: Session | str,
        messages: Iterable[Message],
        runtime: Runtime,
        *,
        key: str | None = None,
        branch: str | None = None,
        metadata: Mapping[str, Any] = EMPTY,
        started_at: datetime | None = None,
    ) -> tuple[SessionEvent, ...]:
        """Append *messages* atomically and return their events; none if *key* was used before.

        Args:
            session: The id of the session, or the session if it was just loaded.
            messages: The messages.
            runtime: The runtime of the request.
            key: Idempotency key: a second call with the same key and branch has no effect.
            branch: The agent that sent or received them; None for the root agent.
            metadata: JSON values of the application.
            started_at: The time of the leading user messages; default: the current time.

        Raises:
            ChatMemoryError: The session does not exist.
        """
        branch = checked_branch(branch)
        moment = self.clock()
        known = await self._known(session, runtime)
        if known is None:
            raise missing_session(str(session))
        several = stamped(as_messages(messages), moment)
        questions = len(list(takewhile(lambda m: isinstance(m, UserMessage), several)))
        events = tuple(
            SessionEvent.of(
                known,
                message,
                id=None if key is None else _event_id(key, at, branch),
                timestamp=started_at if started_at is not None and at < questions else moment,
                branch=branch,
                metadata=metadata,
            )
            for at, message in enumerate(several)
        )
        if not events or not await self.repository.append(known, events, runtime):
            return ()
        return events

    async def events(
        self, session: Session | str, runtime: Runtime, filter: EventFilter = EVERYTHING
    ) -> tuple[SessionEvent, ...]:
        """Return the events of a session, given by id or just loaded, that match *filter*."""
        known = await self._known(session, runtime)
        return () if known is None else (await self.repository.read(known, runtime, filter)).events

    async def search(
        self, user_id: str, runtime: Runtime, filter: EventFilter
    ) -> list[SessionEvent]:
        """Return the matching events of all sessions of a user, the oldest first."""
        moment = self.clock()
        sessions = await self.repository.find_by_user(user_id, runtime)
        expired = {session.id for session in sessions if session.expired(moment)}
        if not expired:
            return await self.repository.search(user_id, runtime, filter)
        found = await self.repository.search(user_id, runtime, filter.without_limits())
        return filter.limit([event for event in found if event.session_id not in expired])

    async def _known(self, session: Session | str, runtime: Runtime) -> str | None:
        """Return the id of *session*, or None if it does not exist."""
        if isinstance(session, Session):
            return session.id
        return None if await self.find(session, runtime) is None else session

    async def compact(
        self,
        session_id: str,
        trigger: CompactionTrigger,
        strategy: CompactionStrategy,
        runtime: Runtime,
    ) -> Compaction | None:
        """Compact the log of a session and return the change, or None.

        The result is None if *trigger* or *strategy* requires no change, and if the log was
        changed concurrently; then the compaction after the next turn tries again.
        """
        log = await self.repository.read(session_id, runtime, ACTIVE)
        if not trigger(log.events):
            return None
        compaction = await strategy(log.events, runtime)
        if compaction is None or not compaction.archived:
            return None
        ids = [event.id for event in compaction.archived]
        done = await self.repository.compact(
            session_id, ids, compaction.summary, log.version, runtime
        )
        return compaction if done else None

    async def delete_older(self, cutoff: datetime, runtime: Runtime) -> int:
        """Delete the events of old turns, archived or not, and return their number.

        Raises:
            UsageError: *cutoff* has no time zone, or the store cannot delete single events.
        """
        check_type("cutoff", cutoff, datetime)
        check_moment("cutoff", cutoff)
        return await self.repository.delete_older(cutoff, runtime)

    async def delete_expired(self, runtime: Runtime) -> int:
        """Delete all expired sessions and return their number."""
        moment = self.clock()
        expired = await self.repository.find_expired(moment, runtime)
        deleted = [await self.repository.delete(id, runtime, expired=moment) for id in expired]
        return sum(deleted)


def _event_id(key: str, at: int, branch: str | None) -> str:
    """Return the id of the event at index *at*, unique for the key and branch."""
    return f"{key}:{at}" if branch is None else dumps([key, branch, at]).decode()


def _owned(session: Session, user_id: str) -> Session:
    if session.user_id != user_id:
        msg = f"session {session.id!r} does not belong to user {user_id!r}"
        raise UsageError(msg)
    return session
