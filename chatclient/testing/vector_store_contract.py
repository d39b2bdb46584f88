"""Tests that every `VectorStore` must pass. They need pytest.

Use them in a test module:

    class TestMyStore(VectorStoreContract):
        @pytest.fixture
        def vector_store(self, embedding_model):
            with MyStore(embedding_model) as store:
                yield store

For detailed assertion messages, call
`pytest.register_assert_rewrite("chatclient.testing.vector_store_contract")` in the conftest before
the import.
"""

import asyncio
import math
import re
import zlib
from collections import UserDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from math import inf, nan
from types import MappingProxyType
from typing import Any, ClassVar
from uuid import UUID

import pytest

from chatclient.chat.document import Document
from chatclient.chat.embedding import EmbeddingModel, EmbeddingOptions, Vector
from chatclient.errors import OverloadedError, UsageError, WrongTypeError
from chatclient.retrieval.vector_store.filters import Filter, predicate
from chatclient.retrieval.vector_store.store import VectorStore
from chatclient.runtime.runtime import Runtime

ANIMALS = (
    Document("the cat sleeps on the sofa", {"kind": "cat", "age": 3, "tags": ["home"]}, "cat"),
    Document("a dog runs in the park", {"kind": "dog", "age": 7, "wild": False}, "dog"),
    Document("a wolf howls in the forest", {"kind": "wolf", "age": 5.5, "wild": True}, "wolf"),
    Document("a rose in the garden", {"age": "old", "kind": None, "a.key": 1}, "rose"),
)
"""Documents with metadata of every type."""

UNIFORM_ANIMALS = (
    Document("the cat sleeps on the sofa", {"kind": "cat", "age": 3.0, "wild": False}, "cat"),
    Document("a dog runs in the park", {"kind": "dog", "age": 7.0, "wild": False}, "dog"),
    Document("a wolf howls in the forest", {"kind": "wolf", "age": 5.5, "wild": True}, "wolf"),
    Document("a rose in the garden", {"kind": "rose", "age": 1.0, "wild": False}, "rose"),
)
"""Documents whose metadata has the same keys and types."""

FILTERS: tuple[tuple[dict[str, Any], list[str]], ...] = (
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
    ({"tags": "home"}, []),
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
    ({"a.key": 1}, ["rose"]),
    ({"kind": "' OR 1 --"}, []),
)
"""Filters with the ids of the `ANIMALS` that match."""


def _nested(depth: int) -> dict[str, Any]:
    return {"$not": _nested(depth - 1)} if depth else {"kind": "cat"}


INVALID_FILTERS: Sequence[Any] = (
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
    _nested(30),
)
"""Filters that every store refuses."""

FILTER_FORMS: Sequence[Callable[[Any], Filter]] = (
    MappingProxyType,
    UserDict,
    lambda where: {"$and": [MappingProxyType(where)]},
    lambda where: {"kind": UserDict({"in": {where["kind"]}})},
)
"""Functions that return a filter by `kind` in another form."""


class WordCounts(EmbeddingModel):
    """Counts words in a few buckets; texts with equal words are similar.

    Args:
        length: The length of the vectors.
        failures: How many requests fail before the first succeeds.
    """

    def __init__(self, *, length: int = 256, failures: int = 0) -> None:
        self.length = length
        self.failures = failures

    @property
    def options(self) -> EmbeddingOptions:
        """The options of every request."""
        return EmbeddingOptions(model="word-counts", batch_size=50)

    async def embed_batch(self, texts: Sequence[str], runtime: Runtime) -> list[Vector]:
        """Return the vectors of *texts*.

        Raises:
            OverloadedError: A failure was asked for.
        """
        await runtime.sleep(0)
        if self.failures:
            self.failures -= 1
            msg = "busy"
            raise OverloadedError(msg, provider="word-counts")
        return [self._vector(text) for text in texts]

    def _vector(self, text: str) -> Vector:
        vector = [0.0] * self.length
        for word in re.findall(r"[a-z]+", text.lower()):
            vector[zlib.crc32(word.encode()) % self.length] += 1.0
        return vector


class Color(Enum):
    """A value of an application in metadata."""

    RED = "red"


def _ids(documents: Sequence[Document]) -> list[str]:
    return [document.id for document in documents]


class VectorStoreContract:
    """The tests; a subclass defines the fixture `vector_store`, an empty store.

    Attributes:
        any_metadata: Whether metadata may contain None and lists, and documents other keys and
            types than the first one. If False, only values of one type for each key are tested.
        complete: Whether a search returns `top_k` documents whenever so many match. An approximate
            index may miss some if *top_k* is large, or if few of many documents match.
        any_text: Whether ids, texts and metadata may contain NUL and lone surrogates.
        any_filter: Whether the store supports all filters. If False, it may refuse a filter with a
            `UsageError`, but never returns other documents than those that match.
        takes_vectors: Whether the store gets vectors. If False, it computes them itself and refuses
            precomputed ones; their length and similarity are not tested.
    """

    any_metadata: ClassVar[bool] = True
    complete: ClassVar[bool] = True
    any_text: ClassVar[bool] = True
    any_filter: ClassVar[bool] = True
    takes_vectors: ClassVar[bool] = True

    @pytest.fixture
    def embedding_model(self) -> WordCounts:
        """Return the embedding model for the store."""
        return WordCounts()

    @pytest.fixture
    def vector_store(self, embedding_model: WordCounts) -> VectorStore:
        """Return the store to test, without documents."""
        raise NotImplementedError

    @property
    def animals(self) -> tuple[Document, ...]:
        """The documents of most tests."""
        return ANIMALS if self.any_metadata else UNIFORM_ANIMALS

    # --- adding and searching ---------------------------------------------------------------

    def test_search_order(self, vector_store: VectorStore) -> None:
        """The most similar document is first, with its score."""
        vector_store.add(self.animals)

        found = vector_store.similarity_search("cat on the sofa", top_k=2)
        scores = [each.score for each in found if each.score is not None]

        assert found[0] == self.animals[0]
        assert 1.0 > scores[0] > scores[1]
        [same, *_] = vector_store.similarity_search("a dog runs in the park")
        assert same.id == "dog"
        assert same.score == pytest.approx(1.0, abs=1e-5)

    def test_async_methods(self, vector_store: VectorStore) -> None:
        """The async methods add, search and delete."""

        async def use() -> None:
            assert await vector_store.aadd(self.animals) == ["cat", "dog", "wolf", "rose"]
            assert _ids(await vector_store.asimilarity_search("wolf", top_k=1)) == ["wolf"]
            assert await vector_store.adelete(["wolf"]) == 1
            found = await vector_store.asimilarity_search("wolf", top_k=9)
            assert sorted(_ids(found)) == ["cat", "dog", "rose"]

        asyncio.run(use())

    def test_threshold(self, vector_store: VectorStore) -> None:
        """Documents below the threshold are not found."""
        vector_store.add(self.animals)
        scores = [each.score or 0 for each in vector_store.similarity_search("sofa", top_k=9)]
        threshold = (scores[0] + scores[1]) / 2

        assert _ids(vector_store.similarity_search("sofa", threshold=threshold)) == ["cat"]
        assert vector_store.similarity_search("zebra", threshold=1.0) == []

    def test_empty_store(self, vector_store: VectorStore) -> None:
        """An empty store or an unmatched filter gives no documents."""
        assert vector_store.similarity_search("anything") == []
        assert vector_store.add([]) == []
        vector_store.add(self.animals)
        assert vector_store.similarity_search("anything", where={"kind": "fish"}) == []
        assert vector_store.delete(where={}) == 4
        assert vector_store.similarity_search("anything") == []
        assert vector_store.delete(where={}) == 0

    def test_number_of_results(self, vector_store: VectorStore) -> None:
        """A search finds `top_k` documents if so many match, however few these are of all."""
        vector_store.add(
            Document(
                f"word {'abcdefghij'[number % 10] * number}",
                {"rare": number % 50 == 0},
                f"{number}",
            )
            for number in range(400)
        )

        many = vector_store.similarity_search("word", top_k=300)
        assert len(many) == 300 or (many and not self.complete)
        found = vector_store.similarity_search("word", top_k=20, where={"rare": True})
        assert all(each.metadata["rare"] for each in found)
        assert len(found) == 8 or (found and not self.complete)

    def test_replace_document(self, vector_store: VectorStore) -> None:
        """Adding an id again replaces text, metadata and vector."""
        vector_store.add(self.animals)
        tiger = Document(
            "a tiger in the snow", {**self.animals[1].metadata, "kind": "tiger"}, "cat"
        )
        new = Document("x", self.animals[1].metadata, "new")
        vector_store.add([tiger, new])

        found = vector_store.similarity_search("a tiger in the snow", top_k=9)

        assert found[0] == tiger
        assert sorted(_ids(found)) == ["cat", "dog", "new", "rose", "wolf"]

    def test_duplicate_id_in_a_batch(self, vector_store: VectorStore) -> None:
        """The last document of a batch wins."""
        assert vector_store.add([Document("one", id="a"), Document("two", id="a")]) == ["a"]
        assert [d.text for d in vector_store.similarity_search("one")] == ["two"]

    def test_ids_are_compared_exactly(self, vector_store: VectorStore) -> None:
        """Case, accents, spaces, quotes, wildcards and length are significant."""
        ids = ["A", "a", "a ", "é", "e\u0301", "it's", '"a"', "%", "", "x" * 5000]
        vector_store.add(Document("word", id=f"{id}!") for id in ids)

        assert vector_store.delete([f"{id}!" for id in ids[:-1]]) == len(ids) - 1
        assert _ids(vector_store.similarity_search("word", top_k=99)) == ["x" * 5000 + "!"]

    def test_any_characters(self, vector_store: VectorStore) -> None:
        """Lone surrogates, NUL, quotes and emojis are stored, replaced and deleted."""
        odd_texts = ["half \ud83d", "nul\0nul"] if self.any_text else []
        vector_store.add(self.animals)
        for odd in (*odd_texts, '"quoted', "it's", "\U0001f98a"):
            for text in ("a cat", f"a cat {odd}"):
                vector_store.add([Document(text, {"kind": odd}, odd)])

            found = vector_store.similarity_search("cat", top_k=9)
            assert len(found) == 5
            assert Document(f"a cat {odd}", {"kind": odd}, odd) in found
            assert vector_store.delete([odd, odd, "nobody"]) == 1
            assert vector_store.delete([]) == 0
            assert len(vector_store.similarity_search("cat", top_k=9)) == 4

    def test_unserialisable_metadata(self, vector_store: VectorStore) -> None:
        """Metadata without a JSON form is refused, and nothing is stored."""
        with pytest.raises(UsageError, match="'odd'"):
            vector_store.add([Document("a", {}, "a"), Document("x", {"odd": object()}, "odd")])
        assert vector_store.similarity_search("x") == []

    def test_metadata_as_json(self, vector_store: VectorStore) -> None:
        """All stores keep the same for values that JSON does not have."""
        given = {
            "enum": Color.RED,
            "day": date(2026, 1, 2),
            "time": datetime(2026, 1, 2, 3, 4, tzinfo=UTC),
            "price": Decimal("1.50"),
            "key": UUID(int=1),
            "bytes": b"ab",
            "pair": ("a", "b"),
            "set": {"a"},
        }
        vector_store.add([Document("x", given, "x")])

        expected = {
            "enum": "red",
            "day": "2026-01-02",
            "time": "2026-01-02T03:04:00Z",
            "price": "1.50",
            "key": "00000000-0000-0000-0000-000000000001",
            "bytes": "ab",
            "pair": ["a", "b"],
            "set": ["a"],
        }
        [found] = vector_store.similarity_search("x")
        assert found == Document("x", expected, "x")
        assert type(found.metadata["enum"]) is str

    def test_numbers_in_metadata(self, vector_store: VectorStore) -> None:
        """Integers are exact and in their order; NaN and infinity are None."""
        limit = 2**53
        numbers = {f"n{more}": limit + more for more in range(3)}
        vector_store.add(Document("x", {"n": n}, id) for id, n in numbers.items())

        for where, expected in (
            ({"n": limit + 1}, {"n1"}),
            ({"n": {"in": [limit + 1, limit + 2]}}, {"n1", "n2"}),
            ({"n": {"gt": limit}}, {"n1", "n2"}),
            ({"n": {"lte": limit + 1}}, {"n0", "n1"}),
        ):
            found = vector_store.similarity_search("x", top_k=9, where=where)
            assert {(each.id, each.metadata["n"]) for each in found} == {
                (id, numbers[id]) for id in expected
            }
        if self.any_metadata:
            odd = {"a": 2**70, "b": inf, "c": nan, "d": [inf]}
            vector_store.add(Document("y", odd, "y"))
            found = vector_store.similarity_search("y", top_k=1)
            kept = {key: value for key, value in found[0].metadata.items() if value is not None}
            assert kept == {"a": 2**70, "d": [None]}

    # --- vectors ----------------------------------------------------------------------------

    def test_precomputed_vectors(
        self, vector_store: VectorStore, embedding_model: WordCounts
    ) -> None:
        """Vectors that were computed before are stored as they are, and replaced."""
        if not self.takes_vectors:
            with pytest.raises(UsageError, match="vectors"):
                vector_store.add([Document("x")], vectors=[[1.0]])
            return
        cat, dog = embedding_model.embed(["cat", "dog"])
        pair = [Document("one", id="1"), Document("two", id="2")]
        vector_store.add(pair, vectors=iter([cat, dog]))

        [first, second] = vector_store.similarity_search("cat", top_k=2)
        assert [first.text, second.text] == ["one", "two"]
        assert [first.score, second.score] == pytest.approx([1.0, 0.0], abs=1e-5)
        asyncio.run(vector_store.aadd(pair, vectors=[dog, cat]))
        assert vector_store.similarity_search("cat")[0].text == "two"

    @pytest.mark.parametrize(
        ("vectors", "error"),
        [
            ([], UsageError),
            ([[1.0], [1.0]], UsageError),
            ([[]], UsageError),
            ([[math.nan]], UsageError),
            ([[math.inf]], UsageError),
            ([["x"]], WrongTypeError),
            ([1.0], WrongTypeError),
        ],
    )
    def test_invalid_vectors(
        self, vector_store: VectorStore, vectors: Any, error: type[UsageError]
    ) -> None:
        """Vectors must be finite numbers, one vector for each document."""
        with pytest.raises(error):
            vector_store.add([Document("x")], vectors=vectors)
        assert vector_store.similarity_search("x") == []

    def test_other_dimensions(self, vector_store: VectorStore, embedding_model: WordCounts) -> None:
        """Other dimensions raise and change nothing."""
        self._need_vectors()
        vector_store.add(self.animals)
        embedding_model.length = 8

        with pytest.raises(UsageError, match="length"):
            vector_store.add([Document("short", self.animals[1].metadata)])
        with pytest.raises(UsageError, match="length"):
            vector_store.similarity_search("short")
        embedding_model.length = 256
        assert len(vector_store.similarity_search("a", top_k=9)) == 4

    def test_other_dimensions_after_deletion(
        self, vector_store: VectorStore, embedding_model: WordCounts
    ) -> None:
        """An emptied store accepts other dimensions."""
        self._need_vectors()
        vector_store.add(self.animals)
        vector_store.delete(where={})
        embedding_model.length = 8
        vector_store.add([Document("short")])

        assert [each.text for each in vector_store.similarity_search("short")] == ["short"]

    def test_embedding_failure(
        self, vector_store: VectorStore, embedding_model: WordCounts
    ) -> None:
        """The error is raised, and no document is added."""
        embedding_model.failures = 1

        with pytest.raises(OverloadedError):
            vector_store.add(self.animals)
        assert vector_store.similarity_search("cat") == []

    def test_zero_vector(self, vector_store: VectorStore) -> None:
        """A vector of zeros can be stored and found."""
        self._need_vectors()
        vector_store.add([Document("123", id="numbers")])

        assert _ids(vector_store.similarity_search("456")) == ["numbers"]

    # --- filters ----------------------------------------------------------------------------

    @pytest.mark.parametrize(("where", "expected"), FILTERS, ids=lambda case: str(case)[:60])
    def test_filters(
        self, vector_store: VectorStore, where: dict[str, Any], expected: list[str]
    ) -> None:
        """Every store applies filters alike, in searches and deletions."""
        if not self.any_metadata:
            matches = predicate(where)
            expected = sorted(each.id for each in self.animals if matches(each.metadata))
        vector_store.add(self.animals)

        with self._refusal_allowed():
            found = vector_store.similarity_search("a", top_k=9, where=where)
            assert sorted(_ids(found)) == expected
        with self._refusal_allowed():
            assert vector_store.delete(where=where) == len(expected)
            assert len(vector_store.similarity_search("a", top_k=9)) == 4 - len(expected)

    @pytest.mark.parametrize("where", INVALID_FILTERS, ids=lambda case: str(case)[:60])
    def test_invalid_filters(self, vector_store: VectorStore, where: Any) -> None:
        """An invalid filter raises, also in an empty store."""
        with pytest.raises(UsageError):
            vector_store.similarity_search("a", where=where)
        with pytest.raises(UsageError):
            vector_store.delete(where=where)

    def test_invalid_calls(self, vector_store: VectorStore) -> None:
        """Missing ids and filter, or a limit below one, raise."""
        with pytest.raises(UsageError, match="where"):
            vector_store.delete()
        with pytest.raises(UsageError, match="at least one"):
            vector_store.similarity_search("a", top_k=0)

    def test_delete_by_ids_and_filter(self, vector_store: VectorStore) -> None:
        """Both conditions must match; unknown ids are ignored."""
        vector_store.add(self.animals)

        with self._refusal_allowed():
            assert vector_store.delete(["cat", "dog", "nobody"], where={"age": {"gt": 5}}) == 1
            assert vector_store.delete("cat") == 1
            assert sorted(_ids(vector_store.similarity_search("a"))) == ["rose", "wolf"]

    def test_filter_with_many_alternatives(self, vector_store: VectorStore) -> None:
        """Filters may have as many alternatives as a user has rights."""
        vector_store.add(self.animals)
        many: list[Any] = [*(f"kind {n}" for n in range(3000)), *range(3000), 1.5, "cat", None]

        with self._refusal_allowed():
            for where in ({"kind": {"in": many}}, {"$or": [{"kind": each} for each in many]}):
                matches = predicate(where)
                expected = sorted(each.id for each in self.animals if matches(each.metadata))
                assert sorted(_ids(vector_store.similarity_search("a", where=where))) == expected
            left = {"kind": {"not_in": many}}
            assert vector_store.delete(where=left) == 4 - len(expected)

    @pytest.mark.parametrize("form", FILTER_FORMS)
    def test_filter_mapping_types(
        self, vector_store: VectorStore, form: Callable[[Any], Filter]
    ) -> None:
        """Any mapping is a filter, and filters are not confused."""
        vector_store.add(self.animals)

        with self._refusal_allowed():
            for kind in ("cat", "dog"):
                found = vector_store.similarity_search("x", where=form({"kind": kind}))
                assert _ids(found) == [kind]
            assert vector_store.delete(where=form({"kind": "cat"})) == 1

    def test_filters_find_new_documents(self, vector_store: VectorStore) -> None:
        """A filter that was used before finds documents that were added, changed or deleted."""
        vector_store.add(self.animals)
        kinds = {each.id: each.metadata for each in self.animals}

        def found(kind: str) -> list[str]:
            documents = vector_store.similarity_search("cat", top_k=99, where={"kind": kind})
            return sorted(_ids(documents))

        for number in range(5):
            assert (len(found("cat")), len(found("dog"))) == (1 + number, 1)
            vector_store.add([Document(f"cat {number}", kinds["cat"], f"new {number}")])
        vector_store.add(
            [Document("a dog", kinds["dog"], "cat"), Document("cat", kinds["cat"], "last")]
        )
        assert found("cat") == ["last", *(f"new {number}" for number in range(5))]
        assert found("dog") == ["cat", "dog"]
        vector_store.delete(["new 0", "last"])
        assert found("cat") == [f"new {number}" for number in range(1, 5)]

    def test_changed_filter(self, vector_store: VectorStore) -> None:
        """A filter that was changed by its owner is evaluated again."""
        vector_store.add([Document("public", {"group": "all"}, "public")])
        groups = ["all"]
        vector_store.similarity_search("x", where={"group": {"in": groups}})
        groups.append("admins")
        vector_store.add([Document("secret", {"group": "admins"}, "secret")])

        found = vector_store.similarity_search("x", where={"group": {"in": ["all"]}})
        assert _ids(found) == ["public"]
        assert len(vector_store.similarity_search("x", where={"group": {"in": groups}})) == 2

    # --- concurrency ------------------------------------------------------------------------

    def test_concurrent_access(self, vector_store: VectorStore) -> None:
        """Documents may be added, deleted and searched concurrently."""
        vector_store.add(self.animals)

        def work(number: int) -> None:
            name = f"worker {number}"
            ids = [f"{number}-{round_}" for round_ in range(10)]
            for id in ids:
                vector_store.add([Document(f"word {number}", {"kind": name}, id)])
                found = vector_store.similarity_search("the cat sleeps on the sofa", top_k=1)
                assert _ids(found) == ["cat"]
            assert vector_store.delete(ids) == 10

        with ThreadPoolExecutor(4) as pool:
            for each in [pool.submit(work, number) for number in range(4)]:
                each.result()
        assert len(vector_store.similarity_search("a", top_k=50)) == 4

    def _need_vectors(self) -> None:
        """Skip a test about vectors if the store computes them."""
        if not self.takes_vectors:
            pytest.skip("the store decides on its vectors")

    def _refusal_allowed(self) -> Any:
        """Return a context in which a filter may be refused, if the store may do that."""
        return nullcontext() if self.any_filter else suppress(UsageError)
