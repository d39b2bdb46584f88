"""Reads files as documents: text, Markdown, source code, HTML, PDF and Office."""

import codecs
import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from uuid import uuid4

from chatclient._internal import json
from chatclient._internal.checks import check_callable, check_type
from chatclient._internal.logging import Logger
from chatclient.chat.document import Document
from chatclient.errors import ChatClientError, UsageError
from chatclient.retrieval.ingestion.conversion import CONVERTED, converted
from chatclient.retrieval.ingestion.limits import Extent, ReadLimits
from chatclient.runtime.blocking import drive
from chatclient.runtime.progress import OnProgress, Progress
from chatclient.runtime.runtime import BLOCKING, ON_LOOP, Runtime

Pages = list[tuple[str, int | None]]
"""The text of each page of a file with its number; one without a number if there are no pages."""

_TEXT = frozenset(
    (
        *("adoc", "c", "cc", "cpp", "cs", "css", "go", "h", "hpp", "java", "js", "json", "jsx"),
        *("kt", "lua", "markdown", "md", "mjs", "php", "py", "pyi", "r", "rb", "rs", "rst"),
        *("scala", "sh", "sql", "swift", "tex", "toml", "ts", "tsx", "txt", "xml", "yaml", "yml"),
    )
)
"""Formats that are read as text."""

_log = Logger(__name__)


class ConversionCache:
    """Keeps converted files, so that files that have not changed are not converted again.

    Safe for threads and processes. Files may be deleted from the directory at any time.

    Args:
        directory: The directory, created if it does not exist.
    """

    def __init__(self, directory: str | Path) -> None:
        self._directory = Path(directory)

    def path(self, format: str, data: bytes) -> Path:
        """Return the path of the result for a file.

        Args:
            format: The format of the file.
            data: Its contents.
        """
        try:
            release = version("markitdown")
        except PackageNotFoundError:  # a conversion will fail
            release = ""
        settings = f"{format} {release} 3 "  # 3: the version of our conversion
        name = hashlib.sha256(settings.encode() + data).hexdigest()
        # Not `.json`: the directory may be in one that is read.
        return self._directory / f"{name}.converted"

    def load(self, path: Path) -> Pages | None:
        """Return the result at *path*, or None if there is none or it is damaged."""
        try:
            return [(str(text), page) for text, page in json.loads(path.read_bytes())]
        except (FileNotFoundError, ValueError, TypeError):
            return None

    def save(self, path: Path, pages: Iterable[tuple[str, int | None]]) -> None:
        """Store the result at *path*, complete or not at all.

        Raises:
            OSError: It cannot be stored.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{uuid4().hex}")
        temporary.write_bytes(json.dumps([*pages]))
        temporary.replace(path)


class DocumentReadError(ChatClientError):
    """A file or directory cannot be read as documents; see the message, and the cause if any.

    Attributes:
        source: Its path, which is the `source` in the metadata of documents.
    """

    def __init__(self, message: str, *, source: str) -> None:
        super().__init__(message)
        self.source = source


_DEFAULT_LIMITS = ReadLimits()
_MOST_NAMED = 10  # files in a warning

OnReadError = Callable[[DocumentReadError], object]
"""Called with the error of a file that is left out; a coroutine function is awaited."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """How files are read; see `read_documents`."""

    pattern: str
    limits: ReadLimits
    encoding: str
    on_error: OnReadError | None
    cache: ConversionCache | None
    on_progress: OnProgress | None

    def __post_init__(self) -> None:
        check_type("pattern", self.pattern, str)
        check_type("limits", self.limits, ReadLimits)
        try:
            codecs.lookup(self.encoding)
        except LookupError as error:
            msg = f"there is no encoding {self.encoding!r}"
            raise UsageError(msg) from error
        if self.on_error is not None:
            check_callable("on_error", self.on_error, takes=("error",))
        if self.cache is not None:
            check_type("cache", self.cache, ConversionCache)
        if self.on_progress is not None:
            check_callable("on_progress", self.on_progress, takes=("progress",))

    async def read(self, paths: tuple[str | Path, ...], runtime: Runtime) -> list[Document]:
        """Return the documents of all *paths*."""
        for path in paths:
            check_type("a path", path, (str, Path), "pass several one by one")
        documents: list[Document] = []
        blank: list[str] = []
        begun = time.monotonic()
        files = await runtime.invoke(self._listed, paths)
        for number, file in enumerate(files, 1):
            try:
                found = await runtime.invoke(self._documents, file)
                documents += found
                if not any(each.text.strip() for each in found):
                    blank.append(file.as_posix())
            except DocumentReadError as error:
                if self.on_error is None:
                    raise
                await runtime.awaited(self.on_error(error))
            if self.on_progress is not None:
                progress = Progress(len(files), number, seconds=time.monotonic() - begun)
                await runtime.invoke(self.on_progress, progress)
        if blank:
            _log.warning("documents without text", sources=blank[:_MOST_NAMED], number=len(blank))
        return documents

    def _listed(self, paths: tuple[str | Path, ...]) -> list[Path]:
        files: dict[Path, None] = {}
        for path in map(Path, paths):
            most = self.limits.files - len(files)
            found = [*islice(self._files(path), most + 1)]
            if len(found) > most:
                msg = f"{path} has more files than the limit, {self.limits.files}; choose some by"
                msg += " pattern=, or raise ReadLimits(files=)"
                raise DocumentReadError(msg, source=path.as_posix())
            files |= dict.fromkeys(found)
        return [*files]

    def _files(self, path: Path) -> Iterator[Path]:
        """Yield the files of a path in the order of their names."""
        if not path.is_dir():
            if not path.exists():
                msg = f"there is no file or directory {path}"
                if "*" in path.name:
                    msg += "; choose files of a directory by pattern="
                raise DocumentReadError(msg, source=path.as_posix())
            yield path
            return
        root = os.path.realpath(path)
        empty = True
        for directory, directories, names in os.walk(path, onerror=_raise_read_error):
            directories[:] = sorted(each for each in directories if not each.startswith("."))
            for name in sorted(names):
                file = Path(directory, name)
                # Unlike `resolve`, `realpath` takes links to themselves.
                if self._is_chosen(file, path) and Path(os.path.realpath(file)).is_relative_to(
                    root
                ):
                    empty = False
                    yield file
        if empty:
            msg = f"no file in {path} that can be read matches {self.pattern!r}"
            raise DocumentReadError(msg, source=path.as_posix())

    def _is_chosen(self, file: Path, root: Path) -> bool:
        supported = _format(file) in _TEXT | CONVERTED and not file.name.startswith(".")
        return supported and fnmatchcase(file.relative_to(root).as_posix(), self.pattern)

    def _documents(self, file: Path) -> list[Document]:
        """Return the documents of a file: one, or one for each page."""
        source, format = file.as_posix(), _format(file)
        try:
            contents = [*self._contents(file, format)]
            Extent(self.limits).add(sum(len(text) for text, _ in contents))  # some are cached
        except (UsageError, DocumentReadError):
            raise
        except Exception as error:  # each library has errors of its own
            msg = f"{file} cannot be read as {format}: {str(error) or type(error).__name__}"
            if isinstance(error, UnicodeError) and format in _TEXT:
                msg = f"{file} is not text in {self.encoding}; set encoding="
            raise DocumentReadError(msg, source=source) from error
        return [_document(text, source, format, page) for text, page in contents]

    def _contents(self, file: Path, format: str) -> Iterator[tuple[str, int | None]]:
        if format not in _TEXT | CONVERTED:
            msg = f"{file} has a format that cannot be read; convert it to Markdown, for example"
            raise DocumentReadError(msg, source=file.as_posix())
        if not file.is_file():  # a pipe would not end
            msg = f"{file} is not a regular file"
            raise DocumentReadError(msg, source=file.as_posix())
        with file.open("rb") as stream:
            data = stream.read(self.limits.file_bytes + 1)
        if len(data) > self.limits.file_bytes:
            msg = f"{file} is larger than the limit, {self.limits.file_bytes} bytes; raise"
            msg += " ReadLimits(file_bytes=) if this is intended"
            raise DocumentReadError(msg, source=file.as_posix())
        if format in CONVERTED:
            yield from self._converted(format, data)
        else:
            text = data.decode(self.encoding).removeprefix("\ufeff")
            yield text.replace("\r\n", "\n"), None

    def _converted(self, format: str, data: bytes) -> Pages:
        if self.cache is None:
            return [*converted(format, data, self.limits, self.encoding)]
        path = self.cache.path(format, data)
        pages = self.cache.load(path)
        if pages is None:
            pages = [*converted(format, data, self.limits, self.encoding)]
            self.cache.save(path, pages)
        return pages


def read_documents(
    *paths: str | Path,
    pattern: str = "*",
    limits: ReadLimits = _DEFAULT_LIMITS,
    encoding: str = "utf-8",
    on_error: OnReadError | None = None,
    cache: ConversionCache | None = None,
    on_progress: OnProgress | None = None,
) -> list[Document]:
    """Read files, and the files of directories, as documents.

    Text, Markdown and source code are read as they are. PDF, Word, PowerPoint, Excel, HTML, CSV and
    Jupyter files are converted to Markdown, which needs the extra `documents`. Only local files are
    read, and nothing that they refer to. PDF and PowerPoint files yield a
    document for each page or slide, other files one.

    The metadata of a document has `source` (the path as given, or that of the directory with the
    path in it), `format` (the suffix of the file) and `page`, if there are pages, from 1.

    Of a directory, files with other suffixes, hidden ones and those of links that lead out of
    it are left out, and directories of links as well.

    Args:
        *paths: The files and directories.
        pattern: Which files of a directory are read, by their path in it: `*.md`, `guides/*`. A
            star means any characters, including `/`.
        limits: The limits for size and number of files, and for the text that they become.
        encoding: The encoding of text files, and of CSV files that are not in UTF-8. Without it,
            that of CSV files is guessed.
        on_error: Called if a file cannot be read, which is then left out; default: an error. An
            index that is updated with the rest needs the names of these files as `keep`.
        cache: Keeps converted files for the next time.
        on_progress: Called when a file is finished, such as a `ProgressBar`.

    Raises:
        DocumentReadError: A file cannot be read, is too large, or has a format that is not
            supported; a path does not exist; a directory has no file to read, or too many. It names
            the file.
        UsageError: The extra is not installed, or the encoding does not exist.
    """
    return drive(
        _Reading(pattern, limits, encoding, on_error, cache, on_progress).read(paths, BLOCKING)
    )


async def aread_documents(
    *paths: str | Path,
    pattern: str = "*",
    limits: ReadLimits = _DEFAULT_LIMITS,
    encoding: str = "utf-8",
    on_error: OnReadError | None = None,
    cache: ConversionCache | None = None,
    on_progress: OnProgress | None = None,
) -> list[Document]:
    """Read files as documents in worker threads; see `read_documents`."""
    return await _Reading(pattern, limits, encoding, on_error, cache, on_progress).read(
        paths, ON_LOOP
    )


def _raise_read_error(error: OSError) -> None:
    msg = f"the directory {error.filename} cannot be read: {error.strerror}"
    raise DocumentReadError(msg, source=Path(error.filename).as_posix()) from error


def _format(file: Path) -> str:
    return file.suffix.removeprefix(".").lower()


def _document(text: str, source: str, format: str, page: int | None) -> Document:
    metadata: dict[str, str | int] = {"source": source, "format": format}
    if page is None:
        return Document(text, metadata, source)
    return Document(text, {**metadata, "page": page}, f"{source}#page={page}")
