"""The command `chatclient web`."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from chatclient.__main__ import main
from tests.support.paths import ROOT

APP = """
from chatclient import ChatClient
from chatclient.durable import durable, launch
from chatclient.web import WebChat
from chatclient.testing import ScriptedModel

client = ChatClient.create(ScriptedModel(lambda prompt: "Hello."))
chat = WebChat(client)

def make_client():
    return client

turns = durable(client, name="command")

def make_durable():
    launch("sqlite:///turns.db")
    return turns

number = 7
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the current folder one with a module of an application."""
    (tmp_path / "my_web_app.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


@contextmanager
def served(*arguments: str) -> Iterator[tuple[str, str]]:
    """Run the command; yield its address and what it has printed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "chatclient", "web", "--port", "0", *arguments]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        (address,) = re.findall(r"http://\S+", line)
        yield address, line
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    assert errors == ""


@pytest.mark.process("web command")
@pytest.mark.parametrize("name", ["client", "chat", "make_client", "make_durable"])
def test_serves_the_page(folder: Path, name: str) -> None:
    """The page and its endpoints are served on the loopback address, and Ctrl-C ends it."""
    body = {
        "id": "c1",
        "messages": [{"id": "1", "role": "user", "parts": [{"type": "text", "text": "Hi"}]}],
    }
    with served(f"my_web_app:{name}") as (address, _):
        assert address.startswith("http://127.0.0.1:")
        assert "<title>Chat</title>" in httpx.get(address).text
        answer = httpx.post(f"{address}ai-sdk", json=body).text
        other = httpx.get(address, headers={"host": "evil.example"})

    assert '"delta":"Hell' in answer
    assert ('"data-trail"' in answer) is (name in ("client", "make_client"))
    assert other.status_code == 400


@pytest.mark.process("web command")
def test_serves_the_client_of_the_options(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without a name, the client is the one that the options describe, with its memory."""
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with served("--model", "openai:m-1", "--memory", f"sqlite:///{tmp_path}/chat.db") as found:
        assert httpx.get(found[0]).status_code == 200


@pytest.mark.process("web command")
def test_every_address(folder: Path) -> None:
    """With another address, other host names are served, and a line warns of it."""
    with served("my_web_app:client", "--host", "0.0.0.0") as (address, _):
        port = address.rpartition(":")[2]
        response = httpx.get(f"http://127.0.0.1:{port}", headers={"host": "box.example"})
    assert response.status_code == 200


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["my_web_app"], "web needs MODULE:OBJECT, not 'my_web_app'"),
        (["my_web_app:number"], "must be a ChatClient, a DurableClient, a WebChat or"),
        (["my_web_app:turns"], "after it is made, call chatclient.durable.launch(url)"),
        (["my_web_app:nothing"], "has no attribute 'nothing'"),
        (["no_such_app:client"], "No module named 'no_such_app'"),
        (["my_web_app:client", "--host", "no such host"], "cannot listen on no such host"),
    ],
)
def test_wrong_usage(
    folder: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command prints the mistake, and its status is 2."""
    assert main(["web", *arguments]) == 2

    assert message in capsys.readouterr().err


def test_port_in_use(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A port that another program uses is named."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["web", "my_web_app:client", "--port", port]) == 2

    assert f"cannot listen on 127.0.0.1 port {port}" in capsys.readouterr().err


def test_in_this_process(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C ends the command, whose status is 0, and closes the client."""
    # The MCP SDK's server remembers that the process is to end, and would cut later answers short.
    monkeypatch.setattr("sse_starlette.sse.AppStatus.should_exit", False)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    pages: list[str] = []

    def visit() -> None:
        transport = httpx.HTTPTransport(retries=10)
        try:
            with httpx.Client(transport=transport) as client:
                pages.append(client.get(f"http://localhost:{port}/").text)
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    visitor = threading.Thread(target=visit)
    visitor.start()
    status = main(["web", "my_web_app:client", "--port", str(port), "--host", "localhost"])
    visitor.join(30)

    assert status == 0
    assert "<title>Chat</title>" in pages[0]
    assert capsys.readouterr().out == f"http://localhost:{port}/  (Ctrl-C ends it)\n"


def test_missing_extra(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the extra, the command names it."""
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "chatclient.web.page", raising=False)

    assert main(["web", "my_web_app:client"]) == 2
    assert "pip install 'chatclient[web]'" in capsys.readouterr().err
