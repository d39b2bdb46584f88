"""An SQL database as the stores of this package use it; needs SQLAlchemy.

Everything here is synchronous: the stores reach it through `Runtime.finish`, which runs it in place
for a blocking request and in a worker thread for one on an event loop.
"""

import random
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from chatclient.errors import ChatMemoryUnavailableError
from chatclient.forks import fork_barrier, keep, register_after_fork, register_before_fork
from chatclient.memory.sql_engine import (
    check_shared,
    in_memory,
    name_of,
    one_by_one,
    open_engine,
)
from chatclient.memory.sql_failures import LostRaceError, check_size, failure_of, passes
from chatclient.memory.sql_schema import Schema

T = TypeVar("T")

Work = Callable[[sa.Connection], T]
"""What is to happen in one transaction. It may be called again when the database asks for it."""

_ATTEMPTS = 8
_PATIENCE = 10.0  # seconds after which nothing is tried again


class Database:
    """Runs transactions, once the schema is what it has to be.

    Args:
        target: A URL, whose engine is opened here and closed by `close`, or an engine, which stays
            its owner's.
        schema: What has to be there.

    Raises:
        UsageError: The URL cannot be used, or its driver is not installed.
    """

    def __init__(self, target: "str | sa.URL | sa.Engine", schema: Schema) -> None:
        self._owned = not isinstance(target, sa.Engine)
        self.engine = target if isinstance(target, sa.Engine) else open_engine(target)
        dialect = self.engine.dialect.name
        self._reading = self._writing = self.engine
        if not self._owned:  # whatever it is set to, such as AUTOCOMMIT, which has no transactions
            level = "SERIALIZABLE" if dialect == "sqlite" else "READ COMMITTED"
            self._reading = self._writing = self.engine.execution_options(isolation_level=level)
        if dialect == "postgresql":  # one way to the server and back, not three
            self._reading = self.engine.execution_options(isolation_level="AUTOCOMMIT")
        self._schema = schema
        self._fork_barrier = fork_barrier if dialect == "sqlite" else nullcontext()
        self._turn = one_by_one(self.engine)
        register_before_fork(self)
        register_after_fork(self)

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
                with self._fork_barrier, self._turn:
                    self._prepare()
                    return attempt()
            except (LostRaceError, SQLAlchemyError) as error:
                check_size(error, self._reading)
                left -= 1
                if not left or not passes(error) or time.monotonic() > ends:
                    raise failure_of(error, self.engine) from getattr(error, "orig", error)
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
                name = name_of(self.engine)
                msg = f"{name} did not confirm a commit; the change may or may not have happened"
                raise ChatMemoryUnavailableError(msg) from error.orig
            return result

    def _prepare(self) -> None:
        if not self._schema.ready:
            check_shared(self.engine)
            self._schema.prepare(self._writing)

    def before_fork(self) -> None:
        """Close SQLite's files: it counts on locks that a child does not inherit."""
        if self.engine.dialect.name == "sqlite" and not in_memory(self.engine.url):
            self.engine.dispose()

    def after_fork(self) -> None:
        """Leave the parent's connections alone: a child that used them would mix up both."""
        self._schema.after_fork()
        if not in_memory(self.engine.url):
            keep(self.engine.pool)
            self.engine.dispose(close=False)
