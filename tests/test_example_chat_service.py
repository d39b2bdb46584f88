"""The example service: over HTTP as a browser does it, and in a real browser."""

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
from databases import sql_place
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from chatclient import AssistantMessage, ChatModel, ChatResponse, Prompt, ToolResponseMessage
from chatclient.errors import OverloadedError
from chatclient.response import Generation
from chatclient.runtime import Runtime
from chatclient.testing import Answer, ScriptedModel, call


def traveller(prompt: Prompt) -> Answer:
    """Stand for a model: looks trains up, books the first, says what came of it."""
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


def told(address: str, path: str, body: Any) -> list[dict[str, Any]]:
    """Return the events that a request is answered with."""
    response = httpx.post(f"{address}/conversations/{path}", json=body, timeout=30)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return [json.loads(line[6:]) for line in response.text.splitlines() if line]


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(event["text"] for event in events if event["kind"] == "text")


def test_an_answer_is_told_as_events(place: tuple[str, str]) -> None:
    """Tool calls as they happen, the text in pieces, the end; memory counts along."""
    with serving(ScriptedModel(traveller), *place) as address:
        events = told(address, "c1", {"text": "A train to Rome?"})
        assert [event["kind"] for event in events[:2]] == ["tool", "text"]
        assert events[0]["name"] == "find_trains"
        assert (
            text_of(events) == 'Well: ["IC 1 to Rome, 09:14, 39 EUR","IC 3 to Rome, 10:02, 29 EUR"]'
        )
        assert len(events) > 4
        assert events[-1] == {"kind": "done"}

        assert text_of(told(address, "c1", {"text": "How many?"})) == "You have said 2 things."
        assert text_of(told(address, "c2", {"text": "How many?"})) == "You have said 1 things."


@pytest.mark.parametrize(
    ("approved", "outcome"),
    [(True, "Booked a seat on IC 1."), (False, "The user did not allow this call.")],
)
def test_a_booking_waits_for_a_decision(
    place: tuple[str, str], approved: bool, outcome: str
) -> None:
    """It survives the service's restart, blocks the conversation, and is decided once."""
    with serving(ScriptedModel(traveller), *place) as address:
        waiting, done = told(address, "c1", {"text": "Book it."})
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

        events = told(address, "c1/decisions", {"call_book_train": approved})
        assert outcome in text_of(events)
        late = httpx.post(f"{address}/conversations/c1/decisions", json={"call_book_train": True})
        assert late.status_code == 404
        read = httpx.get(f"{address}/conversations/c1").json()
        assert [message["role"] for message in read["messages"]] == ["user", "assistant"]
        assert read["waiting"] == {}


def test_what_cannot_be_asked_is_refused(place: tuple[str, str]) -> None:
    """A blank text is the browser's mistake; a model that fails is told as an event."""
    model = ScriptedModel(OverloadedError("no room"), "Here I am.")
    with serving(model, *place) as address:
        long = httpx.post(f"{address}/conversations/{'c' * 65}", json={"text": "Hello?"})
        assert long.status_code == 422
        for blank in ({"text": ""}, {"text": "  "}, {}):
            refused = httpx.post(f"{address}/conversations/c1", json=blank)
            assert refused.status_code == 422
        (failed,) = told(address, "c1", {"text": "Hello?"})
        assert failed["kind"] == "error"
        assert "no room" in failed["message"]
        assert text_of(told(address, "c1", {"text": "Hello?"})) == "Here I am."


class GatedModel(ChatModel):
    """Says half a sentence, and the rest when the gate is opened."""

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


def test_of_two_messages_at_once_none_is_lost_in_silence(place: tuple[str, str]) -> None:
    """When both lead to tools that wait, the later one is told to come again."""
    waiting: list[Prompt] = []

    class Together(ScriptedModel):
        async def generate_stream(
            self, prompt: Prompt, runtime: Runtime
        ) -> AsyncGenerator[ChatResponse | str, None]:
            waiting.append(prompt)
            while len(waiting) < 2:  # noqa: ASYNC110 - the other message is on its way
                await asyncio.sleep(0.01)
            async for piece in super().generate_stream(prompt, runtime):
                yield piece

    with serving(Together(traveller), *place) as address, ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(told, address, "busy", {"text": "Book"}) for _ in range(2)]
        events = sorted((each.result()[-1] for each in asked), key=lambda event: event["kind"])
        left = httpx.get(f"{address}/conversations/busy").json()["waiting"]

    assert events[0] == {"kind": "done"}
    assert events[1]["message"] == "Decide about the other tool calls, and ask again."
    assert len(left) == 1


def test_any_failure_is_told(place: tuple[str, str]) -> None:
    """Also one of the application's own, whose text stays on the server."""

    def broken(_prompt: Prompt) -> Answer:
        raise LookupError("a secret of the server")

    with serving(ScriptedModel(broken), *place) as address:
        (event,) = told(address, "broken", {"text": "Hi"})

    assert event == {"kind": "error", "message": "Something went wrong here."}


def test_a_browser_that_leaves_ends_its_request(place: tuple[str, str]) -> None:
    """The model's stream is closed, and nothing of the turn is remembered."""
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


def say(browser: Chrome, text: str) -> None:
    field = browser.find_element(By.ID, "text")
    until(browser, field.is_enabled)
    field.send_keys(text + "\n")


def test_a_page_shows_the_answer_while_it_comes(browser: Chrome, place: tuple[str, str]) -> None:
    """The first half is on the screen while the model has not said the second."""
    model = GatedModel()
    with serving(model, *place) as address:
        browser.get(address)
        say(browser, "Trains?")
        until(browser, lambda: shown(browser, "assistant") == ["There are"])
        assert not browser.find_element(By.ID, "text").is_enabled()
        model.gate.set()
        until(browser, lambda: shown(browser, "assistant") == ["There are two trains."])


def test_a_page_asks_for_approval(browser: Chrome, place: tuple[str, str]) -> None:
    """Tool calls are shown, a booking is asked about, also after a reload; then it is made."""
    with serving(ScriptedModel(traveller), *place) as address:
        browser.get(address)
        say(browser, "A train to Rome?")
        until(browser, lambda: shown(browser, "assistant"))
        assert shown(browser, "tool")[0].startswith('find_trains({"city": "Rome"}) →')

        say(browser, "Book the first.")
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
