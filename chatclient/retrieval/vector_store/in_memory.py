"""`InMemoryVectorStore`: a vector store in this process, with its vectors as numpy arrays."""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from copy import deepcopy
from itertools import islice
from typing import TYPE_CHECKING, Any

from chatclient._internal.extras import needed_by
from chatclient.chat.document import Document
from chatclient.chat.embedding import EmbeddingModel, Vector
from chatclient.errors import UsageError
from chatclient.retrieval.vector_store.filters import (
    Filter,
    equalities,
    key_of,
    kind_of,
    predicate,
    stored,
)
from chatclient.retrieval.vector_store.store import SimilaritySearch, VectorStore
from chatclient.runtime.runtime import Runtime
from chatclient.runtime.threads import ForkSafeLock, fork_barrier

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Matrix = NDArray[np.float32]


_GROWTH = 1.5  # factor by which the capacity grows


def numpy() -> Any:
    """Return the module `numpy`.

    Raises:
        UsageError: It is not installed.
    """
    with needed_by("a vector store"):
        import numpy as np  # noqa: PLC0415 - optional
    return np


def unit_rows(vectors: Sequence[Vector], length: int | None) -> "Matrix":
    """Return *vectors* as rows normalized to length 1; zero vectors are unchanged.

    Raises:
        UsageError: The vectors do not have *length* dimensions (None: the same number), because
            they are from different embedding models.
    """
    np = numpy()
    lengths = {len(vector) for vector in vectors} | ({length} if length else set())
    if len(lengths) > 1:
        msg = f"vectors of lengths {sorted(lengths)} cannot be compared; use one embedding model"
        raise UsageError(msg)
    rows: Matrix = np.asarray(vectors, dtype=np.float32)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(norms == 0, 1, norms)  # type: ignore[no-any-return]


class GrowingRows:
    """A matrix of vectors that can grow while other threads use previous versions of `rows`.

    Attributes:
        rows: The current rows.
    """

    rows: "Matrix"

    def __init__(self, rows: "Matrix | None" = None) -> None:
        np = numpy()
        self.rows = self._buffer = np.empty((0, 0), np.float32) if rows is None else rows

    def extend(self, rows: "Matrix") -> None:
        """Append *rows*; previous versions of `rows` do not change."""
        count = len(self.rows)
        end = count + len(rows)
        if end > len(self._buffer):
            buffer = numpy().empty((max(end, int(_GROWTH * count)), rows.shape[1]), rows.dtype)
            if count:
                buffer[:count] = self.rows
            self._buffer = buffer
        self._buffer[count:end] = rows
        self.rows = self._buffer[:end]


def best(scores: "NDArray[np.float32]", top_k: int, threshold: float | None) -> list[int]:
    """Return the indexes of the highest *scores*, the best first; ties keep their order."""
    np = numpy()
    indexes = np.arange(len(scores))
    if threshold is not None:
        indexes = indexes[scores >= threshold]
    if len(indexes) > top_k:
        lowest = np.partition(scores[indexes], -top_k)[-top_k]
        indexes = indexes[scores[indexes] >= lowest]
    order = np.argsort(-scores[indexes], kind="stable")[:top_k]
    return [int(index) for index in indexes[order]]


_MAX_FILTERS = 64  # filters whose results are cached until a document changes
_MAX_INDEXES = 16  # metadata keys with a cached index
_LOOP_LIMIT = 20_000  # documents searched on the event loop, in a few milliseconds
_FILTERED_LOOP_LIMIT = 2_000  # the same with a filter


class InMemoryVectorStore(VectorStore):
    """Stores documents in memory; a search compares all vectors.

    Thread-safe. Needs the extra `vectors`.

    Args:
        embedding_model: Computes the vectors.

    Raises:
        UsageError: numpy is not installed.
    """

    def __init__(self, embedding_model: EmbeddingModel) -> None:
        super().__init__(embedding_model)
        self._lock = ForkSafeLock()
        self._table = _Table([], GrowingRows())

    def __len__(self) -> int:
        return len(self._table)

    async def store(
        self,
        documents: Sequence[Document],
        vectors: Sequence[Vector],
        runtime: Runtime,  # noqa: ARG002 - no I/O
    ) -> None:
        """Store *documents* with their vectors."""
        with fork_barrier, self._lock:
            table = self._table
            rows = unit_rows(vectors, table.rows.shape[1] or None)
            indexes = [table.index_of(each.id) for each in documents]
            new = [at for at, index in enumerate(indexes) if index is None]
            if len(new) < len(documents):
                table = table.with_replaced(zip(indexes, documents, rows, strict=True))
                rows = rows[new]
            table.append([documents[at] for at in new], rows)
            self._table = table

    async def erase(
        self,
        ids: Collection[str] | None,
        where: Filter | None,
        runtime: Runtime,  # noqa: ARG002
    ) -> int:
        """Delete documents."""
        matches = predicate(where)
        with fork_barrier, self._lock:
            before = self._table
            kept = [
                index
                for index, document in enumerate(before.documents[: len(before)])
                if (ids is not None and document.id not in ids) or not matches(document.metadata)
            ]
            # An empty table accepts vectors of another model.
            rows = GrowingRows(before.rows[kept] if kept else None)
            self._table = _Table([before.documents[index] for index in kept], rows)
            return len(before) - len(kept)

    async def nearest(
        self, vector: Vector, search: SimilaritySearch, runtime: Runtime
    ) -> list[Document]:
        """Return the documents most similar to *vector*."""
        if len(self) > (_FILTERED_LOOP_LIMIT if search.where else _LOOP_LIMIT):
            return await runtime.invoke(self._nearest, vector, search)
        return self._nearest(vector, search)

    def _nearest(self, vector: Vector, search: SimilaritySearch) -> list[Document]:
        with fork_barrier, self._lock:
            documents, rows = self._table.documents, self._table.rows
            indexes = self._table.matching(search.where) if search.where else None
            if indexes is not None and len(indexes) == len(rows):
                indexes = None  # avoids a copy of all vectors
        if not len(rows):  # `documents` may have grown since the lock was released
            return []
        query = unit_rows([vector], rows.shape[1])[0]
        scores = (rows if indexes is None else rows[indexes]) @ query
        nearest = best(scores, search.top_k, search.threshold)
        return [
            documents[row if indexes is None else int(indexes[row])].scored(float(scores[row]))
            for row in nearest
        ]


class _Table:
    """Documents and their vectors; append-only, so that searches can read it without the lock.

    The number of vectors is authoritative. Documents without a vector remain if Ctrl-C interrupts
    `append`; the next call overwrites them.
    """

    def __init__(self, documents: list[Document], vectors: GrowingRows) -> None:
        self.documents = documents
        self._vectors = vectors
        self._index_by_id = {each.id: index for index, each in enumerate(documents)}
        self._matches: OrderedDict[str, _FilterCache] = OrderedDict()
        self._key_indexes: OrderedDict[str, _KeyIndex] = OrderedDict()

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def rows(self) -> "NDArray[np.float32]":
        """The vectors."""
        return self._vectors.rows

    def index_of(self, id: str) -> int | None:
        """Return the index of the document with this id, or None."""
        index = self._index_by_id.get(id, len(self))
        return index if index < len(self) and self.documents[index].id == id else None

    def with_replaced(
        self, changes: "Iterable[tuple[int | None, Document, NDArray[np.float32]]]"
    ) -> "_Table":
        """Return a copy with the documents of *changes* that have an index replaced."""
        documents, rows = self.documents[: len(self)], self.rows.copy()
        for index, document, row in changes:
            if index is not None:
                documents[index], rows[index] = document, row
        return _Table(documents, GrowingRows(rows))

    def append(self, documents: Sequence[Document], rows: "NDArray[np.float32]") -> None:
        """Append new *documents* with their vectors."""
        count = len(self)
        self.documents[count:] = documents
        self._index_by_id.update((each.id, index) for index, each in enumerate(documents, count))
        self._vectors.extend(rows)

    def matching(self, where: Filter) -> "NDArray[np.intp]":
        """Return the indexes of the documents that match a filter."""
        key = key_of(where)
        cache = self._matches.get(key)
        if cache is None:
            # A copy: the caller may change a list in the filter.
            self._matches[key] = cache = _FilterCache(deepcopy(where))
            if len(self._matches) > _MAX_FILTERS:
                self._matches.popitem(last=False)
        all_documents: Sequence[int] = range(len(self))
        by_key = [
            self._key_index(key).indexes_of(value, self.documents, len(self))
            for key, value in islice(equalities(where), _MAX_INDEXES)
        ]
        return cache.matching(min([all_documents, *by_key], key=len), self.documents, len(self))

    def _key_index(self, key: str) -> "_KeyIndex":
        index = self._key_indexes.get(key)
        if index is None:
            self._key_indexes[key] = index = _KeyIndex(key)
            if len(self._key_indexes) > _MAX_INDEXES:
                self._key_indexes.popitem(last=False)
        return index


class _KeyIndex:
    """The indexes of documents by the value of a metadata key; updated incrementally."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._indexes: dict[tuple[str, Any], list[int]] = {}
        self._count = 0  # documents indexed

    def indexes_of(self, value: Any, documents: Sequence[Document], count: int) -> list[int]:
        """Return the indexes of documents with *value* among the first *count* documents."""
        for index in range(self._count, count):
            found = stored(documents[index].metadata.get(self._key))
            if isinstance(found, str | int | float | None):
                indexes = self._indexes.setdefault((kind_of(found), found), [])
                if indexes[-1:] != [index]:  # present if Ctrl-C interrupted the previous call here
                    indexes.append(index)
            self._count = index + 1
        return self._indexes.get((kind_of(value), value), [])


class _FilterCache:
    """The indexes of documents that match a filter; updated incrementally."""

    def __init__(self, where: Filter) -> None:
        self._matches = predicate(where)
        self._state: tuple[int, NDArray[np.intp]] = 0, numpy().empty(0, dtype=numpy().intp)

    def matching(
        self, candidates: Sequence[int], documents: Sequence[Document], count: int
    ) -> "NDArray[np.intp]":
        """Return the indexes of the matching documents among the first *count* documents.

        Args:
            candidates: The indexes of documents that may match, in ascending order.
            documents: All documents.
            count: The number of documents.
        """
        checked, indexes = self._state
        new = candidates[bisect_left(candidates, checked) :]
        found = [index for index in new if self._matches(documents[index].metadata)]
        if found:
            indexes = numpy().append(indexes, numpy().asarray(found, numpy().intp))
        self._state = count, indexes
        return indexes
