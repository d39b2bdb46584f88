"""Incremental indexing: changes, reports, interruptions and records."""

import asyncio
import itertools
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from chatclient import Progress, Runtime
from chatclient.errors import OverloadedError, UsageError, WrongTypeError
from chatclient.memory.encoding import digest
from chatclient.providers import Vector
from chatclient.retrieval import (
    Document,
    DocumentIndex,
    Filter,
    HybridDocumentRetriever,
    IndexConflictError,
    IndexEntry,
    IndexRecord,
    IndexRecordError,
    IndexReport,
    IndexState,
    InMemoryIndexRecord,
    InMemoryVectorStore,
    KeywordDocumentRetriever,
    MarkdownSplitter,
    Query,
    SqlIndexRecord,
    SqliteIndexRecord,
    SqliteVectorStore,
    VectorStore,
    VectorStoreDocumentRetriever,
)
from chatclient.runtime.blocking import drive
from chatclient.runtime.runtime import BLOCKING
from tests.support.bag_of_words import BagOfWords
from tests.support.databases import SQL_KINDS, sql_place
from tests.support.examples import step

pytest.importorskip("semantic_text_splitter")

Run = Callable[..., Any]


def page(name: str, *texts: str) -> Document:
    """Return a page with a section for each text."""
    sections = "\n\n".join(f"# Section {n}\n\n{text}" for n, text in enumerate(texts))
    return Document(sections, {"source": name})


def contents(store: VectorStore) -> list[tuple[str, str]]:
    """Return the source and the last line of every chunk in *store*."""
    found = store.similarity_search("section", top_k=1_000)
    return sorted((each.metadata["source"], each.text.split("\n")[-1]) for each in found)


def test_progress_of_an_update(store: VectorStore, run: Run) -> None:
    """It is reported after each source, with those that had not changed."""
    index = DocumentIndex(store, InMemoryIndexRecord(), MarkdownSplitter())
    index.update([page("a", "x")])
    seen: list[Progress] = []
    pages = [page("a", "x"), page("b", "y"), page("c", "z")]
    run(index.update, index.aupdate, pages, on_progress=seen.append)

    assert [(each.known, each.finished, each.total) for each in seen] == [
        *((1, 1, 3), (1, 2, 3), (1, 3, 3))
    ]
    assert seen[0].rate is None
    assert seen[1].rate == pytest.approx(1 / seen[1].seconds)


@pytest.fixture
def model() -> BagOfWords:
    return BagOfWords()


@pytest.fixture
def store(model: BagOfWords) -> VectorStore:
    return InMemoryVectorStore(model)


@pytest.fixture(params=["memory", "sqlite"])
def record(request: pytest.FixtureRequest, tmp_path: Path) -> IndexRecord:
    if request.param == "memory":
        return InMemoryIndexRecord()
    return SqliteIndexRecord(tmp_path / "index.db")


@pytest.fixture(params=SQL_KINDS)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[sa.Engine, str]]:
    """An engine, and the name of a table."""
    with sql_place(request.param, tmp_path) as (url, prefix):
        engine = sa.create_engine(url)
        yield engine, f"{prefix}index"
        engine.dispose()


def updated(run: Run, index: DocumentIndex, documents: Iterable[Document], **more: Any) -> Any:
    return run(index.update, index.aupdate, documents, **more)


# --- updates --------------------------------------------------------------------------------


@pytest.mark.feature("documents-incremental-index")
def test_updates(store: VectorStore, record: IndexRecord, model: BagOfWords, run: Run) -> None:
    """Only what changed is embedded, and what disappeared is deleted."""
    index = DocumentIndex(store, record, MarkdownSplitter())
    pages = [page("a", "one", "two"), page("b", "three"), page("c", "four")]

    first = updated(run, index, pages)
    model.texts.clear()
    second = updated(run, index, pages)
    third = updated(run, index, [page("a", "one", "five", "six"), pages[1], page("d", "seven")])

    assert first == IndexReport(added=("a", "b", "c"), embedded=4)
    assert second == IndexReport(unchanged=("a", "b", "c"))
    assert third == IndexReport(("d",), ("a",), ("c",), ("b",), embedded=3, deleted=2)
    assert [text.split("\n")[-1] for text in model.texts] == ["five", "six", "seven"]
    assert contents(store) == [
        ("a", "five"),
        ("a", "one"),
        ("a", "six"),
        ("b", "three"),
        ("d", "seven"),
    ]


def test_chunks_have_metadata(store: VectorStore, run: Run) -> None:
    """Searches find the source, the heading and the position."""
    index = DocumentIndex(store, InMemoryIndexRecord(), MarkdownSplitter())
    updated(run, index, [page("a", "one", "two")])

    (found,) = store.similarity_search("two", top_k=1, where={"source": "a"})

    assert found.metadata == {
        "source": "a",
        "heading": "Section 1",
        "start": 18,
        "end": 34,
        "line": 5,
    }


def test_chunks_for_keyword_search(store: VectorStore, record: IndexRecord, run: Run) -> None:
    """Chunks have the ids of the store, so that a hybrid search finds each once."""
    index = DocumentIndex(store, record, MarkdownSplitter())
    pages = [page("a", "zoo", "parcel"), page("b", "zoo"), Document(" ", {"source": "c"})]
    index.update(pages)

    chunks = run(index.chunks, index.achunks, pages)

    stored = store.similarity_search("section", top_k=100)
    assert {each.id: each.text for each in chunks} == {each.id: each.text for each in stored}
    hybrid = HybridDocumentRetriever(
        VectorStoreDocumentRetriever(store, top_k=100), KeywordDocumentRetriever(chunks), top_k=100
    )
    assert len(drive(hybrid(Query("zoo"), BLOCKING))) == 3


def test_parts_of_the_sources(store: VectorStore, record: IndexRecord, run: Run) -> None:
    """Missing sources may be kept: some by name, or all."""
    index = DocumentIndex(store, record, MarkdownSplitter())
    updated(run, index, [page("a", "one"), page("b", "two"), page("c", "three")])

    kept = updated(run, index, [page("a", "four")], keep=["b", "unknown"])
    rest = updated(run, index, [page("d", "five")], remove_missing=False)
    none = updated(run, index, [])

    assert (kept.changed, kept.removed, kept.deleted) == (("a",), ("c",), 2)
    assert (rest.added, rest.removed) == (("d",), ())
    assert (none.removed, contents(store)) == (("a", "b", "d"), [])


def test_other_documents_of_the_store_stay(store: VectorStore, run: Run) -> None:
    """Two indexes and other documents share a store."""
    store.add(Document("section mine", {"source": "a"}))
    one = DocumentIndex(store, InMemoryIndexRecord("one"), MarkdownSplitter())
    two = DocumentIndex(store, InMemoryIndexRecord("two"), MarkdownSplitter())
    updated(run, one, [page("a", "same")])
    updated(run, two, [page("a", "same")])

    updated(run, one, [])

    assert contents(store) == [("a", "same"), ("a", "section mine")]


def test_changed_settings(model: BagOfWords, run: Run) -> None:
    """Another splitter or model replaces the chunks; equal ones change nothing."""
    store, record = InMemoryVectorStore(model), InMemoryIndexRecord()
    pages = [page("a", "one. two. three.", "four")]
    updated(run, DocumentIndex(store, record, MarkdownSplitter(100)), pages)

    same = updated(run, DocumentIndex(store, record, MarkdownSplitter(100)), pages)
    smaller = updated(run, DocumentIndex(store, record, MarkdownSplitter(20)), pages)

    class Other(BagOfWords):
        @property
        def name(self) -> str:
            return "other"

    store.embedding_model = Other()
    other = updated(run, DocumentIndex(store, record, MarkdownSplitter(20)), pages)

    assert same.unchanged == ("a",)
    assert (smaller.embedded, smaller.deleted) == (2, 1)
    assert (other.changed, other.embedded, other.deleted) == (("a",), 3, 3)


def test_functions_as_splitters(store: VectorStore, run: Run) -> None:
    """Plain and asynchronous functions divide documents; without one, they stay as they are."""

    def lines(documents: Sequence[Document]) -> list[Document]:
        return [Document(line) for each in documents for line in each.text.split("\n")]

    async def alines(documents: Sequence[Document]) -> list[Document]:
        await asyncio.sleep(0)
        return lines(documents)

    class Lines:
        def __call__(self, documents: Sequence[Document]) -> list[Document]:
            return lines(documents)

    record = InMemoryIndexRecord()
    document = Document("section a\n\nsection b", {"source": "a"})
    for splitter, embedded in ((lines, 2), (alines, 0), (Lines(), 0), (lines, 0)):
        report = updated(run, DocumentIndex(store, record, splitter), [document])
        assert (report.changed + report.added, report.embedded) == (("a",), embedded)
    assert contents(store) == [("a", "section a"), ("a", "section b")]

    report = updated(run, DocumentIndex(store, record), [document, Document(" ", {"source": "a"})])
    assert (report.embedded, report.deleted) == (1, 2)
    assert updated(run, DocumentIndex(store, record), [document.scored(1.0)]).embedded == 0


def test_force(store: VectorStore, record: IndexRecord, run: Run) -> None:
    """A store that lost documents is filled again."""
    index = DocumentIndex(store, record, MarkdownSplitter())
    pages = [page("a", "one", "two")]
    updated(run, index, pages)
    store.delete(where={})

    assert updated(run, index, pages).unchanged == ("a",)
    forced = updated(run, index, pages, force=True)

    assert (forced.changed, forced.embedded) == (("a",), 2)
    assert contents(store) == [("a", "one"), ("a", "two")]


def test_batches(store: VectorStore, record: IndexRecord, model: BagOfWords, run: Run) -> None:
    """Chunks of several sources are embedded together, and those of a large one apart."""
    sizes: list[int] = []
    embed = model.embed_batch

    async def counted(texts: Sequence[str], runtime: Runtime) -> list[Vector]:
        sizes.append(len(texts))
        return await embed(texts, runtime)

    model.embed_batch = counted  # type: ignore[method-assign]
    index = DocumentIndex(store, record, MarkdownSplitter(), batch_size=4)
    pages = [page("a", "one"), page("b", *map(str, range(9))), page("c", "two"), page("d", "three")]

    report = updated(run, index, pages)

    assert sizes == [4, 4, 4]
    assert report == IndexReport(added=("a", "b", "c", "d"), embedded=12)
    assert len(contents(store)) == 12


def test_empty_sources(store: VectorStore, record: IndexRecord, run: Run) -> None:
    """A source without text is known, and has no chunks."""
    index = DocumentIndex(store, record, MarkdownSplitter())

    assert updated(run, index, [Document("", {"source": "a"})]).added == ("a",)
    assert updated(run, index, [Document("", {"source": "a"})]).unchanged == ("a",)
    assert updated(run, index, [page("a", "one")]).changed == ("a",)
    assert updated(run, index, [Document("", {"source": "a"})]).deleted == 1


# --- interruptions --------------------------------------------------------------------------


class Crash(BaseException):
    """Ends an update immediately, as Ctrl-C does."""


class Crashes:
    """Crashes before or after the n-th operation of a store and a record."""

    def __init__(self) -> None:
        self.left = 0

    def step(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise Crash


class CrashingStore(InMemoryVectorStore):
    def __init__(self, model: BagOfWords, crashes: Crashes) -> None:
        super().__init__(model)
        self.crashes = crashes

    async def store(
        self, documents: Sequence[Document], vectors: Sequence[Vector], runtime: Runtime
    ) -> None:
        self.crashes.step()
        await super().store(documents[:1], vectors[:1], runtime)
        self.crashes.step()  # after a part of them
        await super().store(documents, vectors, runtime)
        self.crashes.step()

    async def erase(
        self, ids: Collection[str] | None, where: Filter | None, runtime: Runtime
    ) -> int:
        self.crashes.step()
        deleted = await super().erase(ids, where, runtime)
        self.crashes.step()
        return deleted


class CrashingRecord(InMemoryIndexRecord):
    def __init__(self, crashes: Crashes) -> None:
        super().__init__()
        self.crashes = crashes

    async def save(
        self, changes: Mapping[str, IndexEntry | None], revision: int, runtime: Runtime
    ) -> None:
        self.crashes.step()
        await super().save(changes, revision, runtime)
        self.crashes.step()


OLD = [page("a", "a old", "a same", "a gone"), page("b", "b old"), page("c", "c old"), page("e")]
NEW = [page("a", "a new", "a same"), page("b", "b new", "b two", "b three"), page("d", "d new")]
LATER = [page("a", "a later", "a same"), page("b", "b old"), page("f", "f later")]


@pytest.mark.parametrize("then", [NEW, LATER, OLD], ids=["new", "later", "old"])
@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_interrupted_updates(then: list[Document], batch_size: int, run: Run) -> None:
    """After a crash at any moment, old or new chunks are there, and the next update repairs all."""

    def of(documents: Iterable[Document], source: str) -> set[tuple[str, str]]:
        plain = InMemoryVectorStore(BagOfWords())
        DocumentIndex(plain, InMemoryIndexRecord(), MarkdownSplitter()).update(documents)
        return {each for each in contents(plain) if each[0] == source}

    expected = {source: of(then, source) for source in "abcdef"}
    at = 0
    for at in itertools.count(1, step()):
        crashes = Crashes()
        store, record = CrashingStore(BagOfWords(), crashes), CrashingRecord(crashes)
        index = DocumentIndex(store, record, MarkdownSplitter(), batch_size=batch_size)
        updated(run, index, OLD)
        crashes.left = at
        try:
            updated(run, index, NEW)
        except Crash:
            pass
        else:
            break
        found = set(contents(store))
        for source in "ab":
            assert of(OLD, source) <= found or of(NEW, source) <= found

        updated(run, index, then)

        assert contents(store) == sorted(set().union(*expected.values()))
        assert updated(run, index, then).embedded == 0
    assert at > 8


def test_completed_batches_are_not_embedded_again(model: BagOfWords, run: Run) -> None:
    """A failed update continues with the next batch, also in a large source."""
    store, record = InMemoryVectorStore(model), InMemoryIndexRecord()
    index = DocumentIndex(store, record, MarkdownSplitter(), batch_size=10)
    large = [page("a", *(f"text {n}" for n in range(35)))]
    embed, calls = model.embed_batch, 0

    async def failing(texts: Sequence[str], runtime: Runtime) -> list[Vector]:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise OverloadedError("busy", provider="bag")
        return await embed(texts, runtime)

    model.embed_batch = failing  # type: ignore[method-assign]
    with pytest.raises(OverloadedError):
        updated(run, index, large)
    report = updated(run, index, large)

    assert report.embedded == 15
    assert len(contents(store)) == 35


async def test_cancelled_update(model: BagOfWords) -> None:
    """A cancelled update is completed by the next one."""
    store = InMemoryVectorStore(model)
    index = DocumentIndex(store, InMemoryIndexRecord(), MarkdownSplitter(), batch_size=1)
    started = asyncio.Event()
    embed = model.embed_batch

    async def slow(texts: Sequence[str], runtime: Runtime) -> list[Vector]:
        if len(model.texts) == 2:
            started.set()
            await asyncio.sleep(60)
        return await embed(texts, runtime)

    model.embed_batch = slow  # type: ignore[method-assign]
    task = asyncio.create_task(index.aupdate(NEW))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    model.embed_batch = embed  # type: ignore[method-assign]

    report = await index.aupdate(NEW)

    assert (report.embedded, len(contents(store))) == (4, 6)


def test_concurrent_updates(store: VectorStore, record: IndexRecord, run: Run) -> None:
    """An update during another one is noticed, and nothing is lost."""
    inner = DocumentIndex(store, record, MarkdownSplitter())

    def split(documents: Sequence[Document]) -> list[Document]:
        inner.update([page("b", "two")], remove_missing=False)
        return list(documents)

    with pytest.raises(IndexConflictError, match="update again"):
        updated(run, DocumentIndex(store, record, split), [page("a", "one")])

    assert updated(run, inner, [page("a", "one"), page("b", "two")]).added == ("a",)
    assert contents(store) == [("a", "one"), ("b", "two")]


class BusyStore(InMemoryVectorStore):
    """Calls a function once, when chunks have been stored or before some are deleted."""

    def __init__(self, model: BagOfWords) -> None:
        super().__init__(model)
        self.stored: Callable[[], object] | None = None
        self.deleting: Callable[[], object] | None = None

    async def store(
        self, documents: Sequence[Document], vectors: Sequence[Vector], runtime: Runtime
    ) -> None:
        await super().store(documents, vectors, runtime)
        if self.stored is not None:
            then, self.stored = self.stored, None
            then()

    async def erase(
        self, ids: Collection[str] | None, where: Filter | None, runtime: Runtime
    ) -> int:
        if self.deleting is not None:
            then, self.deleting = self.deleting, None
            then()
        return await super().erase(ids, where, runtime)


@pytest.mark.parametrize(
    ("moment", "first"),
    [("stored", [page("a", "new")]), ("deleting", [page("a", "new")]), ("deleting", [])],
    ids=["changed, storing", "changed, deleting", "removed"],
)
def test_updates_that_undo_each_other(
    moment: str, first: list[Document], record: IndexRecord, model: BagOfWords, run: Run
) -> None:
    """The next update restores chunks that a concurrent one has deleted, and deletes its own."""
    store = BusyStore(model)
    index = DocumentIndex(store, record, MarkdownSplitter())
    old = [page("a", "old"), page("b", "other")]
    index.update(old)
    # The other update completes while this one is between two operations of the store.
    setattr(store, moment, lambda: index.update(old))

    with pytest.raises(IndexConflictError):
        updated(run, index, first, keep=["b"])
    updated(run, index, old)

    assert contents(store) == [("a", "old"), ("b", "other")]
    assert updated(run, index, old).embedded == 0


def test_record_that_never_gets_free(store: VectorStore, run: Run) -> None:
    """An update ends although others change its record all the time."""

    class Busy(InMemoryIndexRecord):
        saved = 0

        async def save(
            self, changes: Mapping[str, IndexEntry | None], revision: int, runtime: Runtime
        ) -> None:
            self.saved += 1
            await super().save(changes, revision if self.saved == 1 else -1, runtime)

    with pytest.raises(IndexConflictError):
        updated(run, DocumentIndex(store, Busy()), [page("a", "one")])


# --- records --------------------------------------------------------------------------------


def test_record_contract(record: IndexRecord) -> None:
    """A record keeps entries and revisions; a conflict changes nothing."""
    assert drive(record.load(BLOCKING)) == IndexState({}, 0)
    entry = IndexEntry("f", frozenset({"1", "2"}), frozenset({"é"}))
    first = {"a": entry, "b": IndexEntry(), "\ud800": IndexEntry("g"), "x\ud800": IndexEntry()}

    drive(record.save(first, 0, BLOCKING))
    drive(record.save({"b": None, "x\ud800": None}, 1, BLOCKING))
    with pytest.raises(IndexConflictError):
        drive(record.save({"a": None}, 1, BLOCKING))

    assert drive(record.load(BLOCKING)) == IndexState({"a": entry, "\ud800": IndexEntry("g")}, 2)


def test_sql_record(engine: tuple[sa.Engine, str], store: VectorStore, run: Run) -> None:
    """A record in a database has several names, long sources, and conflicts."""
    database, table = engine
    record = SqlIndexRecord(database, table=table)
    test_record_contract(record)

    long = SqlIndexRecord(database, "n" * 300, table=table)
    sources = ["a" * 3_000, "A" * 3_000, "null \0", "x\ud800"]
    entries = {source: IndexEntry(source[:1].lower()) for source in sources}
    drive(long.save(entries, 0, BLOCKING))
    assert drive(long.load(BLOCKING)) == IndexState(entries, 1)
    assert len(drive(record.load(BLOCKING)).entries) == 2

    other = SqlIndexRecord(database, "pages", table=table)
    index = DocumentIndex(store, other, MarkdownSplitter())
    updated(run, index, [page("a", "one"), page("b", *map(str, range(200)))])
    again = DocumentIndex(store, SqlIndexRecord(database, "pages", table=table), MarkdownSplitter())
    report = updated(run, again, [page("a", "two")])
    assert (report.changed, report.removed, report.deleted) == (("a",), ("b",), 201)


def test_first_updates_of_a_sql_record_at_once(engine: tuple[sa.Engine, str]) -> None:
    """Of two first updates, one is a conflict."""
    server, table = engine
    record = SqlIndexRecord(server, table=table)
    drive(record.load(BLOCKING))
    save = sa.insert(record._revisions).values

    class Late(SqlIndexRecord):
        def _revision(self, database: sa.Connection) -> int:
            found = super()._revision(database)
            database.execute(save(name=digest(self.name), revision=1))  # by the other one
            return found

    with pytest.raises(IndexConflictError):
        drive(Late(server, table=table).save({"a": IndexEntry()}, 0, BLOCKING))


def test_sql_record_without_a_database(store: VectorStore, tmp_path: Path, run: Run) -> None:
    """A database that cannot be reached is an error with its cause."""
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'none' / 'index.db'}")

    with pytest.raises(IndexRecordError, match="sqlite failed") as caught:
        updated(run, DocumentIndex(store, SqlIndexRecord(engine)), [page("a", "one")])

    assert isinstance(caught.value.__cause__, SQLAlchemyError)


def test_record_in_the_file_of_the_store(tmp_path: Path, model: BagOfWords, run: Run) -> None:
    """Store and record may share a file, which several names and processes may use."""
    path = tmp_path / "documents.db"
    with SqliteVectorStore(path, model) as store:
        for name in ("one", "two"):
            index = DocumentIndex(store, SqliteIndexRecord(path, name), MarkdownSplitter())
            updated(run, index, [page("a", "one")])
        assert len(contents(store)) == 2
    with SqliteVectorStore(path, model) as store:
        index = DocumentIndex(store, SqliteIndexRecord(path, "one"), MarkdownSplitter())
        assert updated(run, index, [page("a", "one")]).unchanged == ("a",)
        assert updated(run, index, []).deleted == 1
        assert contents(store) == [("a", "one")]
    assert repr(SqliteIndexRecord("a.db")) == "SqliteIndexRecord('a.db', 'documents')"


def test_damaged_record(store: VectorStore, tmp_path: Path, run: Run) -> None:
    """An unreadable file is an error that names it, with SQLite's as the cause."""
    (tmp_path / "index.db").write_bytes(b"no database" * 100)
    index = DocumentIndex(store, SqliteIndexRecord(tmp_path / "index.db"))

    with pytest.raises(IndexRecordError, match=r"index\.db") as caught:
        updated(run, index, [page("a", "one")])

    assert isinstance(caught.value.__cause__, sqlite3.DatabaseError)
    assert contents(store) == []


# --- errors ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("documents", "said"),
    [
        ([Document("text")], "has no text `source`"),
        ([Document("text", {"source": 3})], "has no text `source`"),
        (["text"], "a document must be"),
        (3, "documents must be"),
        ([Document("text", {"source": "a", "value": object()})], "cannot be encoded as JSON"),
    ],
)
def test_wrong_documents(store: VectorStore, run: Run, documents: Any, said: str) -> None:
    """Documents are checked before anything is stored."""
    with pytest.raises(UsageError, match=said):
        updated(run, DocumentIndex(store, InMemoryIndexRecord()), documents)


def test_wrong_arguments(store: VectorStore, run: Run) -> None:
    """Arguments are checked."""
    record = InMemoryIndexRecord()
    wrong: list[tuple[Callable[[], Any], str]] = [
        (lambda: DocumentIndex("store", record), "vector_store"),  # type: ignore[arg-type]
        (lambda: DocumentIndex(store, "index.db"), "SqliteIndexRecord"),  # type: ignore[arg-type]
        (lambda: DocumentIndex(store, record, list), "splitter"),
        (lambda: DocumentIndex(store, record, batch_size=0), "batch_size"),
    ]
    for make, said in wrong:
        with pytest.raises(UsageError, match=said):
            make()
    texts: Any = ["text"]
    with pytest.raises(WrongTypeError, match="a chunk"):
        updated(run, DocumentIndex(store, record, lambda _: texts), [page("a", "one")])
