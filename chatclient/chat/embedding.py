"""The contract of an embedding model."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chatclient._internal.checks import check_model_name, check_number, check_type
from chatclient._internal.closeable import Closeable
from chatclient._internal.frozen import EMPTY, freeze_fields
from chatclient.errors import InvalidResponseError, UsageError, WrongTypeError
from chatclient.runtime.blocking import drive
from chatclient.runtime.runtime import BLOCKING, ON_LOOP, Runtime, within_callers_deadline

Vector = list[float]
"""The embedding of a text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingOptions:
    """Options of an embedding model.

    Attributes:
        model: The name of the model, or None for the provider's default.
        dimensions: The length of the vectors, for models that can shorten them.
        batch_size: The maximum number of texts in one request.
        batch_characters: The maximum number of characters in one request; a longer text is sent
            alone. The default ensures OpenAI's limit of 300,000 tokens.
        extra: Fields of the provider's request that this library does not model.

    Raises:
        UsageError: The model's name is blank, or a number is less than 1.
        WrongTypeError: A value has the wrong type.
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
    """A model that converts texts to vectors; similar texts have similar vectors.

    A subclass implements `embed_batch`, which serves blocking and asynchronous callers. It must
    wait with the methods of the given runtime, or use `chatclient.providers.http.client`.
    """

    @property
    def options(self) -> EmbeddingOptions:
        """The options of every request."""
        return NO_EMBEDDING_OPTIONS

    @property
    def name(self) -> str:
        """The model's name in logs and spans."""
        return self.options.model or type(self).__name__

    @property
    def dimensions(self) -> int | None:
        """The length of the vectors, or None if the model decides."""
        return self.options.dimensions

    @property
    def max_tokens(self) -> int | None:
        """The maximum number of tokens of a text, or None if this class does not count tokens."""
        return None

    def count_tokens(self, text: str) -> int:  # noqa: ARG002
        """Return the number of tokens of *text*, including those that the model adds.

        Raises:
            UsageError: This class does not count tokens.
        """
        msg = f"{self.name} does not count tokens"
        raise UsageError(msg)

    @abstractmethod
    async def embed_batch(self, texts: Sequence[str], runtime: Runtime) -> list[Vector]:
        """Return the vectors of *texts*, of which there is at least one, in their order."""

    async def embed_all(self, texts: Iterable[str], runtime: Runtime) -> list[Vector]:
        """Return the vectors of *texts*, in their order; for tools and advisors.

        Args:
            texts: The texts; they are sent in batches.
            runtime: How the request runs.

        Raises:
            WrongTypeError: *texts* is a single text, or contains other values.
            ProviderError: The provider failed or refused the request.
        """
        if isinstance(texts, str):
            msg = "embedding takes a collection of texts; put a single one into a list"
            raise WrongTypeError(msg)
        vectors: list[Vector] = []
        for batch in _batches(texts, self.options):
            found = await self.embed_batch(batch, runtime)
            if len(found) != len(batch):
                msg = f"{self.name} returned {len(found)} vectors for {len(batch)} texts"
                raise InvalidResponseError(msg)
            vectors.extend(found)
        return vectors

    def embed(self, texts: Iterable[str]) -> list[Vector]:
        """Return the vectors of *texts*, in their order.

        Raises:
            WrongTypeError: *texts* is a single text, or contains other values.
            ProviderError: The provider failed or refused the request.
        """
        return drive(self.embed_all(texts, within_callers_deadline(BLOCKING)))

    async def aembed(self, texts: Iterable[str]) -> list[Vector]:
        """Return the vectors of *texts*, in their order; see `embed`."""
        return await self.embed_all(texts, within_callers_deadline(ON_LOOP))


def _batches(texts: Iterable[str], options: EmbeddingOptions) -> Iterator[list[str]]:
    """Yield *texts* in batches within the limits of *options*."""
    batch: list[str] = []
    characters = 0
    for text in texts:
        check_type("a text to embed", text, str)
        characters += len(text)
        full = len(batch) >= options.batch_size or characters > options.batch_characters
        if batch and full:
            yield batch
            batch, characters = [], len(text)
        batch.append(text)
    if batch:
        yield batch
