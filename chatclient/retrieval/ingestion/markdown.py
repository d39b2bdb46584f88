"""`MarkdownSplitter` divides by headings; `FormatSplitter` chooses a splitter by the format."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from chatclient._internal.checks import check_type
from chatclient._internal.extras import needed_by
from chatclient.chat.document import Document
from chatclient.retrieval.ingestion.conversion import CONVERTED
from chatclient.retrieval.ingestion.splitter import (
    LINE_END,
    ChunkLimit,
    Chunks,
    DocumentSplitter,
    SentenceSplitter,
    SizeLimit,
    fitted,
    limit_of,
    splitters,
)

_LINE = re.compile(r"[^\r\n]*(?:\r\n?|\n|\Z)")
# A line of YAML that is a mapping: a key, an element of a list, a comment, or indented. Keys with
# spaces, and values with colons, are rather sentences.
_YAML = re.compile(
    r"""(?:[\w.-]+|"[^"]*"|'[^']*')[ \t]*:(?:[ \t]++(?:["'\[{|>&!#].*|(?:(?!:(?:\s|$)).)*))?"""
    r"|[ \t].*|-(?:[ \t].*)?|#.*|[\]}]"
)

_Piece = tuple[int, int, str | None]
"""The offsets of a chunk, and its text if it is not what stands in the document."""

_MARKDOWN = CONVERTED | {"md", "markdown"}


@dataclass(frozen=True, slots=True)
class _Section:
    """A part of a document below one heading.

    Attributes:
        start: The offset of its first character.
        end: The offset after its last character.
        heading: The path of headings to it.
        code: The fenced blocks of code in it, as tokens of the parser.
    """

    start: int
    end: int
    heading: str
    code: Sequence[Any]


class MarkdownSplitter(DocumentSplitter):
    """Divides Markdown by its headings, and sections that are too long between their blocks.

    A chunk contains text of one section only, whose path of headings is in its metadata as
    `heading`: `"Installation > Linux"`. The heading itself is in the first chunk of a section.
    Blocks that are too long are divided between list items, table rows, sentences and words.

    A fenced block of code is in one chunk if it fits. A longer one becomes several complete blocks,
    divided at blank lines if possible, each between fences. Front matter is left out:
    YAML between a first line `---` and a line `---` or `...`. Needs the extra `documents`.

    Args:
        limit: The maximum size of a chunk, in characters; for an embedding model, its limit.
        separator: The text between the headings of a path.

    Raises:
        UsageError: The limit is less than 1, the embedding model does not count tokens, or the
            extra is not installed.
        WrongTypeError: A value has the wrong type.
    """

    def __init__(self, limit: SizeLimit = 1_000, *, separator: str = " > ") -> None:
        self._limit = limit_of(limit)
        self._separator = separator
        self._parser = _parser()
        self._library = splitters()

    @property
    def key(self) -> str:
        """The limit and the separator."""
        return f"markdown, {self._limit.key}, {self._separator!r}"

    def split(self, document: Document) -> list[Document]:
        """Return the chunks of *document*."""
        text = _Text(document)
        return [
            text.chunk(start, end, code, heading=section.heading)
            for section in self._sections(text)
            for start, end, code in self._pieces(text, section)
        ]

    def _sections(self, text: "_Text") -> Iterator[_Section]:
        """Yield the sections of *text*; headings without content belong to the next section."""
        begin, tokens = text.parsed(self._parser)
        path: list[tuple[int, str]] = []
        code: list[Any] = []
        has_content = False
        for index, token in enumerate(tokens):
            if token.type == "heading_open" and token.level == 0:
                start = text.offset(token.map[0])
                if has_content:
                    yield _Section(begin, start, self._joined(path), code)
                    begin, code, has_content = start, [], False
                level = int(token.tag[1:])
                inline = tokens[index + 1]
                parts = (
                    " " if each.type == "softbreak" else each.content for each in inline.children
                )
                path = [
                    *(each for each in path if each[0] < level),
                    (level, "".join(parts).strip()),
                ]
            elif token.type == "fence":
                code.append(token)
            has_content |= token.level == 0 and not token.type.startswith("heading")
        yield _Section(begin, len(text.text), self._joined(path), code)

    def _joined(self, path: Sequence[tuple[int, str]]) -> str:
        return self._separator.join(heading for _, heading in path if heading)

    def _pieces(self, text: "_Text", section: _Section) -> Iterator[_Piece]:
        begin = section.start
        for token in section.code:
            start, end = map(text.offset, token.map)
            if self._is_too_long(text.text[start:end], token):
                yield from self._plain_pieces(text, begin, start)
                yield from self._code_pieces(text, token)
                begin = end
        yield from self._plain_pieces(text, begin, section.end)

    def _is_too_long(self, block: str, token: Any) -> bool:
        """Return whether a block of code exceeds the limit, and its fences do not."""
        maximum, size = self._limit.maximum, self._limit.size
        return size(block.strip("\r\n")) > maximum > size(_block(token, ""))

    def _plain_pieces(self, text: "_Text", begin: int, end: int) -> Iterator[_Piece]:
        splitter = fitted(self._library.MarkdownSplitter.from_callback, self._limit)
        for offset, piece in splitter.chunk_indices(text.text[begin:end]):
            if piece.strip():
                yield begin + offset, begin + offset + len(piece), None

    def _code_pieces(self, text: "_Text", token: Any) -> Iterator[_Piece]:
        """Yield a long block of code as several complete ones."""
        limit = ChunkLimit(
            self._limit.maximum, lambda code: self._limit.size(_block(token, code)), "in a block"
        )
        create = partial(self._library.TextSplitter.from_callback, trim=False)
        counted, first = 0, token.map[0] + 1
        for offset, code in fitted(create, limit).chunk_indices(token.content):
            if code.strip():
                skipped = offset + len(code) - len(code.lstrip("\n"))
                first += token.content.count("\n", counted, skipped)
                counted = skipped
                last = first + code.strip("\n").count("\n")
                yield text.offset(first), text.offset(last + 1), _block(token, code.strip("\n"))


class _Text(Chunks):
    """The text of a document by lines."""

    def offset(self, line: int) -> int:
        """Return the offset of a line, from 0; the end of the text after the last line."""
        return self.line_starts[line] if line < len(self.line_starts) else len(self.text)

    def parsed(self, parser: Any) -> tuple[int, Sequence[Any]]:
        """Return the offset after the front matter, and the tokens, with lines of this text."""
        begin = _front_matter_end(self.text)
        lines = sum(1 for _ in LINE_END.finditer(self.text, 0, begin))
        return begin, parser.parse("\n" * lines + self.text[begin:])


def _front_matter_end(text: str) -> int:
    """Return the offset after the front matter of *text*, or 0 if it has none.

    Text between two thematic breaks looks like it, and must not be lost. So each line must be YAML,
    and a blank line next to `---`, as there is at breaks, shows that it is not front matter.
    """
    lines = _LINE.finditer(text)
    if next(lines)[0].rstrip() != "---":
        return 0
    before: str | None = None
    for found in lines:
        line = found[0].rstrip()
        if line in ("---", "..."):
            return 0 if before == "" else found.end()
        if (line or before is None) and not _YAML.fullmatch(line):
            break
        before = line
    return 0


def _parser() -> Any:
    with needed_by("MarkdownSplitter"):
        from markdown_it import MarkdownIt  # noqa: PLC0415 - optional
    return MarkdownIt("commonmark").enable("table")


def _block(token: Any, code: str) -> str:
    """Return *code* between the fences of a block."""
    return f"{token.markup}{token.info}\n{code}\n{token.markup}"


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
