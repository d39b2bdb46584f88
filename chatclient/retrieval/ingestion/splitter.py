"""`DocumentSplitter`: the contract of splitters; splitters for text and source code."""

import re
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from chatclient._internal.checks import check_callable, check_number, check_type
from chatclient._internal.extras import needed_by
from chatclient.chat.document import Document
from chatclient.chat.embedding import EmbeddingModel
from chatclient.errors import UsageError

LINE_END = re.compile(r"\r\n?|\n")

_BLOCK = 16_384  # characters
_CODE_BLOCK = 131_072  # with complete definitions


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


def splitters() -> Any:
    """Return the module of the splitters.

    Raises:
        UsageError: It is not installed.
    """
    with needed_by("a splitter"):
        import semantic_text_splitter  # noqa: PLC0415 - optional
    return semantic_text_splitter


class IndexedSplitter(Protocol):
    """A splitter of the library that returns offsets."""

    def chunk_indices(self, text: str) -> Iterable[tuple[int, str]]:
        """Return the chunks of *text* with their offsets."""
        ...


@dataclass(frozen=True, slots=True)
class BlockSplitter:
    """Divides a text in blocks, because the library takes quadratic time for a long line.

    Attributes:
        splitter: Divides the blocks.
        length: The length of a block in characters, which is that of several chunks.
    """

    splitter: IndexedSplitter
    length: int

    def chunk_indices(self, text: str) -> Iterator[tuple[int, str]]:
        """Yield the chunks of *text* with their offsets."""
        begin, length = 0, self.length
        while begin + length < len(text):
            found = [*self.splitter.chunk_indices(text[begin : begin + length])]
            # The last chunk depends on the end of the block, and how far it overlaps the one before
            # does, too. Both are divided again together with what follows.
            complete = found[:-2]
            if not complete:
                length *= 2
                continue
            for offset, chunk in complete:
                yield begin + offset, chunk
            begin, length = begin + found[-2][0], self.length
        for offset, chunk in self.splitter.chunk_indices(text[begin:]):
            yield begin + offset, chunk


def fitted(
    create: Callable[..., IndexedSplitter], limit: ChunkLimit, overlap: int = 0, block: int = _BLOCK
) -> BlockSplitter:
    """Return a splitter of the library for *limit*.

    Args:
        create: Creates it for a function that returns the size of a text, and a maximum.
        limit: The limit.
        overlap: How much of a chunk the next one may repeat.
        block: The minimum length of a block in characters.
    """
    # The library may exceed the maximum by what each text has in addition, such as the tokens that
    # a model adds.
    extra = limit.size("")
    maximum = max(limit.maximum - extra, 1)
    settings = {"overlap": min(overlap, maximum - 1)} if overlap else {}
    splitter = create(lambda text: limit.size(text) - extra, maximum, **settings)
    return BlockSplitter(splitter, max(block, 16 * maximum))


def chunks_of(document: Document, splitter: IndexedSplitter) -> list[Document]:
    """Return the chunks into which *splitter* divides *document*, without blank ones."""
    chunks = Chunks(document)
    found = splitter.chunk_indices(document.text)
    return [chunks.chunk(start, start + len(text)) for start, text in found if text.strip()]


class SentenceSplitter(DocumentSplitter):
    """Divides text between paragraphs if they fit, else between sentences, words or characters.

    Sentences and words are found by the rules of Unicode, for all languages. Needs the extra
    `documents`.

    Args:
        limit: The maximum size of a chunk, in characters; for an embedding model, its limit.
        overlap: How much of a chunk the next one may repeat, in the unit of the limit.

    Raises:
        UsageError: The limit is less than 1, *overlap* is not less than the limit, the embedding
            model does not count tokens, or the extra is not installed.
        WrongTypeError: A value has the wrong type.
    """

    def __init__(self, limit: SizeLimit = 1_000, *, overlap: int = 0) -> None:
        self._limit = limit_of(limit)
        check_type("overlap", overlap, int)
        check_number("overlap", overlap)
        if overlap >= self._limit.maximum:
            msg = f"overlap must be less than the limit, {self._limit.key}, not {overlap}"
            raise UsageError(msg)
        self._overlap = overlap
        self._library = splitters()

    @property
    def key(self) -> str:
        """The limit and the overlap."""
        return f"sentences, {self._limit.key}, overlap {self._overlap}"

    def split(self, document: Document) -> list[Document]:
        """Return the chunks of *document*."""
        create = self._library.TextSplitter.from_callback
        return chunks_of(document, fitted(create, self._limit, self._overlap))


class CodeSplitter(DocumentSplitter):
    """Divides source code between definitions if they fit, else between statements or lines.

    ```python
    splitter = CodeSplitter(tree_sitter_python.language(), limit=model)
    ```

    Needs the extra `documents`, and a grammar of tree-sitter.

    Args:
        grammar: The grammar: what the function `language()` of a package such as
            `tree-sitter-python` returns.
        limit: The maximum size of a chunk, in characters; for an embedding model, its limit.

    Raises:
        UsageError: The limit is less than 1, the embedding model does not count tokens, *grammar*
            is not one, or the extra is not installed.
        WrongTypeError: A value has the wrong type.
    """

    def __init__(self, grammar: object, limit: SizeLimit = 1_000) -> None:
        self._limit = limit_of(limit)
        kind = splitters().CodeSplitter
        try:
            kind(grammar, 1)
        except (TypeError, ValueError) as error:
            msg = "this is not a grammar of tree-sitter; pass tree_sitter_python.language(), for"
            msg += " example"
            raise UsageError(msg) from error
        self._create = partial(kind.from_callback, grammar)

    @property
    def key(self) -> str:
        """The limit."""
        return f"code, {self._limit.key}"

    def split(self, document: Document) -> list[Document]:
        """Return the chunks of *document*."""
        longest = max(map(len, document.text.splitlines()), default=0)
        block = _CODE_BLOCK if longest < _BLOCK else _BLOCK
        return chunks_of(document, fitted(self._create, self._limit, block=block))
