"""Files that become much more than they are, and files that take long to read."""

import io
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chatclient.retrieval import DocumentReadError, ReadLimits, aread_documents, read_documents
from tests.support.call_counts import calls_of

docx = pytest.importorskip("docx")
openpyxl = pytest.importorskip("openpyxl")
pptx = pytest.importorskip("pptx")

Run = Callable[..., Any]


def workbook(path: Path, rows: str, *, sheets: int = 1, attribute: str = "") -> None:
    """Write a workbook whose *sheets* contain *rows*, in XML."""
    made, made_rows = io.BytesIO(), f"<sheetData>{rows}</sheetData>".encode()
    book = openpyxl.Workbook()
    for number in range(1, sheets):
        book.create_sheet(f"Sheet {number}")
    book.save(made)
    with (
        zipfile.ZipFile(made) as old,
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for name in old.namelist():
            text = old.read(name)
            if name.startswith("xl/worksheets/"):
                text = re.sub(rb"<sheetData */>|<sheetData></sheetData>", made_rows, text)
                assert rows.encode() in text
                text = text.replace(b"<sheetView ", f"<sheetView {attribute} ".encode())
            new.writestr(name, text)


def cell(place: str, value: str) -> str:
    return f'<c r="{place}" t="inlineStr"><is><t>{value}</t></is></c>'


def test_row_numbers_of_a_workbook(tmp_path: Path, run: Run) -> None:
    """A row far below the others is an error, also in files with other errors."""
    far = '<row r="1"/><row r="100000000"><c r="A100000000"><v>1</v></c></row>'
    workbook(tmp_path / "a.xlsx", far)
    workbook(tmp_path / "b.xlsx", far, attribute='showZeroes="0"')
    workbook(tmp_path / "c.xlsx", '<row r="600000"><c r="A600000"><v>1</v></c></row>', sheets=2)

    for name in ("a.xlsx", "b.xlsx", "c.xlsx"):
        assert (tmp_path / name).stat().st_size < 8_000
        with pytest.raises(DocumentReadError, match=r"more than 1048576 rows.*ReadLimits\(rows=\)"):
            run(read_documents, aread_documents, tmp_path / name)


def test_limit_of_rows(tmp_path: Path) -> None:
    """As many rows as the limit are read, and blank ones count."""
    workbook(tmp_path / "a.xlsx", f'<row r="3">{cell("A3", "x")}</row>')
    (tmp_path / "b.csv").write_text("a\n\nb\n")

    found = read_documents(tmp_path, limits=ReadLimits(rows=3))
    assert [each.text for each in found] == [
        "## Sheet\n| x |\n| --- |",
        "| a |\n| --- |\n| b |",
    ]
    for name in ("a.xlsx", "b.csv"):
        with pytest.raises(DocumentReadError, match="more than 2 rows"):
            read_documents(tmp_path / name, limits=ReadLimits(rows=2))


def last_column(path: Path) -> None:
    workbook(path, "".join(f'<row r="{n}">{cell(f"XFD{n}", "x")}</row>' for n in range(1, 2_000)))


def one_text(path: Path) -> None:
    """Write a workbook with one long text in many cells."""
    book = openpyxl.Workbook()
    for _ in range(300):
        book.active.append(["x" * 9_000] * 3)
    book.save(path)


def spans(path: Path) -> None:
    path.write_text("<table>" + "<tr><td colspan=1000>x" * 3_000)


def deep_list(path: Path) -> None:
    path.write_text("<ul><li>" * 80 + "<li>x" * 1_500)


def word_spans(path: Path) -> None:
    file = docx.Document()
    table = file.add_table(100, 2)
    for row in table.rows:
        row.cells[0]._tc.get_or_add_tcPr().get_or_add_gridSpan().val = 1_000
    file.save(path)


def repeated_slide(path: Path) -> None:
    file = pptx.Presentation()
    slide = file.slides.add_slide(file.slide_layouts[1])
    slide.shapes.title.text = "x" * 30_000
    [id] = file.slides._sldIdLst
    for number in range(200):
        again = file.slides._sldIdLst._add_sldId()
        again.rId, again.id = id.rId, 300 + number
    file.save(path)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("a.xlsx", last_column),
        ("a.xlsx", one_text),
        ("a.html", spans),
        ("a.html", deep_list),
        ("a.docx", word_spans),
        ("a.pptx", repeated_slide),
    ],
    ids=lambda each: getattr(each, "__name__", None),
)
def test_limit_of_text(tmp_path: Path, run: Run, name: str, make: Callable[[Path], None]) -> None:
    """The reading ends when the text of a small file exceeds the limit."""
    make(tmp_path / name)
    limits = ReadLimits(characters=150_000)

    assert (tmp_path / name).stat().st_size < 160_000
    with pytest.raises(DocumentReadError, match=r"more than 150000 characters.*characters=\)"):
        run(read_documents, aread_documents, tmp_path / name, limits=limits)


def test_limit_of_text_for_other_files(tmp_path: Path) -> None:
    """The limit holds for text files, pages and what a cache has, too."""
    (tmp_path / "a.md").write_text("12345")
    (tmp_path / "b.ipynb").write_text('{"cells": [{"cell_type": "markdown", "source": "12345"}]}')

    for name in ("a.md", "b.ipynb"):
        [document] = read_documents(tmp_path / name, limits=ReadLimits(characters=5))
        assert document.text == "12345"
        with pytest.raises(DocumentReadError, match="more than 4 characters"):
            read_documents(tmp_path / name, limits=ReadLimits(characters=4))


def test_rows_of_different_lengths(tmp_path: Path) -> None:
    """A long row does not make the others longer; the header has all columns."""
    long = ",".join("1" * 3_000)
    (tmp_path / "a.csv").write_text(f"{long}\n" + "2\n" * 3_000)
    (tmp_path / "b.csv").write_text("a\n2,3\n,\n4\n")

    large, small = read_documents(tmp_path)

    assert len(large.text) < 5 * (tmp_path / "a.csv").stat().st_size
    assert small.text == "| a |  |\n| --- | --- |\n| 2 | 3 |\n| 4 |"


UNCLOSED = {
    "start tags": "<a ",
    "attributes": "<a x='",
    "end tags": "</a",
    "comments": "<!--",
    "sections": "<![CDATA[",
    "nested": "<i>",
    "nested and closed by others": "<i></b>",
    "text": "a<",
    "spaces": "        ",
}


@pytest.mark.parametrize("piece", UNCLOSED.values(), ids=UNCLOSED)
def test_size_of_broken_html(tmp_path: Path, piece: str) -> None:
    """A megabyte of tags that are not closed is read; parsers that are quadratic take hours."""
    number = 1_000_000 // len(piece)
    (tmp_path / "a.html").write_text(f"<p>Hello{piece * number}")

    [document] = read_documents(tmp_path)

    assert document.text.startswith("Hello")


REPEATED = {
    "items": ("<ol>", "<li>x</li>"),
    "rows": ("<table><thead>", "<tr><td>x</td></tr>"),
    "bodies": ("<table>", "<tbody><tr><td>x</td></tr></tbody>"),
    "scripts": ("", "<p>x</p><script>y</script>"),
    "lists": ("", "<ul><li>x</ul><!-- y -->"),
}


@pytest.mark.parametrize(("begin", "piece"), REPEATED.values(), ids=REPEATED)
def test_work_for_html(tmp_path: Path, begin: str, piece: str) -> None:
    """Twice as many elements are twice the work."""

    def work(number: int) -> int:
        (tmp_path / "a.html").write_text(begin + piece * number)
        return calls_of(lambda: read_documents(tmp_path))

    work(1)  # imports

    assert work(800) < 2.2 * work(400)


def test_deep_html(tmp_path: Path) -> None:
    """Of a document that is nested too deeply, the text is read, and no scripts."""
    deep = "<script>a &lt; b</script><p>1 &lt; 2 < 3</p>{}<style>q</style>end"
    (tmp_path / "a.html").write_text(deep.format("<div>x" * 500))
    (tmp_path / "b.html").write_text(deep.format("<div>x" * 5_000))

    a, b = read_documents(tmp_path)

    assert a.text.split() == ["1", "<", "2", "<", "3", *"x" * 500, "end"]
    assert b.text.split() == ["1", "<", "2", "<", "3", *"x" * 5_000, "end"]


def test_html(tmp_path: Path) -> None:
    """Lists, tables, links and code have their form in Markdown."""
    (tmp_path / "a.html").write_bytes(
        b"""<ol start=3><li>a<p>b</p></li><li></li><li>c</li></ol>
        <table><tr><th>x<th colspan=2>y<tr><td>1<td>2<td>3<tr><td colspan=3>4</table>
        <a href="javascript:run()">no</a> <a href="/a b(c)">yes</a>
        <img alt="dot" src="data:image/png;base64,AAAA"> <input type=checkbox checked>done
        <pre>\n\n  a\n\n\n</pre> caf\xe9 &amp; more"""
    )

    [document] = read_documents(tmp_path)

    assert document.text.split("\n") == [
        "3. a",
        "",
        "   b",
        "5. c",
        "",
        "| x | y | |",
        "| --- | --- | --- |",
        "| 1 | 2 | 3 |",
        "| 4 | | |",
        "",
        "no [yes](/a%20b%28c%29)",
        "![dot]() [x] done",
        "",
        "```",
        "  a",
        "```",
        "",
        "caf\u00e9 & more",
    ]


def test_cells_of_several_rows(tmp_path: Path) -> None:
    """Cells are in the columns below their headers where a cell above covers some."""
    (tmp_path / "a.html").write_text(
        """<table><tr><th>day<th>time<th>room
        <tr><td rowspan=3>Monday<td>9<td rowspan=2>Blue<tr><td>10<tr><td>11<td>Red
        <tr><td colspan=2 rowspan=2>free<td>Green<tr><td>Grey</table>"""
    )
    (tmp_path / "b.html").write_text("<table><tr><td rowspan=99999 colspan=1000>" + "<tr><td>x" * 9)

    a, b = read_documents(tmp_path)

    assert a.text.split("\n")[2:] == [
        "| Monday | 9 | Blue |",
        "|  | 10 |",
        "|  | 11 | Red |",
        "| free | | Green |",
        "|  |  | Grey |",
    ]
    assert len(b.text.split("\n")[-1]) < 4_000


def test_encoding_of_html(tmp_path: Path) -> None:
    """HTML is read in the encoding of its byte order mark, or that of the document."""
    (tmp_path / "a.html").write_bytes(b'<meta charset="iso-8859-2">\xb3\xf3d\xbc')
    (tmp_path / "b.html").write_bytes(b'<meta charset="unknown">caf\xe9')
    (tmp_path / "c.html").write_text("caf\u00e9", "utf-16")

    texts = [each.text for each in read_documents(tmp_path)]

    assert texts == ["\u0142\u00f3d\u017a", "caf\u00e9", "caf\u00e9"]


def test_slides(tmp_path: Path) -> None:
    """A slide has its title, texts of groups, tables, charts, pictures and notes."""
    chart_data: Any = pytest.importorskip("pptx.chart.data")
    kind = pytest.importorskip("pptx.enum.chart").XL_CHART_TYPE.COLUMN_CLUSTERED
    file = pptx.Presentation()
    slide = file.slides.add_slide(file.slide_layouts[5])
    slide.shapes.title.text = "The\vplan"
    group = slide.shapes.add_group_shape()
    group.shapes.add_textbox(0, 3_000_000, 100, 100).text_frame.text = "in a group\v<!-- Slide -->"
    table = slide.shapes.add_table(1, 2, 0, 4_000_000, 100, 100).table
    table.cell(0, 0).text, table.cell(0, 1).text = "a|b", "c"
    data = chart_data.CategoryChartData()
    data.categories = ["East", "West"]
    data.add_series("Q1", (1.5, None))
    data.add_series("Q2", (3, 4))
    chart = slide.shapes.add_chart(kind, 0, 5_000_000, 100, 100, data).chart
    chart.chart_title.text_frame.text = "Sales"
    slide.notes_slide.notes_text_frame.text = "Say it."
    file.slides.add_slide(file.slide_layouts[6])
    file.save(tmp_path / "a.pptx")

    first, second = read_documents(tmp_path)

    assert first.text.split("\n") == [
        "# The plan",
        "in a group",
        "<!-- Slide -->",
        "",
        "| a\\|b | c |",
        "| --- | --- |",
        "",
        "",
        "### Chart: Sales",
        "",
        "| Category | Q1 | Q2 |",
        "| --- | --- | --- |",
        "| East | 1.5 | 3 |",
        "| West |  | 4 |",
        "",
        "",
        "### Notes:",
        "Say it.",
    ]
    assert (second.text, second.metadata["page"]) == ("", 2)


def test_columns_of_csv(tmp_path: Path) -> None:
    """Columns may be separated by semicolons or tabs, and the encoding may be given."""
    (tmp_path / "a.csv").write_bytes("Stadt;Preis\nK\u00f6ln;1,5\n".encode("cp1252"))
    (tmp_path / "b.csv").write_text('a\tb\n"x, y\nz"\t\\|\n')

    a, b = read_documents(tmp_path, encoding="cp1252")

    assert a.text == "| Stadt | Preis |\n| --- | --- |\n| K\u00f6ln | 1,5 |"
    assert b.text == "| a | b |\n| --- | --- |\n| x, y z | \\\\\\| |"
