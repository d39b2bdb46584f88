"""The example service, over HTTP and in a browser, while it is killed."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import httpx
import pytest
import sqlalchemy as sa
import yaml
from selenium.webdriver import Chrome

from tests.support.browser import chromium, click, console_errors, shown, until, write
from tests.support.databases import SERVERS, need
from tests.support.paths import ROOT
from tests.support.waiting import LONG

pytestmark = pytest.mark.process("chat service")

FOLDER = ROOT / "examples" / "chat_service"
BOOKED = "Well: Booked a seat on IC 1."


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Yield the URL of a new database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'chat.db'}"
        return
    need("postgresql")
    name = f"chat_service_{uuid4().hex[:12]}"
    server = sa.create_engine(SERVERS["postgresql"], isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.execute(sa.text(f"create database {name}"))
    yield server.url.set(database=name).render_as_string(hide_password=False)
    with server.connect() as connection:
        connection.execute(sa.text(f"drop database {name} with (force)"))
    server.dispose()


class Service:
    """The service in a process, always at the same address."""

    def __init__(self, database: str, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = listener.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}"
        self.gate, self.booking = folder / "gate", folder / "booking"
        self._log = folder / "service.log"
        self._environment = {
            **os.environ,
            "CHAT_DATABASE": database,
            "CHAT_GATE": str(self.gate),
            "CHAT_TAKEOVER": "60",
            "PYTHONPATH": f"{ROOT}:{ROOT / 'examples'}",
        }

    @contextlib.contextmanager
    def running(self, *, takes_over: bool = False) -> Iterator[None]:
        """Start the process; it is killed at the end.

        One that takes over continues the turns of a killed one soon.
        """
        environment = self._environment | ({"CHAT_TAKEOVER": "2"} if takes_over else {})
        command = [sys.executable, "-m", "uvicorn", "--factory", "--port", str(self.port)]
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [*command, "tests.support.chat_service:create_app"],
                cwd=ROOT,
                env=environment,
                stdout=log,
                stderr=log,
            )
        try:
            self._wait(process)
            yield
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()

    def _wait(self, process: "subprocess.Popen[bytes]") -> None:
        end = time.monotonic() + LONG
        while time.monotonic() < end and process.poll() is None:
            with contextlib.suppress(httpx.TransportError):
                httpx.get(self.address)
                return
            time.sleep(0.1)
        pytest.fail(f"the service does not answer: {self._log.read_text()[-2000:]}")

    def post(self, conversation: str, *messages: Any) -> httpx.Response:
        """Return the response to *messages*."""
        body = {"id": conversation, "messages": messages}
        return httpx.post(f"{self.address}/ai-sdk", json=body, timeout=60)

    def chunks(self, conversation: str, *messages: Any) -> list[dict[str, Any]]:
        """Return the chunks of the answer to *messages*."""
        return chunks_in(self.post(conversation, *messages))

    def stream(self, conversation: str, **query: str) -> httpx.Response:
        """Return the stream of the turn that runs or waits."""
        url = f"{self.address}/ai-sdk/{conversation}/stream"
        return httpx.get(url, params=query, timeout=60)


@pytest.fixture
def service(database: str, tmp_path: Path) -> Service:
    return Service(database, tmp_path)


@pytest.fixture
def browser() -> Iterator[Chrome]:
    with chromium() as browser:
        yield browser


def user(text: str, id: str) -> dict[str, Any]:
    return {"id": id, "role": "user", "parts": [{"type": "text", "text": text}]}


def decided(approved: bool) -> dict[str, Any]:
    part = {
        "type": "tool-book_train",
        "toolCallId": "call_book_train",
        "state": "approval-responded",
        "input": {},
        "approval": {"id": "call_book_train", "approved": approved},
    }
    return {"id": "2", "role": "assistant", "parts": [part]}


def chunks_in(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    return [json.loads(line[6:]) for line in response.text.splitlines() if line[:7] == "data: {"]


def text_of(chunks: list[dict[str, Any]]) -> str:
    return "".join(chunk["delta"] for chunk in chunks if chunk["type"] == "text-delta")


def test_conversation(service: Service) -> None:
    """Turns follow each other, also one that failed; each conversation is on its own."""
    with service.running():
        assert text_of(service.chunks("c1", user("Hello", "1"))) == "1 questions."
        failed = service.chunks("c1", user("Please fail", "2"))
        assert failed[-1]["errorText"].startswith("The model is not available")
    with service.running():
        assert text_of(service.chunks("c1", user("Hello?", "3"))) == "3 questions."
        assert text_of(service.chunks("c2", user("Hello", "1"))) == "1 questions."
        assert service.stream("c1").status_code == 204
        assert text_of(chunks_in(service.stream("c1", unanswered="3"))) == "3 questions."


@pytest.mark.parametrize(
    ("approved", "kind", "outcome"),
    [
        (True, "tool-output-available", "Booked a seat on IC 1."),
        (False, "tool-output-denied", "The user did not allow this call."),
    ],
)
def test_decision_after_kill(service: Service, approved: bool, kind: str, outcome: str) -> None:
    """A turn that waits blocks its conversation; a decision is checked, and applied once."""
    question = user("Book it.", "1")
    with service.running():
        waiting = service.chunks("c1", question)
        assert [each["type"] for each in waiting][-2:] == ["finish-step", "finish"]
        assert "tool-approval-request" in {each["type"] for each in waiting}
        assert service.post("c1", user("Hello?", "2")).status_code == 409
    with service.running():
        assert chunks_in(service.stream("c1")) == waiting
        assert service.post("c1", question, {**decided(True), "parts": []}).status_code == 422
        chunks = service.chunks("c1", question, decided(approved))
        assert text_of(chunks) == f"Well: {outcome}"
        assert kind in {each["type"] for each in chunks}
        assert service.post("c1", question, decided(approved)).status_code == 409

        replayed = chunks_in(service.stream("c1", unanswered="1"))
        kinds = [each["type"] for each in replayed if each["type"].startswith("tool-")]
        assert kinds[-3:] == ["tool-approval-request", "tool-approval-response", kind]
        assert text_of(replayed) == f"Well: {outcome}"


# --- in a browser ---------------------------------------------------------------------------

# The page knows of no database, so it is tested with one of them.
on_sqlite = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
on_postgresql = pytest.mark.parametrize("database", ["postgresql"], indirect=True)


@on_sqlite
def test_page_approval_after_kill(browser: Chrome, service: Service) -> None:
    """A booking is confirmed after SIGKILL and a restart, and takes place once."""
    with service.running():
        browser.get(service.address)
        write(browser, "Book the first.")
        until(browser, lambda: shown(browser, ".waits"))
    with service.running():
        browser.refresh()
        until(browser, lambda: shown(browser, ".waits"))
        assert '"number": "IC 1"' in shown(browser, ".waits .input")[0]
        click(browser, "Allow")
        until(browser, lambda: shown(browser, ".assistant .text") == [BOOKED])
        browser.refresh()
        until(browser, lambda: shown(browser, ".assistant .text") == [BOOKED])
        assert shown(browser, ".user .text") == ["Book the first."]
        assert shown(browser, ".error") == []
        assert console_errors(browser) == []


@on_postgresql
def test_page_during_run_after_kill(browser: Chrome, service: Service) -> None:
    """The page shows the answer of a running turn after a reload; another process completes it."""
    with service.running():
        browser.get(service.address)
        write(browser, "Trains?")
        until(browser, lambda: shown(browser, ".assistant .text") == ["There are"])
        browser.refresh()
        until(browser, lambda: shown(browser, ".assistant .text") == ["There are"])
    service.gate.touch()
    with service.running(takes_over=True):  # the page connects again by itself
        until(browser, lambda: shown(browser, ".assistant .text") == ["There are two trains."])
        assert shown(browser, ".user .text") == ["Trains?"]
        assert shown(browser, ".error") == []
        write(browser, "And?")
        until(browser, lambda: shown(browser, ".assistant .text")[-1:] == ["2 questions."])


@on_postgresql
def test_page_tool_interrupted_by_kill(browser: Chrome, service: Service) -> None:
    """A booking that SIGKILL interrupts is asked about again, because it may have taken place."""
    with service.running():
        browser.get(service.address)
        write(browser, "Book slowly.")
        until(browser, lambda: shown(browser, ".waits"))
        click(browser, "Allow")
        until(browser, service.booking.exists)
    with service.running(takes_over=True):
        browser.refresh()
        until(browser, lambda: shown(browser, ".waits"))
        service.gate.touch()
        click(browser, "Allow")
        booked = "Well: Booked a seat on slow."
        until(browser, lambda: shown(browser, ".assistant .text") == [booked])
        assert shown(browser, ".error") == []


@on_sqlite
def test_page_stops(browser: Chrome, service: Service) -> None:
    """Stop cancels the turn on the server, and the conversation continues."""
    with service.running():
        browser.get(service.address)
        write(browser, "Trains?")
        until(browser, lambda: shown(browser, ".assistant .text") == ["There are"])
        click(browser, "Stop")
        until(browser, lambda: shown(browser, ".error") == ["Stopped."])
        conversation = browser.current_url.partition("#")[2]
        until(browser, lambda: service.stream(conversation).status_code == 204)
        write(browser, "Hello?")
        until(browser, lambda: shown(browser, ".assistant .text")[-1:] == ["2 questions."])


# --- the container ---


def test_image() -> None:
    """What the image copies exists, and it installs known extras."""
    text = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
    copied = re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE)
    [extras] = re.findall(r"pip install .*'\.\[([\w,]+)\]'", text)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    assert all((ROOT / name).exists() for names in copied for name in names.split())
    assert set(extras.split(",")) <= set(project["optional-dependencies"])


def test_compose() -> None:
    """The service has the address of the database, and more time to stop than its requests."""
    services = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))["services"]
    chat, database = services["chat"], services["database"]
    url = urlsplit(chat["environment"]["DATABASE_URL"])
    given = database["environment"]
    [grace] = re.findall(
        r'"--timeout-graceful-shutdown", "(\d+)"', (FOLDER / "Dockerfile").read_text("utf-8")
    )

    assert (url.username, url.password, url.path) == (
        given["POSTGRES_USER"],
        given["POSTGRES_PASSWORD"],
        f"/{given['POSTGRES_DB']}",
    )
    assert url.hostname in services
    assert chat["build"]["dockerfile"] == "examples/chat_service/Dockerfile"
    assert (FOLDER / chat["build"]["context"]).resolve() == ROOT
    assert int(chat["stop_grace_period"].removesuffix("s")) > int(grace)
