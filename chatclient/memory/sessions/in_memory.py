"""Sessions in the memory of this process."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from heapq import merge

from chatclient.errors import ChatMemoryError
from chatclient.forks import ForkSafeLock
from chatclient.memory.sessions.event import Session, SessionEvent
from chatclient.memory.sessions.filter import EVERYTHING, EventFilter
from chatclient.memory.sessions.repository import (
    SessionLog,
    SessionRepository,
    checked_events,
    no_session,
)
from chatclient.runtime import Runtime

_Numbered = tuple[int, SessionEvent]


@dataclass(frozen=True, slots=True)
class _Kept:
    """A session with its log, whose events are numbered; what is archived is kept apart.

    The states of a session share the ids, which only grow: there may be some of events that an
    interrupt (Ctrl-C) has kept from coming, so the log itself says what it holds.
    """

    session: Session
    version: int = 0
    active: tuple[_Numbered, ...] = ()
    archived: tuple[_Numbered, ...] = ()
    ids: set[str] = field(default_factory=set)

    def log(self, filter: EventFilter) -> list[SessionEvent]:
        """Return what *filter* may mean, in the order of the log."""
        if filter.exclude_archived:
            return [event for _, event in self.active]
        return [event for _, event in merge(self.archived, self.active, key=lambda it: it[0])]

    def holds_any(self, ids: Collection[str]) -> bool:
        """Return whether an event of one of *ids* is in the log."""
        if self.ids.isdisjoint(ids):  # as nearly always
            return False
        return any(event.id in ids for _, event in (*self.active, *self.archived))


class InMemorySessionRepository(SessionRepository):
    """Keeps sessions in a dictionary, for tests and for applications of one process.

    Threads and event loops may share one. Every change puts a new value in the place of the old.
    """

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        self._kept: dict[str, _Kept] = {}

    async def create(self, session: Session, runtime: Runtime) -> bool:  # noqa: ARG002
        """Keep a new session."""
        with self._lock:
            kept = _Kept(session)
            return self._kept.setdefault(session.id, kept) is kept

    async def save(self, session: Session, runtime: Runtime) -> None:  # noqa: ARG002
        """Keep what is known of a session, new or not."""
        with self._lock:
            kept = self._kept.get(session.id)
            self._kept[session.id] = replace(kept, session=session) if kept else _Kept(session)

    async def find(self, session_id: str, runtime: Runtime) -> Session | None:  # noqa: ARG002
        """Return a session, or None if there is none."""
        kept = self._kept.get(session_id)
        return kept.session if kept else None

    async def find_by_user(self, user_id: str, runtime: Runtime) -> list[Session]:  # noqa: ARG002
        """Return the sessions of a user, the oldest first."""
        return sorted(
            (kept.session for kept in self._of_user(user_id)), key=lambda it: it.created_at
        )

    async def find_expired(self, moment: datetime, runtime: Runtime) -> list[str]:  # noqa: ARG002
        """Return the ids of the sessions that are gone at *moment*."""
        with self._lock:
            return [kept.session.id for kept in self._kept.values() if kept.session.expired(moment)]

    async def delete(
        self,
        session_id: str,
        runtime: Runtime,  # noqa: ARG002
        *,
        expired: datetime | None = None,
    ) -> bool:
        """Delete a session and its log."""
        with self._lock:
            kept = self._kept.get(session_id)
            if kept is None or (expired is not None and not kept.session.expired(expired)):
                return False
            del self._kept[session_id]
            return True

    async def append(
        self,
        session_id: str,
        events: Sequence[SessionEvent],
        runtime: Runtime,  # noqa: ARG002
    ) -> bool:
        """Add *events* at the end of a session's log."""
        events = checked_events(session_id, tuple(events))
        with self._lock:
            kept = self._kept.get(session_id)
            if kept is None:
                raise ChatMemoryError(no_session(session_id), conversation_id=session_id)
            ids = {event.id for event in events}
            if kept.holds_any(ids):
                return False
            added = tuple(enumerate(events, kept.version))
            version = kept.version + len(events)
            kept.ids.update(ids)
            self._kept[session_id] = replace(kept, version=version, active=kept.active + added)
            return True

    async def read(
        self,
        session_id: str,
        runtime: Runtime,  # noqa: ARG002
        filter: EventFilter = EVERYTHING,
    ) -> SessionLog:
        """Return those events of a session that *filter* means."""
        kept = self._kept.get(session_id)
        if kept is None:
            return SessionLog()
        return SessionLog(tuple(filter.apply(kept.log(filter))), kept.version)

    async def search(
        self,
        user_id: str,
        runtime: Runtime,  # noqa: ARG002
        filter: EventFilter = EVERYTHING,
    ) -> list[SessionEvent]:
        """Return the events of all of a user's sessions that *filter* means."""
        logs = (kept.log(filter) for kept in self._of_user(user_id))
        found = [event for log in logs for event in log if filter(event)]
        return filter.cut(sorted(found, key=lambda event: event.timestamp))

    async def compact(
        self,
        session_id: str,
        archived: Sequence[str],
        summary: Sequence[SessionEvent] | None,
        expected: int,
        runtime: Runtime,  # noqa: ARG002
    ) -> bool:
        """Archive events and put a summary in the place of the one before."""
        with self._lock:
            kept = self._kept.get(session_id)
            if kept is None or kept.version != expected:
                return False
            away = set(archived)
            leaving = tuple((at, e.as_archived()) for at, e in kept.active if e.id in away)
            if len(leaving) < len(away):
                return False
            staying = tuple(
                (at, e)
                for at, e in kept.active
                if e.id not in away and (summary is None or not e.synthetic)
            )
            kept.ids.update(event.id for event in summary or ())
            self._kept[session_id] = replace(
                kept,
                version=kept.version + 1 + len(summary or ()),
                active=(*staying, *enumerate(summary or (), kept.version)),
                archived=tuple(merge(kept.archived, leaving, key=lambda it: it[0])),
            )
            return True

    def _of_user(self, user_id: str) -> list[_Kept]:
        with self._lock:
            return [kept for kept in self._kept.values() if kept.session.user_id == user_id]
