"""`HybridVectorStore`: a vector store that also searches by words."""

from abc import abstractmethod

from chatclient.chat.document import Document
from chatclient.chat.embedding import Vector
from chatclient.observability.operations import Retrieval
from chatclient.retrieval.vector_store.filters import Filter
from chatclient.retrieval.vector_store.store import DEFAULT_TOP_K, SimilaritySearch, VectorStore
from chatclient.runtime.blocking import drive
from chatclient.runtime.runtime import BLOCKING, ON_LOOP, Runtime


class HybridVectorStore(VectorStore):
    """A vector store that combines similarity with full-text search.

    Names, numbers and rare words, which embedding models know little about, are found by the text,
    other documents by their meaning. A subclass implements `nearest_or_matching`.
    """

    @abstractmethod
    async def nearest_or_matching(
        self, vector: Vector, search: SimilaritySearch, runtime: Runtime
    ) -> list[Document]:
        """Return the results of *search* by vector and by words, the best first.

        The score of each is its similarity. A threshold applies to documents that were found by
        similarity only.
        """

    async def find_hybrid(self, search: SimilaritySearch, runtime: Runtime) -> list[Document]:
        """Return the results of *search* by vector and by words; for advisors and tools."""
        [vector] = await self.vectors_of([search.query], runtime)
        with runtime.observe(Retrieval(search.query, type(self).__name__)) as observed:
            found = await self.nearest_or_matching(vector, search, runtime)
            observed.result = found
        return found

    def hybrid_search(
        self, query: str, *, top_k: int = DEFAULT_TOP_K, where: Filter | None = None
    ) -> list[Document]:
        """Return the documents that are similar to *query* or contain its words, the best first.

        The rank of a document depends on its ranks in both searches. Its score is the similarity.

        Raises:
            UsageError: *top_k* is less than one, or *where* is not a filter.
            ProviderError: The embedding failed.
            VectorStoreError: The store failed.
        """
        return drive(self.find_hybrid(SimilaritySearch(query, top_k, where=where), BLOCKING))

    async def ahybrid_search(
        self, query: str, *, top_k: int = DEFAULT_TOP_K, where: Filter | None = None
    ) -> list[Document]:
        """Return documents by similarity and words; see `hybrid_search`."""
        return await self.find_hybrid(SimilaritySearch(query, top_k, where=where), ON_LOOP)
