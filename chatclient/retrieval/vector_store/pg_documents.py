"""The table and queries of `PgVectorStore`; imports SQLAlchemy."""

import math
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import (
    ARRAY,
    JSONB,
    REGCLASS,
    REGCONFIG,
    TSQUERY,
    TSVECTOR,
    insert,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import UserDefinedType

from chatclient._internal import json
from chatclient.chat.document import Document
from chatclient.chat.embedding import Vector
from chatclient.errors import UsageError, VectorStoreError, VectorStoreUnavailableError
from chatclient.memory.encoding import digest, restored, storable
from chatclient.memory.sql.database import Database, Schema, create_tables
from chatclient.memory.sql.engine import StoreErrors
from chatclient.retrieval.documents import fused_ranks
from chatclient.retrieval.vector_store.filters import (
    ORDERINGS,
    Filter,
    comparisons,
    filters_in,
    kind_of,
)
from chatclient.retrieval.vector_store.store import (
    SimilaritySearch,
    length_of,
    metadata_json,
    mismatch,
    plain_json,
)

Condition = sa.ColumnElement[bool]
Metadata = sa.ColumnElement[Any]

_JSON_ARRAY = ARRAY(JSONB)


def condition(where: Filter | None, metadata: Metadata) -> Condition:
    """Return *where* as a condition on a `jsonb` column; it is never NULL.

    Keys and values are parameters and not part of the SQL.

    Raises:
        UsageError: *where* is not a filter.
    """
    return _all(_key(key, value, metadata) for key, value in (where or {}).items())


def _all(conditions: Iterable[Condition]) -> Condition:
    """Return whether all hold; one alone is not wrapped, because each search builds it anew."""
    found = list(conditions)
    return found[0] if len(found) == 1 else sa.and_(sa.true(), *found)


def _key(key: str, value: Any, metadata: Metadata) -> Condition:
    match key:
        case "$and":
            return _all(condition(each, metadata) for each in filters_in(key, value))
        case "$or":
            return sa.or_(
                sa.false(), *(condition(each, metadata) for each in filters_in(key, value))
            )
        case "$not":
            return sa.not_(condition(filters_in(key, [value])[0], metadata))
    found = comparisons(key, value)
    return _all(_comparison(name, key, each, metadata) for name, each in found)


def _comparison(name: str, key: str, wanted: Any, metadata: Metadata) -> Condition:
    match name:
        case "eq":
            return _contains(metadata, {key: wanted})
        case "ne":
            return sa.not_(_contains(metadata, {key: wanted}))
        case "in":
            return _one_of(key, wanted, metadata)
        case "not_in":
            return sa.not_(_one_of(key, wanted, metadata))
        case "contains":
            return _contains(metadata, {key: [wanted]})
        case "exists":
            exists = sa.func.coalesce(_type(key, metadata) != "null", sa.false())
            return exists if wanted else sa.not_(exists)
    text = sa.func.jsonb_extract_path_text(metadata, key)
    value: sa.ColumnElement[Any]
    match kind_of(wanted):
        case "number":
            kind, value = "number", sa.cast(text, sa.Numeric)
            number = str(float(wanted)) if _infinite(wanted) else json.dumps(wanted).decode()
            limit = sa.cast(sa.literal(number, sa.Text), sa.Numeric)
            compared = ORDERINGS[name](value, limit)
        case "str":  # in the order of code points, as in Python
            kind, value = "string", sa.collate(text, "C")
            # A plain text, if it is a member of an enum.
            compared = ORDERINGS[name](value, sa.literal(wanted[:], sa.Text))
        case _:
            return sa.false()
    # Only CASE guarantees that other values are not converted to numbers.
    return sa.case((_type(key, metadata) == kind, compared), else_=sa.false())


def _contains(metadata: Metadata, part: dict[str, Any]) -> Condition:
    """Return whether the metadata contains *part*; a GIN index serves this condition.

    A list contains another one if it has all its elements; other values contain only equals.
    """
    [wanted] = part.values()
    return (
        sa.false()
        if _infinite(wanted)
        else metadata.bool_op("@>")(sa.cast(sa.literal(json.dumps(part).decode(), sa.Text), JSONB))
    )


def _one_of(key: str, wanted: Any, metadata: Metadata) -> Condition:
    """Return whether the value is one of *wanted*, with one parameter for all of them."""
    parts = [json.dumps({key: each}).decode() for each in wanted if not _infinite(each)]
    return metadata.bool_op("@>")(sa.any_(sa.cast(sa.literal(parts, ARRAY(sa.Text)), _JSON_ARRAY)))


def _type(key: str, metadata: Metadata) -> sa.ColumnElement[str]:
    return sa.func.jsonb_typeof(sa.func.jsonb_extract_path(metadata, key))


def _infinite(value: Any) -> bool:
    """Return whether *value*, or the element of a list, is infinite; metadata never is."""
    if isinstance(value, list):
        return any(map(_infinite, value))
    return isinstance(value, float) and math.isinf(value)


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


_BATCH = 1_000  # documents in one statement
_MAX_WORDS = 200_000  # characters of a text that are indexed; a tsvector has at most 1 MB
_MAX_EF_SEARCH = 1_000  # pgvector's limit
_POOL = 4  # a hybrid search fuses this many times `top_k` documents of each search


class PgDocuments:
    """The operations of `PgVectorStore`, each in one transaction."""

    def __init__(
        self,
        database: "str | sa.URL | sa.Engine",
        *,
        table_prefix: str,
        language: str,
        ef_search: int,
        create_schema: bool,
    ) -> None:
        self._table = table = DocumentTable(table_prefix, create=create_schema)
        errors = StoreErrors(VectorStoreError, VectorStoreUnavailableError)
        steps = [table.create]
        schema = Schema(
            "vector store", steps, prefix=table_prefix, create=create_schema, errors=errors
        )
        self._database = Database(database, schema)
        dialect = self._database.engine.dialect.name
        if dialect != "postgresql":
            msg = f"PgVectorStore needs a PostgreSQL database, not {dialect}"
            raise UsageError(msg)
        self._language = sa.cast(language, REGCONFIG)
        self._ef_search = ef_search
        # These parts of each search are made once, since that takes as long as a part of it.
        settings = (
            _setting("hnsw.ef_search", _WIDTH),
            _setting("hnsw.iterative_scan", "strict_order"),  # until enough documents match
            _CUSTOM_PLAN,
        )
        self._preparation = sa.select(table.length(), *settings)
        self._selections: dict[int, tuple[sa.Select[Any], sa.ColumnElement[float]]] = {}

    def store(self, documents: Sequence[Document], vectors: Sequence[Vector]) -> None:
        """Store *documents* with their vectors, replacing those with the same ids."""
        length = length_of(vectors)
        rows = [_row(*pair) for pair in zip(documents, vectors, strict=True)]
        rows.sort()  # by digest: transactions that lock the same rows do not deadlock
        self._database.write(partial(self._store, rows, length))

    def erase(self, ids: Collection[str] | None, where: Filter | None) -> int:
        """Delete documents, and return their number."""
        column = self._table.columns
        statement = sa.delete(self._table.table).where(condition(where, column.metadata))
        if ids is not None:
            digests = sa.literal([digest(id) for id in ids], ARRAY(sa.Text))
            statement = statement.where(column.digest == sa.any_(digests))

        def delete(connection: sa.Connection) -> int:
            connection.execute(sa.select(_CUSTOM_PLAN))
            return connection.execute(statement).rowcount

        return self._database.write(delete)

    def nearest(self, vector: Vector, search: SimilaritySearch) -> list[Document]:
        """Return the documents most similar to *vector*."""
        rows = self._database.write(partial(self._nearest, vector, search, search.top_k))
        return [_document(row) for row in rows]

    def hybrid(self, vector: Vector, search: SimilaritySearch) -> list[Document]:
        """Return documents by vector and by words, by reciprocal rank fusion."""
        by_vector, by_words = self._database.write(partial(self._hybrid, vector, search))
        documents = {row.digest: row for row in (*by_vector, *by_words)}
        ranks = fused_ranks([row.digest for row in rows] for rows in (by_vector, by_words))
        order = sorted(documents.values(), key=lambda row: (-ranks[row.digest], -row.score))
        return [_document(row) for row in order[: search.top_k]]

    def close(self) -> None:
        """Close the connections if they were opened for a URL."""
        self._database.close()

    def _store(self, rows: list[tuple[Any, ...]], length: int, connection: sa.Connection) -> None:
        self._table.fit(connection, length)
        for start in range(0, len(rows), _BATCH):
            columns = zip(*rows[start : start + _BATCH], strict=True)
            connection.execute(self._insertion(*columns))

    def _insertion(self, *columns: Sequence[Any]) -> sa.Executable:
        arrays = [sa.literal(list(values), ARRAY(sa.Text)) for values in columns]
        names = ("digest", "id", "text", "metadata", "exact", "vector")
        given = sa.func.unnest(*arrays).table_valued(*names).render_derived(name="given").c
        words = sa.func.to_tsvector(self._language, sa.func.left(given.text, _MAX_WORDS))
        values = {
            "digest": given.digest,
            "id": given.id,
            "text": given.text,
            "metadata": sa.cast(given.metadata, JSONB),
            "exact": given.exact,
            "words": words,
            "vector": _unit(given.vector),
        }
        adding = insert(self._table.table).from_select([*values], sa.select(*values.values()))
        replaced = {name: adding.excluded[name] for name in values if name != "digest"}
        return adding.on_conflict_do_update(index_elements=["digest"], set_=replaced)

    def _nearest(
        self, vector: Vector, search: SimilaritySearch, limit: int, connection: sa.Connection
    ) -> Sequence[sa.Row[Any]]:
        """Return the nearest rows above the threshold."""
        if not self._prepare(connection, len(vector), limit):
            return []
        selection, gap = self._selection(len(vector))
        matching = condition(search.where, self._table.columns.metadata)
        query = selection.where(matching).order_by(gap).limit(limit)
        given = {_QUERY_VECTOR.key: _vector_text(vector)}
        rows: Sequence[Any] = connection.execute(query, given).all()
        if len(rows) < limit:
            # The scan of an HNSW index ends early if few documents match the filter.
            connection.execute(sa.select(_setting("enable_indexscan", "off")))
            rows = connection.execute(query, given).all()
        least = search.threshold
        return rows if least is None else [row for row in rows if row.score >= least]

    def _hybrid(
        self, vector: Vector, search: SimilaritySearch, connection: sa.Connection
    ) -> tuple[Sequence[sa.Row[Any]], Sequence[sa.Row[Any]]]:
        limit = _POOL * search.top_k
        by_vector = self._nearest(vector, search, limit, connection)
        selection, _ = self._selection(len(vector))
        # Any word will do: a question has words that its answer lacks.
        every = sa.func.plainto_tsquery(self._language, storable(search.query))
        some = sa.cast(sa.func.replace(sa.cast(every, sa.Text), " & ", " | "), TSQUERY)
        words = self._table.columns.words
        query = (
            selection.where(words.bool_op("@@")(some))
            .where(condition(search.where, self._table.columns.metadata))
            .order_by(sa.func.ts_rank(words, some, 1).desc(), self._table.columns.digest)
            .limit(limit)
        )
        given = {_QUERY_VECTOR.key: _vector_text(vector)}
        by_words: Sequence[Any] = connection.execute(query, given).all()
        return by_vector, by_words

    def _prepare(self, connection: sa.Connection, length: int, limit: int) -> bool:
        """Configure the transaction for a search; return whether there may be documents."""
        width = max(self._ef_search, min(limit, _MAX_EF_SEARCH))
        [row] = connection.execute(self._preparation, {_WIDTH.key: str(width)})
        return row[0] == length or not self._table.check_empty(connection, length, row[0])

    def _selection(self, length: int) -> tuple[sa.Select[Any], sa.ColumnElement[float]]:
        """Return the query for documents, and their distance to the vector that is a parameter."""
        if (found := self._selections.get(length)) is not None:
            return found
        column = self._table.columns
        gap = distance(column.vector, _unit(_QUERY_VECTOR), length)
        metadata = sa.cast(column.metadata, sa.Text)
        stored = sa.func.coalesce(column.exact, metadata).label("stored")
        columns = [column.digest, column.id, column.text, stored, (-gap).label("score")]
        selection: Any = sa.select(*columns)
        self._selections = {length: (selection, gap)}  # a table has vectors of one length
        return selection, gap


_QUERY_VECTOR = sa.bindparam("vector", type_=sa.Text)
_WIDTH = sa.bindparam("width", type_=sa.Text)


def _setting(name: str, value: "str | sa.BindParameter[str]") -> sa.ColumnElement[Any]:
    """Return an expression that changes a setting until the end of the transaction."""
    return sa.func.set_config(name, value, sa.true())


# PostgreSQL plans a prepared statement without its parameters after some executions: then it does
# not know whether many documents match a filter.
_CUSTOM_PLAN = _setting("plan_cache_mode", "force_custom_plan")


def _unit(text: sa.ColumnElement[str]) -> sa.ColumnElement[Any]:
    """Return a vector of length 1: the inner product of two is the cosine of their angle."""
    return sa.func.l2_normalize(sa.cast(text, VECTOR), type_=VECTOR)


def _vector_text(vector: Vector) -> str:
    return json.dumps(list(vector)).decode()  # several times faster than `str` of each number


def _row(document: Document, vector: Vector) -> tuple[Any, ...]:
    metadata, exact = plain_json(metadata_json(document))
    return (
        digest(document.id),
        storable(document.id),
        storable(document.text),
        json.dumps(metadata).decode(),
        exact,
        _vector_text(vector),
    )


def _document(row: sa.Row[Any]) -> Document:
    return Document(restored(row.text), json.loads(row.stored), restored(row.id), row.score)
