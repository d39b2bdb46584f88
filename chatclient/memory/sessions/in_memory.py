"""`InMemorySessionRepository`: sessions in a dictionary of this process."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from heapq import merge

from chatclient.memory.sessions.event import Session, SessionEvent
from chatclient.memory.sessions.log import (
    EVERYTHING,
    EventFilter,
    SessionLog,
    SessionRepository,
    archive_changes,
    checked_events,
    missing_session,
    older_events,
    version_conflict,
)
from chatclient.runtime.runtime import Runtime
from chatclient.runtime.threads import ForkSafeLock

_Numbered = tuple[int, SessionEvent]


def _number(numbered: _Numbered) -> int:
    return numbered[0]


@dataclass(frozen=True, slots=True)
class _State:
    """One state of a session: archived events and the others, with their numbers in the log.

    Successive states share `ids`, which only grows and may, after an interrupt (Ctrl-C), contain
    ids of events that were not appended. Only `active` and `archived` are authoritative.
    Events that are not messages are never archived.
    """

    session: Session
    version: int = 0
    active: tuple[_Numbered, ...] = ()
    archived: tuple[_Numbered, ...] = ()
    ids: set[str] = field(default_factory=set)

    def log(self, filter: EventFilter, until: int | None = None) -> list[SessionEvent]:
        """Return the events that *filter* may select, in the order of the log."""
        end = self.version if until is None else until
        if filter.exclude_archived:
            return [event for at, event in self.active if at < end]
        every = merge(self.archived, self.active, key=_number)
        return [event for at, event in every if at < end]

    def holds_any(self, ids: Collection[str]) -> bool:
        """Return whether the log contains one of *ids*."""
        if self.ids.isdisjoint(ids):  # the usual case
            return False
        return any(event.id in ids for _, event in (*self.active, *self.archived))

    def with_events(self, events: Sequence[SessionEvent]) -> "_State":
        """Return the state with *events* at the end of the log."""
        changes = archive_changes(events)
        self.ids.update(event.id for event in events)
        active = (*self.active, *enumerate(events, self.version))
        archived = self.archived
        if changes:
            marked = [
                (at, event.with_archived(archived=changes.get(event.id, event.archived)))
                for at, event in merge(archived, active, key=_number)
            ]
            archived = tuple(numbered for numbered in marked if numbered[1].archived)
            active = tuple(numbered for numbered in marked if not numbered[1].archived)
        version = self.version + len(events)
        return replace(self, version=version, active=active, archived=archived)


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
        return self._oldest_first(state.session for state in self._of_user(user_id))

    async def find_by_metadata(
        self,
        name: str,
        value: str,
        runtime: Runtime,  # noqa: ARG002
    ) -> list[Session]:
        """Return the sessions with this metadata, the oldest first."""
        with self._lock:
            sessions = [state.session for state in self._states.values()]
        return self._oldest_first(each for each in sessions if (name, value) in each.indexed)

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
        *,
        expected: int | None = None,
    ) -> bool:
        """Append *events* to the log of a session."""
        events = checked_events(session_id, tuple(events))
        with self._lock:
            state = self._states.get(session_id)
            if state is None:
                raise missing_session(session_id)
            if state.holds_any({event.id for event in events}):
                return False
            if expected is not None and expected != state.version:
                raise version_conflict(session_id, expected, state.version)
            self._states[session_id] = state.with_events(events)
            return True

    async def read(
        self,
        session_id: str,
        runtime: Runtime,  # noqa: ARG002
        filter: EventFilter = EVERYTHING,
        *,
        until: int | None = None,
    ) -> SessionLog:
        """Return the events of a session that match *filter*."""
        state = self._states.get(session_id)
        if state is None:
            return SessionLog()
        return SessionLog(tuple(filter.apply(state.log(filter, until))), state.version)

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

    @staticmethod
    def _oldest_first(sessions: Iterable[Session]) -> list[Session]:
        return sorted(sessions, key=lambda session: session.created_at)

    def _of_user(self, user_id: str) -> list[_State]:
        with self._lock:
            return [state for state in self._states.values() if state.session.user_id == user_id]
