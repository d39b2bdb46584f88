"""The table of `PgVectorStore`; imports SQLAlchemy."""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB, REGCLASS, TSVECTOR
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import UserDefinedType

from chatclient.errors import UsageError, VectorStoreError
from chatclient.memory.sql.schema import create_tables
from chatclient.retrieval.vector_store.lengths import mismatch

_OLDEST = (0, 8)  # the release of pgvector with iterative scans
_MAX_INDEXED = 2_000  # numbers in a vector that HNSW indexes with 32 bits each
_MAX_HALF_INDEXED = 4_000  # the same with 16 bits each


class _Vector(UserDefinedType[Any]):
    cache_ok = True

    def __init__(self, kind: str = "vector", length: int | None = None) -> None:
        self.kind = kind
        self.length = length

    def get_col_spec(self, **_: Any) -> str:
        return self.kind if self.length is None else f"{self.kind}({self.length})"


VECTOR = _Vector()
"""The type `vector` of any length."""


def _half(length: int) -> bool:
    """Return whether vectors of this length are indexed with 16 bits for each number."""
    return _MAX_INDEXED < length <= _MAX_HALF_INDEXED


def distance(
    column: sa.ColumnElement[Any], vector: sa.ColumnElement[Any], length: int
) -> sa.ColumnElement[float]:
    """Return the negative inner product of a column and a vector, in the form of the index."""
    if _half(length):
        half = _Vector("halfvec", length)
        return sa.cast(column, half).op("<#>", return_type=sa.Float())(sa.cast(vector, half))
    return column.op("<#>", return_type=sa.Float())(vector)


class DocumentTable:
    """The table of documents, whose vectors have the length of the first one.

    Args:
        prefix: The prefix of the table's name.
        create: Whether the table may be created and changed.
    """

    def __init__(self, prefix: str, *, create: bool) -> None:
        self._create = create
        self.table = table = sa.Table(
            f"{prefix}document",
            sa.MetaData(),
            sa.Column("digest", sa.String(64), primary_key=True),  # of the id, which may be long
            sa.Column("id", sa.Text, nullable=False),
            sa.Column("text", sa.Text, nullable=False),
            sa.Column("metadata", JSONB, nullable=False),
            sa.Column("exact", sa.Text),  # metadata that `jsonb` does not represent
            sa.Column("words", TSVECTOR, nullable=False),
            sa.Column("vector", VECTOR, nullable=False),
        )
        self.columns = table.c
        operators = {"metadata": "jsonb_path_ops"}
        sa.Index(
            f"{prefix}document_metadata",
            table.c.metadata,
            postgresql_using="gin",
            postgresql_ops=operators,
        )
        sa.Index(f"{prefix}document_words", table.c.words, postgresql_using="gin")
        self._index = f"{prefix}document_vector"

    def create(self, connection: sa.Connection) -> None:
        """Create the table, its indexes, and pgvector in the database.

        Raises:
            VectorStoreError: pgvector is missing or too old.
        """
        version = sa.text("SELECT extversion FROM pg_extension WHERE extname = 'vector'")
        try:
            connection.execute(sa.text("CREATE EXTENSION IF NOT EXISTS vector"))
        except DBAPIError as error:
            msg = (
                "the database has no pgvector; install it on the server, and let a superuser"
                " execute CREATE EXTENSION vector"
            )
            raise VectorStoreError(msg) from error.orig
        found = connection.execute(version).scalar_one()
        if tuple(map(int, found.split(".")[:2])) < _OLDEST:
            msg = f"the database has pgvector {found}; install 0.8 or newer, then execute ALTER"
            msg += " EXTENSION vector UPDATE"
            raise VectorStoreError(msg)
        create_tables(connection, self.table)

    def length(self) -> sa.ColumnElement[int]:
        """Return the query for the length of the vectors, -1 before the first document."""
        catalog = sa.table(
            "pg_attribute", sa.column("attrelid"), sa.column("attname"), sa.column("atttypmod")
        )
        mine = sa.cast(self._quoted(self.table.name), REGCLASS)
        query = sa.select(catalog.c.atttypmod).where(
            catalog.c.attrelid == mine, catalog.c.attname == "vector"
        )
        return query.scalar_subquery()

    def check_empty(self, connection: sa.Connection, length: int, stored: int) -> bool:
        """Return True if there are no documents.

        Raises:
            UsageError: There are some, whose vectors have another length.
        """
        if connection.execute(sa.select(self.columns.digest).limit(1)).first() is None:
            return True
        raise mismatch({length, stored})

    def fit(self, connection: sa.Connection, length: int) -> None:
        """Prepare the table for vectors of one length, with an index for it.

        Raises:
            UsageError: The documents in the table have another one, or the table must not be
                changed.
        """
        stored = connection.execute(sa.select(self.length())).scalar_one()
        if stored == length:
            return
        name = self._quoted(self.table.name)
        if self._create:
            connection.execute(sa.text(f"LOCK TABLE {name} IN ACCESS EXCLUSIVE MODE"))
        stored = connection.execute(sa.select(self.length())).scalar_one()
        if stored == length:  # by another process
            return
        self.check_empty(connection, length, stored)
        if not self._create:
            msg = f"the table {name} has no index for vectors of {length} numbers yet; add the"
            msg += " first document with create_schema=True"
            raise UsageError(msg)
        self._set_length(connection, name, length)

    def _set_length(self, connection: sa.Connection, name: str, length: int) -> None:
        index = self._quoted(self._index)
        indexed, operators = "vector", "vector_ip_ops"  # these index zeros, cosine does not
        if _half(length):
            indexed, operators = f"(vector::halfvec({length}))", "halfvec_ip_ops"
        statements = [
            f"DROP INDEX IF EXISTS {index}",
            f"ALTER TABLE {name} ALTER COLUMN vector TYPE vector({length})",
        ]
        if length <= _MAX_HALF_INDEXED:
            statements.append(f"CREATE INDEX {index} ON {name} USING hnsw ({indexed} {operators})")
        for statement in statements:
            connection.execute(sa.text(statement))

    @staticmethod
    def _quoted(name: str) -> str:
        return '"' + name.replace('"', '""') + '"'
