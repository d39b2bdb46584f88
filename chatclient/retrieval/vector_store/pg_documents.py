"""The table and queries of `PgVectorStore`; imports SQLAlchemy."""

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, REGCONFIG, TSQUERY, insert

from chatclient._internal import json
from chatclient.chat.embedding import Vector
from chatclient.errors import UsageError, VectorStoreError, VectorStoreUnavailableError
from chatclient.memory.encoding import digest, restored, storable
from chatclient.memory.sql.database import Database
from chatclient.memory.sql.errors import StoreErrors
from chatclient.memory.sql.schema import Schema
from chatclient.retrieval.documents import fused_ranks
from chatclient.retrieval.vector_store.filters import Filter
from chatclient.retrieval.vector_store.lengths import length_of
from chatclient.retrieval.vector_store.pg_filters import condition
from chatclient.retrieval.vector_store.pg_schema import VECTOR, DocumentTable, distance
from chatclient.retrieval.vector_store.store import (
    Document,
    SimilaritySearch,
    metadata_json,
    plain_json,
)

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
        columns, gap = self._columns(vector)
        matching = condition(search.where, self._table.columns.metadata)
        query = sa.select(*columns).where(matching).order_by(gap).limit(limit)
        rows = _rows(connection, query)
        if len(rows) < limit:
            # The scan of an HNSW index ends early if few documents match the filter.
            connection.execute(sa.select(_setting("enable_indexscan", "off")))
            rows = _rows(connection, query)
        least = search.threshold
        return rows if least is None else [row for row in rows if row.score >= least]

    def _hybrid(
        self, vector: Vector, search: SimilaritySearch, connection: sa.Connection
    ) -> tuple[Sequence[sa.Row[Any]], Sequence[sa.Row[Any]]]:
        limit = _POOL * search.top_k
        by_vector = self._nearest(vector, search, limit, connection)
        columns, _ = self._columns(vector)
        # Any word will do: a question has words that its answer lacks.
        every = sa.func.plainto_tsquery(self._language, storable(search.query))
        some = sa.cast(sa.func.replace(sa.cast(every, sa.Text), " & ", " | "), TSQUERY)
        words = self._table.columns.words
        query = (
            sa.select(*columns)
            .where(words.bool_op("@@")(some))
            .where(condition(search.where, self._table.columns.metadata))
            .order_by(sa.func.ts_rank(words, some, 1).desc(), self._table.columns.digest)
            .limit(limit)
        )
        return by_vector, _rows(connection, query)

    def _prepare(self, connection: sa.Connection, length: int, limit: int) -> bool:
        """Configure the transaction for a search; return whether there may be documents."""
        width = max(self._ef_search, min(limit, _MAX_EF_SEARCH))
        settings = (
            _setting("hnsw.ef_search", str(width)),
            _setting("hnsw.iterative_scan", "strict_order"),  # until enough documents match
            _CUSTOM_PLAN,
        )
        [row] = connection.execute(sa.select(self._table.length(), *settings))
        return row[0] == length or not self._table.check_empty(connection, length, row[0])

    def _columns(self, vector: Vector) -> tuple[list[Any], sa.ColumnElement[float]]:
        """Return the columns of a document, and its distance to *vector*."""
        column = self._table.columns
        query = _unit(sa.literal(_vector_text(vector), sa.Text))
        gap = distance(column.vector, query, len(vector))
        metadata = sa.cast(column.metadata, sa.Text)
        stored = sa.func.coalesce(column.exact, metadata).label("stored")
        return [column.digest, column.id, column.text, stored, (-gap).label("score")], gap


def _rows(connection: sa.Connection, query: sa.Executable) -> Sequence[sa.Row[Any]]:
    return connection.execute(query).all()


def _setting(name: str, value: str) -> sa.ColumnElement[Any]:
    """Return an expression that changes a setting until the end of the transaction."""
    return sa.func.set_config(name, value, sa.true())


# PostgreSQL plans a prepared statement without its parameters after some executions: then it does
# not know whether many documents match a filter.
_CUSTOM_PLAN = _setting("plan_cache_mode", "force_custom_plan")


def _unit(text: sa.ColumnElement[str]) -> sa.ColumnElement[Any]:
    """Return a vector of length 1: the inner product of two is the cosine of their angle."""
    return sa.func.l2_normalize(sa.cast(text, VECTOR), type_=VECTOR)


def _vector_text(vector: Vector) -> str:
    return f"[{','.join(map(str, vector))}]"


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
