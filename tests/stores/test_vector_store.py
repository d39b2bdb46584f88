"""The contract of vector stores: search, filters and concurrency on every store."""

import asyncio
import math
import sqlite3
import sys
import threading
from collections import UserDict
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from chatclient.errors import OverloadedError, UsageError
from chatclient.retrieval import (
    Document,
    InMemoryVectorStore,
    SqliteVectorStore,
    VectorStore,
)
from chatclient.retrieval.vector_store import arrays, in_memory, sqlite
from chatclient.retrieval.vector_store.filters import Filter
from tests.support.bag_of_words import BagOfWords
from tests.support.interrupts import interrupt_at

pytest.importorskip("numpy")

Make = Callable[[BagOfWords], VectorStore]


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


ANIMALS = (
    Document("the cat sleeps on the sofa", {"kind": "cat", "age": 3, "tags": ["home"]}, "cat"),
    Document("a dog runs in the park", {"kind": "dog", "age": 7, "wild": False}, "dog"),
    Document("a wolf howls in the forest", {"kind": "wolf", "age": 5.5, "wild": True}, "wolf"),
    Document("a rose in the garden", {"age": "old", "kind": None, "a.key": 1}, "rose"),
)


def ids(documents: list[Document]) -> list[str]:
    return [document.id for document in documents]


@pytest.mark.feature("search-vector-store")
def test_search_order(make: Make) -> None:
    """The most similar document is first, with its score."""
    store = make(BagOfWords())
    store.add(ANIMALS)

    found = store.similarity_search("cats on the sofa", top_k=2)

    assert found[0] == ANIMALS[0]
    assert found[0].score is not None
    assert found[1].score is not None
    assert 1.0 > found[0].score > found[1].score
    assert store.similarity_search("a dog runs in the park")[0].score == pytest.approx(1.0)


def test_async_methods(make: Make) -> None:
    """The async methods add, search and delete."""

    async def use(store: VectorStore) -> tuple[list[str], list[str], int, list[str]]:
        async with store:
            added = await store.aadd(ANIMALS)
            found = await store.asimilarity_search("wolf", top_k=1)
            deleted = await store.adelete(["wolf"])
            return added, ids(found), deleted, ids(await store.asimilarity_search("wolf", top_k=9))

    added, found, deleted, left = asyncio.run(use(make(BagOfWords())))

    assert added == ["cat", "dog", "wolf", "rose"]
    assert found == ["wolf"]
    assert deleted == 1
    assert sorted(left) == ["cat", "dog", "rose"]


def test_threshold(make: Make) -> None:
    """Documents below the threshold are not found."""
    store = make(BagOfWords())
    store.add(ANIMALS)

    assert ids(store.similarity_search("sofa", threshold=0.2)) == ["cat"]
    assert store.similarity_search("zebra", threshold=0.2) == []


def test_empty_store(make: Make) -> None:
    """An empty store or an unmatched filter gives no documents."""
    store = make(BagOfWords())

    assert store.similarity_search("anything") == []
    assert store.add([]) == []
    store.add(ANIMALS)
    assert store.similarity_search("anything", where={"kind": "fish"}) == []
    assert store.delete(where={}) == 4
    assert store.similarity_search("anything") == []


def test_replace_document(make: Make) -> None:
    """Adding an id again replaces text, metadata and vector."""
    store = make(BagOfWords())
    store.add(ANIMALS)
    store.add([Document("a tiger in the snow", {"kind": "tiger"}, "cat"), Document("x", id="new")])

    found = store.similarity_search("a tiger in the snow", top_k=9)

    assert found[0] == Document("a tiger in the snow", {"kind": "tiger"}, "cat")
    assert sorted(ids(found)) == ["cat", "dog", "new", "rose", "wolf"]


def test_duplicate_id_in_a_batch(make: Make) -> None:
    """The last document of a batch wins."""
    store = make(BagOfWords())

    assert store.add([Document("one", id="a"), Document("two", id="a")]) == ["a"]
    assert [d.text for d in store.similarity_search("one")] == ["two"]


CASES: list[tuple[dict[str, Any], list[str]]] = [
    ({}, ["cat", "dog", "rose", "wolf"]),
    ({"kind": "dog"}, ["dog"]),
    ({"kind": {"eq": "dog"}}, ["dog"]),
    ({"kind": {"ne": "dog"}}, ["cat", "rose", "wolf"]),
    ({"kind": None}, ["rose"]),
    ({"wild": True}, ["wolf"]),
    ({"wild": False}, ["dog"]),
    ({"wild": {"ne": True}}, ["cat", "dog", "rose"]),
    ({"age": {"gt": 3, "lte": 7}}, ["dog", "wolf"]),
    ({"age": {"gte": 3, "lt": 5.5}}, ["cat"]),
    ({"age": {"gt": "a"}}, ["rose"]),
    ({"age": {"gt": True}}, []),
    ({"age": 3.0}, ["cat"]),
    ({"wild": 1}, []),
    ({"kind": {"in": ["cat", "wolf", None]}}, ["cat", "rose", "wolf"]),
    ({"kind": {"in": []}}, []),
    ({"kind": {"not_in": ["cat", "wolf"]}}, ["dog", "rose"]),
    ({"tags": {"contains": "home"}}, ["cat"]),
    ({"tags": {"contains": "away"}}, []),
    ({"kind": {"contains": "cat"}}, []),
    ({"wild": {"exists": True}}, ["dog", "wolf"]),
    ({"wild": {"exists": False}}, ["cat", "rose"]),
    ({"kind": {"exists": True}}, ["cat", "dog", "wolf"]),
    ({"$or": [{"kind": "cat"}, {"age": {"gt": 6}}]}, ["cat", "dog"]),
    ({"$and": [{"kind": "cat"}, {"age": {"gt": 6}}]}, []),
    ({"$not": {"kind": "cat"}}, ["dog", "rose", "wolf"]),
    ({"$not": {"age": {"gt": 4}}}, ["cat", "rose"]),
    ({"$or": []}, []),
    ({"$and": []}, ["cat", "dog", "rose", "wolf"]),
    ({"kind": {}}, ["cat", "dog", "rose", "wolf"]),
    ({"a.key": 1}, ["rose"]),
    ({"kind": "' OR 1 --"}, []),
]


@pytest.mark.feature("search-vector-store")
@pytest.mark.parametrize(("where", "expected"), CASES, ids=lambda case: str(case)[:60])
def test_filters(make: Make, where: dict[str, Any], expected: list[str]) -> None:
    """Every store applies filters alike, in searches and deletions."""
    store = make(BagOfWords())
    store.add(ANIMALS)

    assert sorted(ids(store.similarity_search("a", top_k=9, where=where))) == expected
    assert store.delete(where=where) == len(expected)
    assert len(store.similarity_search("a", top_k=9)) == 4 - len(expected)


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from(["", "a", "b"]),
    st.sampled_from([1.5, math.inf, -math.inf]),
)
filters_ = st.one_of(
    values,
    st.dictionaries(st.sampled_from(["eq", "ne", "gt", "gte", "lt", "lte", "contains"]), values),
    st.dictionaries(st.sampled_from(["in", "not_in"]), st.lists(values, max_size=3)),
    st.dictionaries(st.just("exists"), st.booleans()),
)
filters = st.recursive(
    st.dictionaries(st.sampled_from(["x", "y"]), filters_, max_size=2),
    lambda inner: st.one_of(
        st.fixed_dictionaries({"$and": st.lists(inner, max_size=2)}),
        st.fixed_dictionaries({"$or": st.lists(inner, max_size=2)}),
        st.fixed_dictionaries({"$not": inner}),
    ),
    max_leaves=4,
)
any_values = values | st.sampled_from(["half \ud83d", math.nan, math.inf, -math.inf])
contents = st.dictionaries(
    st.sampled_from(["x", "y"]), st.one_of(any_values, st.lists(any_values, max_size=2))
)


@pytest.mark.feature("search-vector-store")
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
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


def nested(depth: int) -> dict[str, Any]:
    return {"$not": nested(depth - 1)} if depth else {"kind": "cat"}


@pytest.mark.parametrize(
    "where",
    [
        {"age": {"larger": 1}},
        {"$xor": []},
        {"kind": {"in": "cat"}},
        {"$or": {"kind": "cat"}},
        {"$not": [{"kind": "cat"}]},
        {"$and": ["kind"]},
        {'a "key"': 1},
        {"kind": ["cat"]},
        {1: "cat"},
        {"a\nkey": 1},
        {"\ud83d": 1},
        {"kind": "\0"},
        {"age": {"lt": 2**70}},
        {"age": math.nan},
        {"age": {"in": [1, math.nan]}},
        {"kind": {"ne": "half \ud83d"}},
        nested(30),
    ],
)
def test_invalid_filters(make: Make, where: dict[str, Any]) -> None:
    """An invalid filter raises, also in an empty store."""
    store = make(BagOfWords())

    with pytest.raises(UsageError):
        store.similarity_search("a", where=where)
    with pytest.raises(UsageError):
        store.delete(where=where)


def test_invalid_calls(make: Make) -> None:
    """Missing ids and filter, or a limit below one, raise."""
    store = make(BagOfWords())

    with pytest.raises(UsageError, match="where"):
        store.delete()
    with pytest.raises(UsageError, match="at least one"):
        store.similarity_search("a", top_k=0)


def test_delete_by_ids_and_filter(make: Make) -> None:
    """Both conditions must match; unknown ids are ignored."""
    store = make(BagOfWords())
    store.add(ANIMALS)

    assert store.delete(["cat", "dog", "nobody"], where={"age": {"gt": 5}}) == 1
    assert store.delete("cat") == 1
    assert sorted(ids(store.similarity_search("a"))) == ["rose", "wolf"]


@pytest.mark.feature("search-vector-store")
@pytest.mark.parametrize("odd", ["half \ud83d", "nul\0nul", '"quoted', "\U0001f98a"])
def test_any_characters(make: Make, odd: str) -> None:
    """Lone surrogates are stored, replaced and deleted."""
    store = make(BagOfWords())
    store.add(ANIMALS)
    for text in ("a cat", f"a cat {odd}"):
        store.add([Document(text, {"k": odd}, odd)])

    found = store.similarity_search("cat", top_k=9)
    assert len(found) == 5
    assert Document(f"a cat {odd}", {"k": odd}, odd) in found
    assert store.delete([odd, odd, "nobody"], where={"k": {"exists": True}}) == 1
    assert store.delete([]) == 0
    assert len(store.similarity_search("cat", top_k=9)) == 4


@pytest.mark.feature("search-vector-store")
def test_other_dimensions_after_deletion(make: Make) -> None:
    """An emptied store accepts other dimensions."""
    model = BagOfWords()
    store = make(model)
    store.add(ANIMALS)
    store.delete(where={})
    model.length = 8
    store.add([Document("short")])

    assert [each.text for each in store.similarity_search("short")] == ["short"]


def test_other_dimensions(make: Make) -> None:
    """Other dimensions raise and change nothing."""
    model = BagOfWords()
    store = make(model)
    store.add(ANIMALS)
    model.length = 8

    with pytest.raises(UsageError, match="lengths"):
        store.add([Document("short")])
    with pytest.raises(UsageError, match="lengths"):
        store.similarity_search("short")
    model.length = 256
    assert len(store.similarity_search("a", top_k=9)) == 4


def test_embedding_failure(make: Make) -> None:
    """The error is raised, and no document is added."""
    store = make(BagOfWords(failures=1))

    with pytest.raises(OverloadedError):
        store.add(ANIMALS)
    assert store.similarity_search("cat") == []


def test_zero_vector(make: Make) -> None:
    """A zero vector is accepted."""
    store = make(BagOfWords())
    store.add([Document("123", id="numbers")])

    assert store.similarity_search("456")[0].score == pytest.approx(0.0)


def test_concurrent_access(make: Make) -> None:
    """Documents may be added, deleted and searched concurrently."""
    store = make(BagOfWords())
    store.add(ANIMALS)
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for round_ in range(10):
                store.add([Document(f"word {number}", {"n": number}, f"{number}-{round_}")])
                assert "cat" in ids(store.similarity_search("cat sofa", top_k=1))
            assert store.delete(where={"n": number}) == 10
        except BaseException as error:  # noqa: BLE001 - asserted below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
    assert len(store.similarity_search("a", top_k=50)) == 4


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
        interrupted = interrupt_at(line, lambda: operation(store), in_memory, sqlite, arrays)  # noqa: B023 - called here
        assert contents(store) in (contents(before), contents(after))
        cats = contents(store, CAT)
        store.add(Document("one more", {"kind": "cat"}, "more"))
        assert contents(store, CAT) == sorted([*cats, ("more", "one more")])
        assert ids(store.similarity_search("rose garden", top_k=1)) == ["rose"]
        assert ids(store.similarity_search("one more", top_k=1)) == ["more"]
    assert line > 5


def test_cached_filters_find_new_documents(make: Make) -> None:
    """A cached filter includes later documents."""
    store = make(BagOfWords())
    store.add(ANIMALS)

    def found(kind: str) -> list[str]:
        return sorted(ids(store.similarity_search("cat", top_k=99, where={"kind": kind})))

    for number in range(5):
        assert (len(found("cat")), len(found("dog"))) == (1 + number, 1)
        store.add([Document(f"cat {number}", {"kind": "cat"}, f"new {number}")])
    store.add([Document("a dog", {"kind": "dog"}, "cat"), Document("cat", {"kind": "cat"}, "last")])
    assert found("cat") == ["last", *(f"new {number}" for number in range(5))]
    assert found("dog") == ["cat", "dog"]
    store.delete(["new 0", "last"])
    assert found("cat") == [f"new {number}" for number in range(1, 5)]


def test_filter_with_many_alternatives(make: Make) -> None:
    """Filters may have as many alternatives as a user has rights."""
    store = make(BagOfWords())
    store.add(ANIMALS)
    many: list[Any] = [*(f"kind {n}" for n in range(3000)), *range(3000), 1.5, "cat", None]

    for where in ({"kind": {"in": many}}, {"$or": [{"kind": each} for each in many]}):
        assert sorted(ids(store.similarity_search("a", where=where))) == ["cat", "rose"]
    found = store.similarity_search("a", where={"age": {"in": [*many, float("inf"), True]}})
    assert sorted(ids(found)) == ["cat", "dog"]
    assert store.delete(where={"kind": {"not_in": many}}) == 2


class Kind(StrEnum):
    CAT = "cat"
    DOG = "dog"


@pytest.mark.parametrize(
    "form",
    [
        MappingProxyType,
        UserDict,
        lambda where: {"$and": [MappingProxyType(where)]},
        lambda where: {"kind": UserDict({"in": {Kind(where["kind"])}})},
        lambda where: {"kind": Kind(where["kind"])},
    ],
)
def test_filter_mapping_types(make: Make, form: Callable[[Any], Filter]) -> None:
    """Any mapping is a filter, and filters are not confused."""
    store = make(BagOfWords())
    store.add(ANIMALS)

    found = [store.similarity_search("x", where=form({"kind": kind})) for kind in ("cat", "dog")]

    assert [ids(each) for each in found] == [["cat"], ["dog"]]
    assert store.delete(where=form({"kind": "cat"})) == 1


def test_changed_filter(make: Make) -> None:
    """A mutated filter is evaluated again."""
    store = make(BagOfWords())
    store.add([Document("public", {"group": "all"}, "public")])
    groups = ["all"]
    store.similarity_search("x", where={"group": {"in": groups}})
    groups.append("admins")
    store.add([Document("secret", {"group": "admins"}, "secret")])

    assert ids(store.similarity_search("x", where={"group": {"in": ["all"]}})) == ["public"]
    assert len(store.similarity_search("x", where={"group": {"in": groups}})) == 2


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
        Document("hi", {"conversation": Counted(name), "number": at}, f"{name} {at}")
        for name in names
        for at in range(5)
    )
    for name in (*names, *names):
        where = {"number": {"lt": 2}, "conversation": name}
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
