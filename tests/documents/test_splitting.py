"""Splitters: limits, positions, headings and code."""

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from chatclient.errors import UsageError, WrongTypeError
from chatclient.providers import EmbeddingModel, MiniLmEmbeddingModel
from chatclient.retrieval import (
    ChunkLimit,
    CodeSplitter,
    Document,
    FormatSplitter,
    MarkdownSplitter,
    SentenceSplitter,
    read_documents,
)
from chatclient.testing.vector_store_contract import WordCounts
from tests.support.examples import examples
from tests.support.paths import ROOT

python = pytest.importorskip("tree_sitter_python")
markdown_it = pytest.importorskip("markdown_it")

PAGES = sorted((ROOT / "docs").rglob("*.md"))
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def words(text: str) -> int:
    return len(text.split())


def texts(chunks: Sequence[Document]) -> list[str]:
    return [chunk.text for chunk in chunks]


def code_of(text: str) -> list[str]:
    """Return the lines of code in fenced blocks."""
    tokens = markdown_it.MarkdownIt().parse(text)
    return [line for each in tokens if each.type == "fence" for line in each.content.split("\n")]


# --- this project's pages -------------------------------------------------------------------


@pytest.fixture(scope="module")
def splitter(minilm: MiniLmEmbeddingModel) -> MarkdownSplitter:
    return MarkdownSplitter(minilm)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages(page: Path, splitter: MarkdownSplitter, minilm: MiniLmEmbeddingModel) -> None:
    """No chunk of a page exceeds the model's limit or splits a block of code that fits it."""
    (document,) = read_documents(page)

    chunks = splitter(document)

    assert max(minilm.count_tokens(chunk.text) for chunk in chunks) <= 256
    blocks = [found[0] for found in FENCE.finditer(document.text)]
    for block in blocks:
        if minilm.count_tokens(block) <= 256:
            assert any(block in chunk.text for chunk in chunks)
    # Longer ones become several complete blocks: no chunk has half a fence, no line is lost.
    assert all(len(re.findall("^```", chunk.text, re.MULTILINE)) % 2 == 0 for chunk in chunks)
    code = [line for chunk in chunks for line in code_of(chunk.text)]
    assert [line for line in code if line] == [line for line in code_of(document.text) if line]
    # Nothing is lost but front matter.
    covered = set[int]()
    for chunk in chunks:
        covered.update(range(chunk.metadata["start"], chunk.metadata["end"]))
    left = "".join(c for at, c in enumerate(document.text) if at not in covered)
    assert re.sub(r"```\w*|\A---\n(.*\n)*?---\n", "", left).strip() == ""


def test_long_blocks_of_code_exist(minilm: MiniLmEmbeddingModel) -> None:
    """The pages contain blocks of code that do not fit, so that the test above sees some."""
    blocks = [found[0] for page in PAGES for found in FENCE.finditer(page.read_text("utf-8"))]
    sizes = [minilm.count_tokens(block) for block in blocks]

    assert sum(size > 256 for size in sizes) > 5
    assert sum(size <= 256 for size in sizes) > 100


# --- Markdown -------------------------------------------------------------------------------

GUIDE = """\
---
title: Guide
---

Before.

# The `guide` to *everything*

## Installing

Run this.

```sh
# not a heading
pip install it
```

Windows
-------

- one

  ## not a section

## Using

#### Deep

Text.
"""


@pytest.mark.feature("documents-splitters")
def test_headings() -> None:
    """Chunks have the path of their headings, and headings without text join the next section."""
    chunks = MarkdownSplitter(200)(Document(GUIDE, {"source": "guide.md"}, "g"))

    assert [(chunk.metadata["heading"], chunk.metadata["line"]) for chunk in chunks] == [
        ("", 5),
        ("The guide to everything > Installing", 7),
        ("The guide to everything > Windows", 18),
        ("The guide to everything > Using > Deep", 25),
    ]
    assert chunks[1].text.startswith("# The `guide` to *everything*\n\n## Installing")
    assert chunks[1].text.endswith("pip install it\n```")
    assert chunks[3].text == "## Using\n\n#### Deep\n\nText."
    for chunk in chunks:
        start, end = chunk.metadata["start"], chunk.metadata["end"]
        assert GUIDE[start:end] == chunk.text
        assert chunk.metadata["source"] == "guide.md"
        assert chunk.id == f"g#{start}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("---\ntitle: Guide\n\ntags: [a]\n---\nText", ["Text"]),
        ('---\n"title": Guide\n---\nText', ["Text"]),
        ("---\n---\nText", ["Text"]),
        ("---\ntitle: Guide\n...\nText", ["Text"]),
        ("---\r\na: 'b: c'\r\n# d\r\ne.f-g:\r\n- h\r\n  i: [j,\r\n]\r\n---  \r\nText", ["Text"]),
        ("--- \n'a b': http://c/d\n\ne: |\n  f: g\n...", []),
        ("---\nSummary:\n\nText\n\n---\n\nMore", ["---\nSummary:\n\nText\n\n---\n\nMore"]),
        ("---\nSummary:\n- one\n\n---\nMore", ["---\nSummary:\n- one\n\n---\nMore"]),
        ("---\nNote: see below: it\n---\nMore", ["---", "Note: see below: it\n---\nMore"]),
        ("---\nNote: this is\nlong\n---\nMore", ["---", "Note: this is\nlong\n---\nMore"]),
        ("---\nTo be clear: no\n---\nMore", ["---", "To be clear: no\n---\nMore"]),
        ("---\ntitle: never closed\n\nText", ["---\ntitle: never closed\n\nText"]),
        ("---\n\nNote: first\n\n---\n\nText", ["---\n\nNote: first\n\n---\n\nText"]),
        ("---\n# Title\n\nText\n\n---\n", ["---", "# Title\n\nText\n\n---"]),
    ],
)
def test_front_matter(text: str, expected: list[str]) -> None:
    """Front matter is left out, however it ends, and text between two thematic breaks is not."""
    assert [chunk.text for chunk in MarkdownSplitter()(Document(text))] == expected


def test_separator_and_line_ends() -> None:
    """Paths may be joined otherwise; Windows' line ends count once."""
    chunks = MarkdownSplitter(separator="/")(Document(GUIDE.replace("\n", "\r\n")))

    assert [(chunk.metadata["heading"], chunk.metadata["line"]) for chunk in chunks][1:3] == [
        ("The guide to everything/Installing", 7),
        ("The guide to everything/Windows", 18),
    ]


def test_code_that_does_not_fit() -> None:
    """It becomes several complete blocks, divided at blank lines."""
    code = "~~~py title\ndef a():\n    return 1\n\n\ndef b():\n    return 2\n~~~"
    text = f"Before.\n\n{code}\n\nAfter."

    chunks = MarkdownSplitter(45)(Document(text))

    assert texts(chunks) == [
        "Before.",
        "~~~py title\ndef a():\n    return 1\n~~~",
        "~~~py title\ndef b():\n    return 2\n~~~",
        "After.",
    ]
    assert [chunk.metadata["line"] for chunk in chunks] == [1, 4, 8, 12]
    positions = [(chunk.metadata["start"], chunk.metadata["end"]) for chunk in chunks[1:3]]
    assert [text[start:end].strip() for start, end in positions] == [
        "def a():\n    return 1",
        "def b():\n    return 2",
    ]


def test_code_at_the_end_of_a_file() -> None:
    """A block that is not closed, and an empty one."""
    chunks = MarkdownSplitter(20)(Document("```\n" + "word " * 8 + "\n\n"))
    assert all(len(chunk.text) <= 20 for chunk in chunks)
    assert "".join(texts(chunks)).count("word") == 8

    assert texts(MarkdownSplitter(10)(Document("```\n" + "\n" * 20 + "```"))) == []
    # The fences alone do not fit.
    assert texts(MarkdownSplitter(8)(Document("```\nwords\nwords\n```"))) == [
        "```",
        "words",
        "words",
        "```",
    ]


def test_blank_documents() -> None:
    """They have no chunks."""
    for text in ("", " \n\n", "\x1c\n", "\u2028"):
        assert MarkdownSplitter()(Document(text)) == []
        assert SentenceSplitter()(Document(text)) == []
    assert MarkdownSplitter()(Document("---\na: b\n---\n")) == []


PARTS = st.sampled_from(
    [
        "# One\n",
        "## Two\n",
        "Some words that are a sentence. And another one!\n",
        "- item\n- item\n\n  ```\n  in a list\n\n  code\n  ```\n",
        "```py\nx = 1\n\n# y\ny = 2\n```\n",
        "~~~\n```\nnested\n```\n~~~\n",
        "> ```\n> quoted\n> ```\n",
        "| a | b |\n|---|---|\n| 1 | 2 |\n",
        "    indented code\n",
        "<div>\n# html\n</div>\n",
        "Setext\n===\n",
        "\u200b\u2028é\r\n",
        "\n",
    ]
)


@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(PARTS, max_size=12).map("".join), st.integers(20, 120))
def test_any_markdown(text: str, limit: int) -> None:
    """Chunks are within the limit, in order, and keep all words and blocks that fit."""
    chunks = MarkdownSplitter(limit)(Document(text))

    assert all(chunk.text.strip() and len(chunk.text) <= limit for chunk in chunks)
    starts = [chunk.metadata["start"] for chunk in chunks]
    assert starts == sorted(starts)
    tokens = [each for each in markdown_it.MarkdownIt().parse(text) if each.type == "fence"]
    lines = re.split(r"(?<=\n)", text.replace("\r\n", "\n"))
    joined = "\n".join(texts(chunks)).replace("\r\n", "\n")
    for token in tokens:
        block = "".join(lines[slice(*token.map)]).strip()
        if len(block) <= limit - 4:
            assert block in joined
    assert set(re.findall(r"\w+", text)) <= set(re.findall(r"\w+", joined))


# --- text and code --------------------------------------------------------------------------


def test_sentences() -> None:
    """Paragraphs are kept, else sentences; abbreviations and other scripts are respected."""
    text = (
        "One short paragraph.\n\nA sentence with 3.5 numbers. Another sentence here. 你好。再见。"
    )

    chunks = SentenceSplitter(52)(Document(text))

    assert texts(chunks) == [
        "One short paragraph.",
        "A sentence with 3.5 numbers. Another sentence here.",
        "你好。再见。",
    ]
    assert all(
        text[chunk.metadata["start"] : chunk.metadata["end"]] == chunk.text for chunk in chunks
    )


def test_overlap() -> None:
    """A chunk may repeat the end of the one before."""
    text = "Alpha one. Beta two. Gamma three. Delta four."

    found = texts(SentenceSplitter(22, overlap=12)(Document(text)))

    assert found == ["Alpha one. Beta two.", "Beta two. Gamma three.", "Delta four."]


def test_overlap_that_leaves_no_room() -> None:
    """The overlap is reduced if the limit also includes what a model adds to each text."""
    limit = ChunkLimit(5, lambda text: words(text) + 2, "tokens")

    found = texts(SentenceSplitter(limit, overlap=4)(Document("one two three four five")))

    assert found == ["one two three", "two three four", "three four five"]


def test_other_units() -> None:
    """The limit may be in any unit."""
    limit = ChunkLimit(3, words, "words")

    found = texts(SentenceSplitter(limit)(Document("one two three four five six. seven")))

    assert all(words(text) <= 3 for text in found)
    assert " ".join(found) == "one two three four five six. seven"


def test_tokens_of_the_embedding_model(minilm: MiniLmEmbeddingModel) -> None:
    """A model counts with its tokenizer, including the tokens that it adds."""
    assert [minilm.count_tokens("cat " * n) for n in (0, 1, 254, 255, 1000)] == [
        2,
        3,
        256,
        257,
        1002,
    ]

    chunks = SentenceSplitter(minilm)([Document("antidisestablishmentarianism " * 200)])

    assert len(chunks) > 4
    assert 200 < max(minilm.count_tokens(chunk.text) for chunk in chunks) <= 256


def test_code() -> None:
    """Source code is divided between definitions."""
    code = (
        "import os\n\n\nclass A:\n    def one(self):\n        return 1\n\n"
        "    def two(self):\n        return 2\n\n\ndef three():\n    return 3\n"
    )
    splitter = CodeSplitter(python.language(), 90)

    chunks = splitter(Document(code, {"source": "a.py"}))

    assert texts(chunks) == [
        "import os",
        "class A:\n    def one(self):\n        return 1\n\n    def two(self):\n        return 2",
        "def three():\n    return 3",
    ]
    assert [chunk.metadata["line"] for chunk in chunks] == [1, 4, 12]


def test_splitter_by_format() -> None:
    """Documents are divided by their format."""
    splitter = FormatSplitter(50, py=CodeSplitter(python.language(), 30))
    code = "# comment\n\ndef a():\n    return 1"

    chunks = splitter(
        [Document(code, {"format": format}) for format in ("py", "sh", "md", "docx")]
        + [Document(code)]
    )

    assert [(c.metadata.get("format"), c.metadata.get("heading")) for c in chunks] == [
        ("py", None),
        ("py", None),
        ("sh", None),
        ("md", "comment"),
        ("docx", "comment"),
        (None, None),
    ]


def test_keys() -> None:
    """Splitters that divide differently have different keys."""
    model = WordCounts()
    grammar = python.language()

    def tokens(maximum: int) -> ChunkLimit:
        return ChunkLimit(maximum, words, f"words of {model.name}")

    several = [
        MarkdownSplitter(),
        MarkdownSplitter(500),
        MarkdownSplitter(separator="/"),
        MarkdownSplitter(tokens(500)),
        SentenceSplitter(),
        SentenceSplitter(overlap=1),
        CodeSplitter(grammar),
        FormatSplitter(),
        FormatSplitter(py=CodeSplitter(grammar)),
        FormatSplitter(py=CodeSplitter(grammar, 2_000)),
    ]

    assert len({splitter.key for splitter in several}) == len(several)
    assert MarkdownSplitter(500).key == MarkdownSplitter(500).key
    assert repr(MarkdownSplitter()) == f"MarkdownSplitter({MarkdownSplitter().key!r})"


# --- errors ---------------------------------------------------------------------------------

WRONG: Any = "wrong"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: MarkdownSplitter(0), "at least 1"),
        (lambda: MarkdownSplitter(WRONG), "limit must be"),
        (lambda: SentenceSplitter(10, overlap=10), "overlap must be less than the limit, 10 char"),
        (lambda: SentenceSplitter(10, overlap=-1), "overlap"),
        (lambda: MarkdownSplitter(WordCounts()), r"word-counts does not tell .* ChunkLimit\("),
        (lambda: WordCounts().count_tokens("text"), "word-counts does not count tokens"),
        (lambda: ChunkLimit(10, WRONG), "size must be"),
        (lambda: CodeSplitter("python"), r"pass tree_sitter_python\.language\(\)"),
        (lambda: FormatSplitter(py=WRONG), "a splitter must be"),
    ],
)
def test_wrong_arguments(make: Callable[[], Any], said: str) -> None:
    """Wrong arguments raise errors that name the correct ones."""
    with pytest.raises(UsageError, match=said):
        make()


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extra."""
    for module in ("markdown_it", "semantic_text_splitter"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, module, None)
            with pytest.raises(UsageError, match=r"pip install 'chatclient\[documents\]'"):
                MarkdownSplitter()


def test_failure_of_a_tokenizer() -> None:
    """The error of a function that counts tokens is not hidden."""

    class Model(WordCounts):
        @property
        def max_tokens(self) -> int:
            return 10

        def count_tokens(self, text: str) -> int:
            raise WrongTypeError("broken")

    assert isinstance(Model(), EmbeddingModel)
    with pytest.raises(WrongTypeError, match="broken"):
        SentenceSplitter(Model())(Document("some text"))


# --- large texts ----------------------------------------------------------------------------

ONE_LINE = {"one word": "x", "words": "word ", "Chinese": "\u6f22\u5b57", "quotes": "> "}


@pytest.mark.parametrize("piece", ONE_LINE.values(), ids=ONE_LINE)
@pytest.mark.parametrize("kind", [SentenceSplitter, MarkdownSplitter, None])
def test_work_for_one_long_line(kind: type[SentenceSplitter] | None, piece: str) -> None:
    """Twice as long a line is twice the work, also in source code."""

    def work(length: int) -> int:
        measured = 0

        def size(text: str) -> int:
            nonlocal measured
            measured += len(text)
            return len(text)

        limit = ChunkLimit(1_000, size, unit="characters")
        splitter = CodeSplitter(python.language(), limit) if kind is None else kind(limit)
        text = piece * (length // len(piece))
        chunks = splitter(Document(text))
        assert "".join(texts(chunks)).replace(" ", "") == text.replace(" ", "")
        return measured

    assert work(160_000) < 2.3 * work(80_000)


@pytest.mark.parametrize("overlap", [0, 100])
def test_large_texts_are_divided_as_small_ones(overlap: int) -> None:
    """A large text has the same chunks as with the library alone."""
    text = "\n\n".join(page.read_text("utf-8") for page in PAGES)
    library = pytest.importorskip("semantic_text_splitter").TextSplitter

    chunks = SentenceSplitter(500, overlap=overlap)(Document(text))

    whole = [*library(500, overlap).chunk_indices(text)]
    assert len(whole) > 500
    assert [(each.metadata["start"], each.text) for each in chunks] == whole


def test_chunks_that_are_longer_than_usual() -> None:
    """A limit that allows very long chunks is used, and blank text in between is skipped."""
    text = "a" * 300_000 + " " * 100_000 + "b " * 40

    def size(chunk: str) -> int:
        return len(chunk.split())

    chunks = SentenceSplitter(ChunkLimit(15, size, unit="words"))(Document(text))

    assert [size(each.text) for each in chunks] == [15, 15, 11]


def test_lines_of_long_code() -> None:
    """Each chunk of a long block of code has the number of its first line."""
    code = "".join(f"x{number} = 1\n\n" for number in range(500))

    chunks = MarkdownSplitter(100)(Document(f"# A\n\n```py\n{code}```\n"))

    for chunk in chunks[1:]:
        number = int(re.findall(r"x(\d+)", chunk.text)[0])
        assert chunk.metadata["line"] == 4 + 2 * number
