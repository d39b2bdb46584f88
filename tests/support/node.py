"""Node.js and npm packages: the original clients of protocols."""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT

_OLDEST_NODE = 20
FRONTEND = ROOT / "tests" / "web" / "frontend"


def node_modules() -> Path:
    """Return a folder with the packages of `package.json` of the frontend; see `npm_folder`."""
    return npm_folder((FRONTEND / "package.json").read_text())


def npm_folder(manifest: str) -> Path:
    """Return a folder with the packages of a `package.json`, installed at the first use.

    The test is skipped without Node.js, and if npm cannot install them.
    """
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("Node.js and npm are not installed (Debian: nodejs, npm)")
    version = subprocess.run(["node", "--version"], check=True, capture_output=True, text=True)
    if int(version.stdout.removeprefix("v").partition(".")[0]) < _OLDEST_NODE:
        pytest.skip(f"Node.js is {version.stdout.strip()}, and {_OLDEST_NODE} is needed")
    wanted = manifest.encode()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "chatclient-tests" / hashlib.sha256(wanted).hexdigest()[:12]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "installed").exists():
            (folder / "package.json").write_bytes(wanted)
            _install(folder)
            (folder / "installed").touch()
    return folder


def _install(folder: Path) -> None:
    # The packages are run as they are: no scripts of theirs.
    command = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
    done = subprocess.run(
        command, cwd=folder, check=False, capture_output=True, text=True, timeout=300
    )
    if done.returncode:
        pytest.skip(f"npm cannot install the packages: {done.stderr[-200:]}")


class NodeScript:
    """A script of `tests/web/frontend` that answers lines of JSON; loading its packages is slow."""

    def __init__(self, name: str) -> None:
        self._process = subprocess.Popen(
            ["node", "--input-type=module", "--eval", (FRONTEND / name).read_text()],
            cwd=node_modules(),  # where packages are looked for
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, given: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(given) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate(timeout=30)


_scripts: dict[str, NodeScript] = {}


def run_script(name: str, given: Any) -> Any:
    """Run a script of `tests/web/frontend` with *given* as JSON, and return its JSON."""
    if name not in _scripts:
        _scripts[name] = NodeScript(name)
    return _scripts[name].run(given)


def close_scripts() -> None:
    while _scripts:
        _scripts.popitem()[1].close()


def bundled(name: str) -> str:
    """Return a script of `tests/web/frontend` with its packages, for a page."""
    folder = node_modules()
    source = FRONTEND / name
    done = subprocess.run(
        [
            str(folder / "node_modules" / ".bin" / "esbuild"),
            f"--sourcefile={name}",
            "--loader=jsx",
            "--jsx=automatic",
            "--bundle",
            "--define:process.env.NODE_ENV='production'",
        ],
        cwd=folder,
        input=source.read_text(),
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
