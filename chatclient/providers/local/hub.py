"""Provides files of models: from installed packages, or from the Hugging Face Hub."""

import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from chatclient._internal.checks import check_type
from chatclient._internal.version import __version__
from chatclient.providers.local.model_file import (
    ModelFile,
    ModelFileCorruptError,
    ModelFileError,
    ModelFileNotFoundError,
    ModelFileStorageError,
    ModelFileUnavailableError,
)
from chatclient.providers.local.packaged import find_installed
from chatclient.providers.local.verification import is_verified


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
        # The cache also tells that the commit lacks a file.
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
    _check_space(file, Path(hub.constants.HF_HUB_CACHE))
    path = Path(_downloaded(hub, file))
    if is_verified(path, file):
        return path
    _remove(path)
    msg = (
        f"{_url(file)} is not the expected file of {file.name}: its SHA-256 is not {file.sha256}. "
        "It was not kept. Try again, or check the ModelFile and HF_ENDPOINT"
    )
    raise ModelFileCorruptError(msg, file)


def _check_space(file: ModelFile, directory: Path) -> None:
    """Raise an error before the download if the disk is too full for it."""
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if free < file.size:
        msg = (
            f"{file.name} takes {file.megabytes}, but {existing} has only "
            f"{free / 1_000_000:.0f} MB left. Free some space, or name another place in HF_HOME"
        )
        raise ModelFileStorageError(msg, file)


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
