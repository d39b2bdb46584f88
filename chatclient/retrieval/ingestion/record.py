"""The record of a `DocumentIndex`: which chunks of which sources are in the vector store."""

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from chatclient._internal import json
from chatclient._internal.sqlite import BUSY_SECONDS, write_ahead
from chatclient.errors import ChatClientError
from chatclient.memory.encoding import restored, storable
from chatclient.runtime.runtime import Runtime
from chatclient.runtime.threads import ForkSafeLock

T = TypeVar("T")


class IndexRecordError(ChatClientError):
    """The record of a document index cannot be read or written; see the cause."""


class IndexConflictError(IndexRecordError):
    """Another update of the same index has changed its record; wait for it, and update again."""


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """What the vector store contains of a source.

    Attributes:
        fingerprint: The hash of the content that is indexed completely; empty during an update.
        stored: The ids of the chunks that are in the store.
        pending: The ids of other chunks that may be in the store, during an update or after an
            interrupted one.
    """

    fingerprint: str = ""
    stored: frozenset[str] = frozenset()
    pending: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class IndexState:
    """The entries of an index at some time.

    Attributes:
        entries: The entries by source.
        revision: The number of changes before.
    """

    entries: Mapping[str, IndexEntry]
    revision: int = 0


class IndexRecord(ABC):
    """Stores the entries of a `DocumentIndex`; implementations wait with the runtime's methods.

    Attributes:
        name: The name of the index. Indexes that share a vector store need different names.
    """

    name: str = "documents"

    @abstractmethod
    async def load(self, runtime: Runtime) -> IndexState:
        """Return all entries.

        Raises:
            IndexRecordError: They cannot be read.
        """

    @abstractmethod
    async def save(
        self, changes: Mapping[str, IndexEntry | None], revision: int, runtime: Runtime
    ) -> None:
        """Store entries by source, None for a source that is removed, all or nothing.

        The revision increases by one.

        Raises:
            IndexConflictError: The record is not at *revision*; nothing was changed.
            IndexRecordError: They cannot be stored.
        """


class InMemoryIndexRecord(IndexRecord):
    """A record in this process, for an `InMemoryVectorStore`. Thread-safe.

    Args:
        name: The name of the index.
    """

    def __init__(self, name: str = "documents") -> None:
        self.name = name
        self._lock = ForkSafeLock()
        self._state = IndexState({})

    async def load(self, runtime: Runtime) -> IndexState:  # noqa: ARG002 - no I/O
        """Return all entries."""
        return self._state

    async def save(
        self,
        changes: Mapping[str, IndexEntry | None],
        revision: int,
        runtime: Runtime,  # noqa: ARG002
    ) -> None:
        """Store entries.

        Raises:
            IndexConflictError: The record is not at *revision*.
        """
        with self._lock:
            check_revision(self._state.revision, revision)
            entries = {**self._state.entries, **changes}
            kept = {source: entry for source, entry in entries.items() if entry is not None}
            self._state = IndexState(kept, revision + 1)


_SCHEMA = """
CREATE TABLE IF NOT EXISTS document_index (
    name TEXT NOT NULL,
    source TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    stored TEXT NOT NULL,
    pending TEXT NOT NULL,
    PRIMARY KEY (name, source)
);
CREATE TABLE IF NOT EXISTS document_index_revision (
    name TEXT PRIMARY KEY,
    revision INTEGER NOT NULL
);
"""


class SqliteIndexRecord(IndexRecord):
    """A record in a SQLite file, which may be that of a `SqliteVectorStore`.

    The file is open during each operation only. Safe for threads and processes.

    Args:
        path: The file, created if it does not exist.
        name: The name of the index; a file may contain records of several.
    """

    def __init__(self, path: str | Path, name: str = "documents") -> None:
        self._path = Path(path)
        self.name = name

    def __repr__(self) -> str:
        return f"SqliteIndexRecord({str(self._path)!r}, {self.name!r})"

    async def load(self, runtime: Runtime) -> IndexState:
        """Return all entries.

        Raises:
            IndexRecordError: The file cannot be read.
        """
        return await runtime.finish(self._do, self._load)

    async def save(
        self, changes: Mapping[str, IndexEntry | None], revision: int, runtime: Runtime
    ) -> None:
        """Store entries in one transaction.

        Raises:
            IndexConflictError: The record is not at *revision*.
            IndexRecordError: The file cannot be written.
        """
        await runtime.finish(self._do, lambda file: self._save(file, changes, revision))

    def _do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            with closing(sqlite3.connect(self._path, timeout=BUSY_SECONDS)) as file:
                write_ahead(file)
                file.executescript(_SCHEMA)
                file.isolation_level = None
                file.execute("BEGIN IMMEDIATE")
                with file:
                    return work(file)
        except sqlite3.Error as error:
            msg = f"the record {self._path} of a document index failed: {error}"
            raise IndexRecordError(msg) from error

    def _load(self, file: sqlite3.Connection) -> IndexState:
        rows = file.execute(
            "SELECT source, fingerprint, stored, pending FROM document_index WHERE name = ?",
            (self.name,),
        )
        entries = {
            restored(source): IndexEntry(
                fingerprint, *(frozenset(json.loads(ids)) for ids in several)
            )
            for source, fingerprint, *several in rows
        }
        return IndexState(entries, self._revision(file))

    def _revision(self, file: sqlite3.Connection) -> int:
        query = "SELECT revision FROM document_index_revision WHERE name = ?"
        found = file.execute(query, (self.name,)).fetchone()
        return 0 if found is None else int(found[0])

    def _save(
        self, file: sqlite3.Connection, changes: Mapping[str, IndexEntry | None], revision: int
    ) -> None:
        check_revision(self._revision(file), revision)
        file.execute(
            "INSERT OR REPLACE INTO document_index_revision VALUES (?, ?)",
            (self.name, revision + 1),
        )
        for source, entry in changes.items():
            if entry is None:
                query = "DELETE FROM document_index WHERE name = ? AND source = ?"
                file.execute(query, (self.name, storable(source)))
            else:
                file.execute(
                    "INSERT OR REPLACE INTO document_index VALUES (?, ?, ?, ?, ?)",
                    (self.name, storable(source), *encoded(entry)),
                )


def encoded(entry: IndexEntry) -> tuple[str, str, str]:
    """Return the fields of *entry* as texts."""
    stored, pending = (json.dumps(sorted(ids)).decode() for ids in (entry.stored, entry.pending))
    return entry.fingerprint, stored, pending


def decoded(fingerprint: str, stored: str, pending: str) -> IndexEntry:
    """Return the entry that `encoded` has encoded."""
    return IndexEntry(fingerprint, frozenset(json.loads(stored)), frozenset(json.loads(pending)))


def check_revision(actual: int, expected: int) -> None:
    """Check that a record is at the revision from which a change was computed.

    Raises:
        IndexConflictError: It is not.
    """
    if actual != expected:
        raise conflict()


def conflict() -> IndexConflictError:
    """Return the error for an update that meets another one."""
    msg = "another update of this document index is running, or has just ended; update again"
    return IndexConflictError(msg)
