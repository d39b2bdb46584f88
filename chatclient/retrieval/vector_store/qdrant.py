"""`QdrantVectorStore`: a vector store in Qdrant."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from chatclient._internal.extras import needed_by
from chatclient.chat.document import Document
from chatclient.chat.embedding import EmbeddingModel, Vector
from chatclient.retrieval.vector_store.filters import Filter
from chatclient.retrieval.vector_store.store import SimilaritySearch, VectorStore
from chatclient.runtime.runtime import Runtime

if TYPE_CHECKING:
    from qdrant_client import QdrantClient


class QdrantVectorStore(VectorStore):
    """Stores documents in a collection of Qdrant: on a server, or in local mode.

    The first document creates the collection, and sets the length of its vectors. Threads, event
    loops, processes and machines may share a server; a folder of local mode is used by one
    process. Comparing the order of texts (`{"day": {"gte": "2026-01-01"}}`) reads the metadata of
    all documents; Qdrant's indexes serve all other filters. Needs the extra `qdrant`.

    The client is blocking; a request on an event loop calls it in a worker thread. All operations
    raise `VectorStoreUnavailableError` if the server cannot be reached, and `VectorStoreError` if
    it refuses a request. Many documents are stored in several requests.

    Args:
        location: The URL of a server, a folder for local mode, `:memory:`, or a `QdrantClient`,
            which `close` does not close.
        embedding_model: Computes the vectors.
        collection: The name of the collection.
        api_key: The key for a URL.

    Raises:
        UsageError: qdrant-client is not installed.
        VectorStoreError: The folder is in use, or cannot be opened.
    """

    def __init__(
        self,
        location: "str | QdrantClient",
        embedding_model: EmbeddingModel,
        *,
        collection: str = "chatclient",
        api_key: str | None = None,
    ) -> None:
        super().__init__(embedding_model)
        with needed_by("QdrantVectorStore"):
            from chatclient.retrieval.vector_store.qdrant_points import (  # noqa: PLC0415 - an extra
                QdrantPoints,
            )
        self._points = QdrantPoints(location, collection, api_key)

    async def store(
        self, documents: Sequence[Document], vectors: Sequence[Vector], runtime: Runtime
    ) -> None:
        """Store *documents* with their vectors."""
        await runtime.finish(self._points.store, documents, vectors)

    async def erase(
        self, ids: Collection[str] | None, where: Filter | None, runtime: Runtime
    ) -> int:
        """Delete documents."""
        return await runtime.finish(self._points.erase, ids, where)

    async def nearest(
        self, vector: Vector, search: SimilaritySearch, runtime: Runtime
    ) -> list[Document]:
        """Return the documents most similar to *vector*."""
        return await runtime.finish(self._points.nearest, vector, search)

    def close(self) -> None:
        """Close the client, unless it was given."""
        self._points.close()
