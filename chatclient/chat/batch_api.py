"""The contract of batch APIs, which answer many requests later and at a lower price."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from chatclient.errors import ChatClientError
from chatclient.runtime.runtime import Runtime

PROCESSING = "processing"
"""Key in the metadata of a response: `batch` if it is from a batch, which is cheaper."""


class BatchItem(NamedTuple):
    """A request of a batch.

    Attributes:
        key: Identifies the request within its batch.
        path: The path of the request, below the base URL.
        body: The JSON of the request.
        headers: Headers of this request in addition to those of the model.
    """

    key: str
    path: str
    body: bytes
    headers: Mapping[str, str]


SendItem = Callable[[str, bytes, Mapping[str, str], Runtime], Awaitable[bytes]]
"""Answers a request with the JSON of its response. Takes path, JSON, headers and runtime."""

BatchAnswers = Mapping[str | int, bytes | ChatClientError]
"""The JSON of the response of each request, or why there is none. By key, or by the position of the
request in its batch, from 0, if the provider does not repeat keys."""


class BatchApi(ABC):
    """The batch API of a provider.

    Attributes:
        max_requests: The maximum number of requests of one batch.
        max_bytes: The maximum number of bytes of one batch.
    """

    max_requests: int = 10_000
    max_bytes: int = 100_000_000

    @abstractmethod
    async def submit(self, items: Sequence[BatchItem], runtime: Runtime) -> str:
        """Submit a batch, and return its id."""

    @abstractmethod
    async def answers(self, batch_id: str, runtime: Runtime) -> BatchAnswers | None:
        """Return the answers of a batch that has ended; None if it has not.

        Raises:
            ProviderError: The provider does not know the batch, or has rejected it.
        """

    @abstractmethod
    async def cancel(self, batch_id: str, runtime: Runtime) -> None:
        """Cancel a batch. Requests that were answered before have answers."""
