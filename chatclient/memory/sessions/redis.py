"""`RedisSessionRepository`: sessions in Redis; each change is one script, which is atomic."""

import secrets
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from chatclient._internal.json import dumps, loads
from chatclient.errors import ChatMemoryError
from chatclient.memory.encoding import (
    as_json,
    digest,
    entry_digest,
    message_json,
    message_of,
    microseconds,
    moment_of,
    restored,
    storable,
)
from chatclient.memory.redis import RedisServer, as_bytes
from chatclient.memory.sessions.event import MESSAGE, EventPayload, Session, SessionEvent
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

if TYPE_CHECKING:
    from redis import Redis


# A session is one hash with these fields:
#   session     the session as JSON
#   indexes     the names of the indexes that contain it, separated by spaces
#   length      the version of the log, which is the number of its next event
#   call        the id of the last call that changed it
#   e0, e1, …   the events; those that were deleted are missing
#   i…          the number of the event with this digest of its id
# A sorted set has the numbers of the messages that are not archived. An index is a sorted set of
# session ids by the time of creation, and another one has them by the time of expiry.
#
# redis-py repeats a command when the reply is lost. The call id distinguishes such a repetition
# from a command of another client.

_SAVE = """
local key, expiry, id, call = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local session, indexes, created, expires = ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local before, after = ARGV[8], ARGV[9]
local old = redis.call('HMGET', key, 'indexes', 'call')
if old[1] and ARGV[3] == 'create' then return old[2] == call and 1 or 0 end
for index in string.gmatch(old[1] or '', '%S+') do
  redis.call('ZREM', before .. index .. after, id)
end
for index in string.gmatch(indexes, '%S+') do
  redis.call('ZADD', before .. index .. after, created, id)
end
redis.call('ZREM', expiry, id)
if expires ~= '' then redis.call('ZADD', expiry, expires, id) end
redis.call('HSET', key, 'session', session, 'indexes', indexes, 'call', call)
redis.call('HSETNX', key, 'length', 0)
return 1
"""

_DELETE = """
local key, active, expiry, id, expired = KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2]
local indexes = redis.call('HGET', key, 'indexes')
if not indexes then return 0 end
if expired ~= '' then
  local expires = redis.call('ZSCORE', expiry, id)
  if not expires or tonumber(expires) > tonumber(expired) then return 0 end
end
for index in string.gmatch(indexes, '%S+') do
  redis.call('ZREM', ARGV[3] .. index .. ARGV[4], id)
end
redis.call('ZREM', expiry, id)
redis.call('DEL', key, active)
return 1
"""

# ARGV: call id, expected version or nothing, number of events; then for each event the digest of
# its id, m for a message or p for a payload, and its JSON; then for each message that is archived
# or restored a or r, and the digest of its id.
# Returns 1, 0 for a repetition, nothing for a missing session, or the version after a conflict.
_APPEND = """
local key, active, call, expected, count = KEYS[1], KEYS[2], ARGV[1], ARGV[2], tonumber(ARGV[3])
local about = redis.call('HMGET', key, 'length', 'call')
if not about[1] then return {} end
if about[2] == call then return {1} end
local last = 3 + 3 * count
for at = 4, last, 3 do
  if redis.call('HEXISTS', key, 'i' .. ARGV[at]) == 1 then return {0} end
end
if expected ~= '' and expected ~= about[1] then return {-1, about[1]} end
local length = tonumber(about[1])
for at = 4, last, 3 do
  redis.call('HSET', key, 'e' .. length, ARGV[at + 2], 'i' .. ARGV[at], length)
  if ARGV[at + 1] == 'm' then redis.call('ZADD', active, length, length) end
  length = length + 1
end
for at = last + 1, #ARGV, 2 do
  local place = redis.call('HGET', key, 'i' .. ARGV[at + 1])
  if place and ARGV[at] == 'a' then redis.call('ZREM', active, place) end
  if place and ARGV[at] == 'r' then redis.call('ZADD', active, place, place) end
end
redis.call('HSET', key, 'length', length, 'call', call)
return {1}
"""

# Returns the version, the numbers of the active messages, and events: those, or all up to a number.
# Events without the text ARGV[2] are missing.
_READ = """
local key, active, until_place, text = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local length = redis.call('HGET', key, 'length')
if not length then return {} end
local shown = redis.call('ZRANGE', active, 0, -1)
local places = shown
if until_place ~= 'active' then
  places = {}
  local last = math.min(tonumber(length), tonumber(until_place)) - 1
  for place = 0, last do places[place + 1] = place end
end
local events = {}
for from = 1, #places, 1000 do
  local fields = {}
  for at = from, math.min(from + 999, #places) do fields[#fields + 1] = 'e' .. places[at] end
  local found = redis.call('HMGET', key, unpack(fields))
  for at = 1, #found do
    local event = found[at]
    events[#events + 1] = event and string.find(event, text, 1, true) and event or false
  end
end
return {length, shown, events}
"""

_FORGET = """
local key, active = KEYS[1], KEYS[2]
if redis.call('HGET', key, 'length') ~= ARGV[1] then return 0 end
for at = 2, #ARGV do
  local place = redis.call('HGET', key, 'i' .. ARGV[at])
  redis.call('HDEL', key, 'e' .. place, 'i' .. ARGV[at])
  redis.call('ZREM', active, place)
end
redis.call('HINCRBY', key, 'length', 1)
return 1
"""

T = TypeVar("T")
_ALL = "all"  # the index of all sessions
_MOST = 2**53  # Lua numbers are exact up to here


class RedisSessionRepository(SessionRepository):
    """Stores sessions and their logs in Redis, through redis-py.

    Threads, event loops, processes and machines may share one server: each change of a session is
    an atomic script. A search reads one log after the other. Filters are evaluated by the client;
    a view is read without the archived events. Durability depends on the configuration of the
    server (`appendonly`, `save`).

    A cluster must store all keys of a repository in one slot: keep a part of the prefix in braces.

    Args:
        server: A URL such as `redis://:password@host:6379/0`, or a `redis.Redis` client. `close`
            closes the connections for a URL, but not a given client.
        key_prefix: The prefix of the Redis keys. Repositories with different prefixes are
            separate, even if one prefix begins with the other.

    Raises:
        UsageError: The URL is invalid, the client is not blocking, or redis-py is not installed.
    """

    def __init__(
        self,
        server: "str | Redis" = "redis://localhost:6379/0",
        *,
        key_prefix: str = "{chatclient:sessions}:",
    ) -> None:
        self._server = redis = RedisServer(server, key_prefix, type(self).__name__)
        self._save = redis.client.register_script(_SAVE)
        self._delete = redis.client.register_script(_DELETE)
        self._append = redis.client.register_script(_APPEND)
        self._read = redis.client.register_script(_READ)
        self._forget = redis.client.register_script(_FORGET)

    async def create(self, session: Session, runtime: Runtime) -> bool:
        """Store a new session."""
        return await self._do(partial(self._saved, session, "create"), runtime)

    async def save(self, session: Session, runtime: Runtime) -> None:
        """Create or update a session."""
        await self._do(partial(self._saved, session, "save"), runtime)

    async def find(self, session_id: str, runtime: Runtime) -> Session | None:
        """Return a session, or None if it does not exist."""
        found = await self._do(partial(self._sessions, [session_id]), runtime)
        return found[0] if found else None

    async def find_by_user(self, user_id: str, runtime: Runtime) -> list[Session]:
        """Return the sessions of a user, the oldest first."""
        return await self._do(partial(self._indexed, _of_user(user_id)), runtime)

    async def find_by_metadata(self, name: str, value: str, runtime: Runtime) -> list[Session]:
        """Return the sessions with this metadata, the oldest first."""
        return await self._do(partial(self._indexed, _with_metadata(name, value)), runtime)

    async def find_expired(self, moment: datetime, runtime: Runtime) -> list[str]:
        """Return the ids of the sessions that have expired at *moment*."""
        return await self._do(partial(self._expired, moment), runtime)

    async def delete(
        self, session_id: str, runtime: Runtime, *, expired: datetime | None = None
    ) -> bool:
        """Delete a session and its log."""
        return await self._do(partial(self._deleted, session_id, expired), runtime)

    async def append(
        self,
        session_id: str,
        events: Sequence[SessionEvent],
        runtime: Runtime,
        *,
        expected: int | None = None,
    ) -> bool:
        """Append *events* to the log of a session."""
        events = checked_events(session_id, events)
        if not events:
            return True
        return await self._do(partial(self._appended, session_id, events, expected), runtime)

    async def read(
        self,
        session_id: str,
        runtime: Runtime,
        filter: EventFilter = EVERYTHING,
        *,
        until: int | None = None,
    ) -> SessionLog:
        """Return the events of a session that match *filter*."""
        log = await self._do(partial(self._log, session_id, filter, until), runtime)
        return SessionLog(tuple(filter.apply(log.events)), log.version)

    async def search(
        self, user_id: str, runtime: Runtime, filter: EventFilter = EVERYTHING
    ) -> list[SessionEvent]:
        """Return the matching events of all sessions of a user."""
        sessions = await self.find_by_user(user_id, runtime)
        found: list[SessionEvent] = []
        for session in sessions:
            log = await self._do(partial(self._log, session.id, filter, None), runtime)
            found += [event for event in log.events if filter(event)]
        return filter.limit(sorted(found, key=lambda event: event.timestamp))

    async def delete_older(self, cutoff: datetime, runtime: Runtime) -> int:
        """Delete the events of old turns, each log in a script, and return their number."""
        ids = await self._do(partial(self._ids, _ALL), runtime)
        return sum([await self._do(partial(self._forgotten, id, cutoff), runtime) for id in ids])

    def close(self) -> None:
        """Close the connections if they were opened for a URL."""
        self._server.close()

    async def _do(self, command: Callable[[], T], runtime: Runtime) -> T:
        return await runtime.finish(self._server.do, command)

    def _keys(self, session_id: str) -> list[bytes]:
        """Return the keys of a session: its hash, and the set of its active messages."""
        key = self._server.key
        return [key(f"session:{session_id}"), key(f"active:{session_id}")]

    @property
    def _expiry(self) -> bytes:
        return self._server.key("expiry")

    def _around(self) -> list[bytes]:
        """Return what is before and after the name of an index in its key."""
        return [self._server.prefix + b"index:", self._server.suffix]

    def _saved(self, session: Session, mode: str) -> bool:
        indexes = [_ALL, _of_user(session.user_id)]
        indexes += [_with_metadata(name, value) for name, value in sorted(session.indexed)]
        expires = session.expires_at
        values = {
            "user_id": session.user_id,
            "created_at": microseconds(session.created_at),
            "expires_at": None if expires is None else microseconds(expires),
        }
        metadata = as_json(session.metadata, "the metadata of a session", session.id)
        arguments: list[Any] = [
            storable(session.id),
            secrets.token_hex(8),
            mode,
            f"{dumps(values).decode()}\n{metadata}",
            " ".join(indexes),
            microseconds(session.created_at),
            "" if session.expires_at is None else microseconds(session.expires_at),
            *self._around(),
        ]
        return bool(self._save([self._keys(session.id)[0], self._expiry], arguments))

    def _sessions(self, ids: Sequence[str]) -> list[Session]:
        pipeline: Any = self._server.client.pipeline(transaction=False)
        for id in ids:
            pipeline.execute_command("HGET", self._keys(id)[0], "session")
        found = zip(ids, pipeline.execute(), strict=True)
        return [_session_of(id, stored) for id, stored in found if stored is not None]

    def _ids(self, index: str) -> list[str]:
        key = self._server.key(f"index:{index}")
        found: Any = self._server.client.zrange(key, 0, -1)
        return [restored(as_bytes(id).decode()) for id in found]

    def _indexed(self, index: str) -> list[Session]:
        return self._sessions(self._ids(index))

    def _expired(self, moment: datetime) -> list[str]:
        latest = microseconds(moment)
        found: Any = self._server.client.zrangebyscore(self._expiry, "-inf", latest)
        return [restored(as_bytes(id).decode()) for id in found]

    def _deleted(self, session_id: str, expired: datetime | None) -> bool:
        limit = "" if expired is None else microseconds(expired)
        arguments: list[Any] = [storable(session_id), limit, *self._around()]
        return bool(self._delete([*self._keys(session_id), self._expiry], arguments))

    def _appended(
        self, session_id: str, events: Sequence[SessionEvent], expected: int | None
    ) -> bool:
        arguments: list[Any] = [secrets.token_hex(8), "" if expected is None else expected]
        arguments.append(len(events))
        for event in events:
            kind = "m" if event.type == MESSAGE else "p"
            arguments += (digest(event.id), kind, _event_json(event))
        for id, archived in archive_changes(events).items():
            arguments += ("a" if archived else "r", digest(id))
        done: Any = self._append(self._keys(session_id), arguments)
        if not done:
            raise missing_session(session_id)
        if int(done[0]) < 0 and expected is not None:
            raise version_conflict(session_id, expected, int(done[1]))
        return bool(done[0])

    def _log(self, session_id: str, filter: EventFilter, until: int | None) -> SessionLog:
        """Return the events that *filter* may select, in the order of the log."""
        only_view = filter.exclude_archived and filter.selected_types == frozenset({MESSAGE})
        end: int | str = "active" if only_view else _MOST
        if until is not None:
            end = min(until, _MOST)
        text = "" if filter.message_id is None else dumps(filter.message_id)
        found: Any = self._read(self._keys(session_id), [end, text])
        if not found:
            return SessionLog()
        version, shown, stored = found
        active = {int(place) for place in shown}
        places = map(int, shown) if end == "active" else range(len(stored))
        events = [
            _event_of(session_id, event).with_archived(archived=place not in active)
            for place, event in zip(places, stored, strict=True)
            if event is not None
        ]
        return SessionLog(tuple(events), int(version))

    def _forgotten(self, session_id: str, cutoff: datetime) -> int:
        while True:
            log = self._log(session_id, EVERYTHING, None)
            gone = older_events(log.events, cutoff)
            arguments: list[Any] = [log.version, *(digest(event.id) for event in gone)]
            # Again if the log has changed since it was read.
            if not gone or self._forget(self._keys(session_id), arguments):
                return len(gone)


def _of_user(user_id: str) -> str:
    return f"user:{digest(user_id)}"


def _with_metadata(name: str, value: str) -> str:
    return f"metadata:{entry_digest(name, value)}"


def _session_of(id: str, stored: Any) -> Session:
    values, metadata = map(loads, as_bytes(stored).split(b"\n"))
    expires = values["expires_at"]
    return Session(
        id,
        values["user_id"],
        moment_of(values["created_at"]),
        None if expires is None else moment_of(expires),
        metadata,
    )


def _event_json(event: SessionEvent) -> str:
    """Return *event* as three lines of JSON: its fields, metadata and content."""
    content, session_id = event.content, event.session_id
    values = {
        "id": event.id,
        "at": microseconds(event.timestamp),
        "type": event.type,
        "branch": event.branch,
        "synthetic": event.synthetic,
    }
    if isinstance(content, EventPayload):
        stored = as_json(content.data, "the data of an event", session_id)
    else:
        stored = message_json(content)
    metadata = as_json(event.metadata, "the metadata of an event", session_id)
    return f"{dumps(values).decode()}\n{metadata}\n{stored}"


def _event_of(session_id: str, stored: Any) -> SessionEvent:
    """Return the event that `_event_json` encoded.

    Raises:
        ChatMemoryError: It cannot be decoded.
    """
    try:
        values, metadata, content = as_bytes(stored).split(b"\n")
        event = loads(values)
        is_message = event["type"] == MESSAGE
        return SessionEvent(
            event["id"],
            session_id,
            moment_of(event["at"]),
            message_of(content) if is_message else EventPayload(event["type"], loads(content)),
            event["branch"],
            loads(metadata),
            event["synthetic"],
        )
    except (ValueError, KeyError) as error:
        msg = f"a stored event of session {session_id!r} cannot be read"
        raise ChatMemoryError(msg, conversation_id=session_id) from error
