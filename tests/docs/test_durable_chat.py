"""The example of a durable chat service, over HTTP and in a browser, while it is killed."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
import sqlalchemy as sa
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from tests.support.databases import SERVERS, need
from tests.support.paths import ROOT

BOOKED = "Well: Booked a seat on IC 1."


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Yield the URL of a new database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'chat.db'}"
        return
    need("postgresql")
    name = f"durable_chat_{uuid4().hex[:12]}"
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
        self.gate = folder / "gate"
        self._log = folder / "service.log"
        self._environment = {
            **os.environ,
            "CHAT_DATABASE": database,
            "CHAT_GATE": str(self.gate),
            "PYTHONPATH": f"{ROOT}:{ROOT / 'examples'}",
        }
        self._process: subprocess.Popen[bytes] | None = None

    @contextlib.contextmanager
    def running(self) -> Iterator["Service"]:
        """Start the process; it is killed at the end."""
        command = [sys.executable, "-m", "uvicorn", "--factory", "--port", str(self.port)]
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [*command, "tests.support.durable_chat:create_app"],
                cwd=ROOT,
                env=self._environment,
                stdout=log,
                stderr=log,
            )
        try:
            self._wait(process)
            yield self
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()

    def _wait(self, process: "subprocess.Popen[bytes]") -> None:
        end = time.monotonic() + 60
        while time.monotonic() < end and process.poll() is None:
            with contextlib.suppress(httpx.TransportError):
                httpx.get(self.address)
                return
            time.sleep(0.1)
        pytest.fail(f"the service does not answer: {self._log.read_text()[-2000:]}")

    def post(self, path: str, body: Any) -> httpx.Response:
        """Return the response to a request of a conversation."""
        return httpx.post(f"{self.address}/conversations/{path}", json=body, timeout=60)

    def events(self, path: str, body: Any) -> list[dict[str, Any]]:
        """Return the events of the response."""
        response = self.post(path, body)
        assert response.status_code == 200, response.text
        return [json.loads(line[6:]) for line in response.text.splitlines() if line]

    def read(self, conversation: str) -> Any:
        """Return a conversation."""
        return httpx.get(f"{self.address}/conversations/{conversation}", timeout=60).json()


@pytest.fixture
def service(database: str, tmp_path: Path) -> Service:
    return Service(database, tmp_path)


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(event["text"] for event in events if event["kind"] == "text")


def test_conversation(service: Service) -> None:
    """Turns follow each other, also after one that failed; each conversation is on its own."""
    with service.running():
        assert text_of(service.events("c1", {"text": "Hello"})) == "1 questions."
        (failed,) = service.events("c1", {"text": "Please fail"})
        assert "no room" in failed["message"]
        assert text_of(service.events("c1", {"text": "Hello?"})) == "2 questions."
        assert text_of(service.events("c2", {"text": "Hello"})) == "1 questions."
        assert service.post("c3", {"text": " "}).status_code == 422
        assert service.read("c3") == {"messages": [], "waiting": {}, "running": False}


def test_decisions(service: Service) -> None:
    """A turn that waits blocks its conversation; a decision is checked, and applied once."""
    with service.running():
        waiting, done = service.events("c1", {"text": "Book it."})
        assert done == {"kind": "done"}
        assert service.post("c1", {"text": "Hello?"}).status_code == 409
    with service.running():
        assert service.read("c1") == {
            "messages": [{"role": "user", "text": "Book it."}],
            "waiting": waiting["calls"],
            "running": False,
        }
        assert service.post("c1/decisions", {"other": True}).status_code == 422
        events = service.events("c1/decisions", {"call_book_train": True})
        assert events[0]["kind"] == "tool"
        assert text_of(events) == BOOKED
        assert service.post("c1/decisions", {"call_book_train": True}).status_code == 404
        assert [each["role"] for each in service.read("c1")["messages"]] == ["user", "assistant"]


# --- in a browser ---------------------------------------------------------------------------


@pytest.fixture
def browser() -> Iterator[Chrome]:
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("Chromium and its driver are not installed (Debian: chromium-driver)")
    options = ChromeOptions()
    options.binary_location = program
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    chrome = Chrome(options=options, service=ChromeService(driver))
    yield chrome
    chrome.quit()


def shown(browser: Chrome, kind: str) -> list[str]:
    return [
        each.text.strip() for each in browser.find_elements(By.CSS_SELECTOR, f".message.{kind}")
    ]


def until(browser: Chrome, condition: Callable[[], object]) -> None:
    WebDriverWait(browser, 60, 0.05, [StaleElementReferenceException]).until(lambda _: condition())


def send(browser: Chrome, text: str) -> None:
    field = browser.find_element(By.ID, "text")
    until(browser, field.is_enabled)
    field.send_keys(text + "\n")


def test_page_approval_after_kill(browser: Chrome, service: Service) -> None:
    """A booking is confirmed after SIGKILL and a restart, and takes place once."""
    with service.running():
        browser.get(service.address)
        send(browser, "Book the first.")
        until(browser, lambda: shown(browser, "approval"))
    with service.running():
        browser.refresh()
        until(browser, lambda: shown(browser, "approval"))
        assert 'book_train({"number": "IC 1"})' in shown(browser, "approval")[0]
        browser.find_element(By.XPATH, "//button[text()='Allow']").click()
        until(browser, lambda: shown(browser, "assistant") == [BOOKED])
        browser.refresh()
        until(browser, lambda: shown(browser, "assistant") == [BOOKED])
        assert shown(browser, "user") == ["Book the first."]
        assert shown(browser, "error") == []


def test_page_follows_after_kill(browser: Chrome, service: Service) -> None:
    """An answer that was interrupted by SIGKILL is completed by the next process."""
    with service.running():
        browser.get(service.address)
        send(browser, "Trains?")
        until(browser, lambda: shown(browser, "assistant") == ["There are"])
    service.gate.touch()
    with service.running():
        browser.refresh()
        until(browser, lambda: shown(browser, "assistant") == ["There are two trains."])
        assert shown(browser, "user") == ["Trains?"]
        until(browser, browser.find_element(By.ID, "text").is_enabled)
