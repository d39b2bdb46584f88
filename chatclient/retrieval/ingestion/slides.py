"""Converts PowerPoint files to Markdown, one slide at a time."""

import io
from collections.abc import Iterator
from importlib import import_module
from itertools import chain
from typing import Any

from chatclient.retrieval.ingestion.limits import Extent
from chatclient.retrieval.ingestion.tables import table_lines

_CHART = "{http://schemas.openxmlformats.org/drawingml/2006/chart}"


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
    top, left = shape.top, shape.left  # None if the layout of the slide says it
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
