"""Retrieval from vector stores."""

from collections.abc import Callable, Sequence

from chatclient.checks import check_kind
from chatclient.rag.query import Query
from chatclient.runtime import Runtime
from chatclient.vector_store import (
    DEFAULT_TOP_K,
    Document,
    Filter,
    SimilaritySearch,
    VectorStore,
)

FILTER = "vector_store_filter_expression"
"""The key in a request's context of a filter that stands in for the retriever's own."""


class VectorStoreDocumentRetriever:
    """Finds the documents of a vector store that are about the same as the query.

    Args:
        vector_store: Where they are.
        top_k: At most how many.
        threshold: The least score of a result; None takes all.
        where: Which documents count: a filter, or a function that returns one for a query. A
            filter in the request's context stands in for it.
        filter_key: The key of that.

    Raises:
        UsageError: The store is none, *top_k* is less than one, *threshold* is not a score, or
            *where* is not a filter.
    """

    def __init__(
        self,
        vector_store: VectorStore,
        *,
        top_k: int = DEFAULT_TOP_K,
        threshold: float | None = None,
        where: Filter | Callable[[Query], Filter | None] | None = None,
        filter_key: str = FILTER,
    ) -> None:
        check_kind("vector_store", vector_store, VectorStore)
        self._store = vector_store
        self._top_k = top_k
        self._threshold = threshold
        self._where = where
        self._filter_key = filter_key
        SimilaritySearch("", top_k, threshold, None if callable(where) else where)  # checks them

    async def __call__(self, query: Query, runtime: Runtime) -> Sequence[Document]:
        """Return the documents nearest to *query*, best first.

        Raises:
            UsageError: What the query's context has in its place is not a filter.
        """
        where = query.context.get(self._filter_key)
        if where is None:
            where = self._where(query) if callable(self._where) else self._where
        search = SimilaritySearch(query.text, self._top_k, self._threshold, where)
        return (await self._store.find_all([search], runtime))[0]

    def __repr__(self) -> str:
        return f"VectorStoreDocumentRetriever({type(self._store).__name__})"
