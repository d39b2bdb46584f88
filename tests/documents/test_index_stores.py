"""Incremental indexing in every vector store."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from chatclient.bridges import LangChainVectorStore
from chatclient.retrieval import (
    Document,
    DocumentIndex,
    IndexReport,
    InMemoryVectorStore,
    MarkdownSplitter,
    PgVectorStore,
    QdrantVectorStore,
    SqliteIndexRecord,
    SqliteVectorStore,
    VectorStore,
)
from chatclient.testing.vector_store_contract import WordCounts
from tests.support.pgvector_server import pgvector_place

pytest.importorskip("semantic_text_splitter")
pytest.importorskip("langchain_chroma")
pytest.importorskip("qdrant_client")

from langchain_chroma import Chroma
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import InMemoryVectorStore as LangChainStore

pytestmark = [
    pytest.mark.filterwarnings("ignore:legacy embedding function config:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:No results found for the query:UserWarning"),
]


class Embedded(Embeddings):
    """The embedding model of the contract for LangChain."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return WordCounts().embed(texts)

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


class OtherStore:
    """A store whose type is unknown to us."""

    def __init__(self) -> None:
        self._store = LangChainStore(Embedded())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def chroma(folder: Path) -> Chroma:
    space: Any = {"hnsw": {"space": "cosine"}}
    name = f"t{uuid4().hex}"
    return Chroma(name, Embedded(), persist_directory=str(folder), collection_configuration=space)


def lance(folder: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        stores = pytest.importorskip("langchain_community.vectorstores.lancedb")
    return stores.LanceDB(embedding=Embedded(), uri=str(folder), mode="append", distance="cosine")


def faiss() -> Any:
    index = pytest.importorskip("faiss").IndexFlatL2(len(Embedded().embed_query("")))
    stores = pytest.importorskip("langchain_community.vectorstores.faiss")
    return stores.FAISS(Embedded(), index, stores.InMemoryDocstore(), {})


@contextmanager
def pgvector(_folder: Path) -> Iterator[VectorStore]:
    with (
        pgvector_place() as (url, prefix),
        PgVectorStore(url, WordCounts(), table_prefix=prefix) as store,
    ):
        yield store


STORES: dict[str, Callable[[Path], Any]] = {
    "memory": lambda _: InMemoryVectorStore(WordCounts()),
    "sqlite": lambda folder: SqliteVectorStore(folder / "store.db", WordCounts()),
    "pgvector": pgvector,
    "qdrant": lambda _: QdrantVectorStore(":memory:", WordCounts(), collection="pages"),
    "langchain memory": lambda _: LangChainVectorStore(LangChainStore(Embedded())),
    "langchain other": lambda _: LangChainVectorStore(OtherStore(), relevance=float),
    "chroma": lambda folder: LangChainVectorStore(chroma(folder)),
    "faiss": lambda _: LangChainVectorStore(faiss()),
    "lancedb": lambda folder: LangChainVectorStore(lance(folder)),
}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[VectorStore]:
    with STORES[request.param](tmp_path) as store:
        yield store


def page(name: str, *texts: str) -> Document:
    sections = "\n\n".join(f"# Section {n}\n\n{text}" for n, text in enumerate(texts))
    return Document(sections, {"source": name, "format": "md"})


def test_index_in_a_store(store: VectorStore, tmp_path: Path) -> None:
    """Sources are added, changed and removed, and found with their metadata."""
    index = DocumentIndex(store, SqliteIndexRecord(tmp_path / "record.db"), MarkdownSplitter())

    assert index.update([page("a", "one", "two"), page("b", "three")]).embedded == 3
    report = index.update([page("a", "one", "four"), page("c", "five")])

    assert report == IndexReport(("c",), ("a",), ("b",), (), embedded=2, deleted=2)
    found = store.similarity_search("section", top_k=10)
    chunks = {(each.metadata["source"], each.metadata["heading"], each.text[-4:]) for each in found}
    assert chunks == {
        ("a", "Section 0", "\none"),
        ("a", "Section 1", "four"),
        ("c", "Section 0", "five"),
    }
    assert len(found) == 3
    positions = {(int(each.metadata["start"]), int(each.metadata["line"])) for each in found}
    assert positions == {(0, 1), (18, 5)}
    assert index.update([page("a", "one", "four"), page("c", "five")]).unchanged == ("a", "c")
