"""Ollama against the mock server @copilotkit/aimock, over real HTTP.

The mock is installed from npm into a cache directory. Without npm, or without a network for the
first installation, the tests are skipped.
"""

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chatclient import ChatClient, tool
from chatclient.errors import OverloadedError, RateLimitedError, StreamInterruptedError
from chatclient.providers.http.retry import RetryPolicy
from chatclient.providers.ollama.model import OllamaChatModel
from chatclient.testing import Ask

VERSION = "1.43.0"
GREETING = "Hello — déjà vu 🙂!"
FIXTURES: dict[str, Any] = {
    "fixtures": [
        {
            "match": {"userMessage": "weather", "hasToolResult": False},
            "response": {
                "content": "Let me look.",
                "toolCalls": [
                    {"name": "get_weather", "arguments": {"city": "Paris"}},
                    {"name": "get_weather", "arguments": {"city": "Rome — été"}},
                ],
            },
        },
        {
            "match": {"userMessage": "weather", "hasToolResult": True},
            "response": {"content": "Paris 21, Rome 28."},
        },
        {
            "match": {"userMessage": "disconnect"},
            "response": {"content": "This answer never comes to its end."},
            "disconnectAfterMs": 300,
            "latency": 60,
            "chunkSize": 4,
        },
        {"match": {"userMessage": "hello"}, "response": {"content": GREETING}},
    ]
}


def installed() -> Path:
    """Return the path of the mock, which is downloaded once."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        pytest.skip("npm is not installed")
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(cache) / "chatclient-tests" / f"aimock-{VERSION}"
    program = folder / "node_modules" / ".bin" / "aimock"
    if not program.exists():
        folder.mkdir(parents=True, exist_ok=True)
        package = f"@copilotkit/aimock@{VERSION}"
        command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(folder), package]
        done = subprocess.run(command, capture_output=True, timeout=180, check=False)
        if done.returncode:
            pytest.skip(f"npm cannot install aimock: {done.stderr.decode()[-200:]}")
    return program.with_name("llmock")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def aimock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the URL of a running mock."""
    program = installed()
    fixtures = tmp_path_factory.mktemp("aimock") / "fixtures.json"
    fixtures.write_text(json.dumps(FIXTURES))
    port = free_port()
    command = [str(program), "-p", str(port), "-h", "127.0.0.1", "-f", str(fixtures)]
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as mock:
        try:
            wait_for(url, mock)
            yield url
        finally:
            mock.terminate()


def wait_for(url: str, mock: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + 30
    while time.monotonic() < end and mock.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/__aimock/health", timeout=1):
                return
        except OSError:
            time.sleep(0.05)
    pytest.skip("aimock does not start")


def break_once(url: str, status: int, **more: Any) -> None:
    body = json.dumps({"status": status, "body": {"message": "told to"}, **more}).encode()
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{url}/__aimock/error", body, headers)
    with urllib.request.urlopen(request, timeout=5):
        pass


ClientOf = Callable[..., ChatClient]


@pytest.fixture
def client_of(aimock: str) -> ClientOf:
    def make(**settings: Any) -> ChatClient:
        named = {"base_url": aimock, "max_retries": RetryPolicy(1, 0.05, 3.0), **settings}
        return ChatClient.create(OllamaChatModel("stub", **named))

    return make


def test_answer(ask: Ask, client_of: ClientOf) -> None:
    """Text with any characters is decoded."""
    with client_of() as client:
        assert ask(client.prompt("hello")).text == GREETING


def test_parallel_calls(ask: Ask, client_of: ClientOf) -> None:
    """Both calls are run, and the mock receives their results."""

    @tool
    def get_weather(city: str) -> str:
        """Get the weather in a city."""
        return f"sunny in {city}"

    with client_of() as client:
        result = ask(client.prompt("weather").tools(get_weather))

    assert [e.response.data for e in result.executions] == ["sunny in Paris", "sunny in Rome — été"]
    assert result.text.endswith("Paris 21, Rome 28.")


def test_retry_after_is_respected(ask: Ask, aimock: str, client_of: ClientOf) -> None:
    """The retry follows after the Retry-After of the mock."""
    break_once(aimock, 429, retryAfter=1)
    started = time.monotonic()
    with client_of() as client:
        assert ask(client.prompt("hello")).text == GREETING

    assert time.monotonic() - started >= 1


def test_rate_limit_without_retries(ask: Ask, aimock: str, client_of: ClientOf) -> None:
    """The error has the delay."""
    break_once(aimock, 429, retryAfter=1)
    with client_of(max_retries=0) as client, pytest.raises(RateLimitedError) as caught:
        ask(client.prompt("hello"))

    assert caught.value.retry_after == 1


def test_server_error(ask: Ask, aimock: str, client_of: ClientOf) -> None:
    """A server error is retried if that is allowed, and raised otherwise."""
    break_once(aimock, 500)
    with client_of() as client:
        assert ask(client.prompt("hello")).text == GREETING
    break_once(aimock, 503)
    with client_of(max_retries=0) as client, pytest.raises(OverloadedError, match="told to"):
        ask(client.prompt("hello"))


def test_truncated_stream(ask: Ask, client_of: ClientOf) -> None:
    """The error contains the partial response."""
    if not ask.streaming:
        pytest.skip("applies to streams only")
    with client_of() as client, pytest.raises(StreamInterruptedError) as caught:
        ask(client.prompt("disconnect"))

    assert "This answer never".startswith(caught.value.partial.text[:16])
