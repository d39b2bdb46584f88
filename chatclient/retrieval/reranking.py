"""`DocumentReranker`: sorts retrieved documents with a rerank model."""

from collections.abc import Collection, Sequence
from typing import Literal

from chatclient._internal.checks import check_choice, check_number, check_type
from chatclient._internal.logging import described, get_logger
from chatclient.chat.document import Document
from chatclient.chat.rerank import RerankModel
from chatclient.errors import ProviderError
from chatclient.observability.operations import Reranking
from chatclient.retrieval.query import Query
from chatclient.runtime.runtime import Runtime

log = get_logger(__name__)

RerankingFallback = Literal["keep", "raise"]
"""What to do if the model fails: keep the order of the documents, or raise the error."""


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
