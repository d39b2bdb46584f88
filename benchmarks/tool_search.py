"""Quality, speed and memory of tool search, compared with other implementations.

    python benchmarks/tool_search.py [quality] [cost] [sessions] [tokens] [--semantic] [--every N]

Without a name, all parts run. The data (`catalog.jsonl`, `queries.jsonl`) is not part of the
project; its folder is `--data` or `../shared/data/toolsearch`. `--semantic` adds the vector and the
hybrid index with the local embedding model: some minutes for 16,000 tools, kept in a file beside
temporary ones for the next time. bm25s is left out where it is not installed.

Queries are split in two by the hash of their ids: what helps one half only is chance. No query is
unseen, for the constants of the ranking were chosen on all of them, by leaving out one source at a
time. CPU times are of this thread, so that a busy machine disturbs them less.
"""

import argparse
import copy
import gc
import hashlib
import importlib.util
import json
import random
import re
import sqlite3
import statistics
import tempfile
import time
import tracemalloc
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from chatclient import Runtime
from chatclient.providers import EmbeddingModel, EmbeddingOptions, MiniLmEmbeddingModel, Vector
from chatclient.retrieval import InMemoryVectorStore
from chatclient.tools.search import (
    HybridToolIndex,
    KeywordToolIndex,
    ToolIndex,
    ToolReference,
    ToolSearchRequest,
    VectorToolIndex,
)

Json = dict[str, Any]
Search = Callable[[str, int], Sequence[str]]
Method = Callable[[Sequence[ToolReference]], Search]

DATA = Path(__file__).parent.parent.parent / "shared" / "data" / "toolsearch"
PARTS = ("quality", "cost", "sessions", "tokens")
DEPTHS = (1, 3, 5, 10)
_STEPS = {"shared words": 10}
_MEASURED = 10_000  # tools up to which memory is traced, which takes long


def read(data: Path) -> tuple[list[Json], list[Json]]:
    """Return the tools and the queries; exit if the data is missing."""
    if not (data / "catalog.jsonl").exists():
        raise SystemExit(f"no data in {data}; --data names the folder of catalog.jsonl")
    return tuple(  # type: ignore[return-value]
        [json.loads(line) for line in (data / name).read_text().splitlines()]
        for name in ("catalog.jsonl", "queries.jsonl")
    )


def reference(tool: Json) -> ToolReference:
    """Return a reference to a tool."""
    return ToolReference(tool["id"], tool["description"], tool["parameters"])


# --- implementations ---


def indexed(make: Callable[[], ToolIndex]) -> Method:
    """Return a search function over a tool index."""

    def build(references: Sequence[ToolReference]) -> Search:
        index = make()
        index.index_tools("bench", tuple(references))
        return lambda query, k: index.search(ToolSearchRequest("bench", query, k)).tool_names

    return build


def shared_words(references: Sequence[ToolReference]) -> Search:
    """Rank by the number of shared words, as several agent frameworks do."""
    word = re.compile(r"[a-z0-9]+")
    bags = [
        (r.tool_name, set(word.findall(f"{r.tool_name} {r.summary}".lower()))) for r in references
    ]

    def search(query: str, k: int) -> Sequence[str]:
        wanted = set(word.findall(query.lower()))
        ranked = sorted(((len(wanted & bag), name) for name, bag in bags), key=lambda p: -p[0])
        return [name for score, name in ranked[:k] if score]

    return search


def full_text(references: Sequence[ToolReference]) -> Search:
    """SQLite's FTS5 with default settings: unicode61, name and description, terms joined by OR."""
    base = sqlite3.connect(":memory:")
    base.execute("CREATE VIRTUAL TABLE tools USING fts5(name, summary)")
    rows = [(r.tool_name, r.summary) for r in references]
    base.executemany("INSERT INTO tools VALUES (?, ?)", rows)

    def search(query: str, k: int) -> Sequence[str]:
        words = dict.fromkeys(re.findall(r"\w+", query.lower()))
        terms = " OR ".join(f'"{word}"' for word in words)
        select = "SELECT name FROM tools WHERE tools MATCH ? ORDER BY rank LIMIT ?"
        return [name for (name,) in base.execute(select, (terms, k))] if terms else []

    return search


def bm25s(references: Sequence[ToolReference]) -> Search:
    """bm25s with default settings, over name and description."""
    import bm25s as library  # type: ignore[import-untyped,import-not-found,unused-ignore]

    names = [r.tool_name for r in references]
    retriever = library.BM25()
    texts = [f"{r.tool_name} {r.summary}" for r in references]
    retriever.index(library.tokenize(texts, show_progress=False), show_progress=False)

    def search(query: str, k: int) -> Sequence[str]:
        tokens = library.tokenize([query], show_progress=False)
        found, scores = retriever.retrieve(tokens, k=min(k, len(names)), show_progress=False)
        return [names[i] for i, s in zip(found[0], scores[0], strict=True) if s > 0]

    return search


class Remembered(EmbeddingModel):
    """An embedding model that caches vectors in a file."""

    def __init__(self, model: EmbeddingModel, path: Path) -> None:
        self._model = model
        self._path = path
        self._known: dict[bytes, array[float]] = {}
        if path.exists():
            content = path.read_bytes()
            width = 16 + 4 * 384
            for at in range(0, len(content), width):
                self._known[content[at : at + 16]] = array("f", content[at + 16 : at + width])

    @property
    def options(self) -> EmbeddingOptions:
        """The dimensions of the model."""
        return self._model.options

    async def embed_batch(self, texts: Sequence[str], runtime: Runtime) -> list[Vector]:
        """Return the vectors of *texts*, from the file if possible."""
        keys = [hashlib.blake2b(text.encode(), digest_size=16).digest() for text in texts]
        new = {k: t for k, t in zip(keys, texts, strict=True) if k not in self._known}
        if new:
            vectors = await self._model.embed_batch(list(new.values()), runtime)
            with self._path.open("ab") as file:
                for key, vector in zip(new, vectors, strict=True):
                    self._known[key] = array("f", vector)
                    file.write(key + self._known[key].tobytes())
        return [list(self._known[key]) for key in keys]


def methods(*, semantic: bool) -> dict[str, Method]:
    """Return the implementations by name."""
    found: dict[str, Method] = {"shared words": shared_words, "SQLite FTS5": full_text}
    if importlib.util.find_spec("bm25s") is None:
        print("(bm25s is not installed and left out)")
    else:
        found["bm25s"] = bm25s
    found["KeywordToolIndex"] = indexed(KeywordToolIndex)
    if semantic:
        path = Path(tempfile.gettempdir()) / "chatclient-minilm-vectors.bin"
        model = Remembered(MiniLmEmbeddingModel(), path)

        def vector() -> VectorToolIndex:
            return VectorToolIndex(InMemoryVectorStore(model))

        found["VectorToolIndex"] = indexed(vector)
        found["HybridToolIndex"] = indexed(lambda: HybridToolIndex(KeywordToolIndex(), vector()))
    return found


# --- quality ---


def is_in_first_half(query: Json) -> bool:
    """Return the half of the data set that contains a query."""
    return hashlib.blake2b(query["id"].encode(), digest_size=8).digest()[0] % 2 == 0


def ranks(found: Sequence[str], query: Json) -> list[int]:
    """Return the rank of each expected tool, 99 if it was not found."""
    others = query.get("alts", {})
    return [
        next(
            (i for i, name in enumerate(found) if name == gold or name in others.get(gold, ())), 99
        )
        for gold in query["gold"]
    ]


def figures(results: Sequence[Sequence[int]]) -> str:
    """Return recall at each depth, and the mean reciprocal rank."""
    recalls = [
        statistics.mean(sum(rank < depth for rank in each) / len(each) for each in results)
        for depth in DEPTHS
    ]
    mrr = statistics.mean(
        1 / (1 + min(each)) if min(each) < DEPTHS[-1] else 0.0 for each in results
    )
    return " | ".join(f"{value:.3f}" for value in (*recalls, mrr))


def quality(tools: list[Json], queries: list[Json], named: dict[str, Method], every: int) -> None:
    """Print recall and rank of the expected tools."""
    print("\n## Quality: recall@1 | @3 | @5 | @10 | MRR\n")
    for scope in ("own", "full"):
        for name, method in named.items():
            searches: dict[str, Search] = {}
            catalogs: defaultdict[str, list[ToolReference]] = defaultdict(list)
            for tool in tools:
                catalogs["full" if scope == "full" else tool["source"]].append(reference(tool))
            # Slow searches use every tenth query.
            step = 1 if scope == "own" else _STEPS.get(name, 1)
            asked = queries[:: step * every]
            results: dict[bool, list[list[int]]] = {True: [], False: []}
            for query in asked:
                key = "full" if scope == "full" else query["source"].removesuffix("-agent")
                if key not in searches:
                    searches[key] = method(catalogs[key])
                results[is_in_first_half(query)].append(
                    ranks(searches[key](query["query"], 10), query)
                )
            for half, label in ((True, "one half"), (False, "other")):
                print(f"{scope:5}| {name:17}| {label:8}| {figures(results[half])}", flush=True)
            both = results[True] + results[False]
            print(f"{scope:5}| {name:17}| {'all':8}| {figures(both)}", flush=True)


# --- cost ---


def catalog_of(tools: list[Json], size: int) -> list[ToolReference]:
    """Return *size* tools: real ones, then copies with numbers in their names."""
    chosen = random.Random(7).sample(tools, min(size, len(tools)))
    copies = (
        {**tool, "id": f"{tool['id']}_{round_}"}
        for round_ in range(1, 1 + size // len(tools))
        for tool in tools
    )
    found = [reference(tool) for tool in chosen]
    return found + [
        reference(tool) for _, tool in zip(range(size - len(found)), copies, strict=False)
    ]


def percentiles(search: Search, queries: Sequence[Json]) -> tuple[float, float]:
    """Return the median and the 95th percentile of the CPU time of a search, in ms."""
    for query in queries[:20]:
        search(query["query"], 5)
    times = []
    for query in queries:
        started = time.thread_time()
        search(query["query"], 5)
        times.append(1e3 * (time.thread_time() - started))
    times.sort()
    return statistics.median(times), times[int(0.95 * len(times))]


def cost(tools: list[Json], queries: list[Json], named: dict[str, Method]) -> None:
    """Print the time of building and searching, and the memory of the index."""
    print("\n## Cost: tools | method | µs to build a tool | KB a tool | CPU ms p50 | p95\n")
    for size in (100, 1_000, 10_000, 100_000):
        references = catalog_of(tools, size)
        for name, method in named.items():
            if name in ("VectorToolIndex", "HybridToolIndex"):
                continue
            asked = queries[:: 100 if name == "shared words" else 15]
            for each in references:
                _ = each.fingerprint  # belongs to the tool, not to the index
            started = time.thread_time()
            search = method(references)
            built = 1e6 * (time.thread_time() - started) / size
            p50, p95 = percentiles(search, asked)
            held = kilobytes(method, references) / size if size <= _MEASURED else float("nan")
            print(
                f"{size:7}| {name:17}| {built:6.0f} | {held:5.2f} | {p50:8.2f} | {p95:8.2f}",
                flush=True,
            )


def kilobytes(method: Method, references: Sequence[ToolReference]) -> float:
    """Return the memory of an index of *references*."""
    gc.collect()
    tracemalloc.start()
    search = method(references)
    gc.collect()
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    del search
    return held / 1024


# --- sessions ---


def at_random(index: ToolIndex, count: int) -> Search:
    """Return a function that searches each of *count* sessions in turn."""
    chosen = random.Random(3)

    def search(query: str, k: int) -> Sequence[str]:
        session = f"session-{chosen.randrange(count)}"
        return index.search(ToolSearchRequest(session, query, k)).tool_names

    return search


def sessions(tools: list[Json], queries: list[Json]) -> None:
    """Print the memory of many sessions with the same tools, compared with one."""
    print("\n## 10,000 sessions over one catalog of 1,000 tools\n")
    references = tuple(catalog_of(tools, 1_000))
    for count in (1, 10_000):
        gc.collect()
        tracemalloc.start()
        index = KeywordToolIndex()
        for number in range(count):
            # Equal but not identical references, as separate sessions create them.
            given = references if number % 100 else tuple(copy.copy(r) for r in references)
            index.index_tools(f"session-{number}", given)
        gc.collect()
        held = tracemalloc.get_traced_memory()[0] / 1024
        tracemalloc.stop()
        search = at_random(index, count)
        p50, p95 = percentiles(search, queries[::15])
        print(f"{count:6} sessions: {held:9.0f} KB, CPU ms p50 {p50:.2f}, p95 {p95:.2f}")
    index = KeywordToolIndex()
    index.index_tools("one", references)
    one_more = (*references, ToolReference("brand_new_tool", "Does something that is new."))
    started = time.thread_time()
    index.index_tools("one", one_more)
    print(f"one tool more: {1e3 * (time.thread_time() - started):.2f} ms CPU")


# --- tokens ---


def tokens(tools: list[Json], queries: list[Json]) -> None:
    """Print the tokens that are sent with and without tool search."""
    print("\n## Tool definitions per request, in characters / 4 (a token of English JSON)\n")
    search_tool = 430 // 4
    for size in (10, 50, 200, 1_000, 5_000):
        chosen = random.Random(11).sample(tools, size)
        sizes = {
            t["id"]: len(json.dumps([t["name"], t["description"], t["parameters"]])) // 4 + 12
            for t in chosen
        }
        search = indexed(KeywordToolIndex)([reference(tool) for tool in chosen])
        found = [sum(map(sizes.__getitem__, search(q["query"], 5))) for q in queries[::30]]
        whole = sum(sizes.values())
        sent = 2 * search_tool + statistics.median(found)
        print(
            f"{size:5} tools: all {whole:7}; search, then five found: {sent:5.0f}"
            f" in two requests ({100 * (1 - sent / whole):.1f} % less than one with all)"
        )


def chosen_parts(names: Sequence[str]) -> Iterator[str]:
    """Yield the selected parts in order."""
    return (part for part in PARTS if not names or part in names)


def main() -> None:
    """Run the parts that the command line selects."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="what to measure")
    parser.add_argument("--semantic", action="store_true", help="with the local embedding model")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--every", type=int, default=1, help="quality: take every nth query only")
    parser.add_argument("--only", help="methods whose names have this in them")
    arguments = parser.parse_args()
    tools, queries = read(arguments.data)
    named = methods(semantic=arguments.semantic)
    if arguments.only:
        named = {name: m for name, m in named.items() if arguments.only in name}
    for part in chosen_parts(arguments.parts):
        match part:
            case "quality":
                quality(tools, queries, named, arguments.every)
            case "cost":
                cost(tools, queries, named)
            case "sessions":
                sessions(tools, queries)
            case _:
                tokens(tools, queries)


if __name__ == "__main__":
    main()
