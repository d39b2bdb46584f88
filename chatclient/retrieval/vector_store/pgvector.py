"""`PgVectorStore`: a vector store in PostgreSQL with pgvector."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from chatclient._internal.checks import check_number, check_type
from chatclient._internal.extras import needed_by
from chatclient.chat.document import Document
from chatclient.chat.embedding import EmbeddingModel, Vector
from chatclient.retrieval.vector_store.filters import Filter
from chatclient.retrieval.vector_store.store import HybridVectorStore, SimilaritySearch
from chatclient.runtime.runtime import Runtime

if TYPE_CHECKING:
    from sqlalchemy import URL, Engine


class PgVectorStore(HybridVectorStore):
    """Stores documents in a table of PostgreSQL with pgvector 0.8 or newer, through SQLAlchemy.

    An HNSW index finds similar documents, GIN indexes serve filters and full-text search. Threads,
    event loops, processes and machines may share a table; each operation is a transaction. The
    first document sets the length of the vectors. More than 2,000 numbers are indexed with 16 bits
    each; above 4,000 there is no index. Needs the extra `postgres`.

    The driver is blocking; a request on an event loop calls it in a worker thread.

    Args:
        database: A URL such as `postgresql://user:password@host/name`, or an SQLAlchemy engine.
            `close` closes the connections for a URL, but not a given engine.
        embedding_model: Computes the vectors.
        table_prefix: The prefix of the table names.
        language: The text search configuration of PostgreSQL for `hybrid_search`, which decides on
            stop words and stems; `simple` for any language.
        ef_search: How many candidates a search of the index considers, up to 1,000; more find
            the most similar documents more reliably and take longer.
        create_schema: Whether the first operation creates missing tables and upgrades old ones.

    Raises:
        UsageError: The URL is invalid or not that of PostgreSQL, or SQLAlchemy or the driver is
            not installed.
    """

    def __init__(
        self,
        database: "str | URL | Engine",
        embedding_model: EmbeddingModel,
        *,
        table_prefix: str = "chatclient_",
        language: str = "english",
        ef_search: int = 100,
        create_schema: bool = True,
    ) -> None:
        super().__init__(embedding_model)
        check_type("language", language, str)
        check_number("ef_search", ef_search, least=1)
        with needed_by("PgVectorStore", extra="postgres"):
            from chatclient.retrieval.vector_store.pg_documents import (  # noqa: PLC0415 - an extra
                PgDocuments,
            )
        self._documents = PgDocuments(
            database,
            table_prefix=table_prefix,
            language=language,
            ef_search=ef_search,
            create_schema=create_schema,
        )

    async def store(
        self, documents: Sequence[Document], vectors: Sequence[Vector], runtime: Runtime
    ) -> None:
        """Store *documents* with their vectors, in one transaction.

        Raises:
            VectorStoreUnavailableError: The database cannot be reached.
            VectorStoreError: The database has no pgvector, or refused a statement.
        """
        await runtime.finish(self._documents.store, documents, vectors)

    async def erase(
        self, ids: Collection[str] | None, where: Filter | None, runtime: Runtime
    ) -> int:
        """Delete documents, in one transaction."""
        return await runtime.finish(self._documents.erase, ids, where)

    async def nearest(
        self, vector: Vector, search: SimilaritySearch, runtime: Runtime
    ) -> list[Document]:
        """Return the documents most similar to *vector*."""
        return await runtime.finish(self._documents.nearest, vector, search)

    async def nearest_or_matching(
        self, vector: Vector, search: SimilaritySearch, runtime: Runtime
    ) -> list[Document]:
        """Return the documents that are similar to *vector* or contain words of the query."""
        return await runtime.finish(self._documents.hybrid, vector, search)

    def close(self) -> None:
        """Close the connections if they were opened for a URL."""
        self._documents.close()
