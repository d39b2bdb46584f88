"""Joins and filters retrieved documents."""

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from chatclient._internal.checks import check_number
from chatclient.chat.document import Document
from chatclient.retrieval.query import Query
from chatclient.runtime.runtime import Runtime

RANK_CONSTANT = 60
"""The default constant that is added to ranks, of Cormack, Clarke and Büttcher (SIGIR 2009)."""

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True, slots=True)
class ConcatenationJoiner:
    """Sorts all documents by score, the best first; duplicates keep their best score.

    Scores must be comparable, so all retrievers should be of the same type. Documents without a
    score are last, in their original order.
    """

    def __call__(self, results: Sequence[Sequence[Document]]) -> list[Document]:
        """Return *results* as one list."""
        best: dict[str, Document] = {}
        for document in (document for result in results for document in result):
            earlier = best.get(document.id)
            if earlier is None or _score(document) > _score(earlier):
                best[document.id] = document
        return sorted(best.values(), key=_score, reverse=True)


@dataclass(frozen=True, slots=True)
class ReciprocalRankJoiner:
    """Sorts documents by reciprocal rank fusion, for retrievers with incomparable scores.

    Attributes:
        k: A constant that is added to ranks; greater values reduce the weight of the first ranks.

    Raises:
        UsageError: *k* is negative.
    """

    k: int = RANK_CONSTANT

    def __post_init__(self) -> None:
        check_number("k", self.k)

    def __call__(self, results: Sequence[Sequence[Document]]) -> list[Document]:
        """Return *results* as one list, with the fused scores."""
        documents: dict[str, Document] = {}
        for document in (document for result in results for document in result):
            documents.setdefault(document.id, document)
        scores = fused_ranks([[document.id for document in result] for result in results], self.k)
        joined = [documents[id].scored(score) for id, score in scores.items()]
        return sorted(joined, key=_score, reverse=True)


def fused_ranks(rankings: Iterable[Iterable[T]], k: float = RANK_CONSTANT) -> dict[T, float]:
    """Return the fused score of each item: the sum of `1 / (k + rank)` over all rankings.

    Items keep the order in which they first occur. One that occurs several times in a ranking
    counts at its best rank.
    """
    scores: defaultdict[T, float] = defaultdict(float)
    for ranking in rankings:
        for rank, item in enumerate(dict.fromkeys(ranking), 1):
            scores[item] += 1 / (k + rank)
    return dict(scores)


@dataclass(frozen=True, slots=True)
class DocumentLimit:
    """Keeps the first documents up to a limit.

    Attributes:
        max_documents: The maximum number of documents, or None.
        max_characters: The maximum length of all texts, or None. Documents that exceed it are
            skipped; later ones may fit.

    Raises:
        UsageError: A limit is negative.
    """

    max_documents: int | None = None
    max_characters: int | None = None

    params: ClassVar[Collection[str]] = ()

    def __post_init__(self) -> None:
        for name in ("max_documents", "max_characters"):
            most = getattr(self, name)
            if most is not None:
                check_number(name, most)

    async def __call__(
        self, _query: Query, documents: Sequence[Document], _runtime: Runtime
    ) -> list[Document]:
        """Return the *documents* within the limits."""
        remaining = float("inf") if self.max_characters is None else self.max_characters
        kept: list[Document] = []
        for document in documents:
            if len(document.text) <= remaining and len(kept) != self.max_documents:
                kept.append(document)
                remaining -= len(document.text)
        return kept


def _score(document: Document) -> float:
    return float("-inf") if document.score is None else document.score
