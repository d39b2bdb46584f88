"""The contract of an embedding model."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chatclient.callers import within_callers_deadline
from chatclient.checks import check_kind, check_model_name, check_number
from chatclient.closing import Closeable
from chatclient.driving import drive
from chatclient.errors import InvalidResponseError, WrongTypeError
from chatclient.runtime import BLOCKING, ON_LOOP, Runtime
from chatclient.values import EMPTY, freeze_fields

Vector = list[float]
"""Where a text lies among all texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingOptions:
    """What is asked of an embedding model.

    Attributes:
        model: Which model, or None for the provider's default.
        dimensions: The length of the vectors, with models that can shorten them.
        batch_size: How many texts go into one request at most.
        batch_characters: How many characters these texts have at most; a longer text goes alone.
            The default keeps to OpenAI's 300,000 tokens, even where each character is one.
        extra: Fields for the provider's request that this library does not model.

    Raises:
        UsageError: The model is a blank text, or a number is less than 1.
        WrongTypeError: One of them is of the wrong kind.
    """

    model: str | None = None
    dimensions: int | None = None
    batch_size: int = 100
    batch_characters: int = 300_000
    extra: Mapping[str, Any] = EMPTY

    def __post_init__(self) -> None:
        if self.model is not None:
            check_model_name(self.model)
        if self.dimensions is not None:
            check_number("dimensions", self.dimensions, least=1)
        check_number("batch_size", self.batch_size, least=1)
        check_number("batch_characters", self.batch_characters, least=1)
        freeze_fields(self, "extra")


NO_EMBEDDING_OPTIONS = EmbeddingOptions()


class EmbeddingModel(Closeable, ABC):
    """A model that turns texts into vectors, close to each other where the texts are.

    An implementor writes `embed_batch`, which serves blocking and asynchronous callers alike. It
    does all waiting through the runtime it is given (or through `chatclient.providers.http`,
    which does).
    """

    @property
    def options(self) -> EmbeddingOptions:
        """What is asked of the model in every request."""
        return NO_EMBEDDING_OPTIONS

    @property
    def name(self) -> str:
        """What to call this model in logs and spans."""
        return self.options.model or type(self).__name__

    @property
    def dimensions(self) -> int | None:
        """The length of the vectors, or None where the model decides."""
        return self.options.dimensions

    @abstractmethod
    async def embed_batch(self, texts: Sequence[str], runtime: Runtime) -> list[Vector]:
        """Return the vectors of one batch of texts, in their order; there is at least one."""

    async def embed_all(self, texts: Iterable[str], runtime: Runtime) -> list[Vector]:
        """Return the vectors of *texts*; for tools and advisors, which have a runtime.

        Args:
            texts: As many as one likes; they are sent batch by batch.
            runtime: How the request runs.

        Raises:
            WrongTypeError: There is a single text where a collection is expected, or something else
                than texts.
            ProviderError: The model's side failed.
        """
        if isinstance(texts, str):
            msg = "embedding takes a collection of texts; put a single one into a list"
            raise WrongTypeError(msg)
        vectors: list[Vector] = []
        for batch in _batches(texts, self.options):
            found = await self.embed_batch(batch, runtime)
            if len(found) != len(batch):
                msg = f"{self.name} gave {len(found)} vectors for {len(batch)} texts"
                raise InvalidResponseError(msg)
            vectors.extend(found)
        return vectors

    def embed(self, texts: Iterable[str]) -> list[Vector]:
        """Return the vectors of *texts*, in their order.

        Raises:
            WrongTypeError: There is a single text where a collection is expected, or something else
                than texts.
            ProviderError: The model's side failed.
        """
        return drive(self.embed_all(texts, within_callers_deadline(BLOCKING)))

    async def aembed(self, texts: Iterable[str]) -> list[Vector]:
        """Return the vectors of *texts*, in their order; see `embed`."""
        return await self.embed_all(texts, within_callers_deadline(ON_LOOP))


def _batches(texts: Iterable[str], options: EmbeddingOptions) -> Iterator[list[str]]:
    """Yield *texts*, as many at once as may go into one request."""
    batch: list[str] = []
    characters = 0
    for text in texts:
        check_kind("a text to embed", text, str)
        characters += len(text)
        full = len(batch) >= options.batch_size or characters > options.batch_characters
        if batch and full:
            yield batch
            batch, characters = [], len(text)
        batch.append(text)
    if batch:
        yield batch
