"""Converts files to Markdown, without network access.

`MarkItDown` itself is not used: it fetches URLs, unpacks archives of any files, and runs plugins.
Its converters that are used here get the contents of a file and its format.

markitdown reads Excel files with pandas, which shows empty cells and texts such as `NA` as `NaN`,
and the whole numbers of a column with an empty cell as fractions. It fills up the rows of CSV
files, so that one long row makes all of them long.
"""

import csv
import io
import re
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, time
from functools import cache
from html import unescape
from importlib import import_module
from itertools import chain
from typing import Any, Self
from urllib.parse import quote

from chatclient.errors import MissingExtraError
from chatclient.retrieval.ingestion.limits import Extent, ReadLimits, TooLargeError
from chatclient.runtime.threads import ForkSafeLock

_PIPE = re.compile(r"(?<!\\)(\\*)\|")  # from the first backslash only, so that it is linear
_SHEET_VIEW = re.compile(rb"<sheetView\s[^<>]*>")

_CHART = "{http://schemas.openxmlformats.org/drawingml/2006/chart}"


def sheets_as_markdown(data: bytes, extent: Extent) -> str:
    """Return the sheets of a workbook as tables below their names; hidden ones as well.

    Cells contain values that were computed when the file was saved. Blank rows, and blank cells at
    the end of a row, are left out.

    Raises:
        ImportError: openpyxl is not installed.
        TooLargeError: There are too many rows, or too much text.
        Exception: The file cannot be read.
    """
    openpyxl = import_module("openpyxl")
    try:
        return _sheets(openpyxl, data, extent)
    except TypeError as error:
        if "showZeroes" not in str(error):
            raise
        repaired = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(repaired, "w") as new:
            for name in old.namelist():
                content = old.read(name)
                if name.startswith("xl/worksheets/"):
                    content = _SHEET_VIEW.sub(
                        lambda found: found[0].replace(b" showZeroes=", b" showZeros="), content
                    )
                new.writestr(name, content, zipfile.ZIP_DEFLATED)
        return _sheets(openpyxl, repaired.getvalue(), Extent(extent.limits))


def csv_as_markdown(data: bytes, encoding: str, extent: Extent) -> str:
    """Return a CSV file as a table.

    Args:
        data: The contents of the file.
        encoding: Its encoding, if it is not UTF-8; UTF-8 leaves it to be guessed.
        extent: Counts what the file yields.

    Raises:
        TooLargeError: There are too many rows, or too much text.
        ValueError: The file is not in this encoding.
        csv.Error: It is not a table.
    """
    text = _decoded(data, encoding)
    first = next((line for line in io.StringIO(text) if line.strip()), "")
    # Where the decimal sign is a comma, programs separate the columns by semicolons.
    separator = max(",;\t", key=lambda each: len(next(csv.reader([first], delimiter=each))))
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    return "\n".join(table_lines(rows, extent))


def _sheets(openpyxl: Any, data: bytes, extent: Extent) -> str:
    book = openpyxl.load_workbook(
        io.BytesIO(data), read_only=True, data_only=True, keep_links=False
    )
    try:
        parts = []
        for sheet in book.worksheets:
            sheet.reset_dimensions()  # those in the file may be wrong
            extent.add(len(sheet.title))
            rows = sheet.iter_rows(values_only=True)
            parts.append("\n".join([f"## {sheet.title}", *table_lines(rows, extent)]))
        return "\n\n".join(parts)
    finally:
        book.close()


def table_lines(rows: Iterable[Sequence[object]], extent: Extent) -> list[str]:
    """Return the lines of a table.

    Only the header has all columns. In the other rows, Markdown adds what is missing at the end;
    if we did so, a single long row would make a long text of all the others.
    """
    lines: list[str] = []
    header: list[str] = []
    width = 0
    for row in rows:
        extent.add_row()
        cells = [*_cells(row, extent)]
        if not cells:
            continue
        width = max(width, len(cells))
        if not header:
            header = cells
        else:
            lines.append(f"| {' | '.join(cells)} |")
    if not header:
        return []
    header += [""] * (width - len(header))
    return [f"| {' | '.join(header)} |", f"|{' --- |' * width}", *lines]


def _cells(row: Sequence[object], extent: Extent) -> Iterator[str]:
    """Yield the texts of a row, without blank ones at its end."""
    extent.add(len(row))  # a row has 16,384 cells if only its last one is not blank
    blank = 0
    for value in row:
        text = "" if value is None else _text(value)
        if not text:
            blank += 1
            continue
        extent.add(len(text) + 2 * (blank + 1))
        yield from [""] * blank
        yield text
        blank = 0


def _text(value: object) -> str:
    if isinstance(value, datetime) and value.time() == time():
        value = value.date()
    return _PIPE.sub(r"\1\1\\|", " ".join(str(value).split()))


def _decoded(data: bytes, encoding: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        if encoding.lower().replace("_", "-") not in ("utf-8", "utf8"):
            return data.decode(encoding)
    # Guesses are wrong for short files: it takes Polish for Korean.
    guessed = import_module("charset_normalizer").from_bytes(data).best()
    return str(guessed) if guessed is not None else data.decode("utf-8", "ignore")


def slides_as_markdown(data: bytes, extent: Extent) -> Iterator[str]:
    """Yield each slide: title, texts, tables, charts, descriptions of pictures, and notes.

    Raises:
        ImportError: python-pptx is not installed.
        TooLargeError: There are too many rows of tables, or too much text.
        Exception: The file cannot be read.
    """
    presentation = import_module("pptx").Presentation(io.BytesIO(data))
    for slide in presentation.slides:
        title = slide.shapes.title
        parts = [*_parts(slide.shapes, None if title is None else title.shape_id, extent)]
        frame = slide.notes_slide.notes_text_frame if slide.has_notes_slide else None
        if frame is not None and frame.text.strip():
            parts += ["", "### Notes:", frame.text]
            extent.add(len(frame.text))
        yield "\n".join(parts).replace("\v", "\n")  # a line break within a paragraph


def _parts(shapes: Any, title: int | None, extent: Extent) -> Iterator[str]:
    """Yield the contents of *shapes*, from top to bottom; *title* is the id of the title."""
    for shape in sorted(shapes, key=_position):
        if hasattr(shape, "shapes"):  # a group
            yield from _parts(shape.shapes, title, extent)
        elif shape.has_table:
            yield from ["", *table_lines(_rows(shape.table), extent), ""]
        elif shape.has_chart:
            yield from ["", *_chart(shape.chart, extent), ""]
        elif shape.has_text_frame:
            text = shape.text_frame.text
            extent.add(len(text))
            if text.strip():
                yield f"# {' '.join(text.split())}" if shape.shape_id == title else text
        else:
            for text in shape.element.xpath("./*/p:cNvPr/@descr"):
                extent.add(len(text))
                yield f"![{' '.join(text.split())}]()"


def _position(shape: Any) -> tuple[float, float]:
    top, left = shape.top, shape.left  # None if the layout of the slide defines it
    return (float("-inf") if top is None else top, float("-inf") if left is None else left)


def _rows(table: Any) -> Iterator[list[str]]:
    for row in table.rows:
        yield [cell.text for cell in row.cells]


def _chart(chart: Any, extent: Extent) -> Iterator[str]:
    """Yield a chart as a table.

    python-pptx takes quadratic time for the values, and believes the number of them in the file.
    """
    root = import_module("lxml.etree").fromstring(chart.part.blob)
    series = [*root.iter(f"{_CHART}ser")]
    names = [" ".join(_values(each, "tx").values()) for each in series]
    values = [_values(each, "val") for each in series]
    labels: dict[int, str] = {}
    for each in series:
        labels = _values(each, "cat") | labels
    numbers = sorted({number for each in (labels, *values) for number in each})
    title = "".join(root.xpath("./c:chart/c:title//a:t/text()", namespaces=root.nsmap))
    extent.add(len(title))
    yield f"### Chart: {title}" if title else "### Chart"
    yield ""
    rows = ([labels.get(n, ""), *(each.get(n, "") for each in values)] for n in numbers)
    yield from table_lines(chain([["Category", *names]], rows), extent)


def _values(series: Any, name: str) -> dict[int, str]:
    """Return the values of one kind in a series, by their numbers."""
    points = [
        point for part in series.findall(f"{_CHART}{name}") for point in part.iter(f"{_CHART}pt")
    ]
    return {int(each.get("idx")): each.findtext(f"{_CHART}v", "") for each in points}


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
    text = html if isinstance(html, str) else _decoded_html(html)
    before = extent.characters
    try:
        # The time for each tag depends on the depth of the document.
        parser = import_module("lxml.etree").HTMLParser(target=_Depth())
        for start in range(0, len(text), _BLOCK):  # the parser ends at the end of a block
            parser.feed(text[start : start + _BLOCK])
        parser.close()
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


def _decoded_html(data: bytes) -> str:
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
def _converter() -> type[Any]:
    """Return the converter; a function, because markdownify is optional."""
    return type("Converter", (_Conversion, import_module("markdownify").MarkdownConverter), {})


_Converter: Any = object  # stands for the class of markdownify, which `_converter` adds as a base


class _Conversion(_Converter):  # type: ignore[misc]
    """markdownify's converter with other links and tables, and numbers that it counts."""

    def __init__(self, extent: Extent) -> None:
        super().__init__(heading_style="atx", strip_pre=None)
        self._extent = extent
        self._numbers: dict[int, int] = {}  # of the next item, by the identity of the list
        self._tables: dict[int, _Table] = {}  # those with a cell, by their identities

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

    def _table(self, el: Any) -> "_Table":
        return self._tables.setdefault(id(el.find_parent("table")), _Table())

    def convert_tr(self, el: Any, text: str, parent_tags: Any) -> str:  # noqa: ARG002
        if not self._table(el).end_row():
            return f"|{text}\n"
        cells = el.find_all(["td", "th"], recursive=False)
        width = text.count("|") if not cells else sum(map(_columns, cells))
        line = f"|{' --- |' * width}\n"
        if el.parent.name == "thead" or all(cell.name == "th" for cell in cells):
            return f"|{text}\n{line}"
        return f"|{'  |' * width}\n{line}|{text}\n"  # a table in Markdown has a header

    def convert_td(self, el: Any, text: str, parent_tags: Any) -> str:  # noqa: ARG002
        columns = _columns(el)
        covered = self._table(el).add(columns, _number(el, "rowspan"))
        return "  |" * covered + " " + text.strip().replace("\n", " ") + " |" * columns

    convert_th = convert_td

    def convert_pre(self, el: Any, text: str, parent_tags: Any) -> str:
        text = text.rstrip(" \n")
        blank = text[: len(text) - len(text.lstrip(" \n"))]
        text = text[blank.rfind("\n") + 1 :]
        converted: str = super().convert_pre(el, text, parent_tags)
        return converted


class _Collapsed(str):  # noqa: SLOT000 - markdownify asks it for its neighbours
    """A text of a document, with one space or line end for each sequence of them."""

    def __new__(cls, text: Any) -> Self:
        collapsed = _SPACES.sub(lambda found: "\n" if found[0].strip(" \t") else " ", text)
        return super().__new__(cls, collapsed)

    def __init__(self, text: Any) -> None:
        self.parent = text.parent
        self.previous_sibling = text.previous_sibling
        self.next_sibling = text.next_sibling


_MAX_COLUMNS = 1000


class _Table:
    """Counts the columns of a row that cells of the rows above it cover."""

    def __init__(self) -> None:
        self._first = True
        self._column = 0  # of the next cell
        self._covered: dict[int, int] = {}  # the number of rows that are left, by column
        self._next: dict[int, int] = {}  # the same for the next row

    def add(self, columns: int, rows: int) -> int:
        """Add a cell to the row, and return how many covered columns are before it."""
        start = self._column
        while self._column in self._covered:
            self._column += 1
        at, self._column = self._column, self._column + columns
        if rows > 1 and self._column <= _MAX_COLUMNS:
            self._next.update(dict.fromkeys(range(at, self._column), rows - 1))
        return at - start

    def end_row(self) -> bool:
        """Go on to the next row, and return whether this one was the first."""
        left = {column: rows - 1 for column, rows in self._covered.items() if rows > 1}
        self._covered, self._next, self._column = {**left, **self._next}, {}, 0
        first, self._first = self._first, False
        return first


def _columns(cell: Any) -> int:
    return max(1, min(_MAX_COLUMNS, _number(cell, "colspan")))


def _number(element: Any, attribute: str) -> int:
    found = _NUMBER.fullmatch(str(element.get(attribute) or ""))
    return int(found[0]) if found else 1


CONVERTED = frozenset(("csv", "docx", "htm", "html", "ipynb", "pdf", "pptx", "xhtml", "xlsx"))
"""The formats that are converted."""

_SURROGATE = re.compile("[\ud800-\udfff]")  # half a character, which models do not take
_PACKED = ("docx", "pptx", "xlsx")
_pdfium = ForkSafeLock()  # the library is not thread-safe


def converted(
    format: str, data: bytes, limits: ReadLimits, encoding: str
) -> Iterator[tuple[str, int | None]]:
    """Yield the contents of a file as Markdown: each page or slide with its number, else all.

    Args:
        format: The format, one of `CONVERTED`.
        data: The contents.
        limits: The limits for the file.
        encoding: The encoding of a CSV file that is not in UTF-8; UTF-8 leaves it to be guessed.

    Raises:
        UsageError: The extra is not installed.
        TooLargeError: The contents exceed a limit.
        Exception: The converter failed.
    """
    if format in _PACKED:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > limits.unpacked_bytes:
            msg = f"its unpacked contents have {size} bytes; the limit is {limits.unpacked_bytes}"
            raise TooLargeError(msg)
    try:
        extent = Extent(limits)
        for text, number in _converted(format, data, encoding, extent):
            yield _SURROGATE.sub("\ufffd", text).replace("\f", "\n").strip(), number
    except ImportError as error:
        msg = f"{format} files need more packages; pip install 'chatclient[documents]'"
        raise MissingExtraError(msg) from error


def _converted(
    format: str, data: bytes, encoding: str, extent: Extent
) -> Iterator[tuple[str, int | None]]:
    match format:
        case "csv":
            yield csv_as_markdown(data, encoding, extent), None
        case "xlsx":
            yield sheets_as_markdown(data, extent), None
        case "htm" | "html" | "xhtml":
            yield html_as_markdown(data, extent), None
        case "docx":
            # With formulas as LaTeX.
            prepare = import_module("markitdown.converter_utils.docx.pre_process").pre_process_docx
            html = import_module("mammoth").convert_to_html(prepare(io.BytesIO(data)))
            yield html_as_markdown(html.value, extent), None
        case "pdf":
            for number, page in enumerate(_pages(data), 1):
                text = _markitdown("PdfConverter", page)
                extent.add(len(text))
                yield text, number
        case "pptx":
            for number, text in enumerate(slides_as_markdown(data, extent), 1):
                yield text, number
        case _:
            text = _markitdown("IpynbConverter", data)
            extent.add(len(text))
            yield text, None


def _markitdown(converter: str, data: bytes) -> str:
    library = import_module("markitdown")
    convert = getattr(import_module("markitdown.converters"), converter)().convert
    try:
        text: str = convert(io.BytesIO(data), library.StreamInfo()).markdown
    except library.MissingDependencyException as error:
        raise ImportError(str(error)) from error
    return text


def _pages(data: bytes) -> Iterator[bytes]:
    """Yield each page of a PDF as a PDF."""
    pdfium = import_module("pypdfium2")
    with _pdfium:
        file = pdfium.PdfDocument(data)
        count = len(file)
    try:
        for number in range(count):
            page = io.BytesIO()
            with _pdfium:
                single = pdfium.PdfDocument.new()
                single.import_pages(file, [number])
                single.save(page)
                single.close()
            yield page.getvalue()
    finally:
        with _pdfium:
            file.close()
