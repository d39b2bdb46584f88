"""`SqlIndexRecord`: the record of a `DocumentIndex` in a SQL database; imports SQLAlchemy."""

from collections.abc import Callable, Mapping
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from chatclient.memory.encoding import digest, restored, storable
from chatclient.memory.sql.database import create_tables
from chatclient.retrieval.ingestion.record import (
    IndexEntry,
    IndexRecord,
    IndexRecordError,
    IndexState,
    check_revision,
    conflict,
    decoded,
    encoded,
)
from chatclient.runtime.runtime import Runtime

T = TypeVar("T")


class SqlIndexRecord(IndexRecord):
    """A record in PostgreSQL, MariaDB, MySQL or SQLite, for indexes that several machines update.

    Args:
        engine: An engine of SQLAlchemy, which the application disposes of.
        name: The name of the index; the tables may contain records of several.
        table: The name of the table, which is created if it is missing. A second one has this name
            with `_revision` appended.
    """

    def __init__(
        self, engine: sa.Engine, name: str = "documents", *, table: str = "document_index"
    ) -> None:
        self.name = name
        self._engine = engine
        self._ready = False
        metadata = sa.MetaData()
        # MySQL's TEXT ends at 64 KiB.
        long_text = sa.Text().with_variant(sa.Text(2**32 - 1), "mysql", "mariadb")
        # Digests: names and sources may be long, and MySQL's keys are not case-sensitive.
        self._entries = sa.Table(
            table,
            metadata,
            sa.Column("name", sa.String(64), primary_key=True),
            sa.Column("source_digest", sa.String(64), primary_key=True),
            sa.Column("source", long_text, nullable=False),
            sa.Column("fingerprint", sa.String(64), nullable=False),
            sa.Column("stored", long_text, nullable=False),
            sa.Column("pending", long_text, nullable=False),
        )
        self._revisions = sa.Table(
            f"{table}_revision",
            metadata,
            sa.Column("name", sa.String(64), primary_key=True),
            sa.Column("revision", sa.Integer, nullable=False),
        )

    async def load(self, runtime: Runtime) -> IndexState:
        """Return all entries.

        Raises:
            IndexRecordError: The database failed.
        """
        return await runtime.finish(self._do, self._load)

    async def save(
        self, changes: Mapping[str, IndexEntry | None], revision: int, runtime: Runtime
    ) -> None:
        """Store entries in one transaction.

        Raises:
            IndexConflictError: The record is not at *revision*.
            IndexRecordError: The database failed.
        """
        await runtime.finish(self._do, lambda database: self._save(database, changes, revision))

    def _do(self, work: Callable[[sa.Connection], T]) -> T:
        try:
            if not self._ready:
                with self._engine.begin() as database:
                    create_tables(database, self._entries, self._revisions)
                self._ready = True
            with self._engine.begin() as database:
                return work(database)
        except SQLAlchemyError as error:
            msg = f"the record of a document index in {self._engine.dialect.name} failed; see the"
            msg += " cause of this error"
            raise IndexRecordError(msg) from error

    def _load(self, database: sa.Connection) -> IndexState:
        # The revision first: a change between both reads is then a conflict when this is saved.
        revision = self._revision(database)
        columns = self._entries.c
        query = sa.select(columns.source, columns.fingerprint, columns.stored, columns.pending)
        rows = database.execute(query.where(columns.name == digest(self.name)))
        entries = {restored(source): decoded(*several) for source, *several in rows.all()}
        return IndexState(entries, revision)

    def _revision(self, database: sa.Connection) -> int:
        columns = self._revisions.c
        query = sa.select(columns.revision).where(columns.name == digest(self.name))
        return database.scalar(query) or 0

    def _save(
        self, database: sa.Connection, changes: Mapping[str, IndexEntry | None], revision: int
    ) -> None:
        self._advance(database, revision)
        entries, name = self._entries, digest(self.name)
        for source, entry in changes.items():
            row = {"name": name, "source_digest": digest(source)}
            same = [entries.c[key] == value for key, value in row.items()]
            database.execute(sa.delete(entries).where(*same))
            if entry is not None:
                several = ("fingerprint", "stored", "pending")
                row |= dict(zip(several, encoded(entry), strict=True))
                database.execute(sa.insert(entries).values(source=storable(source), **row))

    def _advance(self, database: sa.Connection, revision: int) -> None:
        """Increase the revision, whose row is locked until the end of the transaction."""
        columns, name = self._revisions.c, digest(self.name)
        update = sa.update(self._revisions).where(
            columns.name == name, columns.revision == revision
        )
        if database.execute(update.values(revision=revision + 1)).rowcount == 1:
            return
        check_revision(self._revision(database), revision)
        try:
            database.execute(sa.insert(self._revisions).values(name=name, revision=1))
        except IntegrityError as error:
            raise conflict() from error
