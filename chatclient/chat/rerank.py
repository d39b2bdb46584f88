"""The contract of a rerank model, which scores how relevant texts are to a query."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from chatclient._internal.checks import check_model_name, check_number, check_type
from chatclient._internal.closeable import Closeable
from chatclient._internal.frozen import EMPTY, freeze_fields
from chatclient.errors import InvalidResponseError, UsageError, WrongTypeError
from chatclient.runtime.blocking import drive
from chatclient.runtime.runtime import BLOCKING, ON_LOOP, Runtime, within_callers_deadline


@dataclass(frozen=True, slots=True)
class RankedText:
    """A text with its relevance to a query.

    Attributes:
        index: The position of the text among those that were ranked, from 0.
        text: The text.
        score: The relevance; greater is better. The scale depends on the model.
    """

    index: int
    text: str
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankOptions:
    """Options of a rerank model.

    Attributes:
        model: The name of the model, or None for the provider's default.
        batch_size: The maximum number of texts in one request. Scores of different requests are
            compared with each other. The default is the maximum that Cohere recommends.
        extra: Fields of the provider's request that this library does not model.

    Raises:
        UsageError: The model's name is blank, or *batch_size* is less than 1.
        WrongTypeError: A value has the wrong type.
    """

    model: str | None = None
    batch_size: int = 1000
    extra: Mapping[str, Any] = EMPTY

    def __post_init__(self) -> None:
        if self.model is not None:
            check_model_name(self.model)
        check_number("batch_size", self.batch_size, least=1)
        freeze_fields(self, "extra")


NO_RERANK_OPTIONS = RerankOptions()


class RerankModel(Closeable, ABC):
    """A model that reads a query and a text together, and scores the relevance of the text.

    This is more accurate than comparing vectors, and slower, so it is used for the results of a
    search. A subclass implements `score_batch`, which serves blocking and asynchronous callers. It
    must wait with the methods of the given runtime, or use `chatclient.providers.http.client`.
    """

    @property
    def options(self) -> RerankOptions:
        """The options of every request."""
        return NO_RERANK_OPTIONS

    @property
    def name(self) -> str:
        """The model's name in logs and errors."""
        return self.options.model or type(self).__name__

    @abstractmethod
    async def score_batch(self, query: str, texts: Sequence[str], runtime: Runtime) -> list[float]:
        """Return the relevance of each of *texts*, of which there is at least one, in their order.

        Args:
            query: The query, which is not blank.
            texts: The texts of one batch.
            runtime: How the request runs.
        """

    async def score_all(self, query: str, texts: Iterable[str], runtime: Runtime) -> list[float]:
        """Return the relevance of each of *texts*, in their order; for tools and advisors.

        Args:
            query: The query.
            texts: The texts; they are sent in batches.
            runtime: How the request runs.

        Raises:
            UsageError: The query is blank.
            WrongTypeError: The query is not a text, or *texts* is a single text or contains other
                values.
            ProviderError: The provider failed or refused the request.
        """
        checked = _checked(query, texts)
        scores: list[float] = []
        size = self.options.batch_size
        for start in range(0, len(checked), size):
            batch = checked[start : start + size]
            found = await self.score_batch(query, batch, runtime)
            if len(found) != len(batch) or not all(map(isfinite, found)):
                msg = f"{self.name} did not return one finite score for each of {len(batch)} texts"
                raise InvalidResponseError(msg)
            scores.extend(found)
        return scores

    async def rank_all(
        self, query: str, texts: Iterable[str], runtime: Runtime, *, top_k: int | None = None
    ) -> list[RankedText]:
        """Return *texts* with their scores, the most relevant first; see `rerank`."""
        if top_k is not None:
            check_number("top_k", top_k, least=1)
        texts = _checked(query, texts)
        scores = await self.score_all(query, texts, runtime)
        ranked = map(RankedText, range(len(texts)), texts, scores)
        return sorted(ranked, key=lambda each: -each.score)[:top_k]

    def rerank(
        self, query: str, texts: Iterable[str], *, top_k: int | None = None
    ) -> list[RankedText]:
        """Return *texts* with their scores, the most relevant first.

        Args:
            query: The query.
            texts: The texts.
            top_k: The maximum number of results, or None for all.

        Raises:
            UsageError: The query is blank, or *top_k* is less than one.
            WrongTypeError: The query is not a text, or *texts* is a single text or contains other
                values.
            ProviderError: The provider failed or refused the request.
        """
        return drive(self.rank_all(query, texts, within_callers_deadline(BLOCKING), top_k=top_k))

    async def arerank(
        self, query: str, texts: Iterable[str], *, top_k: int | None = None
    ) -> list[RankedText]:
        """Return *texts* with their scores, the most relevant first; see `rerank`."""
        return await self.rank_all(query, texts, within_callers_deadline(ON_LOOP), top_k=top_k)


def _checked(query: object, texts: Iterable[str]) -> list[str]:
    """Return *texts* as a list, after checking the types of the arguments."""
    check_type("a query", query, str)
    if not str(query).strip():
        msg = "the query of a rerank model must not be blank"
        raise UsageError(msg)
    if isinstance(texts, str):
        msg = "reranking takes a collection of texts; put a single one into a list"
        raise WrongTypeError(msg)
    checked = list(texts)
    for text in checked:
        check_type("a text to rerank", text, str)
    return checked
