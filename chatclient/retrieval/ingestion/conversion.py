"""Converts files to Markdown with the converters of markitdown, without its network access.

`MarkItDown` itself is not used: it fetches URLs, unpacks archives of any files, and runs plugins.
The converters that are used here get the contents of a file and its format.
"""

import io
import re
import zipfile
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from chatclient.errors import UsageError
from chatclient.retrieval.ingestion.spreadsheet import sheets_as_markdown
from chatclient.runtime.fork_safety import ForkSafeLock

_CONVERTERS: Mapping[str, str] = {
    "csv": "CsvConverter",
    "docx": "DocxConverter",
    "htm": "HtmlConverter",
    "html": "HtmlConverter",
    "ipynb": "IpynbConverter",
    "pdf": "PdfConverter",
    "pptx": "PptxConverter",
    "xhtml": "HtmlConverter",
    "xlsx": "XlsxConverter",
}
CONVERTED = frozenset(_CONVERTERS)
"""The formats that are converted."""

_SLIDE = re.compile(r"^<!-- Slide number: \d+ -->$", re.MULTILINE)
_SURROGATE = re.compile("[\ud800-\udfff]")  # half a character, which models do not take
_PACKED = ("docx", "pptx", "xlsx")
_pdfium = ForkSafeLock()  # the library is not thread-safe


class TooLargeError(ValueError):
    """The unpacked contents of a file exceed the limit."""


def converted(format: str, data: bytes, unpacked_bytes: int) -> Iterator[tuple[str, int | None]]:
    """Yield the contents of a file as Markdown: each page or slide with its number, else all.

    Args:
        format: The format, one of `CONVERTED`.
        data: The contents.
        unpacked_bytes: The maximum size of the unpacked contents of an Office file.

    Raises:
        UsageError: The extra is not installed.
        TooLargeError: The unpacked contents exceed the limit.
        Exception: The converter failed.
    """
    library = _markitdown()
    if format in _PACKED:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > unpacked_bytes:
            msg = f"its unpacked contents have {size} bytes; the limit is {unpacked_bytes}"
            raise TooLargeError(msg)
    match format:
        case "pdf":
            for number, page in enumerate(_pages(data), 1):
                yield _convert(library, format, page), number
        case "pptx":
            slides = _SLIDE.split(_convert(library, format, data))[1:]
            for number, slide in enumerate(slides, 1):
                yield slide.strip(), number
        case "xlsx":
            yield _workbook(library, data), None
        case _:
            yield _convert(library, format, data), None


def _markitdown() -> Any:
    try:
        return import_module("markitdown")
    except ImportError as error:
        msg = "PDF, Office and HTML files need markitdown; pip install 'chatclient[documents]'"
        raise UsageError(msg) from error


def _convert(library: Any, format: str, data: bytes) -> str:
    converter = getattr(import_module("markitdown.converters"), _CONVERTERS[format])()
    # Without an encoding, the converter guesses that of CSV, and takes Polish for Korean.
    charset = "utf-8-sig" if format == "csv" and _is_utf8(data) else None
    info = library.StreamInfo(extension=f".{format}", charset=charset)
    try:
        result = converter.convert(io.BytesIO(data), info)
    except library.MissingDependencyException as error:
        msg = f"{format} files need more packages; pip install 'chatclient[documents]'"
        raise UsageError(msg) from error
    text: str = result.markdown
    return _SURROGATE.sub("\ufffd", text).replace("\f", "\n").strip()


def _workbook(library: Any, data: bytes) -> str:
    try:
        return sheets_as_markdown(data)
    except (ImportError, TypeError):
        # It repairs files that openpyxl refuses with a `TypeError`, and names missing packages.
        return _convert(library, "xlsx", data)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


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
