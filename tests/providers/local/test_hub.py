"""Downloads of model files: resumed, verified, cached, and their errors."""

import errno
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chatclient.providers import (
    ModelFile,
    ModelFileCorruptError,
    ModelFileError,
    ModelFileNotFoundError,
    ModelFileStorageError,
    ModelFileUnavailableError,
    fetch_model_file,
)
from tests.support.hub_server import COMMIT, HubServer
from tests.support.paths import ROOT

pytest.importorskip("huggingface_hub.file_download")
hub: Any = pytest.importorskip("huggingface_hub")

CONTENT = b"GGUF" + bytes(range(256)) * 1000
KEY = ("maker/tiny-GGUF", "tiny-q4.gguf")
FILE = ModelFile(
    name="Tiny 1B",
    repository=KEY[0],
    filename=KEY[1],
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    size=len(CONTENT),
)

PROGRAM = """
import hashlib, sys
from chatclient.providers import ModelFile, fetch_model_file
file = ModelFile(
    name="Tiny 1B", repository=sys.argv[1], filename=sys.argv[2], sha256=sys.argv[3], size=1
)
print(fetch_model_file(file))
"""


def set_endpoint(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    template = hub.constants.HUGGINGFACE_CO_URL_TEMPLATE
    changed = template.replace(hub.constants.ENDPOINT, url)
    monkeypatch.setattr(hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", changed)
    monkeypatch.setattr(hub.constants, "ENDPOINT", url)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give huggingface-hub, which reads its environment when it is imported, an empty cache."""
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path / "home" / "hub"))
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub.file_download.time, "sleep", lambda seconds: None)
    monkeypatch.setenv("CHATCLIENT_CACHE_DIR", str(tmp_path / "records"))
    monkeypatch.setenv("HF_TOKEN", "")
    return tmp_path / "home"


@pytest.fixture
def server(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with HubServer({KEY: CONTENT}) as running:
        set_endpoint(monkeypatch, running.url)
        yield running


def kept_in(home: Path) -> list[bytes]:
    """Return the content of the files that the cache keeps."""
    blobs = home.rglob("blobs/*")
    return [path.read_bytes() for path in blobs if path.is_file()]


@pytest.mark.parametrize("revision", ["main", COMMIT])
def test_file_is_downloaded_once(server: HubServer, revision: str) -> None:
    """The second time, the file comes from the cache, without a request."""
    file = replace(FILE, revision=revision)
    path = fetch_model_file(file)
    made = len(server.requests)

    assert path.read_bytes() == CONTENT
    assert fetch_model_file(file) == path
    assert len(server.requests) == made


def test_disconnected_download_is_resumed(
    server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a disconnection, only the rest of the file is requested."""
    monkeypatch.setattr(hub.constants, "DOWNLOAD_CHUNK_SIZE", 50_000)
    server.cut_after = 120_000

    assert fetch_model_file(FILE).read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=100000-"]


def test_corrupt_file_is_not_kept(server: HubServer, home: Path) -> None:
    """A file with another hash is rejected and removed; the next download is a new one."""
    server.sent[KEY] = CONTENT[::-1]
    with pytest.raises(ModelFileCorruptError, match="It was not kept") as caught:
        fetch_model_file(FILE)

    assert caught.value.file is FILE
    assert kept_in(home) == []

    server.sent.clear()
    assert fetch_model_file(FILE).read_bytes() == CONTENT


def test_damaged_file_in_the_cache_is_replaced(server: HubServer) -> None:
    """A file that changed after its verification is downloaded again."""
    path = fetch_model_file(FILE)
    path.write_bytes(b"GGUF")

    assert fetch_model_file(FILE).read_bytes() == CONTENT


def test_offline(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline, only the cache is used; the error names the variable and the file's URL."""
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelFileUnavailableError, match="HF_HUB_OFFLINE is set") as caught:
        fetch_model_file(FILE)
    assert "/maker/tiny-GGUF/resolve/main/tiny-q4.gguf" in str(caught.value)

    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", False)
    path = fetch_model_file(FILE)
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)
    assert fetch_model_file(FILE) == path


def test_unreachable_hub(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the endpoint, the kind of failure and what to do."""
    with HubServer({}) as closed:
        url = closed.url
    set_endpoint(monkeypatch, url)

    with pytest.raises(ModelFileUnavailableError, match=r"failed \(ConnectError\)") as caught:
        fetch_model_file(FILE)
    assert url in str(caught.value)
    assert "HF_ENDPOINT" in str(caught.value)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (replace(FILE, repository="maker/other"), r"no repository 'maker/other'.*HF_TOKEN"),
        (replace(FILE, filename="other.gguf"), r"no file 'other.gguf'"),
        (replace(FILE, revision="v9"), r"at the revision 'v9'"),
        (replace(FILE, repository="not a name"), r"not valid"),
    ],
    ids=["repository", "file", "revision", "invalid"],
)
def test_unknown_file(server: HubServer, file: ModelFile, message: str) -> None:
    """The error names the missing or invalid repository, file or revision."""
    with pytest.raises(ModelFileNotFoundError, match=message):
        fetch_model_file(file)


def test_full_disk(server: HubServer) -> None:
    """A file that is larger than the free space is not downloaded."""
    huge = replace(FILE, size=10**18)
    with pytest.raises(ModelFileStorageError, match="HF_HOME"):
        fetch_model_file(huge)
    assert server.requests == []


def disk_fills(*_args: object, **_kwargs: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def transfer_breaks(*_args: object, **_kwargs: object) -> None:
    msg = "https://cdn/?signature=secret"
    raise RuntimeError(msg)


@pytest.mark.parametrize(
    ("fail", "kind", "message"),
    [
        (disk_fills, ModelFileStorageError, "No space left"),
        (transfer_breaks, ModelFileUnavailableError, "RuntimeError"),
    ],
)
def test_failure_during_the_download(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    fail: Callable[..., None],
    kind: type[ModelFileError],
    message: str,
) -> None:
    """Failures of the transfer have a cause, and their text contains no signed URL."""
    monkeypatch.setattr(hub, "hf_hub_download", fail)

    with pytest.raises(kind, match=message) as caught:
        fetch_model_file(FILE)
    assert caught.value.__cause__ is not None
    assert "secret" not in str(caught.value)


def test_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without huggingface-hub, the error names it."""
    monkeypatch.setitem(sys.modules, "huggingface_hub.file_download", None)
    with pytest.raises(ModelFileUnavailableError, match="pip install huggingface-hub"):
        fetch_model_file(FILE)


@pytest.mark.process("Python")
def test_environment_variables(server: HubServer, tmp_path: Path) -> None:
    """The variables of huggingface-hub name the endpoint and the cache."""
    home = tmp_path / "another"
    environment = {
        **os.environ,
        "HF_ENDPOINT": server.url,
        "HF_HOME": str(home),
        "CHATCLIENT_CACHE_DIR": str(tmp_path / "records"),
    }
    command = [sys.executable, "-c", PROGRAM, *KEY, FILE.sha256]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )

    path = Path(done.stdout.strip())
    assert path.is_relative_to(home)
    assert path.read_bytes() == CONTENT


def test_read_only_record_directory(
    server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the verification cannot be recorded, the file is hashed each time."""
    (tmp_path / "in_the_way").write_text("")
    monkeypatch.setenv("CHATCLIENT_CACHE_DIR", str(tmp_path / "in_the_way" / "records"))

    assert fetch_model_file(FILE) == fetch_model_file(FILE)
    shutil.rmtree(tmp_path / "home")
    assert fetch_model_file(FILE).read_bytes() == CONTENT
