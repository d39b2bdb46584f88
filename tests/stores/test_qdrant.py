"""Vector stores in Qdrant."""

import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from chatclient.retrieval import QdrantVectorStore, VectorStore
from chatclient.testing import VectorStoreContract
from chatclient.testing.sample_documents import WordCounts

pytest.importorskip("qdrant_client")

SERVERS = os.environ.get("CHATCLIENT_TEST_QDRANT", "").split()


@pytest.mark.feature("search-vector-store")
class TestQdrant(VectorStoreContract):
    """The contract in local mode, and on the server of CHATCLIENT_TEST_QDRANT."""

    @pytest.fixture(params=[":memory:", "folder", *SERVERS])
    def vector_store(
        self, request: pytest.FixtureRequest, embedding_model: WordCounts, tmp_path: Path
    ) -> Iterator[VectorStore]:
        location = str(tmp_path) if request.param == "folder" else request.param
        with QdrantVectorStore(location, embedding_model, collection=f"t{uuid4().hex}") as store:
            yield store
            store.delete(where={})
