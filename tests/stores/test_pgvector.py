"""Vector stores in PostgreSQL with pgvector."""

from collections.abc import Iterator

import pytest

from chatclient.retrieval import PgVectorStore, VectorStore
from chatclient.testing import VectorStoreContract
from chatclient.testing.sample_documents import WordCounts
from tests.support.pgvector_server import pgvector_place


@pytest.mark.feature("search-vector-store")
class TestPgVector(VectorStoreContract):
    """The contract on a real server."""

    @pytest.fixture
    def vector_store(self, embedding_model: WordCounts) -> Iterator[VectorStore]:
        with (
            pgvector_place() as (url, prefix),
            PgVectorStore(url, embedding_model, table_prefix=prefix) as store,
        ):
            yield store
