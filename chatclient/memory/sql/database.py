"""Runs SQL transactions with retries, and locks rows in them; imports SQLAlchemy.

All functions are blocking. The repositories call them through `Runtime.finish`: in the caller's
thread for a blocking request, in a worker thread for a request on an event loop.
"""

import random
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from chatclient.memory.encoding import digest
from chatclient.memory.sql.engine import (
    check_shared,
    connection_lock,
    in_memory,
    name_of,
    open_engine,
)
from chatclient.memory.sql.errors import (
    LostRaceError,
    check_packet_size,
    is_transient,
    store_error,
)
from chatclient.memory.sql.schema import Schema
from chatclient.runtime.threads import (
    fork_barrier,
    keep,
    register_after_fork,
    register_before_fork,
)

T = TypeVar("T")

Work = Callable[[sa.Connection], T]
"""The statements of one transaction. It is called again if the transaction is retried."""

_ATTEMPTS = 8
_PATIENCE = 10.0  # seconds after which an operation is not retried


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
        return connection.execute(self._find, {"which": values["which"]}).one()
