"""`FormatSplitter`: chooses a splitter by the format of a document."""

from collections.abc import Mapping

from chatclient._internal.checks import check_type
from chatclient.chat.document import Document
from chatclient.retrieval.ingestion.conversion import CONVERTED
from chatclient.retrieval.ingestion.markdown import MarkdownSplitter
from chatclient.retrieval.ingestion.splitter import DocumentSplitter, SizeLimit, limit_of
from chatclient.retrieval.ingestion.text import SentenceSplitter

_MARKDOWN = CONVERTED | {"md", "markdown"}


class FormatSplitter(DocumentSplitter):
    """Chooses a splitter by the `format` in the metadata of a document.

    Markdown, and what `read_documents` converts to it, is divided by a `MarkdownSplitter`, other
    text by a `SentenceSplitter`, in which a line that begins with `#` is no heading. Needs the
    extra `documents`.

    ```python
    python = CodeSplitter(tree_sitter_python.language(), model)
    splitter = FormatSplitter(model, py=python, pyi=python)
    ```

    Args:
        limit: The maximum size of a chunk, in characters; for an embedding model, its limit.
        **splitters: Other splitters, by format.

    Raises:
        UsageError: The limit is less than 1, the embedding model does not count tokens, or the
            extra is not installed.
        WrongTypeError: A value has the wrong type.
    """

    def __init__(self, limit: SizeLimit = 1_000, **splitters: DocumentSplitter) -> None:
        for splitter in splitters.values():
            check_type("a splitter", splitter, DocumentSplitter)
        maximum = limit_of(limit)
        self._text = SentenceSplitter(maximum)
        markdown = MarkdownSplitter(maximum)
        self._splitters: Mapping[str, DocumentSplitter] = (
            dict.fromkeys(_MARKDOWN, markdown) | splitters
        )

    @property
    def key(self) -> str:
        """The keys of the splitters."""
        several = [f"{name}: {each.key}" for name, each in sorted(self._splitters.items())]
        return "; ".join([*several, self._text.key])

    def split(self, document: Document) -> list[Document]:
        """Return the chunks of *document*."""
        name = str(document.metadata.get("format"))
        return self._splitters.get(name, self._text).split(document)
