"""An SQL database as the stores of this package use it; needs SQLAlchemy.

Everything here is synchronous: the stores reach it through `Runtime.finish`, which runs it in place
for a blocking request and in a worker thread for one on an event loop.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.pool import NullPool, QueuePool, SingletonThreadPool
from sqlalchemy.schema import CreateTable

from chatclient.errors import ChatMemoryError, ChatMemoryUnavailableError, UsageError
from chatclient.forks import keep, tell_before_forks, tell_of_forks, undisturbed
from chatclient.sqlite_files import BUSY_SECONDS, write_ahead

T = TypeVar("T")

Work = Callable[[sa.Connection], T]
"""What is to happen in one transaction. It may be called again when the database asks for it."""

Step = Callable[[sa.Connection], None]
"""Takes a schema from one version to the next."""

_DRIVERS = {
    "postgresql": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",
    "mysql": "mysql+pymysql",
    "mariadb": "mariadb+pymysql",
}
_EXTRAS = {"psycopg": "postgres", "pymysql": "mysql"}
_ATTEMPTS = 8
_DEADLOCKS = ("40001", "40P01", 1213, 1020)  # SQLSTATEs of PostgreSQL, numbers of MySQL
_CUT_OFF = (2006, 2013, 1153)  # what MySQL's drivers say when a server takes no more of a packet
_LARGE = 250_000  # bytes; what is smaller fits into a packet of any server
_ESCAPED = "\\'\"\0\n\r\x1a"  # what these drivers write with another character before it
_PATIENCE = 10.0  # seconds after which nothing is tried again
_LOCK_SECONDS = 15  # how long one transaction waits for another one
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
    "postgresql": f"SET lock_timeout = '{_LOCK_SECONDS}s'",
    "mysql": f"SET SESSION innodb_lock_wait_timeout = {_LOCK_SECONDS}",
    "mariadb": f"SET SESSION innodb_lock_wait_timeout = {_LOCK_SECONDS}",
}
_OWN_SETTINGS = ("options", "init_command")  # parts of a URL that say what a session begins with
_LOCK = 0x63686174  # names our lock among a PostgreSQL server's advisory locks

BIG_KEY = sa.BigInteger().with_variant(sa.Integer, "sqlite")  # the only kind SQLite counts up
LONG_TEXT = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
TABLE_OPTIONS: dict[str, Any] = {
    f"{dialect}_{option}": value
    for dialect in ("mysql", "mariadb")
    for option, value in (
        ("engine", "InnoDB"),
        ("charset", "utf8mb4"),
        ("collate", "utf8mb4_bin"),
    )
}
"""Keeps MySQL from cutting emoji off and from taking `A` for `a`."""


class AgainError(Exception):
    """Raised by work that lost a race: it is rolled back and begun anew."""


class Database:
    """Runs transactions, once the schema is what it has to be.

    Args:
        target: A URL, whose engine is opened here and closed by `close`, or an engine, which stays
            its owner's.
        component: What the schema is for; its version is kept under this name.
        steps: What makes the schema: the first creates it, each further one brings it up to date.
        prefix: What the names of tables begin with.
        create_schema: Whether the schema is created and brought up to date. Without, it has to
            be there.

    Raises:
        UsageError: The URL cannot be used, or its driver is not installed.
    """

    def __init__(
        self,
        target: "str | sa.URL | sa.Engine",
        component: str,
        steps: Sequence[Step],
        *,
        prefix: str,
        create_schema: bool = True,
    ) -> None:
        self._owned = not isinstance(target, sa.Engine)
        self.engine = target if isinstance(target, sa.Engine) else _open(target)
        self._reading = self._writing = self.engine
        if not self._owned:  # whatever it is set to, such as AUTOCOMMIT, which has no transactions
            level = "SERIALIZABLE" if self.engine.dialect.name == "sqlite" else "READ COMMITTED"
            self._reading = self._writing = self.engine.execution_options(isolation_level=level)
        if self.engine.dialect.name == "postgresql":  # one way to the server and back, not three
            self._reading = self.engine.execution_options(isolation_level="AUTOCOMMIT")
        self._component = component
        self._steps = steps
        self._prefix = prefix
        self._create = create_schema
        self._versions = sa.Table(
            f"{prefix}schema",
            sa.MetaData(),
            sa.Column("component", sa.String(50), primary_key=True),
            sa.Column("version", sa.Integer, nullable=False),
            **TABLE_OPTIONS,
        )
        self._lock = threading.Lock()
        self._ready = threading.Event()
        sqlite = self.engine.dialect.name == "sqlite"
        self._undisturbed = undisturbed if sqlite else nullcontext()
        tell_before_forks(self)
        tell_of_forks(self)

    @property
    def name(self) -> str:
        """What to call the database in messages: what it is and where, without any secret."""
        url = self.engine.url
        where = f" at {url.host}" if url.host else ""
        if url.port:
            where += f":{url.port}"
        return f"the {url.get_backend_name()} database {url.database or ''!r}{where}"

    def read(self, statement: sa.Executable, values: dict[str, Any]) -> Sequence[sa.Row[Any]]:
        """Return the rows of one statement, which sees one state of the database."""
        return self._run(lambda: self._select(statement, values))

    def write(self, work: Work[T]) -> T:
        """Run *work* as one transaction and return its result.

        It is repeated when the database gave another transaction the way, or when the connection
        turned out to be gone: until the commit, nothing has happened.

        Raises:
            ChatMemoryUnavailableError: The database cannot be reached, or is locked for too long.
            ChatMemoryError: It refuses the work.
        """
        return self._run(lambda: self._transaction(work))

    def close(self) -> None:
        """Close the connections, if the engine was opened here."""
        if self._owned:
            self.engine.dispose()

    def _run(self, attempt: Callable[[], T]) -> T:
        left, ends = _ATTEMPTS, time.monotonic() + _PATIENCE
        while True:
            try:
                with self._undisturbed:
                    self._prepare()
                    return attempt()
            except (AgainError, SQLAlchemyError) as error:
                self._check_size(error)
                left -= 1
                if not left or not _passes(error) or time.monotonic() > ends:
                    raise self._failure(error) from getattr(error, "orig", error)
            time.sleep(random.uniform(0.001, 0.02))  # noqa: S311 - parts those who collided

    def _select(self, statement: sa.Executable, values: dict[str, Any]) -> Sequence[sa.Row[Any]]:
        with self._reading.connect() as connection:
            return connection.execute(statement, values).all()

    def _transaction(self, work: Work[T]) -> T:
        with self._writing.connect() as connection:
            result = work(connection)
            try:
                connection.commit()
            except DBAPIError as error:
                msg = f"{self.name} did not confirm a commit; the change may have happened or not"
                raise ChatMemoryUnavailableError(msg) from error.orig
            return result

    def _check_size(self, error: Exception) -> None:
        """See that a connection was not cut because of what was sent: it would be each time.

        Raises:
            ChatMemoryError: A value is larger than a packet may be.
        """
        if not isinstance(error, DBAPIError) or _code(error) not in _CUT_OFF:
            return
        size = _size(error)
        if size < _LARGE or self.engine.dialect.name not in ("mysql", "mariadb"):
            return
        try:
            [[most]] = self._select(sa.text("SELECT @@max_allowed_packet"), {})
        except SQLAlchemyError:  # it is gone for another reason
            return
        if size > most:
            msg = (
                f"{self.name} takes no message of about {size} bytes, for its max_allowed_packet "
                f"is {most}; set that higher, or send media by their URLs"
            )
            raise ChatMemoryError(msg) from error.orig

    def _failure(self, error: Exception) -> ChatMemoryError:
        if isinstance(error, OperationalError | InterfaceError | AgainError | PoolTimeoutError):
            return ChatMemoryUnavailableError(
                f"{self.name} cannot be used right now; see the cause of this error"
            )
        return ChatMemoryError(f"{self.name} refused the work; see the cause of this error")

    def _prepare(self) -> None:
        """See once that the schema is what it has to be."""
        if self._ready.is_set():
            return
        with self._lock:
            if self._ready.is_set():
                return
            _check_shared(self.engine)
            if self._version() != len(self._steps):
                self._build()
            self._ready.set()

    def _version(self) -> int:
        """Return the version of the schema that is there, 0 if there is none."""
        with self._writing.connect() as connection:
            return self._version_on(connection)

    def _version_on(self, connection: sa.Connection) -> int:
        if not sa.inspect(connection).has_table(self._versions.name):
            return 0
        column = self._versions.c
        found = connection.scalar(
            sa.select(column.version).where(column.component == self._component)
        )
        return found or 0

    def _build(self) -> None:
        """Create the schema or bring it up to date, one process at a time."""
        if not self._create:
            self._check(self._version())
            return
        with self._writing.connect() as connection, self._alone(connection):
            version = self._version_on(connection)
            if version < len(self._steps):
                self._upgrade(connection, version)
                version = len(self._steps)
            connection.commit()
        self._check(version)

    @contextmanager
    def _alone(self, connection: sa.Connection) -> Iterator[None]:
        """Keep other processes from creating a schema of this prefix at the same time."""
        dialect = connection.dialect.name
        lock = f"chatclient.{self._prefix}schema"[:64]
        if dialect == "postgresql":  # until the end of the transaction
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
        elif dialect in ("mysql", "mariadb") and not connection.scalar(
            sa.select(sa.func.get_lock(lock, _LOCK_SECONDS))
        ):  # each statement that creates something commits there, so the lock is the session's
            raise AgainError
        try:
            connection.execute(CreateTable(self._versions, if_not_exists=True))
            if dialect == "sqlite":  # locks the file, whichever way transactions are begun
                connection.execute(sa.update(self._versions).where(sa.false()).values(version=0))
            yield
        finally:
            if dialect in ("mysql", "mariadb"):
                connection.execute(sa.select(sa.func.release_lock(lock)))

    def _upgrade(self, connection: sa.Connection, version: int) -> None:
        for step in self._steps[version:]:
            step(connection)
        mine = {"component": self._component, "version": len(self._steps)}
        if version:
            change = sa.update(self._versions).where(self._versions.c.component == self._component)
            connection.execute(change.values(version=len(self._steps)))
        else:
            connection.execute(sa.insert(self._versions), mine)

    def _check(self, version: int) -> None:
        if version > len(self._steps):
            msg = (
                f"{self.name} has version {version} of the {self._component} schema, this release "
                f"knows {len(self._steps)}; use the newer release of chatclient everywhere"
            )
            raise ChatMemoryError(msg)
        if version < len(self._steps):
            msg = (
                f"{self.name} has version {version} of the {self._component} schema, this release "
                f"needs {len(self._steps)}; allow it with create_schema=True, once"
            )
            raise UsageError(msg)

    def before_fork(self) -> None:
        """Close SQLite's files: it counts on locks that a child does not inherit."""
        if self.engine.dialect.name == "sqlite" and not _in_memory(self.engine.url):
            self.engine.dispose()

    def after_fork(self) -> None:
        """Leave the parent's connections alone: a child that used them would mix up both."""
        self._lock = threading.Lock()
        if not _in_memory(self.engine.url):
            keep(self.engine.pool)
            self.engine.dispose(close=False)


def _open(target: "str | sa.URL") -> sa.Engine:
    try:
        url = sa.make_url(target)
        url = url.set(drivername=_DRIVERS.get(url.drivername, url.drivername))
        return _engine(url)
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get(error.name or "", "sql")
        msg = f"{error.name} is not installed; pip install 'chatclient[{extra}]'"
        raise UsageError(msg) from error
    except (SQLAlchemyError, ValueError):
        # Neither the URL nor the error's text can be shown: there may be a password in them.
        msg = "not the URL of a database; it looks like postgresql://user:password@host/database"
        raise UsageError(msg) from None


def _engine(url: sa.URL) -> sa.Engine:
    options: dict[str, Any] = {"hide_parameters": True}
    if url.get_backend_name() != "sqlite":
        options["isolation_level"] = "READ COMMITTED"
        timeouts = _TIMEOUTS.get(url.get_driver_name(), {})
        options["connect_args"] = {k: v for k, v in timeouts.items() if k not in url.query}
    elif _in_memory(url):
        # One connection for all threads, one after another: each new one would be a database.
        options |= {"poolclass": QueuePool, "pool_size": 1, "max_overflow": 0, "pool_timeout": 60}
        options["connect_args"] = {"check_same_thread": False}
    else:
        options["connect_args"] = {"timeout": BUSY_SECONDS}
    engine = sa.create_engine(url, **options)
    if engine.dialect.is_async:
        msg = f"{url.drivername} is an asynchronous driver; name a plain one, or none"
        raise UsageError(msg)
    if url.get_backend_name() == "sqlite":
        event.listen(engine, "connect", _set_up_sqlite)
        event.listen(engine, "invalidate", _roll_back)
    elif url.get_backend_name() in _LOCK_WAITS and url.query.keys().isdisjoint(_OWN_SETTINGS):
        event.listen(engine, "connect", partial(_limit_locks, _LOCK_WAITS[url.get_backend_name()]))
    return engine


def _in_memory(url: sa.URL) -> bool:
    if url.get_backend_name() != "sqlite":
        return False
    return url.database in (None, "", ":memory:") or url.query.get("mode") == "memory"


def _check_shared(engine: sa.Engine) -> None:
    """See that all threads have the same database: a request on an event loop works in another.

    Raises:
        UsageError: Each has its own, in memory, as engines for `sqlite://` do by default.
    """
    alone = isinstance(engine.pool, SingletonThreadPool | NullPool)
    if not alone or not _in_memory(engine.url) or engine.url.query.get("cache") == "shared":
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


def _passes(error: Exception) -> bool:
    """Return whether the same work may succeed when it is tried again at once."""
    if not isinstance(error, DBAPIError):
        return isinstance(error, AgainError)
    if error.connection_invalidated:
        return True
    return _code(error) in _DEADLOCKS


def _code(error: DBAPIError) -> Any:
    """Return what the database calls an error: an SQLSTATE, or a number."""
    cause = error.orig
    return getattr(cause, "sqlstate", None) or next(iter(getattr(cause, "args", ())), None)


def _size(error: BaseException | None) -> int:
    """Return how many bytes the largest row of the statement that failed first comes to."""
    size = 0
    while error is not None:  # rolling back fails, too, when the connection is gone
        if isinstance(error, DBAPIError) and error.params:
            rows = error.params if isinstance(error.params, list) else [error.params]
            values = [row.values() if isinstance(row, dict) else row for row in rows]
            largest: int = max(sum(_escaped(each) for each in row) for row in values)
            size = len(error.statement or "") + largest
        error = error.__context__
    return size


def _escaped(value: Any) -> int:
    if not isinstance(value, str):
        return 0
    return len(value.encode()) + sum(value.count(character) for character in _ESCAPED)
