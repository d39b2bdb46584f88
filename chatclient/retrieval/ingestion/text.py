"""Splitters for text and source code."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from chatclient._internal.checks import check_number, check_type
from chatclient._internal.extras import needed_by
from chatclient.chat.document import Document
from chatclient.errors import UsageError
from chatclient.retrieval.ingestion.splitter import (
    ChunkLimit,
    Chunks,
    DocumentSplitter,
    SizeLimit,
    limit_of,
)

_BLOCK = 16_384  # characters
_CODE_BLOCK = 131_072  # with complete definitions


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
