"""Converts Excel files to Markdown.

markitdown reads them with pandas, which shows empty cells and texts such as `NA` as `NaN`, and the
whole numbers of a column with an empty cell as fractions.
"""

import io
from collections.abc import Iterator
from datetime import datetime, time
from importlib import import_module
from typing import Any


def sheets_as_markdown(data: bytes) -> str:
    """Return the sheets of a workbook as tables below their names; hidden ones as well.

    Cells contain values that were computed when the file was saved. Blank rows, and blank columns
    on the right, are left out.

    Raises:
        ImportError: openpyxl is not installed.
        Exception: The file cannot be read.
    """
    openpyxl = import_module("openpyxl")
    book = openpyxl.load_workbook(
        io.BytesIO(data), read_only=True, data_only=True, keep_links=False
    )
    try:
        return "\n\n".join(
            "\n".join([f"## {sheet.title}", *_table(_rows(sheet))]) for sheet in book.worksheets
        )
    finally:
        book.close()


def _rows(sheet: Any) -> list[list[str]]:
    """Return the texts of the rows that are not blank."""
    sheet.reset_dimensions()  # those in the file may be wrong
    texts = ([*map(_text, row)] for row in sheet.iter_rows(values_only=True))
    return [row for row in texts if any(row)]


def _table(rows: list[list[str]]) -> Iterator[str]:
    width = max((_width(row) for row in rows), default=0)
    for number, row in enumerate(rows):
        cells = row[:width] + [""] * (width - len(row))
        yield f"| {' | '.join(cells)} |"
        if number == 0:
            yield f"|{' --- |' * width}"


def _width(row: list[str]) -> int:
    return max(column for column, text in enumerate(row, 1) if text)


def _text(value: object) -> str:
    """Return the text of a cell."""
    if value is None:
        return ""
    if isinstance(value, datetime) and value.time() == time():
        value = value.date()
    return " ".join(str(value).split()).replace("|", "\\|")
