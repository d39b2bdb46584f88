"""What can be known about Windows without a machine."""

import subprocess
import sys

# The packages of MCP and of one bridge look at the system themselves.
SCRIPT = """
import importlib, os, pkgutil, sys
for name in ("fork", "getuid", "killpg", "register_at_fork", "setsid"):
    delattr(os, name)
for name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[name] = None
import chatclient
count = 0
for module in pkgutil.walk_packages(chatclient.__path__, "chatclient."):
    if not module.name.endswith(("__main__", "llama_process", "openai_agents")):
        try:
            importlib.import_module(module.name)
        except ImportError:
            if not module.name.startswith("chatclient.mcp."):
                raise
        count += 1
print(count)
"""


def test_import_without_what_windows_lacks() -> None:
    """Modules can be imported without forks and without the modules of Unix."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT], check=False, capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.split()[-1]) > 300
