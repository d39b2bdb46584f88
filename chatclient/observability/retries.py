"""Operations of failed requests: waiting for a retry, and falling back to another model."""

from dataclasses import dataclass
from typing import ClassVar

from chatclient.chat.model import ChatModel
from chatclient.runtime.observation import Attributes, Kind, Operation


@dataclass(slots=True, eq=False)
class RetryWait(Operation):
    """The wait before a failed HTTP request is retried.

    Attributes:
        provider: The name of the provider.
        reason: The name of the error.
        seconds: The duration of the wait.
    """

    kind: ClassVar[Kind] = "retry"
    provider: str
    reason: str
    seconds: float

    @property
    def name(self) -> str:
        """The same for all operations of this type."""
        return "wait for retry"

    def attributes(self) -> Attributes:
        """Return the reason and the duration."""
        return {"chatclient.retry.reason": self.reason, "chatclient.retry.seconds": self.seconds}


@dataclass(slots=True, eq=False)
class Fallback(Operation):
    """An event without duration: a model has failed, and the next one is called.

    Attributes:
        model: The `FallbackModel`.
        failed: The model that has failed.
        reason: The name of the error.
    """

    kind: ClassVar[Kind] = "retry"
    model: ChatModel
    failed: ChatModel
    reason: str

    @property
    def name(self) -> str:
        """The same for all operations of this type."""
        return "fall back"

    def attributes(self) -> Attributes:
        """Return the failed model and the reason."""
        return {
            "chatclient.fallback.failed": self.failed.name,
            "chatclient.fallback.reason": self.reason,
        }
