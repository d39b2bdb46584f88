"""Converts files to Markdown, without network access.

`MarkItDown` itself is not used: it fetches URLs, unpacks archives of any files, and runs plugins.
Its converters that are used here get the contents of a file and its format.
"""

import io
import re
import zipfile
from collections.abc import Iterator
from importlib import import_module

from chatclient.errors import MissingExtraError
from chatclient.retrieval.ingestion.html import html_as_markdown
from chatclient.retrieval.ingestion.limits import Extent, ReadLimits, TooLargeError
from chatclient.retrieval.ingestion.slides import slides_as_markdown
from chatclient.retrieval.ingestion.tables import csv_as_markdown, sheets_as_markdown
from chatclient.runtime.threads import ForkSafeLock

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
