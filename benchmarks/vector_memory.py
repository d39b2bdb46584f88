"""Time of a turn with vector-store memory, in stores of 100, 1,000 and 10,000 entries.

    python benchmarks/vector_memory.py [--repeat 200] [--sizes 100 1000 10000]

The entries are those of ten conversations, so that each search has to keep to one of them. For
each store: the wall time of a turn through a client, which searches and adds two entries, beside
that of the same turn without a memory. Model and embedding model answer at once; vectors have 384
numbers. It is the first decile of many runs, so that a busy machine disturbs it little.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from zlib import crc32

import numpy as np

from chatclient import ChatClient, Runtime
from chatclient.advisors import VectorStoreChatMemoryAdvisor
from chatclient.providers import EmbeddingModel, Vector
from chatclient.retrieval import Document, InMemoryVectorStore, SqliteVectorStore, VectorStore
from chatclient.testing import ScriptedModel

CONVERSATIONS = 10


class Instant(EmbeddingModel):
    """Returns precomputed random vectors."""

    def __init__(self) -> None:
        self._vectors: list[Vector] = np.random.default_rng(7).standard_normal((997, 384)).tolist()

    async def embed_batch(
        self,
        texts: Sequence[str],
        runtime: Runtime,  # noqa: ARG002 - there is nothing to wait for
    ) -> list[Vector]:
        """Return a vector for each text."""
        return [self._vectors[crc32(text.encode()) % len(self._vectors)] for text in texts]


def stores(folder: str) -> dict[str, Callable[[], VectorStore]]:
    """Return a factory for each store."""
    names = count()
    return {
        "memory": lambda: InMemoryVectorStore(Instant()),
        "sqlite": lambda: SqliteVectorStore(Path(folder, f"{next(names)}.db"), Instant()),
    }


def filled(store: VectorStore, size: int) -> VectorStore:
    """Add *size* entries to *store* and return it."""
    store.add(
        Document(
            f"Entry number {number} is about something else than all the others.",
            {
                "conversation_id": f"c{number % CONVERSATIONS}",
                "message_type": "user",
                "created": float(number),
            },
        )
        for number in range(size)
    )
    return store


def turn(client: ChatClient, repeat: int) -> float:
    """Return the seconds that a turn takes."""
    taken = []
    for number in range(repeat):
        request = client.prompt(f"What was number {number} about?").conversation("c0")
        started = time.perf_counter()
        request.call().content()
        taken.append(time.perf_counter() - started)
    return statistics.quantiles(taken, n=10)[0]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeat", type=int, default=200)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1000, 10_000])
    arguments = parser.parse_args()
    bare = ChatClient.builder(ScriptedModel(lambda _: "It was about something else.")).build()
    print(f"{'store':8} {'entries':>8} {'turn':>10}   microseconds")
    print(f"{'none':8} {'':>8} {turn(bare, arguments.repeat) * 1e6:10,.0f}")
    with tempfile.TemporaryDirectory() as folder:
        for kind, make in stores(folder).items():
            for size in arguments.sizes:
                with filled(make(), size) as store:
                    memory = VectorStoreChatMemoryAdvisor(store)
                    client = bare.mutate().default_advisors(memory).build()
                    seconds = turn(client, arguments.repeat)
                print(f"{kind:8} {size:8,} {seconds * 1e6:10,.0f}")


if __name__ == "__main__":
    main()
