"""`ConversionCache`: converted files by the hash of their content, in a directory."""

import hashlib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from uuid import uuid4

from chatclient._internal import json

Pages = list[tuple[str, int | None]]
"""The text of each page of a file with its number; one without a number if there are no pages."""


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
