"""Vector stores in Qdrant."""

import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from chatclient.errors import UsageError, VectorStoreError, VectorStoreUnavailableError
from chatclient.retrieval import Document, InMemoryVectorStore, QdrantVectorStore, VectorStore
from chatclient.testing import VectorStoreContract
from chatclient.testing.vector_store_contract import ANIMALS, WordCounts
from tests.support.examples import examples
from tests.support.filter_examples import contents, filters

qdrant_client = pytest.importorskip("qdrant_client")

from tests.support.qdrant_server import QdrantServer  # noqa: E402 - skipped without qdrant-client

SERVERS = os.environ.get("CHATCLIENT_TEST_QDRANT", "").split()
PACKAGE = "chatclient.retrieval.vector_store"


@pytest.fixture
def server() -> Iterator[QdrantServer]:
    with QdrantServer() as running:
        yield running


@pytest.mark.feature("search-vector-store")
class TestQdrant(VectorStoreContract):
    """The contract in local mode, over HTTP, and on the server of CHATCLIENT_TEST_QDRANT."""

    @pytest.fixture(params=[":memory:", "folder", "http", *SERVERS])
    def vector_store(
        self,
        request: pytest.FixtureRequest,
        embedding_model: WordCounts,
        tmp_path: Path,
    ) -> Iterator[VectorStore]:
        location = str(tmp_path) if request.param == "folder" else request.param
        if location == "http":
            location = request.getfixturevalue("server").url
        with QdrantVectorStore(location, embedding_model, collection=f"t{uuid4().hex}") as store:
            yield store
            store.delete(where={})


def ids(documents: Iterable[Document]) -> list[str]:
    return [document.id for document in documents]


@settings(max_examples=examples(50), suppress_health_check=[HealthCheck.too_slow])
@given(where=filters, metadata=st.lists(contents, min_size=1, max_size=4))
def test_agrees_on_filters(where: dict[str, Any], metadata: list[dict[str, Any]]) -> None:
    """Qdrant finds the same documents as the store in memory for any filter."""
    documents = [Document("text", each, str(n)) for n, each in enumerate(metadata)]
    memory = InMemoryVectorStore(WordCounts(length=4))
    with QdrantVectorStore(":memory:", WordCounts(length=4)) as qdrant:
        found = []
        for store in (memory, qdrant):
            store.add(documents)
            found.append(sorted(ids(store.similarity_search("text", top_k=9, where=where))))

    assert found[0] == found[1]


def test_metadata_is_exact() -> None:
    """Large numbers, odd texts and long ones are read as they were written."""
    metadata = {
        "n\0": 1,
        "large": 1e300,
        "int": 10**400,
        "odd": ["\ud83d", [1]],
        "long": "x" * 999,
        "nested": {"a": 1},
    }
    with QdrantVectorStore(":memory:", WordCounts()) as store:
        store.add(Document("x", metadata))
        where = {"long": "x" * 999, "large": {"gt": 1e299}, "int": {"gte": 9}}
        [found] = store.similarity_search("x", where=where)

    assert found.metadata == metadata


# Qdrant does not close the file that it could not lock.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_folder_keeps_documents(tmp_path: Path) -> None:
    """A later process finds them; another one at the same time gets an error."""
    with QdrantVectorStore(str(tmp_path), WordCounts()) as store:
        store.add(ANIMALS)
        with pytest.raises(VectorStoreError, match="cannot be opened"):
            QdrantVectorStore(str(tmp_path), WordCounts())
    with QdrantVectorStore(str(tmp_path), WordCounts()) as later:
        assert later.similarity_search("wolf", top_k=1) == [ANIMALS[2]]


def test_order_of_texts_on_a_server(server: QdrantServer) -> None:
    """Dates as texts are compared in all documents, however many there are."""
    with QdrantVectorStore(server.url, WordCounts(length=8)) as store:
        store.add(Document("x", {"day": f"2026-{n:04}"}, f"{n}") for n in range(1100))
        found = store.similarity_search("x", top_k=9, where={"day": {"gte": "2026-1098"}})

    assert sorted(ids(found)) == ["1098", "1099"]


@pytest.mark.filterwarnings("ignore:Api key is used with an insecure connection")
def test_requests_to_a_server(server: QdrantServer) -> None:
    """A search is one request; the key is sent, and filters have an index."""
    with QdrantVectorStore(server.url, WordCounts(), api_key="hunter2") as store:
        store.add(ANIMALS)
        before = len(server.requests)
        assert ids(store.similarity_search("cat", top_k=1, where={"kind": "cat"})) == ["cat"]

    [(method, path, headers)] = server.requests[before:]
    assert (method, path.partition("?")[0]) == ("POST", "/collections/chatclient/points/query")
    assert headers["api-key"] == "hunter2"
    assert server.indexes == ["tokens"]


def test_collection_changed_by_another_process(server: QdrantServer) -> None:
    """A deleted collection is empty, one with other vectors does not fit."""
    store = QdrantVectorStore(server.url, WordCounts())
    store.add(ANIMALS)
    server.client.delete_collection("chatclient")
    assert store.similarity_search("cat") == []
    assert store.delete(where={}) == 0
    store.add(ANIMALS)
    server.client.delete_collection("chatclient")
    with QdrantVectorStore(server.url, WordCounts(length=8)) as other:
        other.add(ANIMALS)
    with pytest.raises(UsageError, match="lengths"):
        store.similarity_search("cat")
    store.close()


def test_collection_created_by_another_process(
    server: QdrantServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes may add first documents at the same time."""
    client = qdrant_client.QdrantClient(url=server.url, check_compatibility=False)
    create = client.create_collection

    def create_twice(*arguments: Any, **more: Any) -> Any:
        create(*arguments, **more)
        return create(*arguments, **more)

    monkeypatch.setattr(client, "create_collection", create_twice)
    with QdrantVectorStore(client, WordCounts()) as store:
        assert len(store.add(ANIMALS)) == 4
    assert client.collection_exists("chatclient")  # a given client is not closed
    client.close()


@pytest.mark.filterwarnings("ignore:Api key is used with an insecure connection")
@pytest.mark.parametrize(
    ("status", "error"),
    [
        (500, VectorStoreUnavailableError),
        (429, VectorStoreUnavailableError),
        (403, VectorStoreError),
    ],
)
def test_refused_requests(server: QdrantServer, status: int, error: type[VectorStoreError]) -> None:
    """The error has the status and its cause, and no key."""
    server.failures = [status] * 9
    with (
        QdrantVectorStore(server.url, WordCounts(), api_key="hunter2") as store,
        pytest.raises(error, match=str(status)) as caught,
    ):
        store.add(ANIMALS)

    assert type(caught.value) is error
    assert caught.value.__cause__ is not None
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


def test_refused_creation(server: QdrantServer) -> None:
    """A collection that cannot be created is an error."""
    store = QdrantVectorStore(server.url, WordCounts())
    reply = server.reply
    server.reply = lambda method, path, body: (  # type: ignore[method-assign]
        (403, {}) if method == "PUT" else reply(method, path, body)
    )
    with pytest.raises(VectorStoreError, match="403"):
        store.add(ANIMALS)
    store.close()


def test_unreachable_server() -> None:
    """The error has its cause."""
    with (
        QdrantVectorStore("http://127.0.0.1:9", WordCounts()) as store,
        pytest.raises(VectorStoreUnavailableError, match="reached") as caught,
    ):
        store.similarity_search("x")

    assert caught.value.__cause__ is not None


def test_named_vectors() -> None:
    """A collection of another kind is refused."""
    client = qdrant_client.QdrantClient(":memory:")
    models = qdrant_client.models
    vectors = {"text": models.VectorParams(size=3, distance=models.Distance.COSINE)}
    client.create_collection("chatclient", vectors_config=vectors)
    store = QdrantVectorStore(client, WordCounts())

    with pytest.raises(VectorStoreError, match="named vectors"):
        store.similarity_search("x")


def test_local_failure() -> None:
    """An error of local mode is the cause."""
    client = qdrant_client.QdrantClient(":memory:")
    store = QdrantVectorStore(client, WordCounts())
    client.close()

    with pytest.raises(VectorStoreError, match="failed") as caught:
        store.add(ANIMALS)
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize(
    "make",
    [
        lambda: QdrantVectorStore(object(), WordCounts()),  # type: ignore[arg-type]
        lambda: QdrantVectorStore(":memory:", WordCounts(), collection=None),  # type: ignore[arg-type]
        lambda: QdrantVectorStore("ftp://nowhere", WordCounts()),
    ],
)
def test_invalid_arguments(make: Callable[[], VectorStore]) -> None:
    """Arguments are checked when the store is made."""
    with pytest.raises(UsageError):
        make()


def test_missing_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extra."""
    monkeypatch.setitem(sys.modules, "qdrant_client", None)
    for name in [each for each in sys.modules if each.startswith(f"{PACKAGE}.qdrant_")]:
        monkeypatch.delitem(sys.modules, name)

    with pytest.raises(UsageError, match=r"chatclient\[qdrant\]"):
        QdrantVectorStore(":memory:", WordCounts())
