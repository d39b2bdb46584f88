"""Sessions over a repository, as advisors and tools use them."""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Any
from uuid import uuid4

from chatclient.checks import check_kind, lasting
from chatclient.errors import ChatMemoryError, UsageError
from chatclient.json import dumps
from chatclient.memory.repository import checked_id
from chatclient.memory.sessions.compaction import (
    Compaction,
    CompactionStrategy,
    CompactionTrigger,
)
from chatclient.memory.sessions.event import Session, SessionEvent, now
from chatclient.memory.sessions.filter import ACTIVE, EVERYTHING, EventFilter
from chatclient.memory.sessions.repository import SessionRepository, no_session
from chatclient.messages import Message, UserMessage, as_messages
from chatclient.runtime import Runtime
from chatclient.values import EMPTY


class Sessions:
    """Sessions over a repository, for advisors and tools, which have a runtime.

    A session that has expired is treated as if it did not exist.

    Args:
        repository: Where they are kept.
        time_to_live: How long a session lasts after it was created, in seconds or as a
            `timedelta`, or None for ever.
        clock: Tells the time, in UTC.
    """

    def __init__(
        self,
        repository: SessionRepository,
        *,
        time_to_live: float | timedelta | None = timedelta(days=60),
        clock: Callable[[], datetime] = now,
    ) -> None:
        check_kind("a repository of sessions", repository, SessionRepository)
        self.repository = repository
        self.time_to_live = lasting("time_to_live", time_to_live)
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
        """Return a new session, or the one of this id that the user has already.

        Raises:
            UsageError: An id is blank, or the session belongs to another user.
        """
        created = self.clock()
        lasts = lasting("time_to_live", time_to_live) or self.time_to_live
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
        begun: datetime | None = None,
    ) -> tuple[SessionEvent, ...]:
        """Return the events that *messages* became in the log, as a unit; none if they were there.

        Args:
            session: Which session: its id, or itself where it has just been found.
            messages: What was said.
            runtime: How the request runs.
            key: Names the unit, so that it is appended once.
            branch: Which agent it was said by or to; None is the one that talks with the user.
            metadata: What the application knows about it.
            begun: When the user said what it begins with; default: now, like the rest of it.

        Raises:
            ChatMemoryError: There is no such session.
        """
        moment = self.clock()
        known = await self._known(session, runtime)
        if known is None:
            raise ChatMemoryError(no_session(str(session)), conversation_id=str(session))
        said = as_messages(messages)
        first = len(list(takewhile(lambda message: isinstance(message, UserMessage), said)))
        events = tuple(
            SessionEvent.of(
                known,
                message,
                id=None if key is None else _event_id(key, at, branch),
                timestamp=begun if begun is not None and at < first else moment,
                branch=branch,
                metadata=metadata,
            )
            for at, message in enumerate(said)
        )
        if not events or not await self.repository.append(known, events, runtime):
            return ()
        return events

    async def events(
        self, session: Session | str, runtime: Runtime, filter: EventFilter = EVERYTHING
    ) -> tuple[SessionEvent, ...]:
        """Return the events of a session, named or just found, that *filter* means."""
        known = await self._known(session, runtime)
        return () if known is None else (await self.repository.read(known, runtime, filter)).events

    async def search(
        self, user_id: str, runtime: Runtime, filter: EventFilter
    ) -> list[SessionEvent]:
        """Return what *filter* means of all of a user's sessions, the oldest first."""
        moment = self.clock()
        sessions = await self.repository.find_by_user(user_id, runtime)
        gone = {session.id for session in sessions if session.expired(moment)}
        if not gone:
            return await self.repository.search(user_id, runtime, filter)
        found = await self.repository.search(user_id, runtime, filter.uncut())
        return filter.cut([event for event in found if event.session_id not in gone])

    async def _known(self, session: Session | str, runtime: Runtime) -> str | None:
        """Return the id of a session that exists, or None."""
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
        """Return what compacting a session's log has changed, or None if nothing.

        Nothing is when it is not time, when the strategy leaves everything, and when somebody
        else has changed the log meanwhile: the next turn's compaction will see that too.
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

    async def delete_expired(self, runtime: Runtime) -> int:
        """Delete all sessions that have expired and return how many they were."""
        moment = self.clock()
        expired = await self.repository.find_expired(moment, runtime)
        deleted = [await self.repository.delete(id, runtime, expired=moment) for id in expired]
        return sum(deleted)


def _event_id(key: str, at: int, branch: str | None) -> str:
    """Return the id of an event of a unit; no two of other keys or branches have the same."""
    return f"{key}:{at}" if branch is None else dumps([key, branch, at]).decode()


def _owned(session: Session, user_id: str) -> Session:
    if session.user_id != user_id:
        msg = f"session {session.id!r} does not belong to user {user_id!r}"
        raise UsageError(msg)
    return session
