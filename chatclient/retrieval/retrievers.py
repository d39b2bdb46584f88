"""Retrievers over vector stores."""

from collections.abc import Callable, Sequence

from chatclient._internal.checks import check_type
from chatclient.retrieval.query import Query
from chatclient.retrieval.vector_store.filters import Filter
from chatclient.retrieval.vector_store.hybrid import HybridVectorStore
from chatclient.retrieval.vector_store.store import (
    DEFAULT_TOP_K,
    Document,
    SimilaritySearch,
    VectorStore,
)
from chatclient.runtime.runtime import Runtime

FILTER = "vector_store_filter_expression"
"""Key in a request's context: a filter that replaces that of the retriever."""


class VectorStoreDocumentRetriever:
    """Returns the documents of a vector store that are most similar to the query.

    Args:
        vector_store: The vector store.
        top_k: The maximum number of documents.
        threshold: The minimum score of a document; None: no minimum.
        where: A metadata filter, or a function that returns one for a query. A filter in the
            request's context replaces it.
        filter_key: The key of the filter in the context.
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
        filter_key: str = FILTER,
        hybrid: bool = False,
    ) -> None:
        check_type("vector_store", vector_store, HybridVectorStore if hybrid else VectorStore)
        self._store = vector_store
        self._top_k = top_k
        self._threshold = threshold
        self._where = where
        self._filter_key = filter_key
        self._hybrid = hybrid
        SimilaritySearch("", top_k, threshold, None if callable(where) else where)  # checks them

    async def __call__(self, query: Query, runtime: Runtime) -> Sequence[Document]:
        """Return the documents most similar to *query*, the best first.

        Raises:
            UsageError: The value in the query's context is not a filter.
        """
        where = query.context.get(self._filter_key)
        if where is None:
            where = self._where(query) if callable(self._where) else self._where
        search = SimilaritySearch(query.text, self._top_k, self._threshold, where)
        if self._hybrid and isinstance(self._store, HybridVectorStore):
            return await self._store.find_hybrid(search, runtime)
        return (await self._store.find_all([search], runtime))[0]

    def __repr__(self) -> str:
        return f"VectorStoreDocumentRetriever({type(self._store).__name__})"
