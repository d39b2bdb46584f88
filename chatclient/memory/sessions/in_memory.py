"""`InMemorySessionRepository`: sessions in a dictionary of this process."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from heapq import merge

from chatclient.memory.sessions.event import Session, SessionEvent, older_events
from chatclient.memory.sessions.filter import EVERYTHING, EventFilter
from chatclient.memory.sessions.repository import (
    SessionLog,
    SessionRepository,
    checked_events,
    missing_session,
)
from chatclient.runtime.fork_safety import ForkSafeLock
from chatclient.runtime.runtime import Runtime

_Numbered = tuple[int, SessionEvent]


@dataclass(frozen=True, slots=True)
class _State:
    """One state of a session: active and archived events with their numbers in the log.

    Successive states share `ids`, which only grows and may, after an interrupt (Ctrl-C), contain
    ids of events that were not appended. Only `active` and `archived` are authoritative.
    """

    session: Session
    version: int = 0
    active: tuple[_Numbered, ...] = ()
    archived: tuple[_Numbered, ...] = ()
    ids: set[str] = field(default_factory=set)

    def log(self, filter: EventFilter) -> list[SessionEvent]:
        """Return the events that *filter* may select, in the order of the log."""
        if filter.exclude_archived:
            return [event for _, event in self.active]
        return [event for _, event in merge(self.archived, self.active, key=lambda it: it[0])]

    def holds_any(self, ids: Collection[str]) -> bool:
        """Return whether the log contains one of *ids*."""
        if self.ids.isdisjoint(ids):  # the usual case
            return False
        return any(event.id in ids for _, event in (*self.active, *self.archived))


class InMemorySessionRepository(SessionRepository):
    """Stores sessions in a dictionary, for tests and single-process applications.

    Threads and event loops may share an instance. Each change replaces an immutable state.
    """

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        self._states: dict[str, _State] = {}

    async def create(self, session: Session, runtime: Runtime) -> bool:  # noqa: ARG002
        """Store a new session."""
        with self._lock:
            state = _State(session)
            return self._states.setdefault(session.id, state) is state

    async def save(self, session: Session, runtime: Runtime) -> None:  # noqa: ARG002
        """Create or update a session."""
        with self._lock:
            state = self._states.get(session.id)
            self._states[session.id] = replace(state, session=session) if state else _State(session)

    async def find(self, session_id: str, runtime: Runtime) -> Session | None:  # noqa: ARG002
        """Return a session, or None if it does not exist."""
        state = self._states.get(session_id)
        return state.session if state else None

    async def find_by_user(self, user_id: str, runtime: Runtime) -> list[Session]:  # noqa: ARG002
        """Return the sessions of a user, the oldest first."""
        return sorted(
            (state.session for state in self._of_user(user_id)), key=lambda it: it.created_at
        )

    async def find_expired(self, moment: datetime, runtime: Runtime) -> list[str]:  # noqa: ARG002
        """Return the ids of the sessions that have expired at *moment*."""
        with self._lock:
            return [
                state.session.id for state in self._states.values() if state.session.expired(moment)
            ]

    async def delete(
        self,
        session_id: str,
        runtime: Runtime,  # noqa: ARG002
        *,
        expired: datetime | None = None,
    ) -> bool:
        """Delete a session and its log."""
        with self._lock:
            state = self._states.get(session_id)
            if state is None or (expired is not None and not state.session.expired(expired)):
                return False
            del self._states[session_id]
            return True

    async def append(
        self,
        session_id: str,
        events: Sequence[SessionEvent],
        runtime: Runtime,  # noqa: ARG002
    ) -> bool:
        """Append *events* to the log of a session."""
        events = checked_events(session_id, tuple(events))
        with self._lock:
            state = self._states.get(session_id)
            if state is None:
                raise missing_session(session_id)
            ids = {event.id for event in events}
            if state.holds_any(ids):
                return False
            added = tuple(enumerate(events, state.version))
            version = state.version + len(events)
            state.ids.update(ids)
            self._states[session_id] = replace(state, version=version, active=state.active + added)
            return True

    async def read(
        self,
        session_id: str,
        runtime: Runtime,  # noqa: ARG002
        filter: EventFilter = EVERYTHING,
    ) -> SessionLog:
        """Return the events of a session that match *filter*."""
        state = self._states.get(session_id)
        if state is None:
            return SessionLog()
        return SessionLog(tuple(filter.apply(state.log(filter))), state.version)

    async def search(
        self,
        user_id: str,
        runtime: Runtime,  # noqa: ARG002
        filter: EventFilter = EVERYTHING,
    ) -> list[SessionEvent]:
        """Return the matching events of all sessions of a user."""
        logs = (state.log(filter) for state in self._of_user(user_id))
        found = [event for log in logs for event in log if filter(event)]
        return filter.limit(sorted(found, key=lambda event: event.timestamp))

    async def compact(
        self,
        session_id: str,
        archived: Sequence[str],
        summary: Sequence[SessionEvent] | None,
        expected: int,
        runtime: Runtime,  # noqa: ARG002
    ) -> bool:
        """Archive events, and replace the active synthetic events."""
        with self._lock:
            state = self._states.get(session_id)
            if state is None or state.version != expected:
                return False
            ids = set(archived)
            leaving = tuple((at, e.as_archived()) for at, e in state.active if e.id in ids)
            if len(leaving) < len(ids):
                return False
            staying = tuple(
                (at, e)
                for at, e in state.active
                if e.id not in ids and (summary is None or not e.synthetic)
            )
            state.ids.update(event.id for event in summary or ())
            self._states[session_id] = replace(
                state,
                version=state.version + 1 + len(summary or ()),
                active=(*staying, *enumerate(summary or (), state.version)),
                archived=tuple(merge(state.archived, leaving, key=lambda it: it[0])),
            )
            return True

    async def delete_older(self, cutoff: datetime, runtime: Runtime) -> int:  # noqa: ARG002
        """Delete the events of old turns, and return their number."""
        deleted = 0
        with self._lock:
            for id, state in self._states.items():
                gone = {event.id for event in older_events(state.log(EVERYTHING), cutoff)}
                if gone:
                    deleted += len(gone)
                    self._states[id] = replace(
                        state,
                        version=state.version + 1,
                        active=tuple(it for it in state.active if it[1].id not in gone),
                        archived=tuple(it for it in state.archived if it[1].id not in gone),
                    )
        return deleted

    def _of_user(self, user_id: str) -> list[_State]:
        with self._lock:
            return [state for state in self._states.values() if state.session.user_id == user_id]
