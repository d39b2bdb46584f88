"""`RedisChatMemoryRepository`: conversations in Redis; `RedisServer`, which sessions share."""

import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from chatclient._internal.checks import duration
from chatclient._internal.extras import needed_by
from chatclient.chat.messages import Message, SystemMessage
from chatclient.errors import ChatMemoryError, ChatMemoryUnavailableError, UsageError
from chatclient.memory.encoding import digest, message_json, messages_of, stamped
from chatclient.memory.repository import (
    NO_CONVERSATION,
    REMEMBERED_KEYS,
    ChatMemoryRepository,
    Conversation,
)
from chatclient.runtime.runtime import Runtime

if TYPE_CHECKING:
    from redis import Redis

T = TypeVar("T")

# In seconds; parameters of the URL take precedence.
_TIMEOUTS: Mapping[str, Any] = {"socket_timeout": 10, "socket_connect_timeout": 5}


class RedisServer:
    """A Redis server, and the keys of one repository in it.

    Args:
        server: A URL, whose connections `close` closes, or a client, which it does not touch.
        key_prefix: The prefix of the keys.
        owner: The name of the repository, for the error if redis-py is missing.

    Attributes:
        client: The client.
        prefix: The beginning of all keys.
        suffix: The end of all keys.

    Raises:
        UsageError: The URL is invalid, the client is not blocking, or redis-py is not installed.
    """

    def __init__(self, server: "str | Redis", key_prefix: str, owner: str) -> None:
        self._owned = isinstance(server, str)
        self.client = _client(server, owner)
        self.prefix = key_prefix.encode("utf-8", "surrogatepass")
        # The length of the prefix: another prefix, or an id, may begin with this prefix.
        self.suffix = b":%d" % len(self.prefix)

    def key(self, name: str) -> bytes:
        """Return the key for *name*."""
        return self.prefix + name.encode("utf-8", "surrogatepass") + self.suffix

    def do(self, command: Callable[[], T]) -> T:
        """Return the result of *command*; its errors are raised as memory errors.

        Raises:
            ChatMemoryUnavailableError: Redis cannot be reached.
            ChatMemoryError: Redis refused the command.
        """
        from redis import exceptions  # noqa: PLC0415 - an extra

        try:
            return command()
        except (exceptions.ConnectionError, exceptions.TimeoutError) as error:
            msg = f"{self._address()} cannot be reached; see the cause of this error"
            raise ChatMemoryUnavailableError(msg) from error
        except exceptions.RedisError as error:
            msg = f"{self._address()} refused the command; see the cause of this error"
            raise ChatMemoryError(msg) from error

    def close(self) -> None:
        """Close the connections if they were opened for a URL."""
        if self._owned:
            self.client.close()

    def _address(self) -> str:
        settings = self.client.get_connection_kwargs()
        place = settings.get("path") or f"{settings.get('host')}:{settings.get('port')}"
        return f"the Redis server at {place}"


def _client(server: "str | Redis", owner: str) -> "Redis":
    with needed_by(owner):
        import redis  # noqa: PLC0415 - an extra
    if isinstance(server, redis.Redis):
        return server
    try:
        return redis.Redis.from_url(server, **_TIMEOUTS)
    except (ValueError, AttributeError, TypeError):
        # The URL and the text of the error may contain a password.
        msg = "not a URL of Redis or a blocking client; use a URL such as redis://host:6379/0"
        raise UsageError(msg) from None


def as_bytes(text: Any) -> bytes:
    """Return a key or value that a client has decoded or not."""
    return text if isinstance(text, bytes) else str(text).encode("utf-8", "surrogatepass")


if TYPE_CHECKING:
    from redis import Redis

_FIRST_VERSIONS = 2**52  # versions are Lua numbers, which are exact up to 2**53

# A conversation is one hash, so that it has one cluster slot and expires as a unit. Its fields:
#   0, 1, 2, …  the messages
#   length      the number of messages
#   systems     the indexes of the system messages, separated by spaces
#   version     changed by each operation
#   additions   the newest idempotency keys: 32 hex digits each, followed by 16 of its call id
#   replaced    the call id of the last replacement
# redis-py repeats a command when the reply is lost. The call id distinguishes such a repetition
# from a command of another client.

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
    """Stores each conversation in a Redis hash, through redis-py.

    Messages are stored completely. Threads, event loops, processes and machines may share one
    server, because each operation is an atomic script. Durability depends on the configuration
    of the server (`appendonly`, `save`).

    The Redis client is blocking; a request on an event loop calls it in a worker thread. All
    operations raise `ChatMemoryUnavailableError` if the server cannot be reached.

    Args:
        server: A URL such as `redis://:password@host:6379/0`, or a `redis.Redis` client. `close`
            closes the connections for a URL, but not a given client.
        key_prefix: The prefix of the Redis keys, followed by the conversation id. Repositories
            with different prefixes are separate, even if one prefix begins with the other.
        time_to_live: Time until a conversation expires after its last change, in seconds or as
            a `timedelta`, or None to keep it.

    Raises:
        UsageError: The URL is invalid, the client is not blocking, or redis-py is not installed.
    """

    def __init__(
        self,
        server: "str | Redis" = "redis://localhost:6379/0",
        *,
        key_prefix: str = "chatclient:memory:",
        time_to_live: float | timedelta | None = None,
    ) -> None:
        lasts = duration("time_to_live", time_to_live)
        if lasts is not None and lasts < timedelta(milliseconds=1):
            msg = "time_to_live must be longer than a millisecond, or None to keep everything"
            raise UsageError(msg)
        self._server = redis = RedisServer(server, key_prefix, type(self).__name__)
        self._milliseconds = "" if lasts is None else str(lasts // timedelta(milliseconds=1))
        self._load = redis.client.register_script(_LOAD)
        self._append = redis.client.register_script(_APPEND)
        self._replace = redis.client.register_script(_REPLACE)

    async def load(
        self, conversation_id: str, runtime: Runtime, *, last: int | None = None
    ) -> Conversation:
        """Return the newest messages of a conversation; others are not read.

        Raises:
            ChatMemoryUnavailableError: Redis cannot be reached.
            ChatMemoryError: A stored message cannot be decoded.
        """
        work = partial(self._loaded, conversation_id, last)
        return await runtime.finish(lambda: self._server.do(work))

    async def append(
        self,
        conversation_id: str,
        messages: Sequence[Message],
        runtime: Runtime,
        *,
        key: str | None = None,
    ) -> bool:
        """Append *messages* to a conversation; the newest hundred keys are kept.

        Raises:
            ChatMemoryUnavailableError: Redis cannot be reached. If the connection was lost
                during the operation, the messages may be stored; with a key, it can be repeated.
        """
        if not messages:
            return True
        work = partial(self._appended, conversation_id, tuple(messages), key)
        return await runtime.finish(lambda: self._server.do(work))

    async def replace(
        self,
        conversation_id: str,
        messages: Sequence[Message],
        runtime: Runtime,
        *,
        expected: int | None = None,
    ) -> bool:
        """Replace all messages of a conversation."""
        work = partial(self._replaced, conversation_id, tuple(messages), expected)
        return await runtime.finish(lambda: self._server.do(work))

    async def delete(self, conversation_id: str, runtime: Runtime) -> None:
        """Delete a conversation."""
        command = partial(self._server.client.delete, self._server.key(conversation_id))
        await runtime.finish(self._server.do, command)

    async def conversation_ids(self, runtime: Runtime) -> list[str]:
        """Return the ids of all conversations, by an incremental scan of all keys."""
        return await runtime.finish(lambda: self._server.do(self._ids))

    def close(self) -> None:
        """Close the connections if they were opened for a URL."""
        self._server.close()

    def _loaded(self, conversation_id: str, last: int | None) -> Conversation:
        found: Any = self._load([self._server.key(conversation_id)], [-1 if last is None else last])
        if not found:
            return NO_CONVERSATION
        version, length, *texts = found
        messages = messages_of(texts, conversation_id)
        older = int(length) - len(messages)
        return Conversation(messages, int(version), complete=not older, older=older)

    def _appended(
        self, conversation_id: str, messages: tuple[Message, ...], key: str | None
    ) -> bool:
        call = secrets.token_hex(8)
        addition = secrets.token_hex(16) if key is None else digest(key)[:32]
        stored = _stored(messages)
        arguments: list[Any] = [*self._common(), addition, call, REMEMBERED_KEYS, *stored]
        return bool(self._append([self._server.key(conversation_id)], arguments))

    def _replaced(
        self, conversation_id: str, messages: tuple[Message, ...], expected: int | None
    ) -> bool:
        wanted = "" if expected is None else expected
        stored = _stored(messages)
        arguments: list[Any] = [*self._common(), wanted, secrets.token_hex(8), *stored]
        return bool(self._replace([self._server.key(conversation_id)], arguments))

    def _common(self) -> tuple[int, str]:
        # Random, so that a deleted and recreated conversation reuses no version.
        return random.randrange(1, _FIRST_VERSIONS), self._milliseconds  # noqa: S311

    def _ids(self) -> list[str]:
        prefix, suffix = self._server.prefix, self._server.suffix
        special = b"\\*?[]^-"
        pattern = (
            b"".join(b"\\" + bytes([c]) if c in special else bytes([c]) for c in prefix)
            + b"*"
            + suffix
        )
        keys = set(self._server.client.scan_iter(match=pattern, count=1000))
        id = slice(len(prefix), -len(suffix))
        return [as_bytes(key)[id].decode("utf-8", "surrogatepass") for key in keys]


def _stored(messages: Sequence[Message]) -> list[bytes]:
    """Return *messages* as JSON, prefixed with `s` for a system message and `m` for others."""
    return [
        (b"s" if isinstance(m, SystemMessage) else b"m") + message_json(m).encode()
        for m in stamped(messages)
    ]
