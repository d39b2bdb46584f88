"""`Document`: a text with metadata, which retrieval finds and answers are based on."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4

from chatclient._internal.checks import attribute_hints, check_type
from chatclient._internal.frozen import EMPTY, frozen
from chatclient._internal.text import text_as_html
from chatclient.chat.stored_values import register_stored_type


@dataclass(frozen=True, slots=True)
class Document:
    """A text with metadata.

    Attributes:
        text: The text, which is embedded.
        metadata: Values for filters: texts, numbers, booleans, None, and lists of these. A store
            keeps what JSON has for others: the value of an enum, the ISO 8601 text of a date or
            time, the text of a `Decimal`, UUID and UTF-8 bytes, a list for a set or tuple, None for
            NaN and infinity.
        id: The id; default: random. Adding a document with the same id replaces it.
        score: The similarity to the query, 1.0 for identical vectors; None outside of a search.
    """

    text: str
    metadata: Mapping[str, Any] = EMPTY
    id: str = field(default_factory=lambda: uuid4().hex)
    score: float | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        check_type("a document's text", self.text, str)
        check_type("a document's metadata", self.metadata, Mapping)
        check_type("a document's id", self.id, str)
        object.__setattr__(self, "metadata", frozen(self.metadata))

    if not TYPE_CHECKING:  # type checkers know all attributes
        __getattr__ = attribute_hints(
            dict.fromkeys(("content", "page_content"), "its text is its .text")
        )

    def _repr_html_(self) -> str:
        """Return the text below its metadata, which notebooks show."""
        score = {} if self.score is None else {"score": f"{self.score:.3f}"}
        about = ", ".join(f"{key}: {value}" for key, value in {**score, **self.metadata}.items())
        return text_as_html(about, "small") + text_as_html(self.text)

    def scored(self, score: float) -> Self:
        """Return this document with *score*."""
        return replace(self, score=score)


register_stored_type(
    Document,
    "document",
    lambda it: {"text": it.text, "metadata": it.metadata, "id": it.id, "score": it.score},
    lambda data: Document(**data),
)


def documents_among(sources: Iterable[object]) -> tuple[Document, ...]:
    """Return the `Document`s among *sources*, which may contain values of the application."""
    return tuple([source for source in sources if isinstance(source, Document)])
