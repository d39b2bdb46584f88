"""Vector stores of LangChain."""

import warnings
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from chatclient.retrieval import LangChainVectorStore, VectorStore
from chatclient.testing import VectorStoreContract
from chatclient.testing.sample_documents import WordCounts

pytest.importorskip("langchain_chroma")
pytest.importorskip("lancedb")
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # not maintained, and still used
    lance_stores = pytest.importorskip("langchain_community.vectorstores.lancedb")

from langchain_chroma import Chroma
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import InMemoryVectorStore

pytestmark = [
    pytest.mark.filterwarnings("ignore:legacy embedding function config:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:No results found for the query:UserWarning"),
]


class Embedded(Embeddings):
    """The embedding model of the contract for LangChain."""

    def __init__(self, model: WordCounts) -> None:
        self.model = model

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return self.model.embed(texts)

    def embed_query(self, text: str) -> list[float]:
        return self.model.embed([text])[0]


def chroma(model: WordCounts, folder: Path) -> Chroma:
    return Chroma(
        f"t{uuid4().hex}",
        Embedded(model),
        persist_directory=str(folder),
        collection_configuration={"hnsw": {"space": "cosine"}},
    )


def lance(model: WordCounts, folder: Path, **settings: Any) -> Any:
    return lance_stores.LanceDB(
        embedding=Embedded(model), uri=str(folder), mode="append", distance="cosine"
    )


class _Contract(VectorStoreContract):
    any_metadata = False
    any_text = False
    any_filter = False
    takes_vectors = False


@pytest.mark.feature("search-vector-store")
class TestChroma(_Contract):
    """The contract on Chroma in a folder."""

    complete = False

    @pytest.fixture
    def vector_store(self, embedding_model: WordCounts, tmp_path: Path) -> VectorStore:
        return LangChainVectorStore(chroma(embedding_model, tmp_path))


@pytest.mark.feature("search-vector-store")
class TestLanceDB(_Contract):
    """The contract on LanceDB in a folder."""

    @pytest.fixture
    def vector_store(self, embedding_model: WordCounts, tmp_path: Path) -> VectorStore:
        return LangChainVectorStore(lance(embedding_model, tmp_path))


@pytest.mark.feature("search-vector-store")
class TestInMemory(_Contract):
    """The contract on LangChain's store in memory."""

    any_metadata = True
    any_text = True
    any_filter = True

    @pytest.fixture
    def vector_store(self, embedding_model: WordCounts) -> VectorStore:
        return LangChainVectorStore(InMemoryVectorStore(Embedded(embedding_model)))
