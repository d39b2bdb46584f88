"""A vector store in a SQLite file."""

import sqlite3
import threading
from collections.abc import Collection, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chatclient import json
from chatclient.embedding import EmbeddingModel, Vector
from chatclient.errors import UsageError
from chatclient.runtime import Runtime
from chatclient.vector_store.arrays import best, numpy, unit_rows
from chatclient.vector_store.filters import Filter, sql
from chatclient.vector_store.store import Document, SimilaritySearch, VectorStore

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_SCHEMA = """
CREATE TABLE IF NOT EXISTS documents (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    text TEXT NOT NULL,
    metadata TEXT NOT NULL,
    vector BLOB NOT NULL
)
"""


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
        self._lock = threading.RLock()
        self._connection = sqlite3.connect(str(path), check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode = WAL")
        with self._connection:
            self._connection.execute(_SCHEMA)
        self._read: tuple[NDArray[np.int64], NDArray[np.float32]] | None = None
        self._version = -1

    async def store(
        self, documents: Sequence[Document], vectors: Sequence[Vector], runtime: Runtime
    ) -> None:
        """Keep *documents* with their vectors."""
        await runtime.invoke(self._store, documents, vectors)

    async def erase(
        self, ids: Collection[str] | None, where: Filter | None, runtime: Runtime
    ) -> int:
        """Forget documents."""
        count: int = await runtime.invoke(self._erase, ids, where)
        return count

    async def nearest(
        self, vector: Vector, search: SimilaritySearch, runtime: Runtime
    ) -> list[Document]:
        """Return the documents nearest to *vector*."""
        found: list[Document] = await runtime.invoke(self._nearest, vector, search)
        return found

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    def _store(self, documents: Sequence[Document], vectors: Sequence[Vector]) -> None:
        with self._lock, self._connection:
            rows = unit_rows(vectors, self._length())
            self._connection.executemany(
                "INSERT INTO documents (id, text, metadata, vector) VALUES (?, ?, ?, ?)"
                " ON CONFLICT (id) DO UPDATE SET"
                " text = excluded.text, metadata = excluded.metadata, vector = excluded.vector",
                [
                    (document.id, document.text, _json(document), row.tobytes())
                    for document, row in zip(documents, rows, strict=True)
                ],
            )
            self._read = None

    def _erase(self, ids: Collection[str] | None, where: Filter | None) -> int:
        condition, parameters = sql(where, "metadata")
        if ids is not None:
            condition = f"({condition}) AND id IN (SELECT value FROM json_each(?))"  # noqa: S608
            parameters.append(json.dumps(list(ids)).decode())
        with self._lock, self._connection:
            statement = f"DELETE FROM documents WHERE {condition}"  # noqa: S608 - see `sql`
            self._read = None
            return self._connection.execute(statement, parameters).rowcount

    def _nearest(self, vector: Vector, search: SimilaritySearch) -> list[Document]:
        with self._lock:
            numbers, rows = self._loaded()
            if not len(numbers):
                return []
            if search.where:
                np = numpy()
                fitting = np.isin(numbers, np.asarray(self._fitting(search.where), dtype=np.int64))
                numbers, rows = numbers[fitting], rows[fitting]
            scores = rows @ unit_rows([vector], rows.shape[1])[0]
            found = best(scores, search.top_k, search.threshold)
            return [self._document(int(numbers[at]), float(scores[at])) for at in found]

    def _loaded(self) -> "tuple[NDArray[np.int64], NDArray[np.float32]]":
        """Return the numbers and vectors of all documents, read anew if they have changed."""
        np = numpy()
        (version,) = self._one("PRAGMA data_version")  # grows when others have changed the file
        if self._read is None or version != self._version:
            with closing(self._connection.execute("SELECT number, vector FROM documents")) as all_:
                read = all_.fetchall()
            numbers = np.asarray([number for number, _ in read], dtype=np.int64)
            joined = np.frombuffer(b"".join(blob for _, blob in read), dtype=np.float32)
            rows = joined.reshape(len(read), -1) if read else np.empty((0, 0), np.float32)
            self._read = (numbers, rows)
            self._version = version
        return self._read

    def _fitting(self, where: Filter) -> list[int]:
        condition, parameters = sql(where, "metadata")
        statement = f"SELECT number FROM documents WHERE {condition}"  # noqa: S608 - see `sql`
        with closing(self._connection.execute(statement, parameters)) as rows:
            return [number for (number,) in rows]

    def _document(self, number: int, score: float) -> Document:
        id, text, metadata = self._one(
            "SELECT id, text, metadata FROM documents WHERE number = ?", number
        )
        return Document(text, json.loads(metadata), id, score)

    def _length(self) -> int | None:
        """Return the length of the vectors in the file, None if there is none."""
        (length,) = self._one("SELECT max(length(vector)) FROM documents LIMIT 1")
        return None if length is None else length // 4

    def _one(self, statement: str, *parameters: Any) -> Any:
        with closing(self._connection.execute(statement, parameters)) as rows:
            return rows.fetchone()


def _json(document: Document) -> str:
    try:
        return json.dumps(document.metadata).decode()
    except TypeError as error:
        msg = f"the metadata of document {document.id!r} has no JSON form: {error}"
        raise UsageError(msg) from error
