"""A vector store in a SQLite file."""

import sqlite3
import threading
from bisect import bisect_left
from collections.abc import Collection, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from chatclient import json
from chatclient.embedding import EmbeddingModel, Vector
from chatclient.errors import UsageError
from chatclient.forks import fork_barrier, keep, register_after_fork, register_before_fork
from chatclient.runtime import Runtime
from chatclient.sqlite_files import BUSY_SECONDS, write_ahead
from chatclient.vector_store.arrays import GrowingRows, best, numpy, unit_rows
from chatclient.vector_store.filters import Filter, key_of
from chatclient.vector_store.sql_filters import sql
from chatclient.vector_store.store import Document, SimilaritySearch, VectorStore

_SCHEMA = """
CREATE TABLE IF NOT EXISTS documents (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    text TEXT NOT NULL,
    metadata TEXT NOT NULL,
    vector BLOB NOT NULL
)
"""
_FILTERS = 64  # whose documents are remembered in any case, until one of them changes
_MORE_FILTERS = 10_000  # whose documents are, if these are not more than twice all there are


class _Read:
    """What has been read of the file.

    Attributes:
        numbers: The documents' numbers, which rise.
        grown: Their vectors.
        fitting: Of a filter, up to which number it was asked for, and the places of what fits.
    """

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.grown = GrowingRows()
        self.fitting: dict[str, tuple[int, list[int]]] = {}

    @property
    def last(self) -> int:
        """The number of the last document, 0 without any."""
        return self.numbers[-1] if self.numbers else 0

    def forget_filters(self) -> None:
        """Forget the oldest filters; of those that have few documents each, many may stay."""
        while len(self.fitting) > _FILTERS:
            places = sum(len(places) for _, places in self.fitting.values())
            if len(self.fitting) <= _MORE_FILTERS and places <= 2 * len(self.numbers):
                return
            del self.fitting[next(iter(self.fitting))]


class SqliteVectorStore(VectorStore):
    """Keeps documents in a SQLite file; the vectors are read once and compared in memory.

    Several processes may share the file; each notices what the others change. Safe to use from
    many threads. Needs the extra `vectors`.

    Args:
        path: The file, made where there is none; `:memory:` for none at all.
        embedding_model: Makes the vectors.

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
        self._begin()
        register_before_fork(self)
        register_after_fork(self)

    async def store(
        self, documents: Sequence[Document], vectors: Sequence[Vector], runtime: Runtime
    ) -> None:
        """Keep *documents* with their vectors."""
        await runtime.finish(self._store, documents, vectors)

    async def erase(
        self, ids: Collection[str] | None, where: Filter | None, runtime: Runtime
    ) -> int:
        """Forget documents."""
        return await runtime.finish(self._erase, ids, where)

    async def nearest(
        self, vector: Vector, search: SimilaritySearch, runtime: Runtime
    ) -> list[Document]:
        """Return the documents nearest to *vector*."""
        return await runtime.invoke(self._nearest, vector, search)

    def close(self) -> None:
        """Close the file."""
        with fork_barrier, self._lock:
            self._closed = True
            self._connection.close()

    def before_fork(self) -> None:
        """Close the file: SQLite counts on locks that a child does not inherit."""
        if self._in_memory or self._closed or not self._lock.acquire(blocking=False):
            return
        if self._open is not None:
            self._open.close()
            self._open = None
        self._lock.release()

    def after_fork(self) -> None:
        """Leave the parent's connection alone; one in memory is the child's own copy."""
        self._lock = threading.Lock()
        if not self._in_memory and not self._closed:
            keep(self._open)
            self._open = None

    @property
    def _connection(self) -> sqlite3.Connection:
        return self._begin() if self._open is None else self._open

    def _begin(self) -> sqlite3.Connection:
        """Return a connection, which knows nothing of what others have read."""
        connection = sqlite3.connect(self._path, timeout=BUSY_SECONDS, check_same_thread=False)
        try:
            write_ahead(connection)
            with connection:
                connection.execute(_SCHEMA)
        except sqlite3.Error:
            connection.close()
            raise
        self._open = connection
        self._read = _Read()
        self._version = -1
        return connection

    def _store(self, documents: Sequence[Document], vectors: Sequence[Vector]) -> None:
        with fork_barrier, self._lock, self._connection:
            rows = unit_rows(vectors, self._length())
            present = "SELECT 1 FROM documents WHERE id = ?"
            if any(self._one(present, _sqlite_text(each.id)) for each in documents):
                self._read = _Read()  # some of what was read is to change
            self._connection.executemany(
                "INSERT INTO documents (id, text, metadata, vector) VALUES (?, ?, ?, ?)"
                " ON CONFLICT (id) DO UPDATE SET"
                " text = excluded.text, metadata = excluded.metadata, vector = excluded.vector",
                [
                    (_sqlite_text(each.id), _sqlite_text(each.text), _json(each), row.tobytes())
                    for each, row in zip(documents, rows, strict=True)
                ],
            )

    def _erase(self, ids: Collection[str] | None, where: Filter | None) -> int:
        condition, parameters = sql(where, "metadata")
        statement = f"DELETE FROM documents WHERE ({condition})"  # noqa: S608 - see `sql`
        with fork_barrier, self._lock, self._connection:
            self._read = _Read()
            if ids is None:
                return self._connection.execute(statement, parameters).rowcount
            each = [(*parameters, _sqlite_text(id)) for id in ids]
            return self._connection.executemany(f"{statement} AND id = ?", each).rowcount

    def _nearest(self, vector: Vector, search: SimilaritySearch) -> list[Document]:
        with fork_barrier, self._lock, self._connection:
            self._connection.execute("BEGIN")  # sees one state, whatever others write meanwhile
            read = self._up_to_date()
            if not read.numbers:
                return []
            numbers: Sequence[int] = read.numbers
            rows = read.grown.rows
            places = self._fitting(read, search.where) if search.where else range(len(numbers))
            if len(places) < len(numbers):  # else a copy of all vectors is spared
                numbers, rows = [numbers[place] for place in places], rows[places]
            scores = rows @ unit_rows([vector], rows.shape[1])[0]
            found = best(scores, search.top_k, search.threshold)
            return [self._document(numbers[at], float(scores[at])) for at in found]

    def _up_to_date(self) -> "_Read":
        """Return what has been read, with what has come since; anew if somebody changed it."""
        np = numpy()
        (version,) = self._one("PRAGMA data_version")  # grows when others have changed the file
        if version != self._version:
            self._read, self._version = _Read(), version
        # Whoever is interrupted while they extend it leaves nothing half read.
        read, self._read = self._read, _Read()
        statement = "SELECT number, vector FROM documents WHERE number > ? ORDER BY number"
        new = self._all(statement, read.last)
        if new:
            joined = np.frombuffer(b"".join(blob for _, blob in new), dtype=np.float32)
            read.grown.extend(joined.reshape(len(new), -1))
            read.numbers.extend(number for number, _ in new)
        self._read = read
        return read

    def _fitting(self, read: "_Read", where: Filter) -> list[int]:
        """Return the places in *read* of what fits a filter; each document is asked once."""
        key = key_of(where)
        last, places = read.fitting.get(key, (0, []))
        if last != read.last:
            condition, parameters = sql(where, "metadata")
            statement = f"SELECT number FROM documents WHERE ({condition}) AND number > ?"  # noqa: S608 - see `sql`
            found = self._all(f"{statement} ORDER BY number", *parameters, last)
            places = [*places, *(bisect_left(read.numbers, number) for (number,) in found)]
            read.fitting[key] = read.last, places
            read.forget_filters()
        return places

    def _document(self, number: int, score: float) -> Document:
        id, text, metadata = self._one(
            "SELECT id, text, metadata FROM documents WHERE number = ?", number
        )
        return Document(_python_text(text), json.loads(metadata), _python_text(id), score)

    def _length(self) -> int | None:
        """Return the length of the vectors in the file, None if there is none."""
        first = self._one("SELECT length(vector) FROM documents LIMIT 1")
        return None if first is None else first[0] // 4

    def _all(self, statement: str, *parameters: Any) -> list[Any]:
        with closing(self._connection.execute(statement, parameters)) as rows:
            return rows.fetchall()

    def _one(self, statement: str, *parameters: Any) -> Any:
        with closing(self._connection.execute(statement, parameters)) as rows:
            return rows.fetchone()


def _sqlite_text(text: str) -> str | bytes:
    """Return *text* as SQLite takes it: as bytes where it has half a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
    return text


def _python_text(text: str | bytes) -> str:
    """Return what `_sqlite_text` was given."""
    return text if isinstance(text, str) else text.decode("utf-8", "surrogatepass")


def _json(document: Document) -> str:
    try:
        return json.dumps(document.metadata).decode()
    except TypeError as error:
        msg = f"the metadata of document {document.id!r} has no JSON form: {error}"
        raise UsageError(msg) from error
