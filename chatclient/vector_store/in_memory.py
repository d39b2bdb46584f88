"""A vector store in this process's memory."""

import threading
from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from chatclient.embedding import EmbeddingModel, Vector
from chatclient.json import dumps
from chatclient.runtime import Runtime
from chatclient.vector_store.arrays import best, numpy, unit_rows
from chatclient.vector_store.filters import Filter, predicate
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

    _rows: "NDArray[np.float32]"
    _fitting: "OrderedDict[bytes, NDArray[np.intp]]"

    def __init__(self, embedding_model: EmbeddingModel) -> None:
        super().__init__(embedding_model)
        self._lock = threading.Lock()
        self._documents: list[Document] = []
        self._places: dict[str, int] = {}
        self._rows = numpy().empty((0, 0), dtype=numpy().float32)
        self._fitting = OrderedDict()

    def __len__(self) -> int:
        return len(self._documents)

    async def store(
        self,
        documents: Sequence[Document],
        vectors: Sequence[Vector],
        runtime: Runtime,  # noqa: ARG002 - there is nothing to wait for
    ) -> None:
        """Keep *documents* with their vectors."""
        with self._lock:
            rows = unit_rows(vectors, self._rows.shape[1] or None)
            known = [self._places.get(document.id) for document in documents]
            # Those who search have the old arrays in hand: nothing is changed in place.
            everything = list(self._documents)
            old = self._rows.reshape(len(everything), rows.shape[1]).copy()
            fresh = []
            for place, (document, row) in enumerate(zip(documents, rows, strict=True)):
                at = known[place]
                if at is None:
                    self._places[document.id] = len(everything)
                    everything.append(document)
                    fresh.append(row)
                else:
                    everything[at] = document
                    old[at] = row
            self._replace(everything, numpy().vstack([old, *fresh]))

    async def erase(
        self,
        ids: Collection[str] | None,
        where: Filter | None,
        runtime: Runtime,  # noqa: ARG002
    ) -> int:
        """Forget documents."""
        fits = predicate(where)
        with self._lock:
            before = self._documents
            kept = [
                place
                for place, document in enumerate(before)
                if (ids is not None and document.id not in ids) or not fits(document.metadata)
            ]
            documents = [before[place] for place in kept]
            self._places = {document.id: place for place, document in enumerate(documents)}
            self._replace(documents, self._rows[kept])
            return len(before) - len(documents)

    async def nearest(
        self, vector: Vector, search: SimilaritySearch, runtime: Runtime
    ) -> list[Document]:
        """Return the documents nearest to *vector*."""
        if len(self._documents) > _AT_ONCE:
            found: list[Document] = await runtime.invoke(self._nearest, vector, search)
            return found
        return self._nearest(vector, search)

    def _nearest(self, vector: Vector, search: SimilaritySearch) -> list[Document]:
        with self._lock:
            documents, rows = self._documents, self._rows
            places = self._fitting_places(search.where) if search.where else None
            if places is not None and len(places) == len(documents):
                places = None  # spares a copy of all vectors
        if not documents:
            return []
        query = unit_rows([vector], rows.shape[1])[0]
        scores = (rows if places is None else rows[places]) @ query
        found = best(scores, search.top_k, search.threshold)
        return [
            documents[at if places is None else int(places[at])].scored(float(scores[at]))
            for at in found
        ]

    def _replace(self, documents: list[Document], rows: "NDArray[np.float32]") -> None:
        self._documents = documents
        self._rows = rows
        self._fitting.clear()

    def _fitting_places(self, where: Filter) -> "NDArray[np.intp]":
        key = dumps(where)
        places = self._fitting.get(key)
        if places is None:
            fits = predicate(where)
            fitting = [i for i, document in enumerate(self._documents) if fits(document.metadata)]
            places = numpy().asarray(fitting, dtype=numpy().intp)
            self._fitting[key] = places
            if len(self._fitting) > _FILTERS:
                self._fitting.popitem(last=False)
        return places
