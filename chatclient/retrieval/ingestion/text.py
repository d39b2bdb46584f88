"""Splitters for text and source code."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

from chatclient._internal.checks import check_number, check_type
from chatclient.errors import UsageError
from chatclient.retrieval.ingestion.splitter import (
    ChunkLimit,
    Chunks,
    DocumentSplitter,
    SizeLimit,
    limit_of,
)
from chatclient.retrieval.vector_store.store import Document


def splitters() -> Any:
    """Return the module of the splitters.

    Raises:
        UsageError: It is not installed.
    """
    try:
        import semantic_text_splitter  # noqa: PLC0415 - optional
    except ImportError as error:
        msg = "splitters need semantic-text-splitter; pip install 'chatclient[documents]'"
        raise UsageError(msg) from error
    return semantic_text_splitter


class IndexedSplitter(Protocol):
    """A splitter of the library that tells offsets."""

    def chunk_indices(self, text: str) -> Iterable[tuple[int, str]]:
        """Return the chunks of *text* with their offsets."""
        ...


def fitted(
    create: Callable[..., IndexedSplitter], limit: ChunkLimit, overlap: int = 0
) -> IndexedSplitter:
    """Return a splitter of the library for *limit*.

    Args:
        create: Creates it for a function that returns the size of a text, and a maximum.
        limit: The limit.
        overlap: How much of a chunk the next one may repeat.
    """
    # The library may exceed the maximum by what each text has in addition, such as the tokens that
    # a model adds.
    extra = limit.size("")
    maximum = max(limit.maximum - extra, 1)
    settings = {"overlap": min(overlap, maximum - 1)} if overlap else {}
    return create(lambda text: limit.size(text) - extra, maximum, **settings)


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
        limit: The maximum size of a chunk, in characters; an embedding model stands for its limit.
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
        limit: The maximum size of a chunk, in characters; an embedding model stands for its limit.

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
        return chunks_of(document, fitted(self._create, self._limit))
