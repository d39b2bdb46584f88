"""Creates SQLAlchemy engines, with timeouts and settings, and converts their errors."""

from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import (
    DBAPIError,
    InterfaceError,
    OperationalError,
    SQLAlchemyError,
    TimeoutError as PoolTimeoutError,
)
from sqlalchemy.pool import NullPool, QueuePool, SingletonThreadPool, StaticPool

from chatclient._internal.extras import needed_by
from chatclient._internal.sqlite import BUSY_SECONDS, write_ahead
from chatclient.errors import (
    ChatClientError,
    ChatMemoryError,
    ChatMemoryUnavailableError,
    MissingExtraError,
    UsageError,
)
from chatclient.runtime.threads import ForkSafeLock

LOCK_SECONDS = 15
"""How many seconds a transaction waits for a lock."""

_DRIVERS = {
    "postgresql": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",
    "mysql": "mysql+pymysql",
    "mariadb": "mariadb+pymysql",
}
_LIBPQ = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 2,
    "tcp_user_timeout": 20_000,
}
_TIMEOUTS: dict[str, dict[str, Any]] = {
    "psycopg": _LIBPQ,
    "psycopg2": _LIBPQ,
    "pymysql": {"connect_timeout": 10, "read_timeout": 20, "write_timeout": 20},
}
_LOCK_WAITS = {
    "postgresql": f"SET lock_timeout = '{LOCK_SECONDS}s'",
    "mysql": f"SET SESSION innodb_lock_wait_timeout = {LOCK_SECONDS}",
    "mariadb": f"SET SESSION innodb_lock_wait_timeout = {LOCK_SECONDS}",
}
_OWN_SETTINGS = ("options", "init_command")  # URL parameters with session settings of the user
_connection_locks: "WeakKeyDictionary[sa.Dialect, ForkSafeLock]" = WeakKeyDictionary()

_DEADLOCKS = ("40001", "40P01", 1213, 1020)  # SQLSTATEs of PostgreSQL, numbers of MySQL
_CONNECTION_LOST = (2006, 2013, 1153)  # MySQL's errors after too large a packet, among others
_LARGE = 250_000  # bytes; smaller values fit into a packet of any server
_ESCAPED = "\\'\"\0\n\r\x1a"  # characters that these drivers escape


def open_engine(target: "str | sa.URL") -> sa.Engine:
    """Return an engine for a URL, with defaults for its driver and timeouts.

    Raises:
        UsageError: The URL is invalid, or its driver is not installed.
    """
    try:
        url = sa.make_url(target)
        url = url.set(drivername=_DRIVERS.get(url.drivername, url.drivername))
        with needed_by(f"a database of {url.get_backend_name()}"):
            return _engine(url)
    except UsageError:  # a subclass of ValueError
        raise
    except ModuleNotFoundError as error:
        msg = f"the driver {error.name} that the URL names is not installed"
        raise MissingExtraError(msg) from error
    except (SQLAlchemyError, ValueError):
        # The URL and the text of the error may contain a password.
        msg = (
            "not the URL of a database; use a URL such as sqlite:///file.db or"
            " postgresql://user:password@host/database"
        )
        raise UsageError(msg) from None


def _engine(url: sa.URL) -> sa.Engine:
    if url.get_dialect().is_async:  # checked before it is loaded, which may fail
        msg = f"{url.drivername} is an asynchronous driver; name a plain one, or none"
        raise UsageError(msg)
    options: dict[str, Any] = {"hide_parameters": True}
    if url.get_backend_name() != "sqlite":
        options["isolation_level"] = "READ COMMITTED"
        timeouts = _TIMEOUTS.get(url.get_driver_name(), {})
        options["connect_args"] = {k: v for k, v in timeouts.items() if k not in url.query}
    elif in_memory(url):
        # One connection for all threads, because each connection would be a separate database.
        options |= {"poolclass": QueuePool, "pool_size": 1, "max_overflow": 0, "pool_timeout": 60}
        options["connect_args"] = {"check_same_thread": False}
    else:
        options["connect_args"] = {"timeout": BUSY_SECONDS}
    engine = sa.create_engine(url, **options)
    if url.get_backend_name() == "sqlite":
        event.listen(engine, "connect", _set_up_sqlite)
        event.listen(engine, "invalidate", _release_lock)
    elif url.get_backend_name() in _LOCK_WAITS and url.query.keys().isdisjoint(_OWN_SETTINGS):
        event.listen(
            engine, "connect", partial(_set_lock_timeout, _LOCK_WAITS[url.get_backend_name()])
        )
    return engine


def name_of(engine: sa.Engine) -> str:
    """Return a description of the database for error messages, without secrets."""
    url = engine.url
    where = f" at {url.host}" if url.host else ""
    if url.port:
        where += f":{url.port}"
    return f"the {url.get_backend_name()} database {url.database or ''!r}{where}"


def in_memory(url: sa.URL) -> bool:
    """Return whether *url* is an SQLite database without a file."""
    if url.get_backend_name() != "sqlite":
        return False
    return url.database in (None, "", ":memory:") or url.query.get("mode") == "memory"


def connection_lock(engine: sa.Engine) -> AbstractContextManager[None]:
    """Return a lock for threads that share one connection, or a context that does nothing.

    The statements of two threads on one connection would form one transaction. In-memory
    connections with a shared cache need it too: they fail on a lock instead of waiting.
    """
    if not isinstance(engine.pool, StaticPool) and not in_memory(engine.url):
        return nullcontext()
    # The dialect is the key because disposing of an engine, as before a fork, replaces its pool.
    return _connection_locks.setdefault(engine.dialect, ForkSafeLock())


def check_shared(engine: sa.Engine) -> None:
    """Check that all threads use the same database; requests on an event loop use several.

    Raises:
        UsageError: Each thread has a separate in-memory database, the default for `sqlite://`.
    """
    alone = isinstance(engine.pool, SingletonThreadPool | NullPool)
    if not alone or not in_memory(engine.url) or engine.url.query.get("cache") == "shared":
        return
    with engine.connect() as connection:  # creator= may have opened a file
        file = connection.exec_driver_sql("PRAGMA database_list").all()[0][2]
    if not file:
        msg = (
            "this engine makes a SQLite database in memory for each thread, and other threads "
            'would not find the conversations; give the URL itself ("sqlite://"), or '
            "create_engine(..., poolclass=StaticPool, connect_args={'check_same_thread': False})"
        )
        raise UsageError(msg)


def _set_lock_timeout(statement: str, connection: Any, _record: Any) -> None:
    with closing(connection.cursor()) as cursor:
        cursor.execute(statement)
    connection.commit()


def _set_up_sqlite(connection: Any, _record: Any) -> None:
    write_ahead(connection)


def _release_lock(connection: Any, _record: Any, _error: Any) -> None:
    """Roll back on a connection that is discarded, for example after Ctrl-C.

    SQLite keeps its lock until the connection is garbage, and a traceback may refer to it.
    """
    with suppress(Exception):
        connection.rollback()


@dataclass(frozen=True, slots=True)
class StoreErrors:
    """The errors that a component raises when its database fails.

    Attributes:
        refused: The database rejected a statement, or has an unknown schema.
        unavailable: The database cannot be reached, or is locked for too long.
    """

    refused: type[ChatClientError]
    unavailable: type[ChatClientError]


MEMORY_ERRORS = StoreErrors(ChatMemoryError, ChatMemoryUnavailableError)


class LostRaceError(Exception):
    """A concurrent transaction won; roll back and retry."""


def is_transient(error: Exception) -> bool:
    """Return whether the transaction may succeed if it is retried immediately."""
    if not isinstance(error, DBAPIError):
        return isinstance(error, LostRaceError)
    if error.connection_invalidated:
        return True
    return _code(error) in _DEADLOCKS


def store_error(error: Exception, engine: sa.Engine, kinds: StoreErrors) -> ChatClientError:
    """Return the error to raise for *error* after the last attempt."""
    if isinstance(error, OperationalError | InterfaceError | LostRaceError | PoolTimeoutError):
        return kinds.unavailable(
            f"{name_of(engine)} cannot be used right now; see the cause of this error"
        )
    return kinds.refused(f"{name_of(engine)} refused a statement; see the cause of this error")


def check_packet_size(error: Exception, engine: sa.Engine) -> None:
    """Check whether the server closed the connection because a packet was too large.

    Raises:
        ChatMemoryError: A row exceeds `max_allowed_packet`; a retry would fail too.
    """
    if not isinstance(error, DBAPIError) or _code(error) not in _CONNECTION_LOST:
        return
    size = _largest_row(error)
    if size < _LARGE or engine.dialect.name not in ("mysql", "mariadb"):
        return
    try:
        most = _largest_packet(engine)
    except SQLAlchemyError:  # the connection was lost for another reason
        return
    if size > most:
        msg = (
            f"{name_of(engine)} cannot take a message of about {size} bytes: its "
            f"max_allowed_packet is {most}; set that higher, or send media by their URLs"
        )
        raise ChatMemoryError(msg) from error.orig


def _largest_packet(engine: sa.Engine) -> int:
    with engine.connect() as connection:
        size: int = connection.execute(sa.text("SELECT @@max_allowed_packet")).scalar_one()
        return size


def _code(error: DBAPIError) -> Any:
    """Return the SQLSTATE or the number of an error."""
    cause = error.orig
    return getattr(cause, "sqlstate", None) or next(iter(getattr(cause, "args", ())), None)


def _largest_row(error: BaseException | None) -> int:
    """Return the size in bytes of the largest row in the statement that failed first."""
    size = 0
    while error is not None:  # the rollback on a lost connection fails as well
        if isinstance(error, DBAPIError) and error.params:
            rows = error.params if isinstance(error.params, list) else [error.params]
            values = [row.values() if isinstance(row, dict) else row for row in rows]
            largest: int = max(sum(_escaped_size(each) for each in row) for row in values)
            size = len(error.statement or "") + largest
        error = error.__context__
    return size


def _escaped_size(value: Any) -> int:
    if not isinstance(value, str):
        return 0
    return len(value.encode()) + sum(value.count(character) for character in _ESCAPED)
