"""Retrievers: over vector stores, by words, one that combines others, and a router among them."""

import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import accumulate, chain
from typing import Literal

from chatclient._internal.checks import (
    check_callable,
    check_choice,
    check_number,
    check_type,
    names,
    seconds,
)
from chatclient.chain.params import ANY, FILTER_EXPRESSION, params_of_retrievers
from chatclient.chat.document import Document
from chatclient.chat.model import ChatModel
from chatclient.chat.options import ChatOptions
from chatclient.errors import UsageError
from chatclient.observability.operations import Retrieval
from chatclient.retrieval.documents import ReciprocalRankJoiner
from chatclient.retrieval.keywords.inverted_index import (
    Field,
    IndexedDocument,
    IndexView,
    InvertedIndex,
    term_impacts,
)
from chatclient.retrieval.keywords.ranking import Ranking, Scored
from chatclient.retrieval.keywords.tokenizer import Words
from chatclient.retrieval.query import (
    STEP,
    DocumentJoiner,
    DocumentRetriever,
    Query,
    RetrievalError,
    list_of,
    retrieve_all,
)
from chatclient.retrieval.transformers import DATA, QueryCall
from chatclient.retrieval.vector_store.filters import Filter, predicate
from chatclient.retrieval.vector_store.store import (
    DEFAULT_TOP_K,
    HybridVectorStore,
    SimilaritySearch,
    VectorStore,
)
from chatclient.runtime.runtime import ON_LOOP, Runtime
from chatclient.runtime.threads import ForkSafeLock

_RANKS = ReciprocalRankJoiner()


def filter_for(
    query: Query, own: Filter | Callable[[Query], Filter | None] | None
) -> Filter | None:
    """Return the filter of the request of *query*, or else the retriever's *own*.

    Raises:
        UsageError: The filter of the request is empty or None, and would find everything.
    """
    if FILTER_EXPRESSION not in query.context:
        return own(query) if callable(own) else own
    where: Filter | None = query.context[FILTER_EXPRESSION]
    if where is None or where == {}:
        msg = (
            f"the filter of the request is {where!r}, with which all documents would be found;"
            " leave out FILTER_EXPRESSION for the filter of the retriever"
        )
        raise UsageError(msg)
    return where


class VectorStoreDocumentRetriever:
    """Returns the documents of a vector store that are most similar to the query.

    Args:
        vector_store: The vector store.
        top_k: The maximum number of documents.
        threshold: The minimum score of a document; None: no minimum.
        where: A metadata filter, or a function that returns one for a query. That of the request
            (`FILTER_EXPRESSION`) replaces it.
        hybrid: Whether to search by words as well, in a `HybridVectorStore`. The threshold then
            applies to documents that were found by similarity only.

    Raises:
        UsageError: The store is not a `VectorStore` (for a hybrid search: a `HybridVectorStore`),
            *top_k* is less than one, *threshold* is not a score, or *where* is not a filter.
    """

    def __init__(
        self,
        vector_store: VectorStore,
        *,
        top_k: int = DEFAULT_TOP_K,
        threshold: float | None = None,
        where: Filter | Callable[[Query], Filter | None] | None = None,
        hybrid: bool = False,
    ) -> None:
        check_type("vector_store", vector_store, HybridVectorStore if hybrid else VectorStore)
        self._store = vector_store
        self._top_k = top_k
        self._threshold = threshold
        self._where = where
        self._hybrid = hybrid
        SimilaritySearch("", top_k, threshold, None if callable(where) else where)  # checks them
        self.params = {FILTER_EXPRESSION, *((ANY,) if callable(where) else ())}

    async def __call__(self, query: Query, runtime: Runtime) -> Sequence[Document]:
        """Return the documents most similar to *query*, the best first.

        Raises:
            UsageError: The value in the query's context is not a filter.
        """
        where = filter_for(query, self._where)
        search = SimilaritySearch(query.text, self._top_k, self._threshold, where)
        if self._hybrid and isinstance(self._store, HybridVectorStore):
            return await self._store.find_hybrid(search, runtime)
        return (await self._store.find_all([search], runtime))[0]

    def __repr__(self) -> str:
        return f"VectorStoreDocumentRetriever({type(self._store).__name__})"


ROUTING_TEMPLATE = (
    "Say which of the sources may hold what answers the question: their numbers, with commas "
    f"between them, and nothing else. {DATA}\n\n"
    "<sources>\n{sources}\n</sources>\n\n<question>{query}</question>"
)

RoutingFallback = Literal["all", "none", "raise"]
"""What to do if the model names no source: use all retrievers, none, or raise an error."""

_NUMBER = re.compile(r"(?<!\d)\d{1,9}(?!\d)")  # longer ones are not the number of a source


class LanguageModelQueryRouter:
    """A router that lets a model choose sources by their descriptions.

    ```python
    router = LanguageModelQueryRouter(model, {"prices and offers": shop, "opening hours": wiki})
    RetrievalAugmentationAdvisor(query_router=router)
    ```

    Args:
        model: The model; a low temperature is recommended.
        retrievers: The retrievers by description of their content.
        fallback: The retrievers to use if the model fails or names no source.
        template: The prompt, with `{query}` and `{sources}`.
        options: Options of the request to the model.

    Raises:
        UsageError: There are no retrievers, one of them is not callable, or *fallback* has an
            unknown value.
        TemplateError: The template lacks a placeholder.
    """

    def __init__(
        self,
        model: ChatModel,
        retrievers: Mapping[str, DocumentRetriever],
        *,
        fallback: RoutingFallback = "all",
        template: str = ROUTING_TEMPLATE,
        options: ChatOptions | None = None,
    ) -> None:
        hint = 'describe the content of each: {"opening hours": retriever}'
        check_type("the retrievers of a router", retrievers, Mapping, hint)
        for retriever in retrievers.values():
            check_callable("a retriever", retriever, takes=("query", "runtime"))
        if not retrievers:
            msg = "a router needs at least one retriever"
            raise UsageError(msg)
        check_choice("fallback", fallback, RoutingFallback)
        self._retrievers = tuple(retrievers.values())
        self.params = params_of_retrievers(*self._retrievers)
        self._fallback = fallback
        sources = "\n".join(
            f'<source number="{number}">{escape(description, quote=False)}</source>'
            for number, description in enumerate(retrievers, 1)
        )
        placeholders = ("query", "sources")
        self._call = QueryCall(model, template, {"sources": sources}, placeholders, options)

    async def __call__(self, query: Query, runtime: Runtime) -> Sequence[DocumentRetriever]:
        """Return the retrievers for *query*.

        Raises:
            RetrievalError: The model named no source, and *fallback* is `"raise"`.
        """
        text = await self._call(query, runtime)
        numbers = dict.fromkeys(int(number) for number in _NUMBER.findall(text))
        chosen = [self._retrievers[n - 1] for n in numbers if 0 < n <= len(self._retrievers)]
        if chosen or self._fallback == "none":
            return chosen
        if self._fallback == "raise":
            msg = "the model named no source for the query"
            raise RetrievalError(msg)
        return self._retrievers


class HybridDocumentRetriever:
    """Runs several retrievers, usually by vectors and by keywords, and joins their results.

    The results are joined by reciprocal rank fusion: a document that several retrievers find comes
    before one that a single retriever finds at the same rank. A retriever that fails is logged and
    left out. Let each retriever find more documents than are needed in the end.

    Args:
        *retrievers: The retrievers.
        top_k: The maximum number of documents.
        joiner: Joins the results instead of `ReciprocalRankJoiner()`.
        max_concurrency: The number of concurrent retrievers on an event loop. Blocking calls run
            them one after another on the caller's thread.
        timeout: The timeout of each retriever on an event loop in seconds, or None.

    Raises:
        UsageError: There is no retriever, one of them is not callable, or a number is too small.
    """

    def __init__(
        self,
        *retrievers: DocumentRetriever,
        top_k: int = DEFAULT_TOP_K,
        joiner: DocumentJoiner = _RANKS,
        max_concurrency: int = 8,
        timeout: float | None = None,
    ) -> None:
        if not retrievers:
            msg = "a hybrid retriever needs at least one retriever"
            raise UsageError(msg)
        for retriever in retrievers:
            check_callable("a retriever", retriever, takes=STEP)
        check_number("top_k", top_k, least=1)
        check_callable("a joiner", joiner, takes=("results",))
        check_number("max_concurrency", max_concurrency, least=1)
        self._retrievers = retrievers
        self.params = params_of_retrievers(*retrievers)
        self._top_k = top_k
        self._join = joiner
        self._limit = max_concurrency
        self._timeout = None if timeout is None else seconds("timeout", timeout)

    async def __call__(self, query: Query, runtime: Runtime) -> Sequence[Document]:
        """Return the documents for *query*, the best first.

        Raises:
            RetrievalError: All retrievers failed.
        """
        searches = [(retriever, query) for retriever in self._retrievers]
        limit = 1 if runtime.blocking else self._limit
        timeout = None if runtime.blocking else self._timeout
        found = await retrieve_all(searches, runtime, limit=limit, timeout=timeout)
        joined = list_of(Document, self._join, await runtime.call(self._join, found))
        return joined[: self._top_k]

    def __repr__(self) -> str:
        return f"HybridDocumentRetriever({', '.join(map(repr, self._retrievers))})"


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
