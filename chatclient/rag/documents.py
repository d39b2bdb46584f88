"""What becomes of the documents that retrievers found."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from chatclient.checks import check_number
from chatclient.rag.query import Query
from chatclient.runtime import Runtime
from chatclient.vector_store import Document


@dataclass(frozen=True, slots=True)
class ConcatenationJoiner:
    """All documents by score, best first; each once, with the best score that it got.

    Scores must be comparable, so all retrievers should be of one kind. Documents without one go
    last, in the order in which they came.
    """

    def __call__(self, results: Sequence[Sequence[Document]]) -> list[Document]:
        """Return one list of *results*."""
        best: dict[str, Document] = {}
        for document in (document for result in results for document in result):
            known = best.get(document.id)
            if known is None or _score(document) > _score(known):
                best[document.id] = document
        return sorted(best.values(), key=_score, reverse=True)


@dataclass(frozen=True, slots=True)
class ReciprocalRankJoiner:
    """Documents by their ranks: for retrievers whose scores have nothing in common.

    Attributes:
        k: How little the first places count for more than the others.

    Raises:
        UsageError: It is less than nothing.
    """

    k: int = 60

    def __post_init__(self) -> None:
        check_number("k", self.k)

    def __call__(self, results: Sequence[Sequence[Document]]) -> list[Document]:
        """Return one list of *results*; the scores are new ones."""
        points: defaultdict[str, float] = defaultdict(float)
        documents: dict[str, Document] = {}
        for result in results:
            unique = {document.id: document for document in result}
            for rank, document in enumerate(unique.values(), 1):
                documents.setdefault(document.id, document)
                points[document.id] += 1 / (self.k + rank)
        joined = [document.scored(points[id]) for id, document in documents.items()]
        return sorted(joined, key=_score, reverse=True)


@dataclass(frozen=True, slots=True)
class DocumentLimit:
    """Keeps the first documents, as many as fit.

    Attributes:
        max_documents: How many at most, or None.
        max_characters: How much text at most, or None. A document that does not fit is left out,
            those after it may fit.

    Raises:
        UsageError: One of them is less than nothing.
    """

    max_documents: int | None = None
    max_characters: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_documents", "max_characters"):
            most = getattr(self, name)
            if most is not None:
                check_number(name, most)

    async def __call__(
        self, _query: Query, documents: Sequence[Document], _runtime: Runtime
    ) -> list[Document]:
        """Return what fits of *documents*."""
        room = float("inf") if self.max_characters is None else self.max_characters
        kept: list[Document] = []
        for document in documents:
            if len(document.text) <= room and len(kept) != self.max_documents:
                kept.append(document)
                room -= len(document.text)
        return kept


def _score(document: Document) -> float:
    return float("-inf") if document.score is None else document.score
