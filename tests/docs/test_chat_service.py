"""The example service, over HTTP and in a real browser."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from chat_service.app import create_app
from selenium.webdriver import Chrome

from chatclient import Prompt, ToolResponseMessage
from chatclient.testing import Answer, ScriptedModel, call
from tests.support.browser import chromium, click, console_errors, shown, until, write
from tests.support.databases import sql_place
from tests.support.web_server import serving


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


@pytest.fixture(params=["sqlite", "postgresql"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """Return a function that makes the service; each one uses the same database."""
    with sql_place(request.param, tmp_path) as (database, prefix):
        yield lambda: create_app(ScriptedModel(traveller), database=database, prefix=prefix)


def user(text: str, id: str) -> dict[str, Any]:
    return {"id": id, "role": "user", "parts": [{"type": "text", "text": text}]}


def chunks_of(address: str, conversation: str, *messages: Any) -> list[dict[str, Any]]:
    """Return the chunks of the answer to *messages*."""
    body = {"id": conversation, "messages": messages}
    response = httpx.post(f"{address}/ai-sdk", json=body, timeout=30)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return [json.loads(line[6:]) for line in response.text.splitlines() if line[:7] == "data: {"]


def text_of(chunks: list[dict[str, Any]]) -> str:
    return "".join(chunk["delta"] for chunk in chunks if chunk["type"] == "text-delta")


def test_memory(app: Any) -> None:
    """Conversations are remembered, each on its own."""
    with serving(app()) as address:
        chunks = chunks_of(address, "c1", user("A train to Rome?", "1"))
        assert text_of(chunks).startswith('Well: ["IC 1 to Rome, 09:14, 39 EUR"')
    with serving(app()) as address:
        assert text_of(chunks_of(address, "c1", user("Hm?", "2"))) == "You have said 2 things."
        assert text_of(chunks_of(address, "c2", user("Hm?", "1"))) == "You have said 1 things."


@pytest.mark.parametrize(
    ("approved", "outcome"),
    [(True, "Booked a seat on IC 1."), (False, "The user did not allow this call.")],
)
def test_booking_approval(app: Any, approved: bool, outcome: str) -> None:
    """A turn that waits survives a restart."""
    with serving(app()) as address:
        chunks = chunks_of(address, "c1", user("Book it.", "1"))
        (request,) = [each for each in chunks if each["type"] == "tool-approval-request"]
    approval = {"id": request["approvalId"], "approved": approved}
    part = {
        "type": "tool-book_train",
        "toolCallId": request["toolCallId"],
        "state": "approval-responded",
        "input": {},
        "approval": approval,
    }
    decided = {"id": "2", "role": "assistant", "parts": [part]}
    with serving(app()) as address:
        assert text_of(chunks_of(address, "c1", user("Book it.", "1"), decided)) == (
            f"Well: {outcome}"
        )


def test_page(app: Any) -> None:
    """A booking is confirmed on the page, also after a reload."""
    with serving(app()) as address, chromium() as browser:
        _book(browser, address)
        assert console_errors(browser) == []


def _book(browser: Chrome, address: str) -> None:
    browser.get(address)
    write(browser, "A train to Rome?")
    until(browser, lambda: shown(browser, ".assistant .text"))
    write(browser, "Book the first.")
    until(browser, lambda: shown(browser, ".waits"))
    browser.refresh()
    until(browser, lambda: shown(browser, ".waits"))
    click(browser, "Allow")
    booked = "Well: Booked a seat on IC 1."
    until(browser, lambda: shown(browser, ".assistant .text")[-1:] == [booked])
    assert shown(browser, ".error") == []
