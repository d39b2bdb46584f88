"""Converts HTML to Markdown in linear time, and counts the Markdown while it is made.

Python's `html.parser` takes quadratic time for tags that are not closed in releases before the
repair of CVE-2025-6069, markdownify for the items of a list and the rows of a table, and libxml2
for deep documents. A short table with `colspan` becomes a long text.
"""

import re
from functools import cache
from html import unescape
from importlib import import_module
from typing import Any, Self
from urllib.parse import quote

from chatclient.retrieval.ingestion.limits import Extent

_MAX_DEPTH = 1_000
_BLOCK = 65_536
_TAG_OR_TEXT = re.compile(r"<(/?)([a-zA-Z!?][^\s<>/]*)[^<>]*>?|((?:[^<]|<(?!/?[a-zA-Z!?]))+)")
_SPACES = re.compile(r"[ \t\r\n]+")
_NUMBER = re.compile(r"[0-9]{1,9}")
_SHOWN = ("http", "https", "file", "mailto")  # schemes of links that are kept
_IN_LINKS = "%/:?#[]@!$&'*+,;=~"  # all others, such as spaces and brackets, would end a link


def html_as_markdown(html: str | bytes, extent: Extent) -> str:
    """Return the body of a document as Markdown; if it is nested too deeply, only its text.

    Raises:
        ImportError: A package is not installed.
        TooLargeError: The text is too long.
    """
    text = html if isinstance(html, str) else _decoded(html)
    before = extent.characters
    try:
        _check_depth(text)
        soup = import_module("bs4").BeautifulSoup(text, "lxml")
        markdown: str = _converter()(extent).convert_soup(soup.find("body") or soup)
    except RecursionError:
        markdown = _plain(text)
        extent.characters = before
        extent.add(len(markdown))
    return markdown.strip()


def _plain(html: str) -> str:
    """Return the text between tags, without scripts and styles."""
    parts: list[str] = []
    hidden = ""
    for end, name, text in _TAG_OR_TEXT.findall(html):
        if not name:
            parts += [] if hidden else [text.strip()]
        elif end and name.lower() == hidden:
            hidden = ""
        elif not hidden and name.lower() in ("script", "style"):
            hidden = name.lower()
    return unescape("\n".join(filter(None, parts)))


class _Depth:
    """What a parser calls to find out how deep a document is nested."""

    def __init__(self) -> None:
        self._depth = 0

    def start(self, _tag: str, _attributes: object) -> None:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise RecursionError

    def end(self, _tag: str) -> None:
        self._depth -= 1

    def data(self, _text: str) -> None:
        pass

    def close(self) -> None:
        pass


def _check_depth(html: str) -> None:
    """Check the depth of a document, on which the time for each of its tags depends.

    Raises:
        RecursionError: It is nested too deeply.
    """
    parser = import_module("lxml.etree").HTMLParser(target=_Depth())
    for start in range(0, len(html), _BLOCK):  # the parser ends at the end of a block
        parser.feed(html[start : start + _BLOCK])
    parser.close()


def _decoded(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        detector = import_module("bs4.dammit").EncodingDetector
    data, marked = detector.strip_byte_order_mark(data)
    # Only the beginning: the search for it takes quadratic time.
    declared = detector.find_declared_encoding(data[:2048], is_html=True)
    try:
        return data.decode(marked or declared or "cp1252", "replace")
    except LookupError:
        return data.decode("cp1252", "replace")


@cache
def _converter() -> type[Any]:  # noqa: C901 - the sum of its methods
    """Return the converter; a function, because markdownify is optional."""
    markdownify = import_module("markdownify")
    base: Any = markdownify.MarkdownConverter

    class Converter(base):  # type: ignore[misc]
        """markdownify's converter with other links and tables, and numbers that it counts."""

        def __init__(self, extent: Extent) -> None:
            super().__init__(heading_style=markdownify.ATX, strip_pre=None)
            self._extent = extent
            self._numbers: dict[int, int] = {}  # of the next item, by the identity of the list
            self._begun: set[int] = set()  # the identities of tables with a row

        def process_tag(self, node: Any, parent_tags: Any = None) -> str:
            before = self._extent.characters
            text: str = super().process_tag(node, parent_tags)
            # It contains the texts of the children, which were counted.
            self._extent.add(before + len(text) - self._extent.characters)
            return text

        def process_text(self, el: Any, parent_tags: Any = None) -> str:
            if "pre" not in (parent_tags or ()):
                el = _Collapsed(el)
            text: str = super().process_text(el, parent_tags)
            self._extent.add(len(text))
            return text

        def convert_a(self, el: Any, text: str, parent_tags: Any) -> str:
            href = str(el.get("href") or "").strip()
            scheme, colon, _ = href.partition(":")
            if colon and scheme.isalpha() and scheme.lower() not in _SHOWN:
                return text  # a script, for example
            el["href"] = quote(href, _IN_LINKS, errors="replace")
            converted: str = super().convert_a(el, text, parent_tags)
            return converted

        def convert_img(self, el: Any, text: str, parent_tags: Any) -> str:
            if str(el.get("src") or "").strip().lower().startswith("data:"):
                el["src"] = ""
            converted: str = super().convert_img(el, text, parent_tags)
            return converted

        def convert_input(self, el: Any, text: str, parent_tags: Any) -> str:  # noqa: ARG002
            if el.get("type") != "checkbox":
                return ""
            return "[x] " if el.has_attr("checked") else "[ ] "

        def convert_li(self, el: Any, text: str, parent_tags: Any) -> str:
            items = el.parent
            if items is None or items.name != "ol":
                converted: str = super().convert_li(el, text, parent_tags)
                return converted
            number = self._numbers.get(id(items)) or _number(items, "start")
            self._numbers[id(items)] = number + 1
            bullet = f"{number}. "
            lines = text.strip().split("\n")
            indented = [f"{' ' * len(bullet)}{line}" if line else "" for line in lines[1:]]
            return "\n".join([f"{bullet}{lines[0]}", *indented, ""]) if lines[0] else "\n"

        def convert_tr(self, el: Any, text: str, parent_tags: Any) -> str:  # noqa: ARG002
            table = el.find_parent("table")
            if id(table) in self._begun:
                return f"|{text}\n"
            self._begun.add(id(table))
            cells = el.find_all(["td", "th"], recursive=False)
            width = text.count("|") if not cells else sum(map(_columns, cells))
            line = f"|{' --- |' * width}\n"
            if el.parent.name == "thead" or all(cell.name == "th" for cell in cells):
                return f"|{text}\n{line}"
            return f"|{'  |' * width}\n{line}|{text}\n"  # a table in Markdown has a header

        def convert_td(self, el: Any, text: str, parent_tags: Any) -> str:  # noqa: ARG002
            return " " + text.strip().replace("\n", " ") + " |" * _columns(el)

        convert_th = convert_td

        def convert_pre(self, el: Any, text: str, parent_tags: Any) -> str:
            text = text.rstrip(" \n")
            blank = text[: len(text) - len(text.lstrip(" \n"))]
            text = text[blank.rfind("\n") + 1 :]
            converted: str = super().convert_pre(el, text, parent_tags)
            return converted

    return Converter


class _Collapsed(str):  # noqa: SLOT000 - markdownify asks it for its neighbours
    """A text of a document, with one space or line end for each sequence of them."""

    def __new__(cls, text: Any) -> Self:
        collapsed = _SPACES.sub(lambda found: "\n" if found[0].strip(" \t") else " ", text)
        return super().__new__(cls, collapsed)

    def __init__(self, text: Any) -> None:
        self.parent = text.parent
        self.previous_sibling = text.previous_sibling
        self.next_sibling = text.next_sibling


def _columns(cell: Any) -> int:
    return max(1, min(1000, _number(cell, "colspan")))


def _number(element: Any, attribute: str) -> int:
    found = _NUMBER.fullmatch(str(element.get(attribute) or ""))
    return int(found[0]) if found else 1
