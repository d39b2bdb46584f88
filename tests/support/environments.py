"""Python environments with few packages: without extras, or with a package that changes others."""

import fcntl
import hashlib
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.paths import ROOT


def run_in_environment(
    *arguments: str, requirements: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run Python with *arguments* where chatclient is installed without extras.

    The environment has the dependencies of the core and the *requirements*. It is made at the
    first use and kept. The test is skipped if the packages cannot be installed.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *requirements]
    key = hashlib.sha256("\n".join((sys.version, *wanted)).encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "chatclient-tests" / f"python-{key}"
    python = folder / "venv" / "bin" / "python"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "installed").exists():
            _run(sys.executable, "-m", "venv", "--clear", str(folder / "venv"))
            done = _run(str(python), "-m", "pip", "install", "--quiet", *wanted)
            if done.returncode:
                pytest.skip(f"pip cannot install {', '.join(wanted)}: {done.stderr[-200:]}")
            (folder / "installed").touch()
    return _run(str(python), *arguments, cwd=folder)


def _run(*command: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
