"""What is uploaded: an archive of the sources, and a wheel that is built from it."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# These are links inside the package, which archives cannot be trusted to follow.
LINKED = ("advisors", "providers", "tools")

IMPORT_ALL = """
import pkgutil, sys
sys.path.insert(0, sys.argv[1])
import chatclient
assert chatclient.__file__.startswith(sys.argv[1]), chatclient.__file__
for module in pkgutil.walk_packages(chatclient.__path__, "chatclient."):
    if not module.name.endswith("__main__"):
        __import__(module.name)
        print(module.name)
"""


def files_of_the_package() -> set[str]:
    folders = {"chatclient": ROOT / "chatclient"}
    folders.update((f"chatclient/{name}", ROOT / name) for name in LINKED)
    return {
        f"{prefix}/{path.relative_to(folder).as_posix()}"
        for prefix, folder in folders.items()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def build(kind: str, source: Path, target: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(target)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (built,) = target.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel that is built from the archive, unpacked."""
    folder = tmp_path_factory.mktemp("built")
    archive = build("sdist", ROOT, folder / "sdist")
    with tarfile.open(archive) as content:
        content.extractall(folder / "sources", filter="data")
    (sources,) = (folder / "sources").iterdir()
    with zipfile.ZipFile(build("wheel", sources, folder / "wheel")) as content:
        content.extractall(folder / "unpacked")
    return folder / "unpacked"


def test_a_wheel_has_all_of_the_package(wheel: Path) -> None:
    """Every file once, and nothing else beside the metadata."""
    packed = {path.relative_to(wheel).as_posix() for path in wheel.rglob("*") if path.is_file()}
    info = {name for name in packed if name.startswith("chatclient-")}

    assert packed - info == files_of_the_package()
    assert any(name.endswith("/LICENSE") for name in info)


def test_all_modules_of_a_wheel_can_be_imported(wheel: Path) -> None:
    """From the wheel, not from the sources beside it."""
    command = [sys.executable, "-W", "error", "-c", IMPORT_ALL, str(wheel)]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)

    assert done.returncode == 0, done.stderr
    assert {f"chatclient.{name}" for name in LINKED} <= set(done.stdout.split())


def test_links_of_the_description_lead_to_the_site(wheel: Path) -> None:
    """PyPI shows the README without the files beside it."""
    (metadata,) = wheel.glob("chatclient-*/METADATA")
    targets = re.findall(r"\]\(([^)]+)\)", metadata.read_text(encoding="utf-8"))

    assert "https://chatclient.readthedocs.io/tutorial/" in targets
    assert [target for target in targets if not target.startswith("https://")] == []
