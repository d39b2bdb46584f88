"""Conversations in Redis."""

import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from chatclient.checks import lasting
from chatclient.errors import ChatMemoryError, ChatMemoryUnavailableError, UsageError
from chatclient.memory.repository import NO_CONVERSATION, ChatMemoryRepository, Conversation
from chatclient.memory.stored import digest, message_json, messages_of
from chatclient.messages import Message, SystemMessage
from chatclient.runtime import Runtime

if TYPE_CHECKING:
    from redis import Redis

T = TypeVar("T")

_FIRST_VERSIONS = 2**52  # versions pass through Lua, whose numbers are exact up to 2**53
# Seconds; what the URL says counts.
_TIMEOUTS: Mapping[str, Any] = {"socket_timeout": 10, "socket_connect_timeout": 5}
_KEYS = 100  # how many keys of additions a conversation remembers

# A conversation is one hash, and so in one slot of a cluster, expired and deleted as a whole:
#   0, 1, 2, …  its messages
#   length      how many they are
#   systems     where the system messages stand, separated by blanks
#   version     changes with every change
#   additions   the newest keys of additions: 32 digits each, then 16 of the call that used it
#   replaced    the call that replaced the messages last
# redis-py repeats a command whose answer it did not get. The digits of the call tell such a
# repetition from somebody else's command.

_LOAD = """
local key, last = KEYS[1], tonumber(ARGV[1])
local about = redis.call('HMGET', key, 'version', 'length', 'systems')
if not about[1] then return {} end
local length, systems = tonumber(about[2]), {}
for place in string.gmatch(about[3], '%d+') do systems[#systems + 1] = tonumber(place) end
local start, older = 0, #systems
if last >= 0 then
  start = length
  local wanted = last
  while wanted > 0 and start > 0 do
    start = start - 1
    if older > 0 and systems[older] == start then older = older - 1 else wanted = wanted - 1 end
  end
else
  older = 0
end
local result = {about[1], length}
for at = 1, older do result[#result + 1] = redis.call('HGET', key, systems[at]) end
for from = start, length - 1, 1000 do
  local places = {}
  for place = from, math.min(from + 999, length - 1) do places[#places + 1] = place end
  for _, message in ipairs(redis.call('HMGET', key, unpack(places))) do
    result[#result + 1] = message
  end
end
return result
"""

_WRITE = """
local function write(key, first_version, seconds, start, systems, from)
  local length = start
  for at = from, #ARGV do
    local kind = string.sub(ARGV[at], 1, 1)
    if kind == 's' then systems = systems .. length .. ' ' end
    redis.call('HSET', key, length, string.sub(ARGV[at], 2))
    length = length + 1
  end
  redis.call('HSETNX', key, 'version', first_version)
  redis.call('HINCRBY', key, 'version', 1)
  redis.call('HSET', key, 'length', length, 'systems', systems)
  if seconds ~= '' then redis.call('PEXPIRE', key, seconds) else redis.call('PERSIST', key) end
end
"""

_APPEND = (
    _WRITE
    + """
local key, addition, call, most = KEYS[1], ARGV[3], ARGV[4], tonumber(ARGV[5])
local about = redis.call('HMGET', key, 'length', 'systems', 'additions')
local additions = about[3] or ''
for at = 1, #additions, 48 do
  if string.sub(additions, at, at + 31) == addition then
    return string.sub(additions, at + 32, at + 47) == call and 1 or 0
  end
end
write(key, ARGV[1], ARGV[2], tonumber(about[1] or 0), about[2] or '', 6)
redis.call('HSET', key, 'additions', string.sub(additions .. addition .. call, -48 * most))
return 1
"""
)

_REPLACE = (
    _WRITE
    + """
local key, expected, call = KEYS[1], ARGV[3], ARGV[4]
local about = redis.call('HMGET', key, 'version', 'additions', 'replaced')
if about[3] == call then return 1 end
if expected ~= '' and expected ~= (about[1] or '0') then return 0 end
redis.call('DEL', key)
if #ARGV < 5 then return 1 end
if about[2] then redis.call('HSET', key, 'additions', about[2]) end
write(key, about[1] or ARGV[1], ARGV[2], 0, '', 5)
redis.call('HSET', key, 'replaced', call)
return 1
"""
)


class RedisChatMemoryRepository(ChatMemoryRepository):
    """Keeps conversations in Redis, each in a hash of its own, through redis-py.

    Everything about a message is stored. Threads, event loops, processes and machines may share
    one server: each operation is a script, which Redis runs as a whole and before the next. How
    durable it is is the server's configuration (`appendonly`, `save`).

    The client is a blocking one. A request on an event loop reaches it in a worker thread.

    Args:
        server: A URL such as `redis://:password@host:6379/0`, or a `redis.Redis` client. What is
            opened for a URL is closed by `close`; a client stays its owner's.
        key_prefix: What the keys begin with, before the conversation's id. Repositories with
            different prefixes share nothing, even where one begins with the other.
        time_to_live: How long a conversation is kept after its last change, in seconds or as a
            `timedelta`, or None for ever.

    Raises:
        UsageError: The URL cannot be used, the client is not a blocking one, or redis-py is not
            installed.
    """

    def __init__(
        self,
        server: "str | Redis" = "redis://localhost:6379/0",
        *,
        key_prefix: str = "chatclient:memory:",
        time_to_live: float | timedelta | None = None,
    ) -> None:
        lasts = lasting("time_to_live", time_to_live)
        if lasts is not None and lasts < timedelta(milliseconds=1):
            msg = "time_to_live must be longer than a millisecond, or None to keep everything"
            raise UsageError(msg)
        self._owned = isinstance(server, str)
        self._client = _client(server)
        self._prefix = key_prefix.encode("utf-8", "surrogatepass")
        # Says where the id begins: another prefix may begin with this one, as ids may.
        self._suffix = b":%d" % len(self._prefix)
        self._milliseconds = "" if lasts is None else str(lasts // timedelta(milliseconds=1))
        self._load = self._client.register_script(_LOAD)
        self._append = self._client.register_script(_APPEND)
        self._replace = self._client.register_script(_REPLACE)

    async def load(
        self, conversation_id: str, runtime: Runtime, *, last: int | None = None
    ) -> Conversation:
        """Return the newest messages of a conversation; nothing else of it is read.

        Raises:
            ChatMemoryUnavailableError: Redis cannot be reached.
            ChatMemoryError: What is stored cannot be read.
        """
        work = partial(self._loaded, conversation_id, last)
        return await runtime.finish(lambda: self._do(work))

    async def append(
        self,
        conversation_id: str,
        messages: Sequence[Message],
        runtime: Runtime,
        *,
        key: str | None = None,
    ) -> bool:
        """Add *messages* at the end of a conversation; the newest hundred keys are remembered.

        Raises:
            ChatMemoryUnavailableError: Redis cannot be reached. When it went away meanwhile, the
                addition may have been made; with a key, it can be repeated.
        """
        if not messages:
            return True
        work = partial(self._appended, conversation_id, tuple(messages), key)
        return await runtime.finish(lambda: self._do(work))

    async def replace(
        self,
        conversation_id: str,
        messages: Sequence[Message],
        runtime: Runtime,
        *,
        expected: int | None = None,
    ) -> bool:
        """Put *messages* in the place of all messages of a conversation.

        Raises:
            ChatMemoryUnavailableError: Redis cannot be reached.
        """
        work = partial(self._replaced, conversation_id, tuple(messages), expected)
        return await runtime.finish(lambda: self._do(work))

    async def delete(self, conversation_id: str, runtime: Runtime) -> None:
        """Forget a conversation.

        Raises:
            ChatMemoryUnavailableError: Redis cannot be reached.
        """
        await runtime.finish(self._do, partial(self._client.delete, self._key(conversation_id)))

    async def conversation_ids(self, runtime: Runtime) -> list[str]:
        """Return the ids of all conversations; the server's keys are gone through in steps.

        Raises:
            ChatMemoryUnavailableError: Redis cannot be reached.
        """
        return await runtime.finish(lambda: self._do(self._ids))

    def close(self) -> None:
        """Close the connections, if a URL was given."""
        if self._owned:
            self._client.close()

    def _loaded(self, conversation_id: str, last: int | None) -> Conversation:
        found: Any = self._load([self._key(conversation_id)], [-1 if last is None else last])
        if not found:
            return NO_CONVERSATION
        version, length, *texts = found
        messages = messages_of(texts, conversation_id)
        return Conversation(messages, int(version), complete=len(messages) == int(length))

    def _appended(
        self, conversation_id: str, messages: tuple[Message, ...], key: str | None
    ) -> bool:
        call = secrets.token_hex(8)
        addition = secrets.token_hex(16) if key is None else digest(key)[:32]
        stored = _stored(messages, conversation_id)
        arguments: list[Any] = [*self._common(), addition, call, _KEYS, *stored]
        return bool(self._append([self._key(conversation_id)], arguments))

    def _replaced(
        self, conversation_id: str, messages: tuple[Message, ...], expected: int | None
    ) -> bool:
        wanted = "" if expected is None else expected
        stored = _stored(messages, conversation_id)
        arguments: list[Any] = [*self._common(), wanted, secrets.token_hex(8), *stored]
        return bool(self._replace([self._key(conversation_id)], arguments))

    def _common(self) -> tuple[int, str]:
        # At random, so that no version comes back when a conversation is deleted and begun anew.
        return random.randrange(1, _FIRST_VERSIONS), self._milliseconds  # noqa: S311

    def _ids(self) -> list[str]:
        pattern = _literally(self._prefix) + b"*" + self._suffix
        keys = set(self._client.scan_iter(match=pattern, count=1000))
        id = slice(len(self._prefix), -len(self._suffix))
        return [_bytes(key)[id].decode("utf-8", "surrogatepass") for key in keys]

    def _key(self, conversation_id: str) -> bytes:
        return self._prefix + conversation_id.encode("utf-8", "surrogatepass") + self._suffix

    def _do(self, command: Callable[[], T]) -> T:
        """Return what *command* returns, its errors put in terms of memory."""
        from redis import exceptions  # noqa: PLC0415 - an extra

        try:
            return command()
        except (exceptions.ConnectionError, exceptions.TimeoutError) as error:
            msg = f"{self._where()} cannot be reached; see the cause of this error"
            raise ChatMemoryUnavailableError(msg) from error
        except exceptions.RedisError as error:
            msg = f"{self._where()} refused the work; see the cause of this error"
            raise ChatMemoryError(msg) from error

    def _where(self) -> str:
        settings = self._client.get_connection_kwargs()
        place = settings.get("path") or f"{settings.get('host')}:{settings.get('port')}"
        return f"the Redis server at {place}"


def _client(server: "str | Redis") -> "Redis":
    try:
        import redis  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        msg = "Redis needs redis-py; pip install 'chatclient[redis]'"
        raise UsageError(msg) from error
    if isinstance(server, redis.Redis):
        return server
    try:
        return redis.Redis.from_url(server, **_TIMEOUTS)
    except (ValueError, AttributeError, TypeError):
        # Neither the URL nor the error's text can be shown: there may be a password in them.
        msg = "not a URL of Redis or a blocking client; a URL looks like redis://host:6379/0"
        raise UsageError(msg) from None


def _stored(messages: Sequence[Message], conversation_id: str) -> list[bytes]:
    """Return *messages* as JSON, each with a letter before it that tells system messages apart."""
    return [
        (b"s" if isinstance(m, SystemMessage) else b"m") + message_json(m, conversation_id)
        for m in messages
    ]


def _literally(prefix: bytes) -> bytes:
    """Return the pattern that only *prefix* itself matches."""
    special = b"\\*?[]^-"
    return b"".join(b"\\" + bytes([c]) if c in special else bytes([c]) for c in prefix)


def _bytes(key: Any) -> bytes:
    return key if isinstance(key, bytes) else str(key).encode("utf-8", "surrogatepass")
