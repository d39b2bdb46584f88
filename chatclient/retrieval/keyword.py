"""`KeywordDocumentRetriever`: finds documents by their words, without a model or a server."""

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain

from chatclient._internal.checks import check_number, check_type, names
from chatclient.chain.params import ANY, FILTER_EXPRESSION
from chatclient.chat.document import Document
from chatclient.observability.operations import Retrieval
from chatclient.retrieval.keywords.inverted_index import (
    Field,
    IndexedDocument,
    IndexView,
    InvertedIndex,
    term_impacts,
)
from chatclient.retrieval.keywords.ranking import Ranking, Scored
from chatclient.retrieval.keywords.tokenizer import Words
from chatclient.retrieval.query import Query
from chatclient.retrieval.retrievers import filter_for
from chatclient.retrieval.vector_store.filters import Filter, predicate
from chatclient.retrieval.vector_store.store import DEFAULT_TOP_K
from chatclient.runtime.runtime import ON_LOOP, Runtime
from chatclient.runtime.threads import ForkSafeLock

# Measured on sections of documentation and descriptions of tools; the numbers matter little.
_TEXT = Field(1.0, 0.6, 60.0)
_FAINT = Field(0.1, 0.0, 1.0)
_SATURATION = 1.2
_REMEMBERED = 20_000  # words of queries whose terms are cached
# Documents that are searched without leaving the event loop, which takes some ms.
_SEARCHED_AT_ONCE = 20_000
_FILTERED_AT_ONCE = 2_000


@dataclass(frozen=True, slots=True)
class _Part:
    """Documents that were indexed together.

    Attributes:
        documents: The documents.
        numbers: Their positions by id.
        index: Their index.
        removed: The positions of those that were deleted or replaced since.
    """

    documents: tuple[Document, ...]
    numbers: Mapping[str, int]
    index: InvertedIndex
    removed: frozenset[int] = frozenset()

    @property
    def live(self) -> list[Document]:
        return [d for number, d in enumerate(self.documents) if number not in self.removed]

    def __len__(self) -> int:
        return len(self.documents) - len(self.removed)

    def without(self, ids: Collection[str]) -> "_Part":
        gone = {self.numbers[id] for id in ids if id in self.numbers}
        return replace(self, removed=self.removed | gone) if gone else self


class KeywordDocumentRetriever:
    """Returns the documents that share the most significant words with the query.

    Words are reduced to stems, and rare words count more; names, numbers and rare words, which
    embedding models know little about, are found. It works best for English. The index is in
    memory and thread-safe. Combine it with a vector store in a `HybridDocumentRetriever`.

    Args:
        documents: The documents.
        top_k: The maximum number of documents.
        where: A metadata filter, or a function that returns one for a query. That of the request
            (`FILTER_EXPRESSION`) replaces it.

    Raises:
        UsageError: *top_k* is less than one, or *where* is not a filter.
        WrongTypeError: *documents* contains other values.
    """

    def __init__(
        self,
        documents: Iterable[Document] = (),
        *,
        top_k: int = DEFAULT_TOP_K,
        where: Filter | Callable[[Query], Filter | None] | None = None,
    ) -> None:
        check_number("top_k", top_k, least=1)
        if not callable(where):
            predicate(where)
        self._top_k = top_k
        self._where = where
        self.params = {FILTER_EXPRESSION, *((ANY,) if callable(where) else ())}
        self._lock = ForkSafeLock()
        self._parts: tuple[_Part, ...] = ()
        self._words = Words(_REMEMBERED)
        self.add(documents)

    def add(self, documents: Iterable[Document]) -> None:
        """Index *documents*; those with the same ids are replaced.

        Raises:
            WrongTypeError: One of them is not a `Document`.
        """
        new = {document.id: document for document in _checked(documents)}
        if not new:
            return
        with self._lock:
            parts = [part.without(new) for part in self._parts]
            merged = list(new.values())
            # The sizes of the parts grow geometrically, so each document is indexed a few times.
            while parts and len(parts[-1]) <= 2 * len(merged):
                merged = parts.pop().live + merged
            self._parts = (*_compacted(parts), _indexed(merged))

    async def aadd(self, documents: Iterable[Document]) -> None:
        """Index *documents* in a worker thread; see `add`."""
        await ON_LOOP.invoke(self.add, documents)

    def delete(self, ids: Collection[str]) -> None:
        """Remove the documents with *ids*; unknown ones are ignored."""
        gone = names(ids)
        with self._lock:
            self._parts = _compacted(part.without(gone) for part in self._parts)

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    async def __call__(self, query: Query, runtime: Runtime) -> Sequence[Document]:
        """Return the best matching documents with their scores, the best first.

        Raises:
            UsageError: The value in the query's context is not a filter.
        """
        where = filter_for(query, self._where)
        parts = self._parts
        with runtime.observe(Retrieval(query.text, type(self).__name__)) as observed:
            if sum(map(len, parts)) > (_SEARCHED_AT_ONCE if where is None else _FILTERED_AT_ONCE):
                found = await runtime.invoke(self._search, parts, query.text, where)
            else:
                found = self._search(parts, query.text, where)
            observed.result = found
        return found

    def _search(self, parts: Sequence[_Part], query: str, where: Filter | None) -> list[Document]:
        starts = list(accumulate((len(part.documents) for part in parts), initial=0))
        views = [
            IndexView(part.index, start, part.removed)
            for start, part in zip(starts, parts, strict=False)
        ]
        matches = predicate(where)
        documents = chain.from_iterable(part.documents for part in parts)
        admitted = None
        if where is not None:
            admitted = {n for n, document in enumerate(documents) if matches(document.metadata)}
        ranking = Ranking(views, sum(map(len, parts)), self._words, query)
        best: list[Scored]
        best, total = ranking.best(self._top_k, admitted)
        if total < self._top_k and ranking.correct():  # too few results: try corrected words
            best, _ = ranking.best(self._top_k, admitted)
        found: list[Document] = []
        for score, number in best:
            at = bisect_right(starts, number) - 1
            found.append(parts[at].documents[number - starts[at]].scored(score))
        return found

    def __repr__(self) -> str:
        return f"KeywordDocumentRetriever({len(self)} documents)"


def _checked(documents: Iterable[Document]) -> list[Document]:
    check_type("documents", documents, Iterable, "put a single one into a list")
    checked = list(documents)
    for document in checked:
        check_type("a document", document, Document, "wrap a text: Document(text)")
    return checked


def _compacted(parts: Iterable[_Part]) -> tuple[_Part, ...]:
    """Return *parts* without empty ones; those of which most is removed are indexed again."""
    return tuple(
        part if 2 * len(part) >= len(part.documents) else _indexed(part.live)
        for part in parts
        if len(part)
    )


def _indexed(documents: Sequence[Document]) -> _Part:
    words = Words()  # words of documents are not needed after indexing
    fields = (
        [(_TEXT, words.terms(each.text)), (_FAINT, words.faint_terms(each.text))]
        for each in documents
    )
    entries = (IndexedDocument(term_impacts(several, _SATURATION)) for several in fields)
    numbers = {document.id: number for number, document in enumerate(documents)}
    return _Part(tuple(documents), numbers, InvertedIndex(entries))
