"""`SessionService`: the operations on sessions; `Sessions`: the same for advisors and tools."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Any, TypedDict, Unpack
from uuid import uuid4

from chatclient._internal.checks import (
    check_moment,
    check_number,
    check_type,
    checked_id,
    duration,
)
from chatclient._internal.frozen import EMPTY
from chatclient._internal.json import dumps
from chatclient.chat.messages import Message, UserMessage
from chatclient.errors import UsageError, VersionConflictError
from chatclient.memory.encoding import stamped
from chatclient.memory.sessions.compaction import (
    Compaction,
    CompactionStrategy,
    CompactionTrigger,
)
from chatclient.memory.sessions.event import (
    COMPACTION,
    Content,
    EventPayload,
    Session,
    SessionEvent,
    checked_branch,
    contents_of,
    now,
)
from chatclient.memory.sessions.log import (
    ACTIVE,
    EVERYTHING,
    MESSAGES,
    EventFilter,
    SessionLog,
    SessionRepository,
    is_in_turn,
    missing_session,
    replayed,
    rewinding,
)
from chatclient.runtime.blocking import drive
from chatclient.runtime.runtime import BLOCKING, ON_LOOP, Runtime


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
            UsageError: An id is blank, or it is the session of another user.
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
                if present.user_id != user_id:
                    msg = f"session {session.id!r} does not belong to user {user_id!r}"
                    raise UsageError(msg)
                return present
            # Only if it is still expired, because another request may have renewed it.
            await self.repository.delete(session.id, runtime, expired=created)
        return session

    async def find(self, session_id: str, runtime: Runtime) -> Session | None:
        """Return a session, or None if there is none or it has expired."""
        session = await self.repository.find(checked_id(session_id), runtime)
        return None if session is None or session.expired(self.clock()) else session

    async def of_user(self, user_id: str, runtime: Runtime) -> list[Session]:
        """Return a user's sessions, the oldest first."""
        return self._unexpired(await self.repository.find_by_user(user_id, runtime))

    async def with_metadata(self, name: str, value: str, runtime: Runtime) -> list[Session]:
        """Return the sessions whose metadata has the text *value* as *name*, the oldest first.

        Raises:
            WrongTypeError: One of the two is not a text; only texts are indexed.
        """
        check_type("the name of metadata", name, str)
        check_type("the value of metadata", value, str, "only texts are indexed")
        return self._unexpired(await self.repository.find_by_metadata(name, value, runtime))

    def _unexpired(self, sessions: list[Session]) -> list[Session]:
        moment = self.clock()
        return [session for session in sessions if not session.expired(moment)]

    async def append(
        self,
        session: Session | str,
        contents: Iterable[Content],
        runtime: Runtime,
        *,
        key: str | None = None,
        branch: str | None = None,
        metadata: Mapping[str, Any] = EMPTY,
        expected_version: int | None = None,
        started_at: datetime | None = None,
    ) -> tuple[SessionEvent, ...]:
        """Append *contents* atomically and return their events; none if *key* was used before.

        Args:
            session: The id of the session, or the session if it was just loaded.
            contents: Messages and payloads.
            runtime: The runtime of the request.
            key: Idempotency key: a second call with the same key and branch has no effect.
            branch: The agent that sent or received them; None for the root agent.
            metadata: JSON values of the application.
            expected_version: The version that the log must have, or None for any.
            started_at: The time of the leading user messages; default: the current time.

        Raises:
            VersionConflictError: The log has another version.
            ChatMemoryError: The session does not exist.
            UsageError: A payload has a type of this library.
        """
        branch = checked_branch(branch)
        moment = self.clock()
        known = await self._known(session, runtime)
        if known is None:
            raise missing_session(str(session))
        several: list[Content] = []
        for each in contents:
            if isinstance(each, Message):
                several += stamped((each,), moment)
                continue
            if each.type == COMPACTION:
                msg = f"only compact() appends events of type {each.type!r}; use a type of your own"
                raise UsageError(msg)
            several.append(each)
        questions = len(list(takewhile(lambda each: isinstance(each, UserMessage), several)))
        ids: list[str | None] = [None] * len(several)
        if key is not None:  # unique for the key and branch
            ids = [
                f"{key}:{at}" if branch is None else dumps([key, branch, at]).decode()
                for at in range(len(several))
            ]
        events = tuple(
            SessionEvent.of(
                known,
                content,
                id=ids[at],
                timestamp=started_at if started_at is not None and at < questions else moment,
                branch=branch,
                metadata=metadata,
            )
            for at, content in enumerate(several)
        )
        if not events:
            return ()
        append = self.repository.append(known, events, runtime, expected=expected_version)
        return events if await append else ()

    async def read(
        self,
        session: Session | str,
        runtime: Runtime,
        filter: EventFilter = MESSAGES,
        *,
        version: int | None = None,
    ) -> SessionLog:
        """Return the events of a session that match *filter*, and the version of the log.

        Args:
            session: The session, given by id or just loaded.
            runtime: The runtime of the request.
            filter: The filter.
            version: An earlier version of the log: the result is what the same call returned
                then, apart from events that were deleted.

        Raises:
            UsageError: *version* is negative or not a number.
        """
        if version is not None:
            check_type("version", version, int)
            check_number("version", version, least=0)
        known = await self._known(session, runtime)
        if known is None:
            return SessionLog()
        if version is not None:
            log = await self.repository.read(known, runtime, EVERYTHING, until=version)
            events = filter.apply(replayed(log.events))
            return SessionLog(tuple(events), min(version, log.version))
        if not filter.complete_turns:
            return await self.repository.read(known, runtime, filter)
        return await self._complete_turns(known, runtime, filter)

    async def _complete_turns(
        self, session_id: str, runtime: Runtime, filter: EventFilter
    ) -> SessionLog:
        """Return the selected turns, and the version of the log.

        With `last` alone, more and more of the newest events are read until the first selected
        turn is complete; other conditions may select turns anywhere in the log.
        """
        scope = filter.without_selection()
        only_last = filter == replace(scope, last=filter.last, complete_turns=True)
        count = filter.last if only_last else None
        while True:
            log = await self.repository.read(session_id, runtime, replace(scope, last=count))
            events = filter.apply(log.events)
            oldest = next((event for event in log.events if is_in_turn(event)), None)
            if count is None or len(log.events) < count or oldest not in events:
                return SessionLog(tuple(events), log.version)
            count *= 2

    async def search(
        self, user_id: str, runtime: Runtime, filter: EventFilter
    ) -> list[SessionEvent]:
        """Return the matching events of all sessions of a user, the oldest first.

        Raises:
            UsageError: *filter* asks for complete turns.
        """
        if filter.complete_turns:
            msg = (
                "a search finds single events; read the turns of a session with complete_turns=True"
            )
            raise UsageError(msg)
        moment = self.clock()
        sessions = await self.repository.find_by_user(user_id, runtime)
        expired = {session.id for session in sessions if session.expired(moment)}
        if not expired:
            return await self.repository.search(user_id, runtime, filter)
        # Events of expired sessions are left out first, so that they do not use up the limit.
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

        The change is appended to the log: an event of type `COMPACTION`, then the summary.

        The result is None if *trigger* or *strategy* requires no change, and if the log was
        changed concurrently; then the compaction after the next turn tries again.

        Raises:
            UsageError: The strategy archives events that are not active.
        """
        log = await self.repository.read(session_id, runtime, ACTIVE)
        if not trigger(log.events):
            return None
        compaction = await strategy(log.events, runtime)
        if compaction is None or not compaction.archived:
            return None
        source = getattr(strategy, "__name__", type(strategy).__name__)
        ids = [event.id for event in compaction.archived]
        # A new summary replaces the earlier ones.
        if compaction.summary is not None:
            ids += [event.id for event in log.events if event.synthetic and event.id not in ids]
        strange = set(ids) - {event.id for event in log.events}
        if strange:
            msg = f"{source} archives events that are not active: {sorted(strange)}"
            raise UsageError(msg)
        payload = EventPayload(COMPACTION, {"archived": ids, "strategy": source})
        boundary = SessionEvent.of(session_id, payload, timestamp=self.clock())
        events = (boundary, *(compaction.summary or ()))
        try:
            # Only if the log is unchanged: another process may compact it at the same time.
            done = await self.repository.append(session_id, events, runtime, expected=log.version)
        except VersionConflictError:
            return None
        return compaction if done else None

    async def rewind(self, session_id: str, message_id: str, runtime: Runtime) -> bool:
        """Go back to before the message with an id; return whether there is one.

        It and all later messages are archived, also those that are appended concurrently, and what
        compactions have archived since then is active again.
        """
        with_id = EventFilter(message_id=message_id)
        if not (await self.repository.read(session_id, runtime, with_id)).events:
            return False  # usual, and found out without reading the complete log
        while True:
            log = await self.repository.read(session_id, runtime, EVERYTHING)
            payload = rewinding(log.events, message_id)
            if payload is None:
                return False
            change = SessionEvent.of(session_id, payload, timestamp=self.clock())
            # Again if the log has changed, because the payload lists every event to archive.
            with suppress(VersionConflictError):
                await self.repository.append(session_id, (change,), runtime, expected=log.version)
                return True

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
            UsageError: An id is blank, or it is the session of another user.
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
            UsageError: *filter* asks for complete turns.
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

        Turns are deleted completely, archived or not, so that each log stays valid.

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
