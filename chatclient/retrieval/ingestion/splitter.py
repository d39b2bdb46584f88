"""`DocumentSplitter`: the contract of splitters, and the limit of a chunk."""

import re
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from chatclient._internal.checks import check_callable, check_number, check_type
from chatclient.chat.document import Document
from chatclient.chat.embedding import EmbeddingModel
from chatclient.errors import UsageError

LINE_END = re.compile(r"\r\n?|\n")


@dataclass(frozen=True, slots=True)
class ChunkLimit:
    """The maximum size of a chunk.

    Attributes:
        maximum: The maximum.
        size: Returns the size of a text.
        unit: The name of the unit, which represents *size* in the `key` of a splitter.

    Raises:
        UsageError: The maximum is less than 1.
        WrongTypeError: A value has the wrong type.
    """

    maximum: int = 1_000
    size: Callable[[str], int] = len
    unit: str = "characters"

    def __post_init__(self) -> None:
        check_type("the limit of a chunk", self.maximum, int)
        check_number("the limit of a chunk", self.maximum, least=1)
        check_callable("size", self.size, takes=("text",))
        check_type("unit", self.unit, str)

    @property
    def key(self) -> str:
        """The maximum and its unit."""
        return f"{self.maximum} {self.unit}"


SizeLimit = int | EmbeddingModel | ChunkLimit
"""The limit of a chunk: characters, the tokens of an embedding model, or another unit."""


def limit_of(given: SizeLimit) -> ChunkLimit:
    """Return *given* as a `ChunkLimit`.

    Raises:
        UsageError: It is less than 1, or an embedding model that does not count tokens.
        WrongTypeError: It has another type.
    """
    check_type("limit", given, (int, EmbeddingModel, ChunkLimit))
    if isinstance(given, ChunkLimit):
        return given
    if not isinstance(given, EmbeddingModel):
        return ChunkLimit(given)
    if given.max_tokens is None:
        msg = f"{given.name} does not tell how many tokens it takes; use a number of characters,"
        msg += " or ChunkLimit(maximum, size, unit) with a function that counts tokens"
        raise UsageError(msg)
    return ChunkLimit(given.max_tokens, given.count_tokens, f"tokens of {given.name}")


class DocumentSplitter(ABC):
    """Divides documents into chunks, which are documents as well.

    Chunks have the metadata of their document and its position in it: `start` and `end` are the
    offsets of characters in its text, and `line` is the number of the first line, from 1.
    """

    @property
    @abstractmethod
    def key(self) -> str:
        """A text that differs between splitters that divide a document differently."""

    @abstractmethod
    def split(self, document: Document) -> list[Document]:
        """Return the chunks of *document*, in their order."""

    def __call__(self, documents: Document | Iterable[Document]) -> list[Document]:
        """Return the chunks of *documents*, in their order; blank documents have none."""
        several = (documents,) if isinstance(documents, Document) else documents
        return [chunk for document in several for chunk in self.split(document)]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.key!r})"


class Chunks:
    """Makes the chunks of a document.

    Args:
        document: The document.
    """

    def __init__(self, document: Document) -> None:
        self._document = document
        self.text = document.text
        self.line_starts = [0, *(end.end() for end in LINE_END.finditer(document.text))]

    def chunk(self, start: int, end: int, text: str | None = None, **metadata: Any) -> Document:
        """Return the chunk between two offsets.

        Args:
            start: The offset of its first character.
            end: The offset after its last character.
            text: Its text, if it differs from that of the document.
            **metadata: Further metadata.
        """
        document = self._document
        position = {"start": start, "end": end, "line": bisect_right(self.line_starts, start)}
        return Document(
            self.text[start:end] if text is None else text,
            {**document.metadata, **metadata, **position},
            f"{document.id}#{start}",
        )
