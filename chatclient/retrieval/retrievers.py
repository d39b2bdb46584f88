"""Retrievers over vector stores, and a router that chooses among retrievers."""

import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Literal

from chatclient._internal.checks import check_callable, check_choice, check_type
from chatclient.chain.params import ANY, FILTER_EXPRESSION, params_of_retrievers
from chatclient.chat.document import Document
from chatclient.chat.model import ChatModel
from chatclient.chat.options import ChatOptions
from chatclient.errors import UsageError
from chatclient.retrieval.model_step import DATA, QueryCall
from chatclient.retrieval.query import DocumentRetriever, Query, RetrievalError
from chatclient.retrieval.vector_store.filters import Filter
from chatclient.retrieval.vector_store.hybrid import HybridVectorStore
from chatclient.retrieval.vector_store.store import DEFAULT_TOP_K, SimilaritySearch, VectorStore
from chatclient.runtime.runtime import Runtime


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
