"""CPU time of other frameworks for the same jobs.

    python benchmarks/compare.py [--only langchain] [--repeat 7]

Each framework is installed, in the release that pip chooses, in an environment of its own (kept in
`~/.cache/chatclient-benchmarks`, or `$XDG_CACHE_HOME`). There the same jobs are done by a loop
written by hand over httpx and by the framework, in turn, in one process on one event loop; what is
printed is the ratio of CPU time. The server runs in a process of its own.
"""

import argparse
import json
import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

from stub_server import running

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "chatclient-benchmarks"
FRAMEWORKS = {
    "chatclient": [str(HERE.parent)],
    "langchain": ["langchain", "langchain-openai"],
    "pydantic_ai": ["pydantic-ai-slim[openai]"],
    "openai_agents": ["openai-agents"],
    "agent_framework": ["agent-framework-core", "agent-framework-openai"],
}


def python_of(name: str, packages: Sequence[str]) -> Path:
    """Return the interpreter of an environment with *packages*, which is created if missing."""
    home = CACHE / name
    python = home / "bin" / "python"
    if not (home / "complete").exists():
        print(f"installing {', '.join(packages)} ...", file=sys.stderr)
        venv.create(home, with_pip=True, clear=True)
        # An old pip may build packages for which wheels exist.
        for several in (["--upgrade", "pip"], [*packages, "httpx"]):
            install = [str(python), "-m", "pip", "install", "--quiet", *several]
            subprocess.run(install, check=True)
        (home / "complete").touch()
    return python


def main() -> None:
    """Print a row for each framework."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=list(FRAMEWORKS))
    parser.add_argument("--repeat", type=int, default=7)
    arguments = parser.parse_args()
    shown = False
    for name in [arguments.only] if arguments.only else FRAMEWORKS:
        python = python_of(name, FRAMEWORKS[name])
        with running() as url:
            script = HERE / "frameworks" / f"{name}_jobs.py"
            command = [str(python), str(script), url, str(arguments.repeat)]
            environment = {**os.environ, "PYTHONPATH": str(HERE), "OPENAI_API_KEY": "test"}
            ran = subprocess.run(command, stdout=subprocess.PIPE, env=environment, check=True)
        result = json.loads(ran.stdout.splitlines()[-1])
        if not shown:
            print(f"{'framework':24}" + "".join(f"{job:>28}" for job in result["ratios"]))
            shown = True
        row = "".join(f"{ratio:28.2f}" for ratio in result["ratios"].values())
        print(f"{name + ' ' + result['version']:24}{row}", flush=True)


if __name__ == "__main__":
    main()
