"""Joins, filters and sorts retrieved documents."""

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeVar

from chatclient._internal.checks import check_choice, check_number, check_type
from chatclient._internal.logging import described, get_logger
from chatclient.chat.document import Document
from chatclient.chat.rerank import RerankModel
from chatclient.errors import ProviderError
from chatclient.observability.operations import Reranking
from chatclient.retrieval.query import Query
from chatclient.runtime.runtime import Runtime

RANK_CONSTANT = 60
"""The default constant that is added to ranks, of Cormack, Clarke and Büttcher (SIGIR 2009)."""

T = TypeVar("T", bound=Hashable)

log = get_logger(__name__)

RerankingFallback = Literal["keep", "raise"]
"""What to do if the model fails: keep the order of the documents, or raise the error."""


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


class DocumentReranker:
    """A post-processor that sorts documents by the scores of a rerank model.

    Let the retrievers find more documents than are needed, such as 50, and keep the best few:

    ```python
    RetrievalAugmentationAdvisor(
        VectorStoreDocumentRetriever(store, top_k=50),
        post_processors=[DocumentReranker(CohereRerankModel(), top_k=5)],
    )
    ```

    Args:
        model: The rerank model.
        top_k: The maximum number of documents to keep; None for all.
        threshold: The minimum score of a document, on the scale of the model; None: no minimum.
        fallback: What to do if the model fails: `"keep"` logs a warning and keeps the first
            *top_k* documents with their scores, `"raise"` raises the error. Errors of setup, such
            as a model file that cannot be loaded, are always raised.

    Raises:
        UsageError: *model* is not a `RerankModel`, *top_k* is less than one, or *fallback* has an
            unknown value.
    """

    params: Collection[str] = ()

    def __init__(
        self,
        model: RerankModel,
        *,
        top_k: int | None = None,
        threshold: float | None = None,
        fallback: RerankingFallback = "keep",
    ) -> None:
        check_type("a rerank model", model, RerankModel)
        if top_k is not None:
            check_number("top_k", top_k, least=1)
        if threshold is not None:
            check_number("threshold", threshold, least=float("-inf"))
        check_choice("fallback", fallback, RerankingFallback)
        self._model = model
        self._top_k = top_k
        self._threshold = threshold
        self._fallback = fallback

    async def __call__(
        self, query: Query, documents: Sequence[Document], runtime: Runtime
    ) -> list[Document]:
        """Return the best of *documents* with the scores of the model, the best first.

        Blank documents, which the APIs refuse, are dropped.

        Raises:
            ProviderError: The model failed, and *fallback* is `"raise"`.
        """
        documents = [document for document in documents if document.text.strip()]
        if not documents:
            return []
        try:
            with runtime.observe(Reranking(self._model.name)) as observed:
                observed.result = kept = await self._best(query, documents, runtime)
        except ProviderError as error:
            if self._fallback == "raise":
                raise
            log.warning("documents not reranked", model=self._model.name, error=described(error))
            return documents[: self._top_k]
        return kept

    async def _best(
        self, query: Query, documents: Sequence[Document], runtime: Runtime
    ) -> list[Document]:
        texts = [document.text for document in documents]
        ranked = await self._model.rank_all(query.text, texts, runtime, top_k=self._top_k)
        least = float("-inf") if self._threshold is None else self._threshold
        return [documents[each.index].scored(each.score) for each in ranked if each.score >= least]

    def __repr__(self) -> str:
        return f"DocumentReranker({self._model.name!r})"
