"""`LangChainVectorStore`: any vector store of LangChain."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from chatclient.bridges.langchain_stores import (
    ID,
    Adapter,
    OtherStore,
    adapter_for,
    delete,
)
from chatclient.chat.document import Document
from chatclient.chat.embedding import EmbeddingModel, Vector
from chatclient.errors import ChatClientError, UsageError, VectorStoreError
from chatclient.extend import ForkSafeLock, check_method
from chatclient.memory.encoding import digest
from chatclient.retrieval.vector_store.filters import Filter
from chatclient.retrieval.vector_store.store import SimilaritySearch, VectorStore
from chatclient.runtime.runtime import Runtime

T = TypeVar("T")

_BATCH = 1_000  # documents in one call of the store; some have a limit


class LangChainVectorStore(VectorStore):
    """Makes a vector store of LangChain available, with the documents that it contains.

    The store computes all vectors, and decides which metadata it keeps: most take texts, numbers
    and booleans, and leave out None. Scores are the store's relevance scores: the similarity if it
    is configured for cosine distance. Filters are translated for `Chroma`, `FAISS`, `LanceDB` and
    `InMemoryVectorStore`; what one of them cannot express is a `UsageError`. A store that cannot
    delete is only searched. All errors of the store are `VectorStoreError`s.

    The store's plain methods are called, by requests on an event loop in a worker thread. Changes
    are made one at a time.

    Args:
        store: The vector store.
        search_arguments: Returns, for a filter, the keyword arguments of the store's
            `similarity_search_with_score`, such as `{"filter": ...}`; for other stores.
        relevance: Converts a score of the store to a similarity; default: the store's own function.

    Raises:
        WrongTypeError: *store* is not a vector store.
    """

    def __init__(
        self,
        store: Any,
        *,
        search_arguments: Callable[[Filter], Mapping[str, Any]] | None = None,
        relevance: Callable[[float], float] | None = None,
    ) -> None:
        check_method("a LangChain store", store, "similarity_search_with_score")
        super().__init__(_StoreEmbeddings(store))
        self._store = store
        self._adapter: Adapter = adapter_for(store)
        if search_arguments is not None:
            self._adapter = OtherStore(store, search_arguments)
        self._relevance = relevance
        self._lock = ForkSafeLock()

    def __repr__(self) -> str:
        return f"LangChainVectorStore({type(self._store).__name__})"

    async def vectors_of(
        self,
        texts: Sequence[str],
        runtime: Runtime,  # noqa: ARG002 - the store embeds texts
    ) -> list[Vector]:
        """Return empty vectors."""
        return [[] for _ in texts]

    async def store(
        self, documents: Sequence[Document], vectors: Sequence[Vector], runtime: Runtime
    ) -> None:
        """Store *documents*.

        Raises:
            UsageError: There are precomputed vectors, or the store cannot replace documents.
            VectorStoreError: The store failed.
        """
        if any(vectors):
            msg = "a LangChain store computes vectors itself; it takes no precomputed vectors"
            raise UsageError(msg)
        await runtime.finish(self._do, partial(self._add, documents))

    async def erase(
        self, ids: Collection[str] | None, where: Filter | None, runtime: Runtime
    ) -> int:
        """Delete documents.

        Raises:
            UsageError: The store cannot find documents by this filter.
            VectorStoreError: The store failed.
        """
        return await runtime.finish(self._do, partial(self._erase, ids, where))

    async def nearest(
        self,
        vector: Vector,  # noqa: ARG002 - the store embeds the query
        search: SimilaritySearch,
        runtime: Runtime,
    ) -> list[Document]:
        """Return the documents most similar to the query.

        Raises:
            UsageError: The filter cannot be translated.
            VectorStoreError: The store failed.
        """
        return await runtime.invoke(self._do, partial(self._nearest, search))

    def _do(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except ChatClientError:
            raise
        except Exception as error:  # each store has errors of its own
            msg = f"{type(self._store).__name__} failed; see the cause of this error"
            raise VectorStoreError(msg) from error

    def _add(self, documents: Sequence[Document]) -> None:
        rest = iter(documents)
        with self._lock:
            while batch := list(islice(rest, _BATCH)):
                ids = [document.id for document in batch]
                metadata = [self._metadata(document) for document in batch]
                texts = [document.text for document in batch]
                self._adapter.add(texts, metadata, ids)

    def _metadata(self, document: Document) -> dict[str, Any]:
        plain = {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in document.metadata.items()
        }
        return plain if self._adapter.returns_ids else plain | {ID: document.id}

    def _erase(self, ids: Collection[str] | None, where: Filter | None) -> int:
        with self._lock:
            found = self._adapter.ids(None if ids is None else list(ids), where)
            for start in range(0, len(found), _BATCH):
                delete(self._store, found[start : start + _BATCH])
        return len(found)

    def _nearest(self, search: SimilaritySearch) -> list[Document]:
        arguments = self._adapter.search_arguments(search.where or {})
        if arguments is None:
            return []
        found = self._store.similarity_search_with_score(search.query, k=search.top_k, **arguments)
        relevance = self._relevance or self._adapter.relevance()
        scored = [_document(each).scored(relevance(float(score))) for each, score in found]
        least = search.threshold
        return [each for each in scored if least is None or (each.score or 0) >= least]


def _document(found: Any) -> Document:
    metadata = {key: value for key, value in found.metadata.items() if value is not None}
    id = metadata.pop(ID, None) or getattr(found, "id", None) or digest(found.page_content)
    return Document(found.page_content, metadata, str(id))


class _StoreEmbeddings(EmbeddingModel):
    """The embeddings of a LangChain store."""

    def __init__(self, store: Any) -> None:
        self._store = store

    async def embed_batch(self, texts: Sequence[str], runtime: Runtime) -> list[Vector]:
        embeddings = self._store.embeddings
        if embeddings is None:
            msg = f"{type(self._store).__name__} does not tell its embeddings"
            raise UsageError(msg)
        vectors: list[Vector] = await runtime.invoke(embeddings.embed_documents, [*texts])
        return vectors
