"""Vector stores in memory and in SQLite."""

import asyncio
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from chatclient.errors import UsageError
from chatclient.retrieval import (
    Document,
    InMemoryVectorStore,
    SqliteVectorStore,
    VectorStore,
)
from chatclient.retrieval.vector_store import in_memory, sqlite
from chatclient.retrieval.vector_store.filters import Filter
from chatclient.testing import VectorStoreContract
from chatclient.testing.vector_store_contract import ANIMALS, WordCounts
from tests.support.bag_of_words import BagOfWords
from tests.support.examples import examples
from tests.support.filter_examples import contents, filters
from tests.support.interrupts import interrupt_at

pytest.importorskip("numpy")

Make = Callable[[BagOfWords], VectorStore]


@pytest.mark.feature("search-vector-store")
class TestInMemory(VectorStoreContract):
    """The contract on the store in memory."""

    @pytest.fixture
    def vector_store(self, embedding_model: WordCounts) -> VectorStore:
        return InMemoryVectorStore(embedding_model)


@pytest.mark.feature("search-vector-store")
class TestSqlite(VectorStoreContract):
    """The contract on SQLite, in memory and in a file."""

    @pytest.fixture(params=[":memory:", "documents.db"])
    def vector_store(
        self, request: pytest.FixtureRequest, embedding_model: WordCounts, tmp_path: Path
    ) -> Iterator[VectorStore]:
        memory = request.param == ":memory:"
        path = request.param if memory else tmp_path / request.param
        with SqliteVectorStore(path, embedding_model) as store:
            yield store


@pytest.fixture(params=["memory", "sqlite", "sqlite file"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Make stores of one kind that are closed after the test."""
    made: list[VectorStore] = []

    def store(model: BagOfWords) -> VectorStore:
        match request.param:
            case "memory":
                made.append(InMemoryVectorStore(model))
            case "sqlite":
                made.append(SqliteVectorStore(":memory:", model))
            case _:
                made.append(SqliteVectorStore(tmp_path / f"{len(made)}.db", model))
        return made[-1]

    yield store
    for each in made:
        each.close()


def ids(documents: list[Document]) -> list[str]:
    return [document.id for document in documents]


@pytest.mark.feature("search-vector-store")
@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(where=filters, metadata=st.lists(contents, min_size=1, max_size=4))
def test_stores_agree_on_filters(where: dict[str, Any], metadata: list[dict[str, Any]]) -> None:
    """For any filter memory and SQL find the same documents."""
    documents = [Document("text", each, str(n)) for n, each in enumerate(metadata)]
    memory, sqlite = InMemoryVectorStore(BagOfWords()), SqliteVectorStore(":memory:", BagOfWords())
    with sqlite:
        memory.add(documents)
        sqlite.add(documents)

        assert sorted(ids(memory.similarity_search("text", top_k=9, where=where))) == sorted(
            ids(sqlite.similarity_search("text", top_k=9, where=where))
        )


CAT = {"kind": "cat"}


@pytest.mark.parametrize(
    "operation",
    [
        pytest.param(lambda store: store.add(Document("a cat", CAT, "new")), id="add"),
        pytest.param(
            lambda store: store.add([Document("a cat", CAT, "dog"), Document("a", CAT, "new")]),
            id="change",
        ),
        pytest.param(lambda store: store.delete(["dog"]), id="delete"),
        pytest.param(lambda store: store.similarity_search("cat", where=CAT), id="search"),
    ],
)
def test_interrupt_is_atomic(make: Make, operation: Callable[[VectorStore], object]) -> None:
    """An interrupt at any line leaves the state before or after."""

    def contents(store: VectorStore, where: Filter | None = None) -> list[tuple[str, str]]:
        found = store.similarity_search("cat", top_k=99, where=where)
        return sorted((each.id, each.text) for each in found)

    before = make(BagOfWords())
    before.add(ANIMALS)
    after = make(BagOfWords())
    after.add(ANIMALS)
    operation(after)
    line, interrupted = 0, True
    while interrupted:
        line += 1
        store = make(BagOfWords())
        store.add(ANIMALS)
        interrupted = interrupt_at(line, lambda: operation(store), in_memory, sqlite)  # noqa: B023 - called here
        assert contents(store) in (contents(before), contents(after))
        cats = contents(store, CAT)
        store.add(Document("one more", {"kind": "cat"}, "more"))
        assert contents(store, CAT) == sorted([*cats, ("more", "one more")])
        assert ids(store.similarity_search("rose garden", top_k=1)) == ["rose"]
        assert ids(store.similarity_search("one more", top_k=1)) == ["more"]
    assert line > 5


def test_search_during_changes_of_a_file(tmp_path: Path) -> None:
    """A search sees a consistent state of the file."""
    ended = threading.Event()

    def change() -> None:
        with SqliteVectorStore(tmp_path / "documents.db", BagOfWords()) as other:
            for number in range(40):
                other.add([Document(f"cat {number}", {"kind": "cat"}, f"{number % 7}")])
                other.delete([f"{(number + 3) % 7}"])
        ended.set()

    with SqliteVectorStore(tmp_path / "documents.db", BagOfWords()) as store:
        store.add([Document("cat", {"kind": "cat"}, "stays")])
        thread = threading.Thread(target=change)
        thread.start()
        while not ended.is_set():
            found = store.similarity_search("cat", top_k=99, where={"kind": "cat"})
            assert "stays" in ids(found)
            assert all(document.metadata == {"kind": "cat"} for document in found)
        thread.join()


def test_shared_file(tmp_path: Path) -> None:
    """Stores on the same file see each other's documents."""
    path = tmp_path / "documents.db"
    with SqliteVectorStore(path, BagOfWords()) as one, SqliteVectorStore(path, BagOfWords()) as two:
        one.add(ANIMALS)
        assert ids(two.similarity_search("cat", top_k=1)) == ["cat"]
        one.add([Document("cat cat cat", id="more")])
        assert ids(two.similarity_search("cat", top_k=1)) == ["more"]
        two.delete(["more"])
        assert ids(one.similarity_search("cat", top_k=1)) == ["cat"]
    with SqliteVectorStore(path, BagOfWords()) as later:
        assert later.similarity_search("wolf", top_k=1)[0] == ANIMALS[2]


def test_unserialisable_metadata() -> None:
    """The error names the document."""
    with SqliteVectorStore(":memory:", BagOfWords()) as store:
        with pytest.raises(UsageError, match="'odd'"):
            store.add([Document("x", {"odd": object()}, "odd")])
        assert store.similarity_search("x") == []


def test_missing_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extra."""
    monkeypatch.setitem(sys.modules, "numpy", None)

    with pytest.raises(UsageError, match=r"chatclient\[vectors\]"):
        InMemoryVectorStore(BagOfWords())
    with pytest.raises(UsageError, match=r"chatclient\[vectors\]"):
        SqliteVectorStore(":memory:", BagOfWords())


def test_large_search_does_not_block_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large store is searched in a thread, with equal results."""
    monkeypatch.setattr("chatclient.retrieval.vector_store.in_memory._LOOP_LIMIT", 3)
    store = InMemoryVectorStore(BagOfWords())
    store.add(ANIMALS)

    assert len(store) == 4
    assert ids(asyncio.run(store.asimilarity_search("cat", top_k=1))) == ["cat"]


class Counted(str):
    """A string that counts its comparisons."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str(self) == other

    def __hash__(self) -> int:
        return hash(str(self))


def test_filter_cost_per_conversation() -> None:
    """A filter by conversation reads only its documents."""
    store = InMemoryVectorStore(BagOfWords())
    names = [f"c{number}" for number in range(200)]
    store.add(
        Document("hi", {"conversation": name, "number": at}, f"{name} {at}")
        for name in names
        for at in range(5)
    )
    for name in (*names, *names):
        where = {"number": {"lt": 2}, "conversation": Counted(name)}
        found = store.similarity_search("hi", top_k=99, where=where)
        assert sorted(ids(found)) == [f"{name} 0", f"{name} 1"]

    assert 0 < Counted.compared < 20 * len(store)


def test_filter_cache_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Filter results of a file are cached within a limit."""
    connect, statements = sqlite3.connect, list[str]()

    def traced(*arguments: Any, **settings: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **settings)
        connection.set_trace_callback(statements.append)
        return connection

    monkeypatch.setattr("sqlite3.connect", traced)
    names = [f"c{number}" for number in range(100)]
    with SqliteVectorStore(tmp_path / "many.db", BagOfWords()) as store:
        store.add(Document(f"hi {name}", {"conversation": name}) for name in names)
        for name in (*names, *names):
            [found] = store.similarity_search("hi", where={"conversation": name})
            assert found.text == f"hi {name}"

    assert sum("json_type" in statement for statement in statements) == 100


@pytest.mark.parametrize("more", [2, 99])
def test_filter_cache_limit(make: Make, monkeypatch: pytest.MonkeyPatch, more: int) -> None:
    """Filters are evaluated once per change; old ones are evicted."""
    monkeypatch.setattr("chatclient.retrieval.vector_store.in_memory._MAX_FILTERS", 2)
    monkeypatch.setattr("chatclient.retrieval.vector_store.in_memory._MAX_INDEXES", 1)
    monkeypatch.setattr("chatclient.retrieval.vector_store.sqlite._MAX_FILTERS", 1)
    monkeypatch.setattr("chatclient.retrieval.vector_store.sqlite._MAX_SMALL_FILTERS", more)
    store = make(BagOfWords())
    store.add(ANIMALS)

    for kind in ("cat", "dog", "wolf", "cat", "cat"):
        assert ids(store.similarity_search("a", where={"kind": kind})) == [kind]
    assert ids(store.similarity_search("a", where={"age": 7})) == ["dog"]
    store.add([Document("a", {"kind": "cat"}, "second")])
    assert len(store.similarity_search("a", where={"kind": "cat"})) == 2
