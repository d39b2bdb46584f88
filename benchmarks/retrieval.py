"""Quality of retrieval by words, by meaning and by both, on the data of `docs/rerankers.md`.

    python benchmarks/retrieval.py [pages] [tools]

*pages*: the sections of `docs/`; a question is the heading of a section, which is not part of its
text. *tools*: 2,500 tools as documents, with 500 queries of users; the data is not part of the
project (see `tool_search.py`). Vectors are those of the local embedding model: some minutes.
"""

import argparse
import json
import math
import random
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from chatclient import Runtime
from chatclient.providers import MiniLmEmbeddingModel
from chatclient.retrieval import (
    Document,
    HybridDocumentRetriever,
    InMemoryVectorStore,
    KeywordDocumentRetriever,
    Query,
    VectorStoreDocumentRetriever,
)
from chatclient.retrieval.keywords.tokenizer import Words
from chatclient.testing import RetrievalCase, evaluate_retriever

ROOT = Path(__file__).parent.parent
TOOLS = ROOT.parent / "shared" / "data" / "toolsearch"
SHORTEST = 150  # characters of a section
DEEP, SHOWN = 30, 10  # documents of the parts of the hybrid retriever, and of each retriever

Data = tuple[list[Document], list[RetrievalCase]]


class Bm25:
    """BM25 as in textbooks, with the same stems; for comparison."""

    def __init__(self, documents: Sequence[Document], k1: float = 1.2, b: float = 0.75) -> None:
        self._words = Words()
        self._documents = documents
        self._counts = [Counter(self._words.terms(document.text)) for document in documents]
        lengths = [counts.total() for counts in self._counts]
        mean = sum(lengths) / len(lengths)
        self._norms = [k1 * (1 - b + b * length / mean) for length in lengths]
        self._frequencies = Counter(term for counts in self._counts for term in counts)
        self._k1 = k1

    async def __call__(self, query: Query, runtime: Runtime) -> Sequence[Document]:
        """Return the best documents."""
        del runtime
        terms = set(self._words.terms(query.text))
        scores = [self._score(terms, number) for number in range(len(self._documents))]
        best = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)[:SHOWN]
        return [self._documents[number] for number in best if scores[number]]

    def _score(self, terms: set[str], number: int) -> float:
        counts, total = self._counts[number], 0.0
        for term in terms & counts.keys():
            frequency, size = self._frequencies[term], len(self._documents)
            weight = math.log(1 + (size - frequency + 0.5) / (frequency + 0.5))
            total += weight * counts[term] * (self._k1 + 1) / (counts[term] + self._norms[number])
        return total


def sections(page: Path) -> Iterator[tuple[str, str]]:
    """Yield the headings of a page with their texts."""
    heading, lines, is_code = "", list[str](), False
    for line in [*page.read_text(encoding="utf-8").splitlines(), "# "]:
        is_code ^= line.startswith("```")
        if not is_code and re.match(r"#{1,4} ", line):
            yield heading, "\n".join(lines).strip()
            heading, lines = line.lstrip("# ").strip("`"), []
        else:
            lines.append(line)


def pages() -> Data:
    """Return the sections of the documentation."""
    documents: dict[str, Document] = {}
    cases = []
    for page in sorted((ROOT / "docs").glob("*.md")):
        for heading, text in sections(page):
            if heading and len(text) > SHORTEST:
                id = f"{page.stem}#{heading}"
                documents[id] = Document(text, {}, id)
                if len(heading.split()) > 1:
                    cases.append(RetrievalCase(heading, id))
    return list(documents.values()), cases


def tools(size: int = 2500, queries: int = 500) -> Data:
    """Return tools as documents, among them those that the queries need."""
    catalog, asked = (
        [json.loads(line) for line in (TOOLS / name).read_text().splitlines()]
        for name in ("catalog.jsonl", "queries.jsonl")
    )
    shuffled = random.Random(1)
    shuffled.shuffle(asked)
    cases = [RetrievalCase(each["query"], each["gold"]) for each in asked[:queries]]
    needed = {id for case in cases for id in case.relevant}
    others = [tool for tool in catalog if tool["id"] not in needed]
    shuffled.shuffle(others)
    chosen = [tool for tool in catalog if tool["id"] in needed] + others
    documents = [
        Document(f"{re.sub(r'[._]', ' ', tool['name'])}: {tool['description']}", {}, tool["id"])
        for tool in chosen[:size]
    ]
    return documents, cases


def measure(name: str, data: Data) -> None:
    """Print the quality of each retriever."""
    documents, cases = data
    store = InMemoryVectorStore(MiniLmEmbeddingModel(threads=2))
    store.add(documents)
    hybrid = HybridDocumentRetriever(
        VectorStoreDocumentRetriever(store, top_k=DEEP),
        KeywordDocumentRetriever(documents, top_k=DEEP),
        top_k=SHOWN,
    )
    print(f"{name}: {len(documents)} documents, {len(cases)} questions")
    for label, retriever in (
        ("BM25, for comparison", Bm25(documents)),
        ("keywords", KeywordDocumentRetriever(documents, top_k=SHOWN)),
        ("vectors", VectorStoreDocumentRetriever(store, top_k=SHOWN)),
        ("both", hybrid),
    ):
        started = time.process_time()
        five = evaluate_retriever(retriever, cases, k=5).totals
        spent = 1000 * (time.process_time() - started) / len(cases)
        ten = evaluate_retriever(retriever, cases, k=10).totals
        print(
            f"  {label:22} hit rate@5 {five['hit_rate']:.3f}  recall@5 {five['recall']:.3f}  "
            f"MRR@10 {ten['mrr']:.3f}  nDCG@10 {ten['ndcg']:.3f}  {spent:.2f} ms"
        )


def main() -> None:
    """Run the parts that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="*", default=["pages", "tools"])
    for name in parser.parse_args().data:
        measure(name, {"pages": pages, "tools": tools}[name]())


if __name__ == "__main__":
    main()
