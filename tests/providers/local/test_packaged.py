"""Model files in installed packages: joined once, completely and verified."""

import hashlib
import os
import threading
import time
from pathlib import Path

import pytest

from chatclient.providers.local import hub as packaged
from chatclient.providers.local.hub import (
    MINILM_WEIGHTS,
    PACKAGED,
    QWEN_CODER_0_5B,
    QWEN_CODER_1_5B,
    Member,
    ModelFile,
    ModelFileCorruptError,
    ModelFileStorageError,
    Parts,
    ProgressLine,
    find_installed,
)
from chatclient.providers.local.llama_server import LlamaServer, LlamaServerError
from tests.support.paths import ROOT

CONTENT = b"GGUF" + bytes(range(256)) * 40
CUTS = (CONTENT[:4000], CONTENT[4000:8000], CONTENT[8000:])


def file_of(content: bytes = CONTENT) -> ModelFile:
    return ModelFile(
        name="Tiny 1B",
        repository="maker/tiny",
        filename="tiny.gguf",
        size=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
    )


FILE = file_of()


def install(site: Path, slices: tuple[bytes, ...] = CUTS, version: str = "1.0.0") -> None:
    for number, content in enumerate(slices, 1):
        name = f"tiny_weights_part{number}"
        data = site / name / "data"
        data.mkdir(parents=True)
        (data / f"part{number:02}.bin").write_bytes(content)
        (site / name / "__init__.py").write_text("raise RuntimeError('imported')")
        info = site / f"{name}-{version}.dist-info"
        info.mkdir()
        head = f"Metadata-Version: 2.1\nName: tiny-weights-part{number}\nVersion: {version}\n"
        (info / "METADATA").write_text(head)
        (info / "RECORD").write_text(f"{name}/__init__.py,,\n{name}/data/part{number:02}.bin,,\n")


def ignore_progress(_file: ModelFile, _done: int) -> None:
    """Show no progress."""


def joined(file: ModelFile = FILE) -> Path:
    path = find_installed(file, ignore_progress)
    assert path is not None
    return path


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CHATCLIENT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def site(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty site directory, where `FILE` is expected in three parts."""
    monkeypatch.setattr(packaged, "PACKAGED", {FILE: Parts("tiny-weights-part", "1.0.0", 3)})
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return tmp_path / "site"


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir()) if directory.exists() else []


def test_parts_are_joined(site: Path) -> None:
    """Packages are located by metadata, without importing them."""
    install(site)

    assert joined().read_bytes() == CONTENT


def test_parts_are_ordered_by_number(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Part 10 follows part 9."""
    slices = tuple(bytes([n]) * 100 for n in range(12))
    file = file_of(b"".join(slices))
    monkeypatch.setattr(packaged, "PACKAGED", {file: Parts("tiny-weights-part", "1.0.0", 12)})
    install(site, slices)

    assert joined(file).read_bytes() == b"".join(slices)


@pytest.mark.parametrize(
    ("slices", "version"),
    [((), "1.0.0"), (CUTS[:2], "1.0.0"), (CUTS, "2.0.0")],
    ids=["none", "missing", "version"],
)
def test_packages_that_are_not_complete(
    site: Path, cache: Path, slices: tuple[bytes, ...], version: str
) -> None:
    """Unless all packages are installed in the pinned version, nothing is joined."""
    install(site, slices, version)

    assert find_installed(FILE, ignore_progress) is None
    assert names_in(cache) == []


def test_package_without_its_part(site: Path) -> None:
    """A package without the part counts as missing."""
    install(site)
    (site / "tiny_weights_part2-1.0.0.dist-info" / "RECORD").write_text("a.py,,\n")

    assert find_installed(FILE, ignore_progress) is None


def test_file_without_packages(site: Path) -> None:
    """Most files are in no packages."""
    assert find_installed(file_of(b"another"), ignore_progress) is None


def test_joined_file_is_reused(site: Path) -> None:
    """A joined file is used without reading, hashing or reporting again."""
    install(site)
    first = joined()
    for part in site.rglob("*.bin"):
        part.unlink()
    reported: list[int] = []

    assert find_installed(FILE, lambda _file, done: reported.append(done)) == first
    assert not reported


def test_changed_file_is_joined_again(site: Path) -> None:
    """A file changed after its verification is joined again."""
    install(site)
    path = joined()
    path.write_bytes(b"GGUF" + bytes(len(CONTENT) - 4))
    os.utime(path, ns=(1, 1))

    assert joined().read_bytes() == CONTENT


def test_copied_file_is_verified(site: Path) -> None:
    """A complete file without its verification record is verified and needs no packages."""
    install(site)
    path = joined()
    for other in (*path.parent.glob("*.json"), *site.rglob("*.bin")):
        other.unlink()

    assert joined() == path
    assert list(path.parent.glob("*.json")) != []


@pytest.mark.parametrize(
    "last",
    [CUTS[2][:-1], CUTS[2] + b"more", bytes(len(CUTS[2]))],
    ids=["truncated", "too long", "altered"],
)
def test_invalid_parts(last: bytes, site: Path, cache: Path) -> None:
    """A result with another hash is removed."""
    install(site, (*CUTS[:2], last))

    with pytest.raises(ModelFileCorruptError, match="reinstall them"):
        joined()

    assert not names_in(cache)


def test_interrupted_join(site: Path, cache: Path) -> None:
    """An interrupt removes the partial file, and the next join succeeds."""
    install(site)

    def interrupt(_file: ModelFile, done: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        find_installed(FILE, interrupt)

    assert not names_in(cache)
    assert joined().read_bytes() == CONTENT


def test_old_partial_file_is_removed(site: Path, cache: Path) -> None:
    """Old partial files are removed; recent ones may belong to a running join."""
    install(site)
    path = joined()
    path.unlink()
    old, young = (cache / f"{path.name}.{name}.part" for name in ("old", "young"))
    for partial in (old, young):
        partial.write_bytes(b"GGUF")
    two_days_ago = time.time() - 2 * 24 * 3600
    os.utime(old, (two_days_ago, two_days_ago))

    joined()

    assert not old.exists()
    assert young.exists()


def test_concurrent_joins(site: Path, cache: Path) -> None:
    """Two concurrent joins both see the complete file."""
    install(site)
    both_started = threading.Barrier(2, timeout=10)
    found: list[Path | None] = []

    def meet(_file: ModelFile, done: int) -> None:
        if not done:
            both_started.wait()

    threads = [
        threading.Thread(target=lambda: found.append(find_installed(FILE, meet))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == [joined(), joined()]
    assert joined().read_bytes() == CONTENT
    assert len(names_in(cache)) == 2


def test_unwritable_cache_directory(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the directory and how to choose another."""
    install(site)
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("CHATCLIENT_CACHE_DIR", str(tmp_path / "file" / "cache"))

    with pytest.raises(ModelFileStorageError, match="CHATCLIENT_CACHE_DIR") as caught:
        joined()

    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize(
    ("variable", "below"),
    [("CHATCLIENT_CACHE_DIR", ""), ("XDG_CACHE_HOME", "chatclient"), ("HOME", ".cache/chatclient")],
)
def test_cache_directory_variables(
    variable: str, below: str, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library's variable takes precedence over the user's cache directory."""
    install(site)
    for name in ("CHATCLIENT_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(tmp_path / "chosen"))

    assert joined().parent == tmp_path / "chosen" / below


def test_file_in_one_package(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in one package is used in place, after a check of its hash."""
    install(site, (CONTENT,))
    member = "tiny_weights_part1/data/part01.bin"

    def expect(sha256: str, path: str = member) -> None:
        where = Member("tiny-weights-part1", path, sha256)
        monkeypatch.setattr(packaged, "PACKAGED", {FILE: where})

    expect(FILE.sha256)
    assert joined() == site / member
    expect("00")
    with pytest.raises(ModelFileCorruptError, match="reinstall tiny-weights-part1"):
        joined()
    expect(FILE.sha256, "nothing.bin")
    assert find_installed(FILE) is None


def test_progress_in_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    """A log gets a line per tenth."""
    show = ProgressLine()
    for done in range(FILE.size + 1):
        show(FILE, done)

    lines = capsys.readouterr().err.splitlines()

    assert len(lines) == 11
    assert lines[-1] == "joining Tiny 1B: 0/0 MB, 100 %"


def test_progress_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bar overwrites its line and ends it when complete."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    show = ProgressLine()
    for done in (0, FILE.size // 2, FILE.size):
        show(FILE, done)

    shown = capsys.readouterr().err

    assert shown.count("\n") == 1
    assert f"[{'#' * 12}{'.' * 13}]" in shown
    assert shown.endswith(f"[{'#' * 25}] 0/0 MB 100 %\n")


def test_default_progress(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Progress is shown unless a callback is given."""
    install(site)

    find_installed(FILE)

    assert "joining Tiny 1B" in capsys.readouterr().err


def test_file_without_gguf_header(tmp_path: Path) -> None:
    """The error names the file and its first bytes."""
    path = tmp_path / "model.gguf"
    path.write_bytes(b"PK\x03\x04 something else")

    with pytest.raises(LlamaServerError, match="not a GGUF file"):
        LlamaServer(path).start()


def test_missing_model_file(tmp_path: Path) -> None:
    """The error names the file."""
    with pytest.raises(LlamaServerError, match=r"nothing\.gguf cannot be read") as caught:
        LlamaServer(tmp_path / "nothing.gguf").start()

    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_packages_with_other_content_are_documented() -> None:
    """Only MiniLM's weights differ from the file on the hub, which the documentation mentions."""
    differ = [
        file.name
        for file, source in PACKAGED.items()
        if isinstance(source, Member) and source.sha256 != file.sha256
    ]
    page = (ROOT / "docs" / "providers.md").read_text(encoding="utf-8")

    assert differ == ["all-MiniLM-L6-v2"]
    assert "another conversion of the same model" in page
    for file in PACKAGED:
        assert file.repository in page
    for file in (QWEN_CODER_1_5B, QWEN_CODER_0_5B, MINILM_WEIGHTS):
        assert f"{file.size / 1_000_000:,.0f} MB" in page
