"""An update of a `DocumentIndex`: stores and deletes chunks, and records what it does."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice

from chatclient.retrieval.ingestion.record import (
    IndexConflictError,
    IndexEntry,
    IndexRecord,
    IndexState,
)
from chatclient.retrieval.vector_store.store import Document, VectorStore
from chatclient.runtime.runtime import Runtime

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
            await self._announce(batch, finishes)
            chunks = [
                replace(chunk, id=id) for several in batch.values() for id, chunk in several.items()
            ]
            await self._store.put(chunks, self._runtime)
            self._embedded += len(chunks)
            await self._complete(batch, finishes)

    async def _announce(
        self, batch: Mapping[str, Mapping[str, Document]], finishes: Mapping[str, _Finish]
    ) -> None:
        """Record which chunks may be added to the store or deleted from now on."""
        changes = {}
        for source, entry in self._entries_of([*batch, *finishes]):
            finish = finishes.get(source)
            certain = entry.stored if finish is None else entry.stored & finish.wanted
            uncertain = (entry.stored - certain) | entry.pending | batch.get(source, {}).keys()
            changes[source] = IndexEntry("", certain, uncertain)
        await self._save(changes)

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
