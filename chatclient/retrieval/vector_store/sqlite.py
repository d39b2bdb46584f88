"""`SqliteVectorStore`: a vector store in a SQLite file."""

import sqlite3
import threading
from bisect import bisect_left
from collections.abc import Collection, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from chatclient._internal import json
from chatclient._internal.sqlite import BUSY_SECONDS, write_ahead
from chatclient.chat.document import Document
from chatclient.chat.embedding import EmbeddingModel, Vector
from chatclient.retrieval.vector_store.filters import Filter, key_of
from chatclient.retrieval.vector_store.in_memory import GrowingRows, best, numpy, unit_rows
from chatclient.retrieval.vector_store.sql_filters import sql
from chatclient.retrieval.vector_store.store import SimilaritySearch, VectorStore, metadata_json
from chatclient.runtime.runtime import Runtime
from chatclient.runtime.threads import (
    fork_barrier,
    keep,
    register_after_fork,
    register_before_fork,
)

_SCHEMA = """
CREATE TABLE IF NOT EXISTS documents (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    text TEXT NOT NULL,
    metadata TEXT NOT NULL,
    vector BLOB NOT NULL
)
"""
_MAX_FILTERS = 64  # filters whose results are always cached, until a document changes
_MAX_SMALL_FILTERS = 10_000  # the same if they have at most two results per document in total


class _Cache:
    """The contents of the file that have been read.

    Attributes:
        numbers: The numbers of the documents, ascending.
        vectors: The vectors of the documents.
        matches: The last number checked and the indexes of matching documents, by filter key.
    """

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.vectors = GrowingRows()
        self.matches: dict[str, tuple[int, list[int]]] = {}

    @property
    def last(self) -> int:
        """The number of the last document, 0 without documents."""
        return self.numbers[-1] if self.numbers else 0

    def evict_filters(self) -> None:
        """Remove the oldest filters above the limits."""
        while len(self.matches) > _MAX_FILTERS:
            indexes = sum(len(indexes) for _, indexes in self.matches.values())
            if len(self.matches) <= _MAX_SMALL_FILTERS and indexes <= 2 * len(self.numbers):
                return
            del self.matches[next(iter(self.matches))]


class SqliteVectorStore(VectorStore):
    """Stores documents in a SQLite file; vectors are loaded once and compared in memory.

    Several processes may share the file; each sees the changes of the others. Thread-safe. Needs
    the extra `vectors`.

    Args:
        path: The file, created if it does not exist; `:memory:` for a database in memory.
        embedding_model: Computes the vectors.

    Raises:
        UsageError: numpy is not installed.
        sqlite3.Error: The file cannot be opened.
    """

    def __init__(self, path: str | Path, embedding_model: EmbeddingModel) -> None:
        super().__init__(embedding_model)
        numpy()
        self._path = str(path)
        self._in_memory = self._path in ("", ":memory:")
        self._lock = threading.Lock()
        self._closed = False
        self._open: sqlite3.Connection | None = None
        self._connect()
        register_before_fork(self)
        register_after_fork(self)

    async def store(
        self, documents: Sequence[Document], vectors: Sequence[Vector], runtime: Runtime
    ) -> None:
        """Store *documents* with their vectors."""
        await runtime.finish(self._store, documents, vectors)

    async def erase(
        self, ids: Collection[str] | None, where: Filter | None, runtime: Runtime
    ) -> int:
        """Delete documents."""
        return await runtime.finish(self._erase, ids, where)

    async def nearest(
        self, vector: Vector, search: SimilaritySearch, runtime: Runtime
    ) -> list[Document]:
        """Return the documents most similar to *vector*."""
        return await runtime.invoke(self._nearest, vector, search)

    def close(self) -> None:
        """Close the file."""
        with fork_barrier, self._lock:
            self._closed = True
            self._connection.close()

    def before_fork(self) -> None:
        """Close the file: a child does not inherit the locks of SQLite."""
        if self._in_memory or self._closed or not self._lock.acquire(blocking=False):
            return
        if self._open is not None:
            self._open.close()
            self._open = None
        self._lock.release()

    def after_fork(self) -> None:
        """Drop the parent's connection without closing it; a database in memory is copied."""
        self._lock = threading.Lock()
        if not self._in_memory and not self._closed:
            keep(self._open)
            self._open = None

    @property
    def _connection(self) -> sqlite3.Connection:
        return self._connect() if self._open is None else self._open

    def _connect(self) -> sqlite3.Connection:
        """Open and return a connection, with an empty cache."""
        connection = sqlite3.connect(self._path, timeout=BUSY_SECONDS, check_same_thread=False)
        try:
            write_ahead(connection)
            with connection:
                connection.execute(_SCHEMA)
        except sqlite3.Error:
            connection.close()
            raise
        self._open = connection
        self._cache = _Cache()
        self._version = -1
        return connection

    def _store(self, documents: Sequence[Document], vectors: Sequence[Vector]) -> None:
        with fork_barrier, self._lock, self._connection:
            rows = unit_rows(vectors, self._length())
            present = "SELECT 1 FROM documents WHERE id = ?"
            if any(self._one(present, _sqlite_text(each.id)) for each in documents):
                self._cache = _Cache()  # cached documents will change
            self._connection.executemany(
                "INSERT INTO documents (id, text, metadata, vector) VALUES (?, ?, ?, ?)"
                " ON CONFLICT (id) DO UPDATE SET"
                " text = excluded.text, metadata = excluded.metadata, vector = excluded.vector",
                [
                    (
                        _sqlite_text(each.id),
                        _sqlite_text(each.text),
                        metadata_json(each),
                        row.tobytes(),
                    )
                    for each, row in zip(documents, rows, strict=True)
                ],
            )

    def _erase(self, ids: Collection[str] | None, where: Filter | None) -> int:
        condition, parameters = sql(where, "metadata")
        statement = f"DELETE FROM documents WHERE ({condition})"  # noqa: S608 - see `sql`
        with fork_barrier, self._lock, self._connection:
            self._cache = _Cache()
            if ids is None:
                return self._connection.execute(statement, parameters).rowcount
            each = [(*parameters, _sqlite_text(id)) for id in ids]
            return self._connection.executemany(f"{statement} AND id = ?", each).rowcount

    def _nearest(self, vector: Vector, search: SimilaritySearch) -> list[Document]:
        with fork_barrier, self._lock, self._connection:
            self._connection.execute("BEGIN")  # a consistent snapshot for all queries
            cache = self._refresh_cache()
            if not cache.numbers:
                return []
            numbers: Sequence[int] = cache.numbers
            rows = cache.vectors.rows
            indexes = self._matching(cache, search.where) if search.where else range(len(numbers))
            if len(indexes) < len(numbers):  # otherwise, avoid a copy of all vectors
                numbers, rows = [numbers[index] for index in indexes], rows[indexes]
            scores = rows @ unit_rows([vector], rows.shape[1])[0]
            nearest = best(scores, search.top_k, search.threshold)
            return [self._document(numbers[row], float(scores[row])) for row in nearest]

    def _refresh_cache(self) -> _Cache:
        """Return the cache with all documents; rebuilt if another connection changed the file."""
        np = numpy()
        (version,) = self._one("PRAGMA data_version")  # incremented by changes of others
        if version != self._version:
            self._cache, self._version = _Cache(), version
        # Detached while it is extended: an interruption leaves an empty cache.
        cache, self._cache = self._cache, _Cache()
        statement = "SELECT number, vector FROM documents WHERE number > ? ORDER BY number"
        new = self._all(statement, cache.last)
        if new:
            joined = np.frombuffer(b"".join(blob for _, blob in new), dtype=np.float32)
            cache.vectors.extend(joined.reshape(len(new), -1))
            cache.numbers.extend(number for number, _ in new)
        self._cache = cache
        return cache

    def _matching(self, cache: _Cache, where: Filter) -> list[int]:
        """Return the indexes in *cache* of the documents that match a filter."""
        key = key_of(where)
        last, indexes = cache.matches.get(key, (0, []))
        if last != cache.last:
            condition, parameters = sql(where, "metadata")
            statement = f"SELECT number FROM documents WHERE ({condition}) AND number > ?"  # noqa: S608 - see `sql`
            found = self._all(f"{statement} ORDER BY number", *parameters, last)
            indexes = [*indexes, *(bisect_left(cache.numbers, number) for (number,) in found)]
            cache.matches[key] = cache.last, indexes
            cache.evict_filters()
        return indexes

    def _document(self, number: int, score: float) -> Document:
        id, text, metadata = self._one(
            "SELECT id, text, metadata FROM documents WHERE number = ?", number
        )
        return Document(_python_text(text), json.loads(metadata), _python_text(id), score)

    def _length(self) -> int | None:
        """Return the number of dimensions of the vectors in the file; None if it is empty."""
        first = self._one("SELECT length(vector) FROM documents LIMIT 1")
        return None if first is None else first[0] // 4

    def _all(self, statement: str, *parameters: Any) -> list[Any]:
        with closing(self._connection.execute(statement, parameters)) as rows:
            return rows.fetchall()

    def _one(self, statement: str, *parameters: Any) -> Any:
        with closing(self._connection.execute(statement, parameters)) as rows:
            return rows.fetchone()


def _sqlite_text(text: str) -> str | bytes:
    """Return *text* as a value for SQLite: bytes if it contains a lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
    return text


def _python_text(text: str | bytes) -> str:
    """Return the argument of `_sqlite_text` for its result."""
    return text if isinstance(text, str) else text.decode("utf-8", "surrogatepass")
