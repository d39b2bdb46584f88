"""The contract of a moderation model, which says whether a text is harmful."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chatclient.callers import within_callers_deadline
from chatclient.closing import Closeable
from chatclient.driving import drive
from chatclient.errors import InvalidResponseError
from chatclient.runtime import BLOCKING, ON_LOOP, Runtime
from chatclient.values import EMPTY, freeze_fields


@dataclass(frozen=True, slots=True)
class Moderation:
    """What a moderation model says of a text.

    Attributes:
        flagged: Whether the text is harmful.
        categories: For what, by the model's own names.
        scores: How sure the model is of each category that it knows, from 0 to 1.
    """

    flagged: bool
    categories: tuple[str, ...] = ()
    scores: Mapping[str, float] = EMPTY

    def __post_init__(self) -> None:
        freeze_fields(self, "scores")


class ModerationModel(Closeable, ABC):
    """A model that says whether texts are harmful, and in which way.

    An implementor writes `moderate_all`, which serves blocking and asynchronous callers alike. It
    does all waiting through the runtime it is given (or through `chatclient.providers.http`,
    which does).
    """

    @property
    def name(self) -> str:
        """What to call this model in errors and logs."""
        return type(self).__name__

    @abstractmethod
    async def moderate_all(self, texts: Sequence[str], runtime: Runtime) -> list[Moderation]:
        """Return the verdict on each text, in their order; there is at least one text."""

    def moderate(self, text: str) -> Moderation:
        """Return the verdict on *text*.

        Raises:
            ProviderError: The model's side failed.
        """
        return drive(self._moderate(text, within_callers_deadline(BLOCKING)))

    async def amoderate(self, text: str) -> Moderation:
        """Return the verdict on *text*; see `moderate`."""
        return await self._moderate(text, within_callers_deadline(ON_LOOP))

    async def _moderate(self, text: str, runtime: Runtime) -> Moderation:
        found = await self.moderate_all([text], runtime)
        if len(found) != 1:
            msg = f"{self.name} said {len(found)} things of one text"
            raise InvalidResponseError(msg)
        return found[0]
