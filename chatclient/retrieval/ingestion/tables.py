"""Converts Excel and CSV files to tables in Markdown.

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
from importlib import import_module
from typing import Any

from chatclient.retrieval.ingestion.limits import Extent

_PIPE = re.compile(r"(?<!\\)(\\*)\|")  # from the first backslash only, so that it is linear
_SHEET_VIEW = re.compile(rb"<sheetView\s[^<>]*>")


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
        return _sheets(openpyxl, _repaired(data), Extent(extent.limits))


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


def _repaired(data: bytes) -> bytes:
    """Return a workbook without a misspelt attribute that openpyxl refuses."""
    repaired = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(repaired, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name.startswith("xl/worksheets/"):
                content = _SHEET_VIEW.sub(
                    lambda found: found[0].replace(b" showZeroes=", b" showZeros="), content
                )
            new.writestr(name, content, zipfile.ZIP_DEFLATED)
    return repaired.getvalue()


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
