"""Vector stores in PostgreSQL with pgvector."""

import asyncio
import dataclasses
import math
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple

import psycopg
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings, strategies as st

from chatclient import Runtime
from chatclient.errors import UsageError, VectorStoreError, VectorStoreUnavailableError
from chatclient.observability import Retrieval, Step
from chatclient.providers import EmbeddingModel, Vector
from chatclient.retrieval import (
    Document,
    InMemoryVectorStore,
    PgVectorStore,
    Query,
    SimilaritySearch,
    VectorStore,
    VectorStoreDocumentRetriever,
)
from chatclient.runtime.blocking import drive
from chatclient.runtime.runtime import BLOCKING
from chatclient.testing import VectorStoreContract
from chatclient.testing.vector_store_contract import ANIMALS, WordCounts
from tests.support.databases import SERVERS, need
from tests.support.examples import examples
from tests.support.filter_examples import contents, filters
from tests.support.pgvector_server import pgvector_place

PACKAGE = "chatclient.retrieval.vector_store"


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


class PgPlace(NamedTuple):
    url: str
    prefix: str

    def store(self, model: EmbeddingModel | None = None, **settings: Any) -> PgVectorStore:
        return PgVectorStore(self.url, model or WordCounts(), table_prefix=self.prefix, **settings)

    def execute(self, statement: str) -> list[Any]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement.replace("PREFIX", self.prefix).encode())
            return cursor.fetchall() if cursor.description else []


@pytest.fixture
def place() -> Iterator[PgPlace]:
    with pgvector_place() as (url, prefix):
        yield PgPlace(url, prefix)


def ids(documents: Iterable[Document]) -> list[str]:
    return [document.id for document in documents]


# --- filters and metadata -------------------------------------------------------------------


@pytest.fixture(scope="module")
def agreeing() -> Iterator[tuple[VectorStore, VectorStore]]:
    with (
        pgvector_place() as (url, prefix),
        PgVectorStore(url, WordCounts(), table_prefix=prefix) as store,
    ):
        yield store, InMemoryVectorStore(WordCounts())


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow])
@given(where=filters, metadata=st.lists(contents, min_size=1, max_size=4))
def test_agrees_on_filters(
    agreeing: tuple[VectorStore, VectorStore],
    where: dict[str, Any],
    metadata: list[dict[str, Any]],
) -> None:
    """PostgreSQL finds the same documents as the store in memory for any filter."""
    found = []
    for store in agreeing:
        store.delete(where={})
        store.add(Document("text", each, str(n)) for n, each in enumerate(metadata))
        found.append(sorted(ids(store.similarity_search("text", top_k=9, where=where))))

    assert found[0] == found[1]


def test_metadata_is_exact(place: PgPlace) -> None:
    """Large and small numbers, odd keys and texts are read as they were written."""
    metadata = {"n\0": 1, "large": 1e300, "int": 2**80, "small": 1e-9, "odd": ["\ud83d", "a\0"]}
    with place.store() as store:
        store.add(Document("x", metadata))
        [found] = store.similarity_search("x", where={"large": {"gt": 10**15}, "int": {"gte": 9}})

    assert found.metadata == metadata
    assert isinstance(found.metadata["large"], float)


class Kind(StrEnum):
    CAT = "cat"


class Level(IntEnum):
    HIGH = 3


def test_enum_values(place: PgPlace) -> None:
    """A filter may contain members of enums, as every store accepts them."""
    with place.store() as store:
        store.add(ANIMALS)

        assert ids(store.similarity_search("x", where={"kind": Kind.CAT})) == ["cat"]
        found = store.similarity_search("x", where={"age": {"gt": Level.HIGH}})
        assert sorted(ids(found)) == ["dog", "wolf"]
        assert store.delete(where={"kind": {"gt": Kind.CAT}}) == 2


# --- the index ------------------------------------------------------------------------------


class Circle(EmbeddingModel):
    """Returns points on a circle for numbers below 600."""

    async def embed_batch(self, texts: Sequence[str], runtime: Runtime) -> list[Vector]:
        angles = [int(text) * math.tau / 600 for text in texts]
        return [[math.cos(angle), math.sin(angle)] for angle in angles]


def scans(place: PgPlace) -> int:
    """Return how often the index of vectors was used."""
    place.execute("SELECT pg_stat_force_next_flush()")
    name = "indexrelname = 'PREFIXdocument_vector'"
    [(count,)] = place.execute(f"SELECT idx_scan FROM pg_stat_user_indexes WHERE {name}")
    return int(count)


def test_index_is_used(place: PgPlace) -> None:
    """Searches use the index, and find rare documents that its scan does not reach."""
    options = "-c enable_seqscan=off -c enable_bitmapscan=off -c hnsw.max_scan_tuples=1"
    engine = sa.create_engine(
        place.url.replace("postgresql", "postgresql+psycopg"), connect_args={"options": options}
    )
    with PgVectorStore(engine, Circle(), table_prefix=place.prefix, ef_search=10) as store:
        store.add(Document(f"{n}", {"rare": n == 599}, f"{n}") for n in range(600))
        found = store.similarity_search("300", top_k=3)
        rare = store.similarity_search("0", top_k=1, where={"rare": True})
    engine.dispose()

    assert ids(found)[0] == "300"
    assert set(ids(found)) == {"299", "300", "301"}
    assert ids(rare) == ["599"]
    assert scans(place) >= 2


def test_plans_know_the_filter(place: PgPlace) -> None:
    """Also of statements that are executed often, for which PostgreSQL would plan once for all."""
    url = place.url.replace("postgresql", "postgresql+psycopg")
    engine = sa.create_engine(url, pool_size=1, max_overflow=0)
    plans = "SELECT sum(generic_plans), sum(custom_plans) FROM pg_prepared_statements"
    with PgVectorStore(engine, WordCounts(), table_prefix=place.prefix) as store:
        store.add(ANIMALS)
        for _ in range(14):
            store.similarity_search("dog", where={"$or": [{"a": 1}, {"b": {"in": [1, 2]}}]})
            store.delete(where={"a": 1})
        with engine.connect() as connection:
            where = sa.text(f"{plans} WHERE statement ~ '^(SELECT.*<#>|DELETE)'")
            [(generic, custom)] = connection.execute(where)
    engine.dispose()

    assert custom > 14
    assert generic == 0


@pytest.mark.parametrize(
    ("length", "index"), [(3, "(vector vector_ip_ops)"), (2500, "halfvec(2500)"), (4500, None)]
)
def test_long_vectors(place: PgPlace, length: int, index: str | None) -> None:
    """Long vectors are indexed with less precision, longer ones are compared with all."""
    with place.store(WordCounts(length=length)) as store:
        store.add(ANIMALS)
        assert ids(store.similarity_search("a dog runs in the park", top_k=1)) == ["dog"]

    name = "indexname = 'PREFIXdocument_vector'"
    found = place.execute(f"SELECT indexdef FROM pg_indexes WHERE {name}")
    assert bool(found) == (index is not None)
    assert index is None or index in found[0][0]


# --- hybrid search --------------------------------------------------------------------------

MANUAL = (
    Document("How to change a tyre on a wheel", {"part": "wheel"}, "tyre"),
    Document("Error E-4711: the pump is blocked", {"part": "pump"}, "pump"),
    Document("Error E-9999: the lamps are broken", {"part": "lamp"}, "lamp"),
    Document("The engine needs oil", {"part": "engine"}, "oil"),
)


class Meaning(EmbeddingModel):
    """Takes every text for one about oil."""

    async def embed_batch(self, texts: Sequence[str], runtime: Runtime) -> list[Vector]:
        return [[1.0, 0.0] if "oil" in text or "?" in text else [0.5, 1.0] for text in texts]


def test_hybrid_search(place: PgPlace) -> None:
    """Documents with words of the query are found as well as similar ones, also by their stems."""
    with place.store(Meaning()) as store:
        store.add(MANUAL)
        found = store.hybrid_search("Which lamp shows E-4711?", top_k=3)
        where = {"part": {"ne": "lamp"}}
        filtered = asyncio.run(store.ahybrid_search("lamps E-4711?", top_k=9, where=where))
        odd = store.hybrid_search("oil & | ! ( ' \0 \ud83d", top_k=1)

    assert set(ids(found)) == {"oil", "pump", "lamp"}
    assert {each.id: each.score for each in found}["oil"] == pytest.approx(1.0)
    assert "lamp" not in ids(filtered)
    assert ids(filtered)[0] == "pump"
    assert len(filtered) == 3
    assert ids(odd) == ["oil"]


def test_hybrid_threshold(place: PgPlace) -> None:
    """The threshold applies to documents that were found by similarity only."""
    search = SimilaritySearch("the pump?", top_k=9, threshold=0.9)
    with place.store(Meaning()) as store:
        assert store.hybrid_search("anything?") == []
        store.add(MANUAL)
        found = drive(store.find_hybrid(search, BLOCKING))

    assert set(ids(found)) == {"oil", "pump"}


def test_language(place: PgPlace) -> None:
    """Stems are those of the language; an unknown one is refused by the database."""
    with place.store(Meaning(), language="german") as store:
        store.add(Document("Die Häuser sind alt", id="1"))
        assert ids(store.hybrid_search("Haus?", top_k=1)) == ["1"]
    with (
        place.store(Meaning(), language="klingon") as store,
        pytest.raises(VectorStoreError, match="refused") as caught,
    ):
        store.add(MANUAL)

    assert "klingon" in str(caught.value.__cause__)


def test_hybrid_retriever(place: PgPlace) -> None:
    """A retriever searches by words as well, with the filter of the request."""
    with place.store(Meaning()) as store:
        store.add(MANUAL)
        retrieve = VectorStoreDocumentRetriever(store, hybrid=True, threshold=0.9)
        context = {"vector_store_filter_expression": {"part": {"ne": "engine"}}}
        found = drive(retrieve(Query("the pump?", context=context), BLOCKING))

    assert ids(found) == ["pump"]
    with pytest.raises(UsageError, match="HybridVectorStore"):
        VectorStoreDocumentRetriever(InMemoryVectorStore(WordCounts()), hybrid=True)


def test_hybrid_search_is_observed(place: PgPlace) -> None:
    """The trail has one retrieval with the documents."""
    steps: list[Step] = []
    with place.store(Meaning()) as store:
        store.add(MANUAL)
        runtime = dataclasses.replace(BLOCKING, steps=steps)
        found = drive(store.find_hybrid(SimilaritySearch("oil?"), runtime))

    [step] = steps
    assert isinstance(step.operation, Retrieval)
    assert (step.operation.query, step.operation.source) == ("oil?", "PgVectorStore")
    assert step.result == found


# --- the schema -----------------------------------------------------------------------------


def test_several_stores_begin_in_parallel(place: PgPlace) -> None:
    """Stores that create the table concurrently, and add first documents, do not disturb."""

    def begin(number: int) -> list[str]:
        with place.store() as store:
            return store.add(Document(f"word {number}", id=str(number)))

    with ThreadPoolExecutor(6) as pool:
        added = [id for found in pool.map(begin, range(6)) for id in found]

    with place.store() as store:
        assert sorted(ids(store.similarity_search("word", top_k=9))) == sorted(added)


def test_length_set_by_another_process(place: PgPlace) -> None:
    """A store that waited for the table finds the length that another one has set."""
    with place.store() as store, ThreadPoolExecutor(1) as pool:
        assert store.similarity_search("x") == []
        with psycopg.connect(place.url) as other:
            table = f"{place.prefix}document"
            other.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE".encode())
            added = pool.submit(store.add, MANUAL)
            while not place.execute("SELECT 1 FROM pg_locks WHERE NOT granted"):
                time.sleep(0.01)
            other.execute(f"ALTER TABLE {table} ALTER COLUMN vector TYPE vector(256)".encode())
        assert len(added.result()) == 4


def test_schema_is_not_created(place: PgPlace) -> None:
    """Without permission, a missing table or length raises an error that names the setting."""
    with place.store(create_schema=False) as store:
        with pytest.raises(UsageError, match="create_schema=True"):
            store.add(MANUAL)
        with place.store() as owner:
            assert owner.similarity_search("x") == []
        assert store.similarity_search("x") == []
        with pytest.raises(UsageError, match="create_schema=True"):
            store.add(MANUAL)
        with place.store() as owner:
            owner.add(MANUAL[:1])
        store.add(MANUAL[1:])
        assert len(store.similarity_search("x", top_k=9)) == 4


def test_newer_schema(place: PgPlace) -> None:
    """Tables of a newer release are not touched."""
    with place.store() as store:
        store.add(MANUAL)
    place.execute("UPDATE PREFIXschema SET version = 99")

    with place.store() as store, pytest.raises(VectorStoreError, match="newer release"):
        store.add(MANUAL)


def test_vectors_of_several_lengths(place: PgPlace) -> None:
    """One batch has vectors of one length."""
    with place.store() as store, pytest.raises(UsageError, match="lengths"):
        store.add(MANUAL[:2], vectors=[[1.0], [1.0, 2.0]])


# --- errors ---------------------------------------------------------------------------------


def test_database_without_pgvector() -> None:
    """The error names the extension."""
    need("postgresql")
    with (
        PgVectorStore(SERVERS["postgresql"], WordCounts(), table_prefix="t_none_") as store,
        pytest.raises(VectorStoreError, match="CREATE EXTENSION vector") as caught,
    ):
        store.add(MANUAL)

    assert isinstance(caught.value.__cause__, psycopg.Error)


def test_old_pgvector(place: PgPlace) -> None:
    """A release without iterative scans is refused."""
    place.execute("CREATE DATABASE PREFIXold")
    try:
        old = place._replace(url=place.url.replace("/postgres?", f"/{place.prefix}old?"))
        old.execute("CREATE EXTENSION vector")
        old.execute("UPDATE pg_extension SET extversion = '0.7.4' WHERE extname = 'vector'")
        with old.store() as store, pytest.raises(VectorStoreError, match=r"0\.8 or newer"):
            store.add(MANUAL)
    finally:
        place.execute("DROP DATABASE PREFIXold WITH (FORCE)")


def test_unreachable_database() -> None:
    """The error has its cause and no password."""
    url = "postgresql://somebody:hunter2@127.0.0.1:9/nothing"
    with (
        PgVectorStore(url, WordCounts()) as store,
        pytest.raises(VectorStoreUnavailableError, match=r"127\.0\.0\.1:9") as caught,
    ):
        store.similarity_search("x")

    assert isinstance(caught.value.__cause__, psycopg.OperationalError)
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("url", "problem"),
    [("sqlite://", "not sqlite"), ("nonsense hunter2", "not the URL of a database")],
)
def test_other_urls(url: str, problem: str) -> None:
    """Another database is refused, without the URL in the message."""
    with pytest.raises(UsageError, match=problem) as caught:
        PgVectorStore(url, WordCounts())
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("settings", [{"ef_search": 0}, {"language": None}])
def test_invalid_settings(settings: dict[str, Any]) -> None:
    """Settings are checked when the store is made."""
    with pytest.raises(UsageError):
        PgVectorStore("postgresql://localhost/x", WordCounts(), **settings)


def test_missing_sqlalchemy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extra."""
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    for name in [each for each in sys.modules if each.startswith(f"{PACKAGE}.pg_")]:
        monkeypatch.delitem(sys.modules, name)

    with pytest.raises(UsageError, match=r"chatclient\[postgres\]"):
        PgVectorStore("postgresql://localhost/x", WordCounts())
