"""CPU time of importing the client, compared with importing httpx and pydantic.

python benchmarks/imports.py [--repeat 15]
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
from tempfile import TemporaryDirectory

OURS = "from chatclient import ChatClient, tool"
THEIRS = "import httpx, pydantic"


def cpu(code: str, byte_code: str) -> float:
    """Return the CPU seconds of a process that runs *code*, with its byte code in a folder."""
    # Without byte code, as in many containers, the compiler would be measured.
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": byte_code}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print both and the ratio."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeat", type=int, default=15)
    repeat = parser.parse_args().repeat
    with TemporaryDirectory() as folder:
        for code in (OURS, THEIRS):
            cpu(code, folder)  # the first run writes byte code
        empty = statistics.median(cpu("pass", folder) for _ in range(repeat))
        pairs = [(cpu(OURS, folder), cpu(THEIRS, folder)) for _ in range(repeat)]
    ours = statistics.median(pair[0] for pair in pairs) - empty
    theirs = statistics.median(pair[1] for pair in pairs) - empty
    print(f"{OURS:44} {ours * 1e3:7.0f} ms")
    print(f"{THEIRS:44} {theirs * 1e3:7.0f} ms")
    print(f"{'ratio':44} {ours / theirs:7.2f}   (aim 1.5)")


if __name__ == "__main__":
    main()
