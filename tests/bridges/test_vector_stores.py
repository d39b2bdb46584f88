"""Vector stores of LangChain."""

import math
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from chatclient.bridges import LangChainVectorStore
from chatclient.errors import UsageError, VectorStoreError
from chatclient.retrieval import Document, VectorStore
from chatclient.testing import VectorStoreContract
from chatclient.testing.vector_store_contract import WordCounts

pytest.importorskip("langchain_chroma")

from langchain_chroma import Chroma
from langchain_core.embeddings import DeterministicFakeEmbedding, Embeddings
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore as AnyLangChainStore

faiss = pytest.importorskip("faiss")
langchain_qdrant = pytest.importorskip("langchain_qdrant")
qdrant_client = pytest.importorskip("qdrant_client")

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


def community(name: str) -> Any:
    """Return a module of stores; importing that of LanceDB takes seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # not maintained, and still used
        return pytest.importorskip(f"langchain_community.vectorstores.{name}")


def lance(model: WordCounts, folder: Path, **settings: Any) -> Any:
    chosen = {"mode": "append", "distance": "cosine"} | settings
    pytest.importorskip("lancedb")
    stores = community("lancedb")
    return stores.LanceDB(embedding=Embedded(model), uri=str(folder), **chosen)


def faiss_store(model: WordCounts, *, index: Any = None, **settings: Any) -> Any:
    length = len(model.embed(["x"])[0])
    index = faiss.IndexFlatL2(length) if index is None else index
    stores = community("faiss")
    chosen = {"normalize_L2": True} | settings
    return stores.FAISS(Embedded(model), index, stores.InMemoryDocstore(), {}, **chosen)


@pytest.fixture(scope="module")
def chroma_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for all collections: Chroma keeps ten files open for each folder."""
    return tmp_path_factory.mktemp("chroma")


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
    def vector_store(self, embedding_model: WordCounts, chroma_folder: Path) -> VectorStore:
        return LangChainVectorStore(chroma(embedding_model, chroma_folder))


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


@pytest.mark.feature("search-vector-store")
class TestFaiss(_Contract):
    """The contract on FAISS."""

    any_metadata = True
    any_text = True
    any_filter = True

    @pytest.fixture
    def vector_store(self, embedding_model: WordCounts) -> VectorStore:
        return LangChainVectorStore(faiss_store(embedding_model))


def ids(documents: Iterable[Document]) -> list[str]:
    return [document.id for document in documents]


@pytest.fixture(params=["chroma", "lance"])
def filled(
    request: pytest.FixtureRequest, tmp_path: Path, chroma_folder: Path
) -> LangChainVectorStore:
    model = WordCounts()
    store = LangChainVectorStore(
        chroma(model, chroma_folder) if request.param == "chroma" else lance(model, tmp_path)
    )
    store.add(
        [
            Document("a cat", {"kind": "cat", "age": 3, "weight": 3.5, "tags": ["a"]}, "cat"),
            Document("a dog", {"kind": "dog", "age": 7, "weight": -3.5, "tags": ["b"]}, "dog"),
            Document(
                "a wolf", {"kind": "wolf", "age": 4, "weight": 4.0, "tags": ["a", "b"]}, "wolf"
            ),
            Document("a rose", {"kind": "rose", "age": -3, "weight": -3.0, "tags": ["c"]}, "rose"),
        ]
    )
    return store


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ({"age": {"gt": 3.5}}, ["dog", "wolf"]),
        ({"age": {"gte": 3.5}}, ["dog", "wolf"]),
        ({"age": {"lt": 3.5}}, ["cat", "rose"]),
        ({"age": {"lte": 3.5}}, ["cat", "rose"]),
        ({"age": {"lt": -3.5}}, []),
        ({"age": {"gt": -3.5}}, ["cat", "dog", "rose", "wolf"]),
        ({"age": {"eq": 3.5}}, []),
        ({"age": {"ne": 3.5}}, ["cat", "dog", "rose", "wolf"]),
        ({"age": {"in": [3.5, 4.0, True, None, "4"]}}, ["wolf"]),
        ({"age": {"not_in": [3.5, 4.0]}}, ["cat", "dog", "rose"]),
        ({"weight": {"in": [3.5, 4]}}, ["cat", "wolf"]),
        ({"weight": {"not_in": [3.5, 4]}}, ["dog", "rose"]),
        ({"kind": {"not_in": ["cat", "dog"]}}, ["rose", "wolf"]),
        ({"kind": {"ne": None}}, ["cat", "dog", "rose", "wolf"]),
        ({"tags": {"contains": "a"}}, ["cat", "wolf"]),
        ({"tags": {"contains": None}}, []),
        ({"tags": {"contains": 1}}, []),
        ({"$not": {"tags": {"contains": "a"}}}, ["dog", "rose"]),
        ({"$not": {"$or": [{"kind": "cat"}, {"age": {"in": [7]}}]}}, ["rose", "wolf"]),
        ({"$not": {"$and": [{"kind": "cat"}, {"age": 3}]}}, ["dog", "rose", "wolf"]),
        ({"$or": [{"age": {"gt": 6 + n}} for n in range(120)]}, ["dog"]),
        ({"missing": 1}, []),
        ({"missing": {"ne": 1}}, ["cat", "dog", "rose", "wolf"]),
    ],
    ids=lambda case: str(case)[:60],
)
def test_translated_filters(
    filled: LangChainVectorStore, where: dict[str, Any], expected: list[str]
) -> None:
    """Chroma and LanceDB find the documents that other stores find."""
    assert sorted(ids(filled.similarity_search("a", where=where))) == expected
    assert filled.delete(["cat", "rose"], where=where) == len({"cat", "rose"} & {*expected})


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ({"kind": {"gt": "dog"}}, ["rose", "wolf"]),
        ({"kind": {"exists": False}}, []),
        ({"missing": {"exists": False}}, ["cat", "dog", "rose", "wolf"]),
        ({"$not": {"age": {"gt": 3}}}, ["cat", "rose"]),
        ({"age": {"lt": math.inf}}, ["cat", "dog", "rose", "wolf"]),
        ({"weight": {"lt": -math.inf}}, []),
        ({"weight": {"in": [math.inf]}}, []),
        ({"tags": {"contains": math.inf}}, []),
    ],
    ids=str,
)
def test_what_chroma_cannot_express(
    filled: LangChainVectorStore, where: dict[str, Any], expected: list[str]
) -> None:
    """LanceDB applies these filters; Chroma has nothing for them, which is an error."""
    if "Lance" in repr(filled):
        assert sorted(ids(filled.similarity_search("a", where=where))) == expected
        return
    with pytest.raises(UsageError, match="Chroma has no filter for"):
        filled.similarity_search("a", where=where)


def test_existing_documents(tmp_path: Path, chroma_folder: Path) -> None:
    """Documents that LangChain has stored are found, with ids and metadata."""
    model = WordCounts()
    for store in (chroma(model, chroma_folder), lance(model, tmp_path)):
        store.add_texts(["a cat", "a dog"], [{"kind": "cat"}, {"kind": "dog"}])
        [found] = LangChainVectorStore(store).similarity_search("cat", where={"kind": "cat"})

        assert (found.text, dict(found.metadata)) == ("a cat", {"kind": "cat"})
        assert found.score == pytest.approx(1 / math.sqrt(2), abs=1e-5)
        assert len(found.id) > 30


@pytest.mark.filterwarnings("ignore:.*Chroma:DeprecationWarning")
def test_chroma_of_langchain_community() -> None:
    """The older integration, whose documents come back without ids, works as well."""
    stores = pytest.importorskip("langchain_community.vectorstores.chroma")
    store = LangChainVectorStore(stores.Chroma(f"t{uuid4().hex}", Embedded(WordCounts())))
    store.add(ANIMALS)
    store.add(Document("a wolf", {"kind": "wolf"}, "cat"))

    found = store.similarity_search("a wolf", top_k=9)

    assert found == [Document("a wolf", {"kind": "wolf"}, "cat"), ANIMALS[1]]


def test_embeddings_of_the_store(chroma_folder: Path) -> None:
    """The embedding model of the store is available, if it has one."""
    store = LangChainVectorStore(chroma(WordCounts(), chroma_folder))
    assert store.embedding_model.embed(["cat"]) == WordCounts().embed(["cat"])
    with pytest.raises(UsageError, match="embeddings"):
        LangChainVectorStore(Chroma(f"t{uuid4().hex}")).embedding_model.embed(["cat"])


# --- LanceDB --------------------------------------------------------------------------------


def test_lance_does_not_lose_data(tmp_path: Path) -> None:
    """The mode that replaces all documents, and metadata that LanceDB would change, are refused."""
    with pytest.raises(UsageError, match="mode='append'"):
        LangChainVectorStore(lance(WordCounts(), tmp_path, mode="overwrite")).add(Document("x"))
    store = LangChainVectorStore(lance(WordCounts(), tmp_path))
    store.add(Document("x", {"n": 1}))
    for metadata in ({"n": 1.5}, {"n": "one"}, {"other": 1}, {"n": 2**70}):
        with pytest.raises(UsageError, match="does not fit"):
            store.add(Document("x", metadata))
    assert len(store.similarity_search("x")) == 1


def test_lance_types_without_filters(tmp_path: Path) -> None:
    """Metadata of other types, and odd names, are not compared."""
    store = LangChainVectorStore(lance(WordCounts(), tmp_path))
    store.add(Document("x", {"n": {"m": 1}, "a`b": 1}))
    for where in ({"n": 1}, {"a`b": 1}):
        with pytest.raises(UsageError, match="LanceDB cannot filter by"):
            store.similarity_search("x", where=where)


# --- FAISS ----------------------------------------------------------------------------------


def test_faiss_replaces_documents() -> None:
    """A document with an existing id is replaced, and the store is as good as before."""
    inner = faiss_store(WordCounts())
    store = LangChainVectorStore(inner)
    store.add(ANIMALS)

    store.add([Document("a wolf", {"kind": "wolf"}, "cat"), Document("a rose", {}, "rose")])

    found = store.similarity_search("a wolf", top_k=9)
    assert (found[0].id, found[0].text) == ("cat", "a wolf")
    assert sorted(ids(found)) == ["cat", "dog", "rose"]
    assert inner.index.ntotal == 3
    assert store.delete(["nobody", "cat"]) == 1
    assert sorted(ids(store.similarity_search("a wolf", top_k=9))) == ["dog", "rose"]


def test_faiss_is_not_changed_by_documents_that_do_not_fit() -> None:
    """If documents cannot be embedded or stored, those with their ids are still there."""
    inner = faiss_store(WordCounts())
    store = LangChainVectorStore(inner)
    store.add(ANIMALS)
    inner.embedding_function = DeterministicFakeEmbedding(size=3)
    with pytest.raises(UsageError, match=r"vectors of length .* have 3"):
        store.add(ANIMALS)

    def fail(_text: str) -> list[float]:
        raise ConnectionError

    inner.embedding_function = fail  # LangChain takes a function as well
    with pytest.raises(VectorStoreError):
        store.add(ANIMALS)

    inner.embedding_function = Embedded(WordCounts()).embed_query
    assert sorted(ids(store.similarity_search("a cat", top_k=9))) == ["cat", "dog"]
    store.add(Document("a rose", {}, "cat"))
    assert sorted(ids(store.similarity_search("a cat", top_k=9))) == ["cat", "dog"]


def test_scores_of_faiss() -> None:
    """Scores are similarities for distances and products, or those of the given function."""
    model = WordCounts()
    product = faiss.IndexFlatIP(len(model.embed(["x"])[0]))
    for store in (faiss_store(model), faiss_store(model, index=product)):
        ours = LangChainVectorStore(store)
        ours.add(ANIMALS)
        cat, dog = ours.similarity_search("a cat")
        assert cat.score == pytest.approx(1.0)
        assert dog.score == pytest.approx(0.5)
        assert ids(ours.similarity_search("a cat", threshold=0.9)) == ["cat"]

    own = LangChainVectorStore(faiss_store(model, relevance_score_fn=lambda distance: -distance))
    own.add(ANIMALS)
    assert own.similarity_search("a cat")[1].score == pytest.approx(-1.0)


# --- Qdrant and LangChain's integration of it -----------------------------------------------


def test_documents_without_ids() -> None:
    """A store whose documents come back without ids replaces and deletes them."""
    client = qdrant_client.QdrantClient(":memory:")
    model = WordCounts()
    vectors = qdrant_client.models.VectorParams(size=len(model.embed(["x"])[0]), distance="Cosine")
    client.create_collection("animals", vectors_config=vectors)
    store = LangChainVectorStore(
        langchain_qdrant.QdrantVectorStore(client, "animals", Embedded(model))
    )
    cat, dog = (uuid4().hex for _ in range(2))
    store.add([Document("a cat", {}, cat), Document("a dog", {}, dog)])

    store.add(Document("a wolf", {}, cat))

    found = store.similarity_search("a wolf", top_k=9)
    assert [(each.id, each.text) for each in found] == [(cat, "a wolf"), (dog, "a dog")]
    assert store.delete([cat, uuid4().hex]) == 1
    assert ids(store.similarity_search("a wolf", top_k=9)) == [dog]


# --- other stores ---------------------------------------------------------------------------


class OtherStore:
    """A store of another kind, on that in memory."""

    def __init__(self, model: WordCounts) -> None:
        self.inner = InMemoryVectorStore(Embedded(model))
        self.add_texts: Any = self.inner.add_texts
        self.delete: Any = self.inner.delete
        self.get_by_ids: Any = self.inner.get_by_ids

    def similarity_search_with_score(
        self, query: str, k: int, kind: str | None = None
    ) -> list[tuple[Any, float]]:
        found = self.inner.similarity_search_with_score(
            query, k, filter=lambda each: kind in (None, each.metadata["kind"])
        )
        return [(document, 1 - score) for document, score in found]

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        raise NotImplementedError


ANIMALS = [Document("a cat", {"kind": "cat"}, "cat"), Document("a dog", {"kind": "dog"}, "dog")]


def test_other_stores() -> None:
    """They need functions for scores and filters, and delete by ids."""
    inner = OtherStore(WordCounts())
    store = LangChainVectorStore(inner, search_arguments=dict, relevance=lambda score: 1 - score)
    store.add(ANIMALS)

    assert ids(store.similarity_search("a cat", top_k=1)) == ["cat"]
    [found] = store.similarity_search("a cat", where={"kind": "dog"})
    assert found == ANIMALS[1]
    assert found.score == pytest.approx(0.5)
    assert store.delete(["cat", "nobody"]) == 1
    inner.get_by_ids = AnyLangChainStore.get_by_ids.__get__(inner)
    assert store.delete(["dog", "nobody"]) == 2
    assert store.similarity_search("a cat") == []


class AppendingStore(OtherStore):
    """A store that keeps both documents of one id, as LanceDB and SKLearn do."""

    def __init__(self, model: WordCounts) -> None:
        super().__init__(model)
        self.ids: list[str] = []
        self.get_by_ids = AnyLangChainStore.get_by_ids.__get__(self.inner)
        self.add_texts: Any = self.append
        self.delete: Any = self.remove

    def append(self, texts: list[str], metadatas: list[dict[str, Any]], ids: list[str]) -> None:
        self.ids += ids
        rows = [f"{id} {self.ids.count(id)}" for id in ids]
        self.inner.add_texts(texts, metadatas, ids=rows)

    def remove(self, ids: list[str]) -> bool:
        self.inner.delete([f"{id} {number}" for id in ids for number in range(9)])
        return True


def test_stores_that_keep_both() -> None:
    """Documents are replaced in stores that would keep both, whether these tell what they have."""
    inner = AppendingStore(WordCounts())
    store = LangChainVectorStore(inner, relevance=lambda score: 1 - score)
    store.add(ANIMALS)
    store.add(Document("a wolf", {"kind": "wolf"}, "cat"))

    found = store.similarity_search("a wolf", top_k=9)
    assert [(each.id, each.text) for each in found] == [("cat", "a wolf"), ("dog", "a dog")]


def test_stores_that_cannot_replace() -> None:
    """A store without deletion takes no documents, and is searched; a refused deletion fails."""
    inner = AppendingStore(WordCounts())
    store = LangChainVectorStore(inner, relevance=lambda score: 1 - score)
    inner.delete = AnyLangChainStore.delete.__get__(inner.inner)
    for change in (lambda: store.add(ANIMALS), lambda: store.delete(["cat"])):
        with pytest.raises(UsageError, match="AppendingStore cannot delete documents"):
            change()
    inner.append(["a cat"], [{"kind": "cat"}], ["cat"])
    assert len(store.similarity_search("a cat")) == 1

    inner.delete = lambda **_: False  # as Milvus, as long as it has no documents
    store.add(ANIMALS)
    with pytest.raises(VectorStoreError, match="has not deleted"):
        store.delete(["cat"])


def test_unknown_stores_refuse() -> None:
    """Without these functions, filters, deletions by them and scores are errors."""
    store = LangChainVectorStore(OtherStore(WordCounts()))
    store.add(ANIMALS)

    with pytest.raises(UsageError, match="relevance="):
        store.similarity_search("a cat")
    with pytest.raises(UsageError, match="search_arguments="):
        store.similarity_search("a cat", where={"kind": "cat"})
    for where in ({}, {"kind": "cat"}):
        with pytest.raises(UsageError, match="by ids only"):
            store.delete(where=where)


def test_not_a_store() -> None:
    """Another object is refused when the store is made."""
    with pytest.raises(UsageError, match="similarity_search_with_score"):
        LangChainVectorStore(WordCounts())
