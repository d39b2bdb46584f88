"""`DocumentIndex`: keeps the documents of a set of sources in a vector store, incrementally.

A vector store cannot list what it contains, so an `IndexRecord` lists the ids of the chunks of each
source. It is written before and after each change of the store. At any time it names all chunks
that may be in the store, and it has a fingerprint of a source only if exactly its present chunks
are. An interrupted update is therefore completed by the next one.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from chatclient._internal import json
from chatclient._internal.checks import check_callable, check_number, check_type, names
from chatclient._internal.logging import Logger
from chatclient.errors import UsageError
from chatclient.memory.encoding import digest
from chatclient.retrieval.ingestion.record import IndexEntry, IndexRecord
from chatclient.retrieval.ingestion.splitter import DocumentSplitter
from chatclient.retrieval.ingestion.update import IndexReport, IndexUpdate
from chatclient.retrieval.query import Given
from chatclient.retrieval.vector_store.store import Document, VectorStore, metadata_json
from chatclient.runtime.blocking import drive
from chatclient.runtime.runtime import BLOCKING, ON_LOOP, Runtime

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
        record: The record of what the index has stored. It belongs to the store: delete both
            together.
        splitter: Divides documents into chunks; None stores them as they are. A function is known
            by its name: after a change in it, update with `force=True`.
        batch_size: The number of chunks that are embedded and stored at once.

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
    ) -> IndexReport:
        """Make the index contain *documents*; see `update`."""
        kept = names(keep)
        sources = await runtime.invoke(self._sources, documents)
        update = IndexUpdate(self._store, self._record, await self._record.load(runtime), runtime)
        unchanged: list[str] = []
        for source, (fingerprint, several) in sources.items():
            entry = update.entries.get(source, IndexEntry())
            if entry.fingerprint == fingerprint and not force:
                unchanged.append(source)
                continue
            wanted = await self._chunks(source, several, runtime)
            await update.add(source, fingerprint, wanted, self._batch_size, force=force)
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
    ) -> IndexReport:
        """Make the index contain *documents* and no others, and return what has changed.

        Args:
            documents: All documents of the index; those of one source may stand apart.
            keep: Sources that stay in the index if they are not among *documents*, such as files
                that cannot be read at present.
            remove_missing: Whether other sources that are not among *documents* are removed.
            force: Whether to embed everything again, for a store that has lost documents.

        Raises:
            UsageError: A document has no source, or metadata that has no JSON form.
            IndexConflictError: Another update of the index is running.
            IndexRecordError: The record cannot be read or written.
            ProviderError: The embedding failed. What was completed before remains.
            VectorStoreError: The store failed. What was completed before remains.
        """
        return drive(
            self.update_all(
                documents, BLOCKING, keep=keep, remove_missing=remove_missing, force=force
            )
        )

    async def aupdate(
        self,
        documents: Iterable[Document],
        *,
        keep: Iterable[str] = (),
        remove_missing: bool = True,
        force: bool = False,
    ) -> IndexReport:
        """Make the index contain *documents* and no others; see `update`.

        A plain splitter is called in a worker thread, in which *documents* are iterated as well.
        """
        return await self.update_all(
            documents, ON_LOOP, keep=keep, remove_missing=remove_missing, force=force
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
