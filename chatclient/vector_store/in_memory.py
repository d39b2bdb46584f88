"""A vector store in this process's memory."""

from collections import OrderedDict
from collections.abc import Collection, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING

from chatclient.embedding import EmbeddingModel, Vector
from chatclient.forks import ForkSafeLock, fork_barrier
from chatclient.runtime import Runtime
from chatclient.vector_store.arrays import GrowingRows, best, numpy, unit_rows
from chatclient.vector_store.filters import Filter, key_of, predicate
from chatclient.vector_store.store import Document, SimilaritySearch, VectorStore

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_FILTERS = 64  # whose documents are remembered until something changes
_AT_ONCE = 20_000  # documents that are searched without leaving the event loop: a few ms


class InMemoryVectorStore(VectorStore):
    """Keeps everything in this process's memory, and compares with every document.

    Safe to use from many threads. Needs the extra `vectors`.

    Args:
        embedding_model: Makes the vectors.

    Raises:
        UsageError: numpy is not installed.
    """

    _fitting: "OrderedDict[str, _Fitting]"

    def __init__(self, embedding_model: EmbeddingModel) -> None:
        super().__init__(embedding_model)
        self._lock = ForkSafeLock()
        self._places: dict[str, int] = {}
        # Those who search have both in hand while others add to them: nothing is changed in place,
        # what is new comes behind.
        self._replace([], GrowingRows())

    def __len__(self) -> int:
        return len(self._documents)

    async def store(
        self,
        documents: Sequence[Document],
        vectors: Sequence[Vector],
        runtime: Runtime,  # noqa: ARG002 - there is nothing to wait for
    ) -> None:
        """Keep *documents* with their vectors."""
        with fork_barrier, self._lock:
            rows = unit_rows(vectors, self._grown.rows.shape[1] or None)
            fresh = [at for at, each in enumerate(documents) if each.id not in self._places]
            if len(fresh) < len(documents):
                self._change(documents, rows)
                rows = rows[fresh]
            self._append([documents[at] for at in fresh], rows)

    def _change(self, documents: Sequence[Document], rows: "NDArray[np.float32]") -> None:
        """Put those of *documents* that are here already in the place of what they were."""
        everything, old = list(self._documents), self._grown.rows.copy()
        for document, row in zip(documents, rows, strict=True):
            place = self._places.get(document.id)
            if place is not None:
                everything[place], old[place] = document, row
        self._replace(everything, GrowingRows(old))

    def _append(self, documents: Sequence[Document], rows: "NDArray[np.float32]") -> None:
        count = len(self._documents)
        self._grown.extend(rows)
        self._places.update((each.id, count + at) for at, each in enumerate(documents))
        self._documents.extend(documents)

    async def erase(
        self,
        ids: Collection[str] | None,
        where: Filter | None,
        runtime: Runtime,  # noqa: ARG002
    ) -> int:
        """Forget documents."""
        fits = predicate(where)
        with fork_barrier, self._lock:
            before = self._documents
            kept = [
                place
                for place, document in enumerate(before)
                if (ids is not None and document.id not in ids) or not fits(document.metadata)
            ]
            documents = [before[place] for place in kept]
            self._places = {document.id: place for place, document in enumerate(documents)}
            # With nothing left, the vectors that come may be another model's.
            self._replace(documents, GrowingRows(self._grown.rows[kept] if kept else None))
            return len(before) - len(documents)

    async def nearest(
        self, vector: Vector, search: SimilaritySearch, runtime: Runtime
    ) -> list[Document]:
        """Return the documents nearest to *vector*."""
        if len(self._documents) > _AT_ONCE:
            return await runtime.invoke(self._nearest, vector, search)
        return self._nearest(vector, search)

    def _nearest(self, vector: Vector, search: SimilaritySearch) -> list[Document]:
        with fork_barrier, self._lock:
            documents, rows = self._documents, self._grown.rows
            places = self._fitting_places(search.where) if search.where else None
            if places is not None and len(places) == len(documents):
                places = None  # spares a copy of all vectors
        if not len(rows):  # the list may have grown meanwhile
            return []
        query = unit_rows([vector], rows.shape[1])[0]
        scores = (rows if places is None else rows[places]) @ query
        found = best(scores, search.top_k, search.threshold)
        return [
            documents[at if places is None else int(places[at])].scored(float(scores[at]))
            for at in found
        ]

    def _replace(self, documents: list[Document], rows: GrowingRows) -> None:
        self._documents = documents
        self._grown = rows
        self._fitting = OrderedDict()

    def _fitting_places(self, where: Filter) -> "NDArray[np.intp]":
        key = key_of(where)
        fitting = self._fitting.get(key)
        if fitting is None:
            # Of its own copy: the caller may change a list in theirs.
            self._fitting[key] = fitting = _Fitting(deepcopy(where))
            if len(self._fitting) > _FILTERS:
                self._fitting.popitem(last=False)
        return fitting.places_among(self._documents)


class _Fitting:
    """Where the documents are that fit a filter; each is looked at once."""

    _places: "NDArray[np.intp]"

    def __init__(self, where: Filter) -> None:
        self._fits = predicate(where)
        self._places = numpy().empty(0, dtype=numpy().intp)
        self._seen = 0

    def places_among(self, documents: Sequence[Document]) -> "NDArray[np.intp]":
        """Return the places among *documents*, of which there may be more than the last time."""
        new = range(self._seen, len(documents))
        found = [place for place in new if self._fits(documents[place].metadata)]
        if found:
            self._places = numpy().append(self._places, numpy().asarray(found, numpy().intp))
        self._seen = len(documents)
        return self._places
