"""A vector store in this process's memory."""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from copy import deepcopy
from itertools import islice
from typing import TYPE_CHECKING, Any

from chatclient.embedding import EmbeddingModel, Vector
from chatclient.forks import ForkSafeLock, fork_barrier
from chatclient.runtime import Runtime
from chatclient.vector_store.arrays import GrowingRows, best, numpy, unit_rows
from chatclient.vector_store.filters import Filter, equalities, key_of, kind_of, predicate
from chatclient.vector_store.store import Document, SimilaritySearch, VectorStore

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_FILTERS = 64  # whose documents are remembered until something changes
_INDEXES = 16  # of keys, likewise
_AT_ONCE = 20_000  # documents that are searched without leaving the event loop: a few ms
_FILTERED_AT_ONCE = 2_000  # the same where a filter has to look at them


class InMemoryVectorStore(VectorStore):
    """Keeps everything in this process's memory, and compares with every document.

    Safe to use from many threads. Needs the extra `vectors`.

    Args:
        embedding_model: Makes the vectors.

    Raises:
        UsageError: numpy is not installed.
    """

    def __init__(self, embedding_model: EmbeddingModel) -> None:
        super().__init__(embedding_model)
        self._lock = ForkSafeLock()
        self._kept = _Kept([], GrowingRows())

    def __len__(self) -> int:
        return len(self._kept)

    async def store(
        self,
        documents: Sequence[Document],
        vectors: Sequence[Vector],
        runtime: Runtime,  # noqa: ARG002 - there is nothing to wait for
    ) -> None:
        """Keep *documents* with their vectors."""
        with fork_barrier, self._lock:
            kept = self._kept
            rows = unit_rows(vectors, kept.rows.shape[1] or None)
            places = [kept.place_of(each.id) for each in documents]
            fresh = [at for at, place in enumerate(places) if place is None]
            if len(fresh) < len(documents):
                kept = kept.changed(zip(places, documents, rows, strict=True))
                rows = rows[fresh]
            kept.append([documents[at] for at in fresh], rows)
            self._kept = kept

    async def erase(
        self,
        ids: Collection[str] | None,
        where: Filter | None,
        runtime: Runtime,  # noqa: ARG002
    ) -> int:
        """Forget documents."""
        fits = predicate(where)
        with fork_barrier, self._lock:
            before = self._kept
            places = [
                place
                for place, document in enumerate(before.documents[: len(before)])
                if (ids is not None and document.id not in ids) or not fits(document.metadata)
            ]
            # With nothing left, the vectors that come may be another model's.
            rows = GrowingRows(before.rows[places] if places else None)
            self._kept = _Kept([before.documents[place] for place in places], rows)
            return len(before) - len(places)

    async def nearest(
        self, vector: Vector, search: SimilaritySearch, runtime: Runtime
    ) -> list[Document]:
        """Return the documents nearest to *vector*."""
        if len(self) > (_FILTERED_AT_ONCE if search.where else _AT_ONCE):
            return await runtime.invoke(self._nearest, vector, search)
        return self._nearest(vector, search)

    def _nearest(self, vector: Vector, search: SimilaritySearch) -> list[Document]:
        with fork_barrier, self._lock:
            documents, rows = self._kept.documents, self._kept.rows
            places = self._kept.fitting(search.where) if search.where else None
            if places is not None and len(places) == len(rows):
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


class _Kept:
    """Documents and their vectors; nothing is changed in place, what is new comes behind.

    Those who search have both in hand while others add to them. A document is there when its
    vector is: whoever added the rest was interrupted, as by Ctrl-C, and it is overwritten.
    """

    def __init__(self, documents: list[Document], grown: GrowingRows) -> None:
        self.documents = documents
        self._grown = grown
        self._places = {each.id: place for place, each in enumerate(documents)}
        self._fitting: OrderedDict[str, _Fitting] = OrderedDict()
        self._indexes: OrderedDict[str, _Index] = OrderedDict()

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def rows(self) -> "NDArray[np.float32]":
        """The vectors."""
        return self._grown.rows

    def place_of(self, id: str) -> int | None:
        """Return where the document of this id is, None if there is none."""
        place = self._places.get(id, len(self))
        return place if place < len(self) and self.documents[place].id == id else None

    def changed(self, new: "Iterable[tuple[int | None, Document, NDArray[np.float32]]]") -> "_Kept":
        """Return a copy in which those of the *new* documents that have a place take it."""
        documents, rows = self.documents[: len(self)], self.rows.copy()
        for place, document, row in new:
            if place is not None:
                documents[place], rows[place] = document, row
        return _Kept(documents, GrowingRows(rows))

    def append(self, documents: Sequence[Document], rows: "NDArray[np.float32]") -> None:
        """Add *documents* with their vectors, which have no place yet."""
        count = len(self)
        self.documents[count:] = documents
        self._places.update((each.id, place) for place, each in enumerate(documents, count))
        self._grown.extend(rows)

    def fitting(self, where: Filter) -> "NDArray[np.intp]":
        """Return the places of the documents that fit a filter."""
        key = key_of(where)
        fitting = self._fitting.get(key)
        if fitting is None:
            # Of its own copy: the caller may change a list in theirs.
            self._fitting[key] = fitting = _Fitting(deepcopy(where))
            if len(self._fitting) > _FILTERS:
                self._fitting.popitem(last=False)
        return fitting.places_among(self._candidates(where), self.documents, len(self))

    def _candidates(self, where: Filter) -> Sequence[int]:
        """Return the places of the documents that may fit a filter: as few as is known."""
        everywhere: Sequence[int] = range(len(self))
        known = [
            self._index(key).places_of(value, self.documents, len(self))
            for key, value in islice(equalities(where), _INDEXES)
        ]
        return min([everywhere, *known], key=len)

    def _index(self, key: str) -> "_Index":
        index = self._indexes.get(key)
        if index is None:
            self._indexes[key] = index = _Index(key)
            if len(self._indexes) > _INDEXES:
                self._indexes.popitem(last=False)
        return index


class _Index:
    """Where the documents are that have a value under a key; each is looked at once."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._places: dict[tuple[str, Any], list[int]] = {}
        self._seen = 0

    def places_of(self, value: Any, documents: Sequence[Document], count: int) -> list[int]:
        """Return the places among the first *count* documents; may be more than the last time."""
        for place in range(self._seen, count):
            found = documents[place].metadata.get(self._key)
            if isinstance(found, str | int | float | None):
                places = self._places.setdefault((kind_of(found), found), [])
                if places[-1:] != [place]:  # as after an interrupt right behind this
                    places.append(place)
            self._seen = place + 1
        return self._places.get((kind_of(value), value), [])


class _Fitting:
    """Where the documents are that fit a filter; each is looked at once."""

    def __init__(self, where: Filter) -> None:
        self._fits = predicate(where)
        self._seen: tuple[int, NDArray[np.intp]] = 0, numpy().empty(0, dtype=numpy().intp)

    def places_among(
        self, candidates: Sequence[int], documents: Sequence[Document], count: int
    ) -> "NDArray[np.intp]":
        """Return the places among the first *count* documents; may be more than the last time.

        Args:
            candidates: Those that may fit, in order.
            documents: All documents.
            count: How many of them there are.
        """
        seen, places = self._seen
        new = candidates[bisect_left(candidates, seen) :]
        found = [place for place in new if self._fits(documents[place].metadata)]
        if found:
            places = numpy().append(places, numpy().asarray(found, numpy().intp))
        self._seen = count, places
        return places
