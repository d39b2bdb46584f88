"""Indexes documents, and updates an index."""

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice

from chatclient._internal import json
from chatclient._internal.checks import check_callable, check_number, check_type, names
from chatclient._internal.logging import Logger
from chatclient.chat.document import Document
from chatclient.errors import UsageError
from chatclient.memory.encoding import digest
from chatclient.retrieval.ingestion.record import (
    IndexConflictError,
    IndexEntry,
    IndexRecord,
    IndexState,
)
from chatclient.retrieval.ingestion.splitter import DocumentSplitter
from chatclient.retrieval.query import Given
from chatclient.retrieval.vector_store.store import VectorStore, metadata_json
from chatclient.runtime.blocking import drive
from chatclient.runtime.progress import OnProgress, Progress
from chatclient.runtime.runtime import BLOCKING, ON_LOOP, Runtime

_REMOVED_AT_ONCE = 1_000  # ids
_ATTEMPTS = 10  # to record that it is uncertain what the store contains


@dataclass(frozen=True, slots=True)
class IndexReport:
    """What an update has changed.

    Attributes:
        added: The sources that are new.
        changed: The sources of which chunks were added or removed.
        removed: The sources that have disappeared.
        unchanged: The other sources.
        embedded: The number of chunks that were embedded and stored.
        deleted: The number of chunks that were deleted.
    """

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    embedded: int = 0
    deleted: int = 0


@dataclass(slots=True)
class _Finish:
    """What the entry of a source becomes when its last chunk is stored."""

    fingerprint: str
    wanted: frozenset[str]


class IndexUpdate:
    """An update of a `DocumentIndex` that is running.

    Args:
        store: The vector store.
        record: The record.
        state: What the record contains.
        runtime: How the update runs.
    """

    def __init__(
        self, store: VectorStore, record: IndexRecord, state: IndexState, runtime: Runtime
    ) -> None:
        self.entries = dict(state.entries)
        self._known = frozenset(state.entries)
        self._revision = state.revision
        self._store = store
        self._record = record
        self._runtime = runtime
        self._batch: defaultdict[str, dict[str, Document]] = defaultdict(dict)
        self._finishes: dict[str, _Finish] = {}
        self._updated: list[str] = []
        self._removed: tuple[str, ...] = ()
        self._embedded = 0
        self._deleted = 0

    def report(self, unchanged: Sequence[str]) -> IndexReport:
        """Return what the update has changed."""
        return IndexReport(
            tuple(source for source in self._updated if source not in self._known),
            tuple(source for source in self._updated if source in self._known),
            self._removed,
            tuple(unchanged),
            self._embedded,
            self._deleted,
        )

    async def add(
        self,
        source: str,
        fingerprint: str,
        wanted: Mapping[str, Document],
        batch_size: int,
        *,
        force: bool,
    ) -> None:
        """Let a source have the chunks *wanted*, by id; full batches are stored."""
        stored = frozenset[str]() if force else self.entries.get(source, IndexEntry()).stored
        new = [id for id in wanted if id not in stored]
        for id in new:
            self._batch[source][id] = wanted[id]
            if sum(map(len, self._batch.values())) >= batch_size and id != new[-1]:
                await self.flush()
        self._finishes[source] = _Finish(fingerprint, frozenset(wanted))
        if sum(map(len, self._batch.values())) >= batch_size:
            await self.flush()

    async def flush(self) -> None:
        """Store the present batch, and delete old chunks of the sources that it completes."""
        batch, self._batch = self._batch, defaultdict(dict)
        finishes, self._finishes = self._finishes, {}
        if batch or finishes:
            changes = {}
            for source, entry in self._entries_of([*batch, *finishes]):
                finish = finishes.get(source)
                certain = entry.stored if finish is None else entry.stored & finish.wanted
                uncertain = (entry.stored - certain) | entry.pending | batch.get(source, {}).keys()
                changes[source] = IndexEntry("", certain, uncertain)
            await self._save(changes)
            chunks = [
                replace(chunk, id=id) for several in batch.values() for id, chunk in several.items()
            ]
            await self._store.put(chunks, self._runtime)
            self._embedded += len(chunks)
            await self._complete(batch, finishes)

    async def _complete(
        self, batch: Mapping[str, Mapping[str, Document]], finishes: Mapping[str, _Finish]
    ) -> None:
        """Delete old chunks of completed sources, and record what is in the store."""
        changes: dict[str, IndexEntry] = {}
        old: list[str] = []
        for source, entry in self._entries_of([*batch, *finishes]):
            finish = finishes.get(source)
            if finish is None:
                new = frozenset(batch[source])
                changes[source] = IndexEntry("", entry.stored | new, entry.pending - new)
            else:
                old += (entry.stored | entry.pending) - finish.wanted
                changes[source] = IndexEntry(finish.fingerprint, finish.wanted)
        await self._delete(old)
        await self._confirm(changes)
        self._updated += finishes

    async def remove(self, sources: Sequence[str]) -> None:
        """Delete all chunks of *sources*."""
        ids = {source: each.stored | each.pending for source, each in self._entries_of(sources)}
        await self._save({source: IndexEntry(pending=each) for source, each in ids.items()})
        await self._delete([id for each in ids.values() for id in each])
        await self._confirm(dict.fromkeys(sources))
        self._removed = tuple(sources)

    def _entries_of(self, sources: Iterable[str]) -> Iterator[tuple[str, IndexEntry]]:
        for source in dict.fromkeys(sources):
            yield source, self.entries.get(source, IndexEntry())

    async def _delete(self, ids: Sequence[str]) -> None:
        for several in _batches(ids, _REMOVED_AT_ONCE):
            self._deleted += await self._store.remove(several, None, self._runtime)

    async def _confirm(self, changes: Mapping[str, IndexEntry | None]) -> None:
        """Record what a change of the store has achieved."""
        try:
            await self._save(changes)
        except IndexConflictError:
            await self._mark_uncertain(changes)
            raise

    async def _mark_uncertain(self, sources: Collection[str]) -> None:
        """Let the next update store *sources* again.

        This update may have deleted chunks that another one has stored, and stored others.
        """
        for _ in range(_ATTEMPTS):
            state = await self._record.load(self._runtime)
            changes = {}
            for source, entry in self._entries_of(sources):
                other = state.entries.get(source, IndexEntry())
                ids = entry.stored | entry.pending | other.stored | other.pending
                changes[source] = IndexEntry(pending=ids)
            with suppress(IndexConflictError):
                await self._record.save(changes, state.revision, self._runtime)
                return

    async def _save(self, changes: Mapping[str, IndexEntry | None]) -> None:
        if not changes:
            return
        await self._record.save(changes, self._revision, self._runtime)
        self._revision += 1
        for source, entry in changes.items():
            if entry is None:
                del self.entries[source]
            else:
                self.entries[source] = entry


def _batches(ids: Sequence[str], size: int) -> Iterator[list[str]]:
    rest = iter(ids)
    while several := list(islice(rest, size)):
        yield several


SOURCE = "source"
"""Key in the metadata of a document: the name of the file or page it is from."""

Splitter = Callable[[Sequence[Document]], Given[Sequence[Document]]]
"""Divides documents into chunks: a `DocumentSplitter`, or a function, plain or asynchronous."""

_log = Logger(__name__)


class DocumentIndex:
    """Keeps the documents of a set of sources in a vector store.

    ```python
    index = DocumentIndex(store, SqliteIndexRecord("docs.db"), MarkdownSplitter(model))
    report = index.update(read_documents("docs"))
    ```

    An update compares the content of each source with that of the last update, embeds new chunks,
    and deletes those that are gone. A source is named by `source` in the metadata of its documents.
    New chunks are stored before old ones are deleted, so searches find both for a moment. If an
    update is interrupted, the next one completes it; completed batches are not embedded again.

    The ids of chunks are hashes of their content, of the source and of the embedding model's name,
    so another model replaces all chunks; one with other dimensions needs a new store and record.
    The store may contain other documents. Run one update of an index at a time.

    Args:
        vector_store: The store.
        record: The record of what the index has stored. It describes the store: delete both
            together.
        splitter: Divides documents into chunks; None stores them as they are. A function is known
            by its name: after a change in it, update with `force=True`.
        batch_size: The number of chunks that are embedded and stored together.

    Raises:
        WrongTypeError: An argument has the wrong type.
        UsageError: *batch_size* is less than 1.
    """

    def __init__(
        self,
        vector_store: VectorStore,
        record: IndexRecord,
        splitter: Splitter | None = None,
        *,
        batch_size: int = 100,
    ) -> None:
        check_type("vector_store", vector_store, VectorStore)
        check_type("record", record, IndexRecord, 'SqliteIndexRecord("index.db")')
        if splitter is not None:
            check_callable("splitter", splitter, takes=("documents",))
        check_type("batch_size", batch_size, int)
        check_number("batch_size", batch_size, least=1)
        self._store = vector_store
        self._record = record
        self._splitter = splitter
        self._batch_size = batch_size

    async def update_all(
        self,
        documents: Iterable[Document],
        runtime: Runtime,
        *,
        keep: Iterable[str] = (),
        remove_missing: bool = True,
        force: bool = False,
        on_progress: OnProgress | None = None,
    ) -> IndexReport:
        """Make the index contain *documents*; see `update`."""
        if on_progress is not None:
            check_callable("on_progress", on_progress, takes=("progress",))
        begun = time.monotonic()
        kept = names(keep)
        sources = await runtime.invoke(self._sources, documents)
        update = IndexUpdate(self._store, self._record, await self._record.load(runtime), runtime)
        unchanged: list[str] = []
        for number, (source, (fingerprint, several)) in enumerate(sources.items(), 1):
            entry = update.entries.get(source, IndexEntry())
            if entry.fingerprint == fingerprint and not force:
                unchanged.append(source)
            else:
                wanted = await self._chunks(source, several, runtime)
                await update.add(source, fingerprint, wanted, self._batch_size, force=force)
            if on_progress is not None:
                seconds, known = time.monotonic() - begun, len(unchanged)
                await runtime.invoke(on_progress, Progress(len(sources), number, known, seconds))
        await update.flush()
        missing = [each for each in update.entries if each not in sources and each not in kept]
        if remove_missing:
            await update.remove(missing)
        report = update.report(unchanged)
        _log.info(
            "documents indexed",
            added=len(report.added),
            changed=len(report.changed),
            removed=len(report.removed),
            unchanged=len(report.unchanged),
            embedded=report.embedded,
        )
        return report

    def update(
        self,
        documents: Iterable[Document],
        *,
        keep: Iterable[str] = (),
        remove_missing: bool = True,
        force: bool = False,
        on_progress: OnProgress | None = None,
    ) -> IndexReport:
        """Make the index contain *documents* and no others, and return what has changed.

        Args:
            documents: All documents of the index; those of one source need not be adjacent.
            keep: Sources that stay in the index if they are not among *documents*, such as files
                that cannot be read at present.
            remove_missing: Whether other sources that are not among *documents* are removed.
            force: Whether to embed everything again, for a store that has lost documents.
            on_progress: Called when a source is finished, such as a `ProgressBar`.

        Raises:
            UsageError: A document has no source, or metadata that has no JSON form.
            IndexConflictError: Another update of the index is running.
            IndexRecordError: The record cannot be read or written.
            ProviderError: The embedding failed. What was completed before remains.
            VectorStoreError: The store failed. What was completed before remains.
        """
        return drive(
            self.update_all(
                documents,
                BLOCKING,
                keep=keep,
                remove_missing=remove_missing,
                force=force,
                on_progress=on_progress,
            )
        )

    async def aupdate(
        self,
        documents: Iterable[Document],
        *,
        keep: Iterable[str] = (),
        remove_missing: bool = True,
        force: bool = False,
        on_progress: OnProgress | None = None,
    ) -> IndexReport:
        """Make the index contain *documents* and no others; see `update`.

        A plain splitter is called in a worker thread, in which *documents* are iterated as well.
        """
        return await self.update_all(
            documents,
            ON_LOOP,
            keep=keep,
            remove_missing=remove_missing,
            force=force,
            on_progress=on_progress,
        )

    def chunks(self, documents: Iterable[Document]) -> list[Document]:
        """Return the chunks of *documents* with the ids that they have in the store.

        For a `KeywordDocumentRetriever` over the same chunks: a `HybridDocumentRetriever` joins
        results by their ids. Nothing is stored.

        Raises:
            UsageError: A document has no source, or metadata that has no JSON form.
        """
        return drive(self._all_chunks(documents, BLOCKING))

    async def achunks(self, documents: Iterable[Document]) -> list[Document]:
        """Return the chunks of *documents* with their ids in the store; see `chunks`."""
        return await self._all_chunks(documents, ON_LOOP)

    async def _all_chunks(self, documents: Iterable[Document], runtime: Runtime) -> list[Document]:
        found: list[Document] = []
        for source, several in (await runtime.invoke(_by_source, documents)).items():
            by_id = await self._chunks(source, several, runtime)
            found += [replace(chunk, id=id) for id, chunk in by_id.items()]
        return found

    def _sources(self, documents: Iterable[Document]) -> dict[str, tuple[str, list[Document]]]:
        """Return the fingerprint and the documents of each source."""
        settings = [_key(self._splitter), self._store.embedding_model.name]
        return {
            source: (_hash([*settings, [_content(each) for each in several]]), several)
            for source, several in _by_source(documents).items()
        }

    def _id(self, source: str, chunk: Document) -> str:
        model = self._store.embedding_model.name
        return _hash([self._record.name, model, source, *_content(chunk)])

    async def _chunks(
        self, source: str, documents: Sequence[Document], runtime: Runtime
    ) -> dict[str, Document]:
        """Return the chunks of a source by id."""
        chunks = documents
        if self._splitter is not None:
            chunks = await runtime.invoke(self._splitter, documents)
        # In a worker thread as well: a source may have many chunks.
        return await runtime.invoke(self._by_id, source, chunks)

    def _by_id(self, source: str, chunks: Iterable[Document]) -> dict[str, Document]:
        checked = [_with_source(chunk, source) for chunk in chunks]
        return {self._id(source, chunk): chunk for chunk in checked if chunk.text.strip()}


def _by_source(documents: Iterable[Document]) -> dict[str, list[Document]]:
    check_type("documents", documents, Iterable, "put a single one into a list")
    sources: defaultdict[str, list[Document]] = defaultdict(list)
    for document in documents:
        check_type("a document", document, Document, "read_documents(path) returns documents")
        source = document.metadata.get(SOURCE)
        if not isinstance(source, str) or not source:
            msg = f"the metadata of document {document.id!r} has no text `source`: the name by"
            msg += " which an index knows where the document is from"
            raise UsageError(msg)
        sources[source].append(document)
    return dict(sources)


def _content(document: Document) -> list[str]:
    return [document.text, metadata_json(document)]


def _with_source(chunk: Document, source: str) -> Document:
    check_type("a chunk", chunk, Document)
    if chunk.metadata.get(SOURCE) == source:
        return chunk
    return replace(chunk, metadata={**chunk.metadata, SOURCE: source})


def _key(splitter: Splitter | None) -> str:
    """Return a text that differs between splitters that divide a document differently."""
    if isinstance(splitter, DocumentSplitter):
        return splitter.key
    named: object = splitter if hasattr(splitter, "__qualname__") else type(splitter)
    return f"{getattr(named, '__module__', '')}.{getattr(named, '__qualname__', '')}"


def _hash(value: object) -> str:
    return digest(json.dumps(value).decode())
