"""Verifies files of models by their SHA-256, once per file."""

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path

from chatclient.providers.local.model_file import ModelFile


def cache_dir() -> Path:
    """Return the directory for files of the library.

    It is the environment's `CHATCLIENT_CACHE_DIR`, else `chatclient` in the user's cache directory.
    """
    if chosen := os.environ.get("CHATCLIENT_CACHE_DIR"):
        return Path(chosen)
    caches = os.environ.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path.home() / ".cache") / "chatclient"


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def is_verified(path: Path, file: ModelFile) -> bool:
    """Return whether the content at *path* is that of *file*.

    Hashing a gigabyte takes longer than loading the model, so it is done once: a verified file is
    recognised by its path, size and modification time. This detects accidents; an attacker who can
    replace the file could also write the record.

    Raises:
        OSError: The file cannot be read.
    """
    if not path.exists():
        return False
    if _read_record(file) == _record(path):
        return True
    if sha256_of(path) != file.sha256:
        return False
    record_verified(path, file)
    return True


def record_verified(path: Path, file: ModelFile) -> None:
    """Record that the content at *path* is that of *file*."""
    # Not atomic: after an incomplete write the file is hashed again, as in a read-only directory.
    with suppress(OSError):
        cache_dir().mkdir(parents=True, exist_ok=True)
        _record_path(file).write_text(_record(path), encoding="utf-8")


def _read_record(file: ModelFile) -> str | None:
    try:
        return _record_path(file).read_text(encoding="utf-8")
    except OSError:
        return None


def _record_path(file: ModelFile) -> Path:
    return cache_dir() / f"{file.sha256}.verified.json"


def _record(path: Path) -> str:
    found = path.stat()
    record = {"path": str(path), "size": found.st_size, "mtime_ns": found.st_mtime_ns}
    return json.dumps(record)
