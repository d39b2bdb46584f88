"""Time from a clone to the first call of a custom tool by the local model.

    python benchmarks/newcomer.py [--fresh-cache]

Does what the README says and nothing else, in an empty folder: clone, `make demo`, then its first
program with a tool of one's own in place of its tool. `--fresh-cache` lets pip and the joined
weights have caches of their own, as on a machine that has never seen any of it.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
TOOL = re.compile(r"@tool\n.*?\n\n\n", re.DOTALL)
OWN_TOOL = '''@tool
def count_stock(article: str) -> int:
    """Count how many pieces of an article are in stock."""
    print("(the tool was called)", article)
    return 17


'''


def main() -> None:
    """Carry out each step and print its time."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--fresh-cache", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ)
        if arguments.fresh_cache:
            environment |= {"XDG_CACHE_HOME": f"{folder}/cache", "PIP_CACHE_DIR": f"{folder}/pip"}
        started = time.monotonic()

        def step(name: str, *command: str, cwd: str = folder) -> str:
            ran = subprocess.run(
                command, cwd=cwd, env=environment, stdout=subprocess.PIPE, text=True, check=True
            )
            print(f"{time.monotonic() - started:7.1f} s  {name}", flush=True)
            return ran.stdout

        step("cloned", "git", "clone", "--quiet", str(ROOT), "chatclient")
        clone = f"{folder}/chatclient"
        demo = step("make demo", "make", "demo", cwd=clone)
        assert "called get_current_weather" in demo, demo

        blocks = re.findall(
            r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL
        )
        program = TOOL.sub(lambda _: OWN_TOOL, blocks[0]).replace("get_weather", "count_stock")
        program = program.replace("What is the weather in Paris?", "How many bolts are in stock?")
        program = program.replace("And in Rome?", "How many nuts are in stock?")
        Path(clone, "mine.py").write_text(program)
        said = step("own tool", ".venv/bin/python", "mine.py", cwd=clone)
        print(said, file=sys.stderr)
        assert "(the tool was called)" in said
        assert "17" in said


if __name__ == "__main__":
    main()
