"""The example service, over HTTP and in a real browser."""

import asyncio
import contextlib
import json
import shutil
import socket
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from chat_service.app import create_app
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from chatclient import AssistantMessage, ChatModel, ChatResponse, Prompt, ToolResponseMessage
from chatclient.chat.response import Generation
from chatclient.errors import OverloadedError
from chatclient.runtime.runtime import Runtime
from chatclient.testing import Answer, ScriptedModel, call
from tests.support.databases import sql_place


def traveller(prompt: Prompt) -> Answer:
    """A scripted model that finds trains, books the first, and reports the result."""
    last = prompt.messages[-1]
    if isinstance(last, ToolResponseMessage):
        return f"Well: {last.responses[0].data}"
    if "book" in last.text.lower():
        return call("book_train", '{"number": "IC 1"}')
    if "train" in last.text.lower():
        return call("find_trains", '{"city": "Rome"}')
    users = [message.text for message in prompt.messages if message.role == "user"]
    return f"You have said {len(users)} things."


@contextlib.contextmanager
def serving(model: ChatModel, database: str, prefix: str) -> Iterator[str]:
    """Serve the example on a free port; yield its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        create_app(model, database=database, prefix=prefix),
        log_level="warning",
        timeout_graceful_shutdown=5,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)
        listener.close()
        assert not thread.is_alive()


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    with sql_place(request.param, tmp_path) as place:
        yield place


def events_of(address: str, path: str, body: Any) -> list[dict[str, Any]]:
    """Return the events of the response to a request."""
    response = httpx.post(f"{address}/conversations/{path}", json=body, timeout=30)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return [json.loads(line[6:]) for line in response.text.splitlines() if line]


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(event["text"] for event in events if event["kind"] == "text")


def test_answer_events(place: tuple[str, str]) -> None:
    """Events for tool calls, text fragments and the end; memory is counted."""
    with serving(ScriptedModel(traveller), *place) as address:
        events = events_of(address, "c1", {"text": "A train to Rome?"})
        assert [event["kind"] for event in events[:2]] == ["tool", "text"]
        assert events[0]["name"] == "find_trains"
        assert (
            text_of(events) == 'Well: ["IC 1 to Rome, 09:14, 39 EUR","IC 3 to Rome, 10:02, 29 EUR"]'
        )
        assert len(events) > 4
        assert events[-1] == {"kind": "done"}

        assert text_of(events_of(address, "c1", {"text": "How many?"})) == "You have said 2 things."
        assert text_of(events_of(address, "c2", {"text": "How many?"})) == "You have said 1 things."


@pytest.mark.parametrize(
    ("approved", "outcome"),
    [(True, "Booked a seat on IC 1."), (False, "The user did not allow this call.")],
)
def test_booking_approval(place: tuple[str, str], approved: bool, outcome: str) -> None:
    """It survives a restart, blocks the conversation, and is decided once."""
    with serving(ScriptedModel(traveller), *place) as address:
        waiting, done = events_of(address, "c1", {"text": "Book it."})
        assert done == {"kind": "done"}
        assert waiting["calls"] == {
            "call_book_train": {"name": "book_train", "given": '{"number": "IC 1"}'}
        }
        again = httpx.post(f"{address}/conversations/c1", json={"text": "Hello?"})
        assert again.status_code == 409

    with serving(ScriptedModel(traveller), *place) as address:
        read = httpx.get(f"{address}/conversations/c1").json()
        assert read["messages"] == [{"role": "user", "text": "Book it."}]
        assert read["waiting"] == waiting["calls"]
        wrong = httpx.post(f"{address}/conversations/c1/decisions", json={"other": True})
        assert wrong.status_code == 422

        events = events_of(address, "c1/decisions", {"call_book_train": approved})
        assert outcome in text_of(events)
        late = httpx.post(f"{address}/conversations/c1/decisions", json={"call_book_train": True})
        assert late.status_code == 404
        read = httpx.get(f"{address}/conversations/c1").json()
        assert [message["role"] for message in read["messages"]] == ["user", "assistant"]
        assert read["waiting"] == {}


def test_invalid_request(place: tuple[str, str]) -> None:
    """Blank text is a client error; a failing model gives an error event."""
    model = ScriptedModel(OverloadedError("no room"), "Here I am.")
    with serving(model, *place) as address:
        long = httpx.post(f"{address}/conversations/{'c' * 65}", json={"text": "Hello?"})
        assert long.status_code == 422
        for blank in ({"text": ""}, {"text": "  "}, {}):
            refused = httpx.post(f"{address}/conversations/c1", json=blank)
            assert refused.status_code == 422
        (failed,) = events_of(address, "c1", {"text": "Hello?"})
        assert failed["kind"] == "error"
        assert "no room" in failed["message"]
        assert text_of(events_of(address, "c1", {"text": "Hello?"})) == "Here I am."


class GatedModel(ChatModel):
    """Streams half a sentence, and the rest when the gate is opened."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.closed = threading.Event()

    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        raise NotImplementedError

    async def generate_stream(
        self, prompt: Prompt, runtime: Runtime
    ) -> AsyncGenerator[ChatResponse | str, None]:
        try:
            yield "There are "
            while not self.gate.is_set():  # noqa: ASYNC110 - opened by another thread
                await asyncio.sleep(0.01)
            yield "two trains."
            yield ChatResponse((Generation(AssistantMessage(), "stop"),))
        finally:
            self.closed.set()


def test_concurrent_messages(place: tuple[str, str]) -> None:
    """If both need an approval, the later one gets an error to retry."""
    waiting: list[Prompt] = []

    class Together(ScriptedModel):
        async def generate_stream(
            self, prompt: Prompt, runtime: Runtime
        ) -> AsyncGenerator[ChatResponse | str, None]:
            waiting.append(prompt)
            for _ in range(1000):  # if the other message is missing, the assertions below show why
                if len(waiting) == 2:
                    break
                await asyncio.sleep(0.01)
            async for piece in super().generate_stream(prompt, runtime):
                yield piece

    with serving(Together(traveller), *place) as address, ThreadPoolExecutor(2) as pool:
        requests = [pool.submit(events_of, address, "busy", {"text": "Book"}) for _ in range(2)]
        events = sorted((each.result()[-1] for each in requests), key=lambda event: event["kind"])
        left = httpx.get(f"{address}/conversations/busy").json()["waiting"]

    assert events[0] == {"kind": "done"}
    assert events[1]["message"] == "Decide about the other tool calls, and ask again."
    assert len(left) == 1


def test_failures(place: tuple[str, str]) -> None:
    """Any failure gives an error event without internal text."""

    def broken(_prompt: Prompt) -> Answer:
        raise LookupError("a secret of the server")

    with serving(ScriptedModel(broken), *place) as address:
        (event,) = events_of(address, "broken", {"text": "Hi"})

    assert event == {"kind": "error", "message": "Something went wrong here."}


def test_disconnected_browser(place: tuple[str, str]) -> None:
    """The model's stream is closed, and the turn is not stored."""
    model = GatedModel()
    with serving(model, *place) as address:
        url = f"{address}/conversations/c1"
        with httpx.stream("POST", url, json={"text": "Trains?"}) as response:
            first = next(line for line in response.iter_lines() if line)
            assert json.loads(first[6:]) == {"kind": "text", "text": "There are "}
        assert model.closed.wait(20)
        assert httpx.get(url).json()["messages"] == []


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
    chrome.set_window_size(800, 900)
    yield chrome
    chrome.quit()


def shown(browser: Chrome, kind: str) -> list[str]:
    return [
        each.text.strip() for each in browser.find_elements(By.CSS_SELECTOR, f".message.{kind}")
    ]


def until(browser: Chrome, condition: Callable[[], object]) -> None:
    WebDriverWait(browser, 30, 0.05).until(lambda _: condition())


def send(browser: Chrome, text: str) -> None:
    field = browser.find_element(By.ID, "text")
    until(browser, field.is_enabled)
    field.send_keys(text + "\n")


def test_page_shows_streamed_text(browser: Chrome, place: tuple[str, str]) -> None:
    """The first half is visible before the model sends the second."""
    model = GatedModel()
    with serving(model, *place) as address:
        browser.get(address)
        send(browser, "Trains?")
        until(browser, lambda: shown(browser, "assistant") == ["There are"])
        assert not browser.find_element(By.ID, "text").is_enabled()
        model.gate.set()
        until(browser, lambda: shown(browser, "assistant") == ["There are two trains."])


def test_page_approval(browser: Chrome, place: tuple[str, str]) -> None:
    """Tool calls are shown, and a booking is confirmed, also after a reload."""
    with serving(ScriptedModel(traveller), *place) as address:
        browser.get(address)
        send(browser, "A train to Rome?")
        until(browser, lambda: shown(browser, "assistant"))
        assert shown(browser, "tool")[0].startswith('find_trains({"city": "Rome"}) →')

        send(browser, "Book the first.")
        until(browser, lambda: shown(browser, "approval"))
        browser.refresh()
        until(browser, lambda: shown(browser, "approval"))
        assert 'book_train({"number": "IC 1"})' in shown(browser, "approval")[0]
        assert shown(browser, "user") == ["A train to Rome?", "Book the first."]

        browser.find_element(By.XPATH, "//button[text()='Allow']").click()
        until(browser, lambda: shown(browser, "assistant")[-1:] == ["Well: Booked a seat on IC 1."])
        assert shown(browser, "approval") == []

        browser.refresh()
        until(browser, lambda: len(shown(browser, "user")) == 2)
        assert shown(browser, "assistant")[-1] == "Well: Booked a seat on IC 1."
        assert shown(browser, "error") == []
        console: Any = browser.execute("getLog", {"type": "browser"})["value"]
        assert [line for line in console if line["level"] == "SEVERE"] == []
