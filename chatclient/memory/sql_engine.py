"""Engines for SQL databases, as the stores of this package need them; needs SQLAlchemy."""

from contextlib import AbstractContextManager, closing, nullcontext, suppress
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool, QueuePool, SingletonThreadPool, StaticPool

from chatclient.errors import UsageError
from chatclient.forks import ForkSafeLock
from chatclient.sqlite_files import BUSY_SECONDS, write_ahead

LOCK_SECONDS = 15
"""How long one transaction waits for another one."""

_DRIVERS = {
    "postgresql": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",
    "mysql": "mysql+pymysql",
    "mariadb": "mariadb+pymysql",
}
_EXTRAS = {"psycopg": "postgres", "pymysql": "mysql"}
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
_OWN_SETTINGS = ("options", "init_command")  # parts of a URL that say what a session begins with
_turns: "WeakKeyDictionary[sa.Dialect, ForkSafeLock]" = WeakKeyDictionary()


def open_engine(target: "str | sa.URL") -> sa.Engine:
    """Return an engine for a URL, with drivers and timeouts chosen where the URL leaves them open.

    Raises:
        UsageError: The URL cannot be used, or its driver is not installed.
    """
    try:
        url = sa.make_url(target)
        url = url.set(drivername=_DRIVERS.get(url.drivername, url.drivername))
        return _engine(url)
    except UsageError:  # a ValueError, too
        raise
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get(error.name or "", "sql")
        msg = f"{error.name} is not installed; pip install 'chatclient[{extra}]'"
        raise UsageError(msg) from error
    except (SQLAlchemyError, ValueError):
        # Neither the URL nor the error's text can be shown: there may be a password in them.
        msg = (
            "not the URL of a database; it looks like sqlite:///file.db, or"
            " postgresql://user:password@host/database"
        )
        raise UsageError(msg) from None


def _engine(url: sa.URL) -> sa.Engine:
    if url.get_dialect().is_async:  # before anybody is told to install it
        msg = f"{url.drivername} is an asynchronous driver; name a plain one, or none"
        raise UsageError(msg)
    options: dict[str, Any] = {"hide_parameters": True}
    if url.get_backend_name() != "sqlite":
        options["isolation_level"] = "READ COMMITTED"
        timeouts = _TIMEOUTS.get(url.get_driver_name(), {})
        options["connect_args"] = {k: v for k, v in timeouts.items() if k not in url.query}
    elif in_memory(url):
        # One connection for all threads, one after another: each new one would be a database.
        options |= {"poolclass": QueuePool, "pool_size": 1, "max_overflow": 0, "pool_timeout": 60}
        options["connect_args"] = {"check_same_thread": False}
    else:
        options["connect_args"] = {"timeout": BUSY_SECONDS}
    engine = sa.create_engine(url, **options)
    if url.get_backend_name() == "sqlite":
        event.listen(engine, "connect", _set_up_sqlite)
        event.listen(engine, "invalidate", _roll_back)
    elif url.get_backend_name() in _LOCK_WAITS and url.query.keys().isdisjoint(_OWN_SETTINGS):
        event.listen(engine, "connect", partial(_limit_locks, _LOCK_WAITS[url.get_backend_name()]))
    return engine


def name_of(engine: sa.Engine) -> str:
    """Return what to call a database in messages: what it is and where, without any secret."""
    url = engine.url
    where = f" at {url.host}" if url.host else ""
    if url.port:
        where += f":{url.port}"
    return f"the {url.get_backend_name()} database {url.database or ''!r}{where}"


def in_memory(url: sa.URL) -> bool:
    """Return whether *url* means a database of SQLite that is no file."""
    if url.get_backend_name() != "sqlite":
        return False
    return url.database in (None, "", ":memory:") or url.query.get("mode") == "memory"


def one_by_one(engine: sa.Engine) -> AbstractContextManager[None]:
    """Return what keeps threads apart that work on a database through one connection.

    It would take the statements of both for one transaction. Connections that share a cache do
    not wait for each other either.
    """
    if not isinstance(engine.pool, StaticPool) and not in_memory(engine.url):
        return nullcontext()
    # By its dialect: an engine that was disposed of, as before a fork, has another pool.
    return _turns.setdefault(engine.dialect, ForkSafeLock())


def check_shared(engine: sa.Engine) -> None:
    """Make sure that all threads share one database: requests on an event loop work in others.

    Raises:
        UsageError: Each has its own, in memory, as engines for `sqlite://` do by default.
    """
    alone = isinstance(engine.pool, SingletonThreadPool | NullPool)
    if not alone or not in_memory(engine.url) or engine.url.query.get("cache") == "shared":
        return
    with engine.connect() as connection:  # a function of the owner's may have opened a file
        file = connection.exec_driver_sql("PRAGMA database_list").all()[0][2]
    if not file:
        msg = (
            "this engine makes a SQLite database in memory for each thread, and other threads "
            'would not find the conversations; give the URL itself ("sqlite://"), or '
            "create_engine(..., poolclass=StaticPool, connect_args={'check_same_thread': False})"
        )
        raise UsageError(msg)


def _limit_locks(statement: str, connection: Any, _record: Any) -> None:
    with closing(connection.cursor()) as cursor:
        cursor.execute(statement)
    connection.commit()


def _set_up_sqlite(connection: Any, _record: Any) -> None:
    write_ahead(connection)


def _roll_back(connection: Any, _record: Any, _error: Any) -> None:
    """Give back the lock of a connection that is thrown away, as Ctrl-C has it done.

    SQLite closes it when nothing refers to it any more, and the traceback does.
    """
    with suppress(Exception):
        connection.rollback()
