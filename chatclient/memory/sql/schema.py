"""Creates and upgrades the tables of a repository; imports SQLAlchemy."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.schema import CreateTable

from chatclient.errors import UsageError
from chatclient.memory.sql.engine import LOCK_SECONDS, name_of
from chatclient.memory.sql.errors import MEMORY_ERRORS, LostRaceError, StoreErrors

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
            version = self._version_on(connection)
            if version < len(self._steps):
                self._upgrade(connection, version)
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

    def _upgrade(self, connection: sa.Connection, version: int) -> None:
        for step in self._steps[version:]:
            step(connection)
        newest = len(self._steps)
        if version:
            mine = self._versions.c.component == self._component
            connection.execute(sa.update(self._versions).where(mine).values(version=newest))
        else:
            row = {"component": self._component, "version": newest}
            connection.execute(sa.insert(self._versions), row)

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
