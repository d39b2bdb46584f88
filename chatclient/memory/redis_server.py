"""`RedisServer`: the connections, keys and errors of repositories in Redis."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from chatclient._internal.extras import needed_by
from chatclient.errors import ChatMemoryError, ChatMemoryUnavailableError, UsageError

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
