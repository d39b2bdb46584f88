"""Reading real files as documents."""

import asyncio
import io
import json
import os
import socket
import sys
import threading
import zipfile
from collections.abc import Callable
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from chatclient import Progress
from chatclient.errors import UsageError
from chatclient.retrieval import (
    ConversionCache,
    Document,
    DocumentReadError,
    ReadLimits,
    aread_documents,
    read_documents,
)
from chatclient.retrieval.ingestion import conversion, reading, reading as conversion_cache

docx = pytest.importorskip("docx")
canvas = pytest.importorskip("reportlab.pdfgen.canvas")
openpyxl = pytest.importorskip("openpyxl")
pptx = pytest.importorskip("pptx")

Run = Callable[..., Any]


def word(path: Path) -> None:
    file = docx.Document()
    file.add_heading("Leave", 1)
    file.add_paragraph("You have 30 days.")
    table = file.add_table(1, 2)
    table.cell(0, 0).text, table.cell(0, 1).text = "Ada", "28"
    file.save(path)


def excel(path: Path) -> None:
    file = openpyxl.Workbook()
    file.active.title = "Prices"
    file.active.append(["item", "price"])
    file.active.append(["tea", 3])
    file.save(path)


def powerpoint(path: Path) -> None:
    file = pptx.Presentation()
    for title, text in (("Plan", "Ship it."), ("Risks", "Rain.")):
        slide = file.slides.add_slide(file.slide_layouts[1])
        slide.shapes.title.text = title
        slide.placeholders[1].text = text
    file.save(path)


def pdf(path: Path, *pages: str, **settings: Any) -> None:
    file = canvas.Canvas(str(path), **settings)
    for text in pages:
        file.drawString(100, 700, text)
        file.showPage()
    file.save()


HTML = """<!doctype html><title>Guide</title><script>secret()</script>
<body><h1>Guide</h1><p>Read <a href="/more">more</a>.</p><img src="http://127.0.0.1:9/a.png">
<pre><code>a = 1

b = 2</code></pre>"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one file of each kind, and files that are left out."""
    folder = tmp_path / "files"
    (folder / "deep").mkdir(parents=True)
    word(folder / "leave.docx")
    excel(folder / "prices.xlsx")
    powerpoint(folder / "plan.pptx")
    pdf(folder / "animals.pdf", "The first page is about cats.", "The second one is about dogs.")
    (folder / "guide.html").write_text(HTML)
    (folder / "table.csv").write_text("a,b\n1,2\n")
    cell = {"cell_type": "markdown", "metadata": {}, "source": ["# Notes"]}
    notebook = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (folder / "notes.ipynb").write_text(json.dumps(notebook))
    (folder / "deep" / "README.MD").write_bytes(b"\xef\xbb\xbf# Read\r\n\r\nme\r\n")
    (folder / "deep" / "code.py").write_text("print('é')\n", encoding="utf-8")
    (folder / "photo.jpg").write_bytes(b"\xff\xd8")
    (folder / ".hidden.md").write_text("hidden")
    (folder / ".git").mkdir()
    (folder / ".git" / "config.md").write_text("hidden")
    return folder


@pytest.mark.feature("documents-readers")
def test_formats(folder: Path, run: Run) -> None:
    """Every supported file becomes a document with its source, pages and slides one each."""
    found = run(read_documents, aread_documents, folder)

    texts = {document.id.removeprefix(f"{folder.as_posix()}/"): document.text for document in found}
    assert texts == {
        "animals.pdf#page=1": "The first page is about cats.",
        "animals.pdf#page=2": "The second one is about dogs.",
        "guide.html": "# Guide\n\nRead [more](/more).\n\n![](http://127.0.0.1:9/a.png)\n\n"
        "```\na = 1\n\nb = 2\n```",
        "leave.docx": "# Leave\n\nYou have 30 days.\n\n|  |  |\n| --- | --- |\n| Ada | 28 |",
        "notes.ipynb": "# Notes",
        "plan.pptx#page=1": "# Plan\nShip it.",
        "plan.pptx#page=2": "# Risks\nRain.",
        "prices.xlsx": "## Prices\n| item | price |\n| --- | --- |\n| tea | 3 |",
        "table.csv": "| a | b |\n| --- | --- |\n| 1 | 2 |",
        "deep/README.MD": "# Read\n\nme\n",
        "deep/code.py": "print('é')\n",
    }
    dogs = found[1]
    source = f"{folder.as_posix()}/animals.pdf"
    assert dogs.metadata == {"source": source, "format": "pdf", "page": 2}
    assert found[-2].metadata == {"source": f"{folder.as_posix()}/deep/README.MD", "format": "md"}


def test_selection(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths, patterns and repeated files; relative paths remain relative."""
    monkeypatch.chdir(folder)

    def sources(*paths: str | Path, **settings: Any) -> list[str]:
        return [each.metadata["source"] for each in read_documents(*paths, **settings)]

    assert sources(".", pattern="deep/*") == ["deep/README.MD", "deep/code.py"]
    assert sources("deep", "deep/code.py") == ["deep/README.MD", "deep/code.py"]
    assert sources(Path("table.csv")) == ["table.csv"]
    assert sources(".hidden.md") == [".hidden.md"]


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="needs links")
def test_links_out_of_a_directory(folder: Path, tmp_path: Path) -> None:
    """A link does not lead out of a directory, but a linked path may be named."""
    (tmp_path / "outside.md").write_text("secret")
    (folder / "inside.md").symlink_to(folder / "deep" / "README.MD")
    (folder / "outside.md").symlink_to(tmp_path / "outside.md")
    (folder / "everything").symlink_to(tmp_path, target_is_directory=True)

    found = [Path(each.metadata["source"]).name for each in read_documents(folder, pattern="*.md")]

    assert found == ["inside.md"]
    assert read_documents(folder / "outside.md")[0].text == "secret"


def test_cache(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    """Unchanged files are not converted again, also under another name."""
    cache = ConversionCache(folder / "deep" / "cache")  # is not read itself
    before = run(read_documents, aread_documents, folder, cache=cache)
    converted: list[str] = []

    def counted(format: str, data: bytes, *settings: Any) -> Any:
        converted.append(format)
        return conversion.converted(format, data, *settings)

    monkeypatch.setattr(reading, "converted", counted)
    (folder / "prices.xlsx").rename(folder / "new.xlsx")
    (folder / "table.csv").write_text("a,b\n1,3\n")
    after = run(read_documents, aread_documents, folder, cache=cache)
    assert converted == ["csv"]
    assert {each.text for each in before} ^ {each.text for each in after} == {
        "| a | b |\n| --- | --- |\n| 1 | 2 |",
        "| a | b |\n| --- | --- |\n| 1 | 3 |",
    }

    kept = [*(folder / "deep" / "cache").iterdir()]
    assert len(kept) == 8
    for file in kept:
        file.write_text("damaged")
    assert run(read_documents, aread_documents, folder, cache=cache) == after


# --- failures -------------------------------------------------------------------------------


def packed(text: str) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("word/document.xml", text)
    return data.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.pdf", b"%PDF-1.7 damaged", "cannot be read as pdf"),
        ("a.docx", b"not an archive", "cannot be read as docx: File is not a zip file"),
        ("a.docx", packed("<w:document/>"), "cannot be read as docx"),
        (
            "a.xlsx",
            packed("0" * 20_000),
            "cannot be read as xlsx: its unpacked contents have 20000",
        ),
        ("a.txt", b"caf\xe9", "is not text in utf-8; set encoding="),
        ("a.md", b"x" * 10_001, r"is larger than the limit, 10000 bytes; raise ReadLimits\(file_"),
        ("a.jpg", b"\xff\xd8", "has a format that cannot be read"),
        ("a.ipynb", b'{"cells": ["\xf6"]}', "cannot be read as ipynb"),
    ],
)
def test_unreadable_file(tmp_path: Path, run: Run, name: str, content: bytes, said: str) -> None:
    """The error names the file and has the cause; with `on_error`, other files are read."""
    (tmp_path / name).write_bytes(content)
    (tmp_path / "b.md").write_text("fine")
    limits = ReadLimits(file_bytes=10_000, unpacked_bytes=10_000)
    errors: list[DocumentReadError] = []

    with pytest.raises(DocumentReadError, match=said) as caught:
        run(read_documents, aread_documents, tmp_path / name, limits=limits)
    found = run(
        read_documents,
        aread_documents,
        tmp_path / name,
        tmp_path / "b.md",
        limits=limits,
        on_error=errors.append,
    )

    assert caught.value.source == (tmp_path / name).as_posix()
    assert str(tmp_path / name) in str(caught.value)
    assert ("cannot be read as" in said) == (caught.value.__cause__ is not None) or name == "a.txt"
    assert [document.text for document in found] == ["fine"]
    assert [error.source for error in errors] == [caught.value.source]


def test_coroutine_function_for_errors(tmp_path: Path, run: Run) -> None:
    """A coroutine function is awaited before the next file is read."""
    (tmp_path / "a.txt").write_bytes(b"\xff")
    failed: list[str] = []

    async def failure(error: DocumentReadError) -> None:
        await asyncio.sleep(0)
        failed.append(error.source)

    assert run(read_documents, aread_documents, tmp_path, on_error=failure) == []
    assert failed == [(tmp_path / "a.txt").as_posix()]


def test_encrypted_pdf(tmp_path: Path) -> None:
    """A PDF with a password is an error."""
    pdf(tmp_path / "a.pdf", "secret", encrypt="password")

    with pytest.raises(DocumentReadError, match=r"cannot be read as pdf: .*password"):
        read_documents(tmp_path)


def test_encoding(tmp_path: Path) -> None:
    """Text files may have another encoding."""
    (tmp_path / "a.txt").write_bytes(b"caf\xe9")

    assert read_documents(tmp_path, encoding="latin-1")[0].text == "café"


def test_halves_of_characters(tmp_path: Path) -> None:
    """They are replaced: splitters and embedding models refuse them."""
    (tmp_path / "a.ipynb").write_text(
        '{"cells": [{"cell_type": "markdown", "source": ["# \\ud83d"]}], "nbformat": 4}'
    )

    assert read_documents(tmp_path)[0].text == "# \ufffd"


def test_cells_of_a_workbook(tmp_path: Path) -> None:
    """Numbers and texts are as in the file, and blank cells are blank."""
    book = openpyxl.Workbook()
    sheet = book.active
    for row in (
        ["code", "part", "since", "note"],
        ["NA", 4711, datetime.fromisoformat("2026-01-02"), "a|b\nc"],
        [],
        ["null", None, datetime.fromisoformat("2026-01-02T09:30")],
        ["None", 1.5, None, None, ""],
    ):
        sheet.append(row)
    book.create_sheet("Empty")
    book.save(tmp_path / "parts.xlsx")

    [document] = read_documents(tmp_path)

    assert document.text.split("\n") == [
        "## Sheet",
        "| code | part | since | note |",
        "| --- | --- | --- | --- |",
        "| NA | 4711 | 2026-01-02 | a\\|b c |",
        "| null |  | 2026-01-02 09:30:00 |",
        "| None | 1.5 |",
        "",
        "## Empty",
    ]


def test_workbook_that_needs_repair(tmp_path: Path) -> None:
    """A wrong attribute that some programs write is ignored."""
    excel(tmp_path / "good.xlsx")
    with (
        zipfile.ZipFile(tmp_path / "good.xlsx") as good,
        zipfile.ZipFile(tmp_path / "repaired.xlsx", "w") as wrong,
    ):
        for name in good.namelist():
            data = good.read(name)
            if name.startswith("xl/worksheets/"):
                assert b"<sheetView " in data
            wrong.writestr(name, data.replace(b"<sheetView ", b'<sheetView showZeroes="0" '))

    [good_document, repaired] = read_documents(tmp_path)

    assert repaired.text == good_document.text


def test_encoding_of_csv(tmp_path: Path) -> None:
    """CSV in UTF-8 is read as such; other encodings are guessed."""
    (tmp_path / "polish.csv").write_text(
        "a,b\n\u0141\u00f3d\u017a,\u017c\u00f3\u0142\u0107\n", "utf-8"
    )
    (tmp_path / "other.csv").write_bytes("a,b\n1,sch\u00f6n\n".encode("utf-16"))

    [other, polish] = read_documents(tmp_path)

    assert (
        polish.text
        == "| a | b |\n| --- | --- |\n| \u0141\u00f3d\u017a | \u017c\u00f3\u0142\u0107 |"
    )
    assert other.text == "| a | b |\n| --- | --- |\n| 1 | sch\u00f6n |"


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX")
def test_links_to_themselves(tmp_path: Path) -> None:
    """A link that leads nowhere is a file that cannot be read, and the others are read."""
    (tmp_path / "a.md").write_text("a")
    (tmp_path / "loop.md").symlink_to("loop.md")
    failed: list[DocumentReadError] = []

    assert [each.text for each in read_documents(tmp_path, on_error=failed.append)] == ["a"]
    assert [error.source for error in failed] == [(tmp_path / "loop.md").as_posix()]


def test_problems_of_paths_are_errors_always(tmp_path: Path, run: Run) -> None:
    """What would empty an index by accident is an error, even with `on_error`."""
    (tmp_path / "a.md").write_text("a")
    (tmp_path / "b.md").write_text("b")

    for path, settings, said in (
        (tmp_path / "gone", {}, "there is no file or directory"),
        ("https://example.org/a.html", {}, "there is no file or directory"),
        (tmp_path, {"pattern": "*.html"}, r"no file in .* matches '\*\.html'"),
        (tmp_path, {"limits": ReadLimits(files=1)}, "more files than the limit, 1"),
    ):
        with pytest.raises(DocumentReadError, match=said):
            run(read_documents, aread_documents, path, on_error=lambda error: None, **settings)


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX")
def test_special_files_and_closed_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe is not waited for, and a directory that cannot be listed is not taken for empty."""
    os.mkfifo(tmp_path / "a.md")
    with pytest.raises(DocumentReadError, match="not a regular file"):
        read_documents(tmp_path / "a.md")

    (tmp_path / "closed").mkdir()
    listed = os.scandir

    def scandir(path: Any) -> Any:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)  # root may list all directories
    with pytest.raises(DocumentReadError, match=r"closed cannot be read: Permission denied"):
        read_documents(tmp_path)


def test_wrong_arguments(tmp_path: Path) -> None:
    """Arguments are checked before files are read."""
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"encoding": "utf-9"}, "no encoding 'utf-9'"),
        ({"limits": 3}, "limits"),
        ({"on_error": lambda: None}, "on_error"),
        ({"pattern": None}, "pattern"),
        ({"cache": "converted"}, "cache"),
    ]
    for settings, said in wrong:
        with pytest.raises(UsageError, match=said):
            read_documents(tmp_path, **settings)
    with pytest.raises(UsageError, match="file_bytes"):
        ReadLimits(file_bytes=0)
    with pytest.raises(UsageError, match="a path"):
        read_documents(3)  # type: ignore[arg-type]


def test_without_the_extra(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text is read without packages; for others, the error names the extra."""
    monkeypatch.setitem(sys.modules, "markitdown", None)

    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(conversion_cache, "version", missing)

    assert read_documents(folder / "deep", pattern="*.MD")[0].text == "# Read\n\nme\n"
    for cache in (None, ConversionCache(folder / "cache")):
        with pytest.raises(UsageError, match=r"pip install 'chatclient\[documents\]'"):
            read_documents(folder / "animals.pdf", cache=cache)


def test_missing_packages_of_a_format(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing package of any format names the extra as well."""
    from markitdown.converters import _pdf_converter

    try:
        raise ImportError("pdfplumber")
    except ImportError:
        monkeypatch.setattr(_pdf_converter, "_dependency_exc_info", sys.exc_info())
    for package, file in (
        ("pdfplumber", "animals.pdf"),
        ("mammoth", "leave.docx"),
        ("pptx", "plan.pptx"),
        ("openpyxl", "prices.xlsx"),
        ("bs4", "guide.html"),
    ):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(UsageError, match=r"files .* pip install 'chatclient\[documents\]'"):
            read_documents(folder / file)


# --- isolation ------------------------------------------------------------------------------


def test_nothing_is_fetched(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Images, links and external targets of files are not fetched or opened."""
    (tmp_path / "secret.txt").write_text("secret")
    file = docx.Document()
    file.add_paragraph("Text.")
    kind = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/image"
    for target in ("http://127.0.0.1:9/a.png", (tmp_path / "secret.txt").as_uri()):
        relation = file.part.relate_to(target, kind, is_external=True)
        picture = docx.oxml.parse_xml(
            '<w:drawing xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
            ' xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main"'
            ' xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships"'
            ' xmlns:pic="http://schemas.openxmlformats.org/drawingml/2006/picture"'
            ' xmlns:wp="http://schemas.openxmlformats.org/drawingml/2006/wordprocessingDrawing">'
            f'<wp:inline><wp:docPr descr="a cat" id="1" name="a"/><a:graphic><a:graphicData>'
            f'<pic:pic><pic:blipFill><a:blip r:link="{relation}"/></pic:blipFill></pic:pic>'
            "</a:graphicData></a:graphic></wp:inline></w:drawing>"
        )
        file.paragraphs[0].add_run()._r.append(picture)
    file.save(folder / "linked.docx")
    attempts: list[Any] = []

    def connect(_socket: socket.socket, address: Any) -> None:
        attempts.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket.socket, "connect", connect)

    found = read_documents(folder)

    assert attempts == []
    assert not any("secret" in document.text for document in found)
    assert next(each.text for each in found if "linked" in each.id).startswith("Text.")


async def test_files_are_read_in_worker_threads(folder: Path) -> None:
    """The event loop runs while files are read."""
    threads: set[int] = set()
    turns = 0

    def failed(_error: DocumentReadError) -> None:
        threads.add(threading.get_ident())

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    found = await aread_documents(folder, folder / "photo.jpg", on_error=failed)
    counting.cancel()

    assert len(found) == 11
    assert turns > 11
    assert threads == {threading.get_ident()}


def test_blank_documents_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A PDF without text, such as a scan, is a blank document; one warning names them."""
    for name in ("a.pdf", "b.pdf"):
        pdf(tmp_path / name, "")

    assert [each.text for each in read_documents(tmp_path)] == ["", ""]
    assert caplog.text.count("documents without text") == 1
    assert "a.pdf" in caplog.text
    assert "number=2" in caplog.text
    assert isinstance(read_documents(tmp_path)[0], Document)


def test_progress_of_reading(tmp_path: Path, run: Run) -> None:
    """It is reported after each file, also of one that cannot be read."""
    for name, content in (("a.md", b"a"), ("b.txt", b"\xff"), ("c.md", b"c")):
        (tmp_path / name).write_bytes(content)
    seen: list[Progress] = []
    documents = run(
        read_documents, aread_documents, tmp_path, on_error=lambda _: None, on_progress=seen.append
    )

    assert len(documents) == 2
    assert [(each.finished, each.total) for each in seen] == [(1, 3), (2, 3), (3, 3)]
    assert seen[-1].remaining_seconds == 0
