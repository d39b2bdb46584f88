"""The contract of a moderation model, which classifies harmful texts."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chatclient._internal.closeable import Closeable
from chatclient._internal.frozen import EMPTY, freeze_fields
from chatclient.errors import InvalidResponseError
from chatclient.runtime.blocking import drive
from chatclient.runtime.runtime import BLOCKING, ON_LOOP, Runtime, within_callers_deadline


@dataclass(frozen=True, slots=True)
class Moderation:
    """The verdict of a moderation model on a text.

    Attributes:
        flagged: Whether the text is harmful.
        categories: The categories of harm found, in the model's terms.
        scores: The model's confidence for each of its categories, from 0 to 1.
    """

    flagged: bool
    categories: tuple[str, ...] = ()
    scores: Mapping[str, float] = EMPTY

    def __post_init__(self) -> None:
        freeze_fields(self, "scores")


class ModerationModel(Closeable, ABC):
    """A model that decides whether texts are harmful, and in which way.

    A subclass implements `moderate_all`, which serves blocking and asynchronous callers. It must
    wait with the methods of the given runtime, or use `chatclient.providers.http.client`.
    """

    @property
    def name(self) -> str:
        """The model's name in errors and logs."""
        return type(self).__name__

    @abstractmethod
    async def moderate_all(self, texts: Sequence[str], runtime: Runtime) -> list[Moderation]:
        """Return the verdicts on *texts*, of which there is at least one, in their order."""

    def moderate(self, text: str) -> Moderation:
        """Return the verdict on *text*.

        Raises:
            ProviderError: The provider failed or refused the request.
        """
        return drive(self._moderate(text, within_callers_deadline(BLOCKING)))

    async def amoderate(self, text: str) -> Moderation:
        """Return the verdict on *text*; see `moderate`."""
        return await self._moderate(text, within_callers_deadline(ON_LOOP))

    async def _moderate(self, text: str, runtime: Runtime) -> Moderation:
        found = await self.moderate_all([text], runtime)
        if len(found) != 1:
            msg = f"{self.name} returned {len(found)} verdicts for one text"
            raise InvalidResponseError(msg)
        return found[0]
