"""Retrievers over vector stores, one that combines retrievers, and a router among them."""

import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Literal

from chatclient._internal.checks import (
    check_callable,
    check_choice,
    check_number,
    check_type,
    seconds,
)
from chatclient.chain.params import ANY, FILTER_EXPRESSION, params_of_retrievers
from chatclient.chat.document import Document
from chatclient.chat.model import ChatModel
from chatclient.chat.options import ChatOptions
from chatclient.errors import UsageError
from chatclient.retrieval.documents import ReciprocalRankJoiner
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
from chatclient.retrieval.vector_store.filters import Filter
from chatclient.retrieval.vector_store.store import (
    DEFAULT_TOP_K,
    HybridVectorStore,
    SimilaritySearch,
    VectorStore,
)
from chatclient.runtime.runtime import Runtime

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
