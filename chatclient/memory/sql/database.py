"""Runs SQL transactions with retries on tables that it creates and upgrades; imports SQLAlchemy.

All functions are blocking. The repositories call them through `Runtime.finish`: in the caller's
thread for a blocking request, in a worker thread for a request on an event loop.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.schema import CreateTable

from chatclient.errors import UsageError
from chatclient.memory.encoding import digest
from chatclient.memory.sql.engine import (
    LOCK_SECONDS,
    MEMORY_ERRORS,
    LostRaceError,
    StoreErrors,
    check_packet_size,
    check_shared,
    connection_lock,
    in_memory,
    is_transient,
    name_of,
    open_engine,
    store_error,
)
from chatclient.runtime.threads import (
    fork_barrier,
    keep,
    register_after_fork,
    register_before_fork,
)

Step = Callable[[sa.Connection], None]
"""Upgrades a schema by one version."""

_LOCK = 0x63686174  # key of the PostgreSQL advisory lock

BIG_KEY = sa.BigInteger().with_variant(sa.Integer, "sqlite")  # the only type that SQLite increments
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
"""Lets MySQL store all of Unicode and compare case-sensitively."""

T = TypeVar("T")
Work = Callable[[sa.Connection], T]
"""The statements of one transaction. It is called again if the transaction is retried."""

_ATTEMPTS = 8
_PATIENCE = 10.0  # seconds after which an operation is not retried


def create_tables(connection: sa.Connection, *tables: sa.Table) -> None:
    """Create those of *tables*, and of their indexes, that do not exist."""
    for table in tables:
        connection.execute(CreateTable(table, if_not_exists=True))
        for index in table.indexes:
            index.create(connection, checkfirst=True)


class Schema:
    """The tables of one component; their version is stored in the database.

    Args:
        component: The name under which the version is stored.
        steps: The first creates the tables, each further one upgrades them by one version.
        prefix: The prefix of the table names.
        create: Whether to create and upgrade the tables. If False, they must be up to date.
        errors: The errors to raise if the database fails.
    """

    def __init__(
        self,
        component: str,
        steps: Sequence[Step],
        *,
        prefix: str,
        create: bool = True,
        errors: StoreErrors = MEMORY_ERRORS,
    ) -> None:
        self.errors = errors
        self._component = component
        self._steps = steps
        self._prefix = prefix
        self._create = create
        self._versions = sa.Table(
            f"{prefix}schema",
            sa.MetaData(),
            sa.Column("component", sa.String(50), primary_key=True),
            sa.Column("version", sa.Integer, nullable=False),
            **TABLE_OPTIONS,
        )
        self._lock = threading.Lock()
        self._ready = threading.Event()

    @property
    def ready(self) -> bool:
        """Whether the schema is known to be up to date."""
        return self._ready.is_set()

    def prepare(self, engine: sa.Engine) -> None:
        """Bring the schema up to date, once per process.

        Raises:
            UsageError: It is missing or old, and `create` is False.
            ChatMemoryError: It is newer than this release; or the error of this component.
        """
        with self._lock:
            if self.ready:
                return
            if self._version(engine) != len(self._steps):
                self._build(engine)
            self._ready.set()

    def after_fork(self) -> None:
        """Replace the lock, which a thread of the parent process may have held."""
        self._lock = threading.Lock()

    def _version(self, engine: sa.Engine) -> int:
        """Return the version of the stored schema, 0 if there is none."""
        with engine.connect() as connection:
            return self._version_on(connection)

    def _version_on(self, connection: sa.Connection) -> int:
        if not sa.inspect(connection).has_table(self._versions.name):
            return 0
        column = self._versions.c
        found = connection.scalar(
            sa.select(column.version).where(column.component == self._component)
        )
        return found or 0

    def _build(self, engine: sa.Engine) -> None:
        """Create or upgrade the schema, one process at a time."""
        if not self._create:
            self._check(self._version(engine), engine)
            return
        with engine.connect() as connection, self._exclusively(connection):
            # Read under the lock, because another process may just have upgraded the schema.
            version = self._version_on(connection)
            if version < len(self._steps):
                for step in self._steps[version:]:
                    step(connection)
                newest = len(self._steps)
                if version:
                    mine = self._versions.c.component == self._component
                    connection.execute(sa.update(self._versions).where(mine).values(version=newest))
                else:
                    row = {"component": self._component, "version": newest}
                    connection.execute(sa.insert(self._versions), row)
                version = len(self._steps)
            connection.commit()
        self._check(version, engine)

    @contextmanager
    def _exclusively(self, connection: sa.Connection) -> Iterator[None]:
        """Lock schema changes with this prefix for other processes."""
        dialect = connection.dialect.name
        lock = f"chatclient.{self._prefix}schema"[:64]
        if dialect == "postgresql":  # until the end of the transaction
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
        elif dialect in ("mysql", "mariadb") and not connection.scalar(
            sa.select(sa.func.get_lock(lock, LOCK_SECONDS))
        ):  # a lock of the session, because each CREATE TABLE commits the transaction
            raise LostRaceError
        try:
            connection.execute(CreateTable(self._versions, if_not_exists=True))
            if dialect == "sqlite":  # locks the file in any transaction mode
                connection.execute(sa.update(self._versions).where(sa.false()).values(version=0))
            yield
        finally:
            # A lost connection releases the lock; a query on it would hide the original error.
            if dialect in ("mysql", "mariadb") and not connection.invalidated:
                connection.execute(sa.select(sa.func.release_lock(lock)))

    def _check(self, version: int, engine: sa.Engine) -> None:
        newest = len(self._steps)
        there = f"{name_of(engine)} has version {version} of the {self._component} schema"
        if version > newest:
            msg = (
                f"{there}, this release knows {newest}; use the newer release of chatclient "
                "everywhere"
            )
            raise self.errors.refused(msg)
        if version < newest:
            msg = f"{there}, this release needs {newest}; allow it with create_schema=True, once"
            raise UsageError(msg)


class Database:
    """Runs transactions on a database with an up-to-date schema.

    Args:
        target: A URL, for which an engine is created and disposed of by `close`, or an engine,
            which `close` does not touch.
        schema: The required schema, prepared before the first transaction.

    Raises:
        UsageError: The URL is invalid, or its driver is not installed.
    """

    def __init__(self, target: "str | sa.URL | sa.Engine", schema: Schema) -> None:
        self._owned = not isinstance(target, sa.Engine)
        self.engine = target if isinstance(target, sa.Engine) else open_engine(target)
        dialect = self.engine.dialect.name
        self._reading = self._writing = self.engine
        if not self._owned:  # the engine may be configured differently, e.g. with AUTOCOMMIT
            level = "SERIALIZABLE" if dialect == "sqlite" else "READ COMMITTED"
            self._reading = self._writing = self.engine.execution_options(isolation_level=level)
        if dialect == "postgresql":  # one round trip instead of three
            self._reading = self.engine.execution_options(isolation_level="AUTOCOMMIT")
        self._schema = schema
        self._fork_barrier = fork_barrier if dialect == "sqlite" else nullcontext()
        self._exclusive = connection_lock(self.engine)
        register_before_fork(self)
        register_after_fork(self)

    def read(self, statement: sa.Executable, values: dict[str, Any]) -> Sequence[sa.Row[Any]]:
        """Return the rows of one statement."""
        return self._run(lambda: self._select(statement, values))

    def write(self, work: Work[T]) -> T:
        """Run *work* as one transaction and return its result.

        The transaction is retried after a deadlock, a conflict or a lost connection, as long as
        the commit was not sent.

        Raises:
            ChatMemoryUnavailableError: The database cannot be reached, or is locked for too long;
                or another error that the schema names.
            ChatMemoryError: The database rejected a statement; likewise.
        """
        return self._run(lambda: self._transaction(work))

    def close(self) -> None:
        """Close the connections if they were opened for a URL."""
        if self._owned:
            self.engine.dispose()

    def _run(self, attempt: Callable[[], T]) -> T:
        left, ends = _ATTEMPTS, time.monotonic() + _PATIENCE
        while True:
            try:
                # For each attempt, so that nothing waits for them during the pauses.
                with self._fork_barrier, self._exclusive:
                    self._prepare()
                    return attempt()
            except (LostRaceError, SQLAlchemyError) as error:
                check_packet_size(error, self._reading)
                left -= 1
                if not left or not is_transient(error) or time.monotonic() > ends:
                    cause = getattr(error, "orig", error)
                    raise store_error(error, self.engine, self._schema.errors) from cause
            time.sleep(random.uniform(0.001, 0.02))  # noqa: S311 - separates competitors

    def _select(self, statement: sa.Executable, values: dict[str, Any]) -> Sequence[sa.Row[Any]]:
        with self._reading.connect() as connection:
            return connection.execute(statement, values).all()

    def _transaction(self, work: Work[T]) -> T:
        with self._writing.connect() as connection:
            result = work(connection)
            try:
                connection.commit()
            except DBAPIError as error:
                # Not retried: the commit may have happened.
                name = name_of(self.engine)
                msg = f"{name} did not confirm a commit; the change may or may not have happened"
                raise self._schema.errors.unavailable(msg) from error.orig
            return result

    def _prepare(self) -> None:
        if not self._schema.ready:
            check_shared(self.engine)
            self._schema.prepare(self._writing)

    def before_fork(self) -> None:
        """Close SQLite files, because a child process does not inherit their locks."""
        if self.engine.dialect.name == "sqlite" and not in_memory(self.engine.url):
            self.engine.dispose()

    def after_fork(self) -> None:
        """Open new connections in the child process; the existing ones are the parent's."""
        self._schema.after_fork()
        if not in_memory(self.engine.url):
            keep(self.engine.pool)
            self.engine.dispose(close=False)


class VersionedRows:
    """Rows with a version and a length, found by the digest of an id.

    Each change of a conversation or session begins with an update of its row. It locks the row
    (with SQLite, the file) until the commit, which serialises concurrent changes.

    Args:
        table: A table with the columns `id`, `digest`, `version` and `length`.
        *further_columns: Further columns to return.
    """

    def __init__(self, table: sa.Table, *further_columns: "sa.Column[Any]") -> None:
        columns = table.c
        mine = columns.digest == sa.bindparam("which")
        selected = (columns.id, columns.version, columns.length, *further_columns)
        changed = {
            "version": columns.version + 1,
            "length": columns.length + sa.bindparam("more"),
        }
        self._change = sa.update(table).where(mine).values(changed)
        self._change_returning = self._change.returning(*selected)
        self._find = sa.select(*selected).where(mine)

    def advance(self, connection: sa.Connection, id: str, more: int) -> Any:
        """Lock the row of *id*, increment its version, and return it; None if there is no row.

        Args:
            connection: The connection of the transaction.
            id: The id of the conversation or session.
            more: The number to add to the length.
        """
        values = {"which": digest(id), "more": more}
        if connection.dialect.update_returning:
            return connection.execute(self._change_returning, values).one_or_none()
        if not connection.execute(self._change, values).rowcount:
            return None
        # The update holds the lock, so the row is read as it was changed.
        return connection.execute(self._find, {"which": values["which"]}).one()
