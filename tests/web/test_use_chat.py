"""The `useChat` of the AI SDK, in a page in Chromium."""

import json
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Mount, Route

from chatclient import ChatClient
from chatclient.durable import DurableClient, durable, launch
from chatclient.memory import MessageWindowChatMemory
from chatclient.testing import ScriptedModel, call
from chatclient.web import WebChat
from tests.support.browser import click, console_errors, shown, until, write
from tests.support.gated_model import GatedModel
from tests.support.node import bundled
from tests.support.web_app import endpoints, travel_client
from tests.support.web_server import serving

pytestmark = pytest.mark.process("browser with useChat")


def page_with(client: ChatClient | DurableClient) -> Starlette:
    """Return an application with the page and the endpoints of *client*."""
    script = bundled("use_chat.jsx").replace("</script", "<\\/script")
    page = f"""<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,">
        <div id="root"></div><script>{script}</script>"""

    async def index(_request: Request) -> HTMLResponse:
        return HTMLResponse(page)

    chat = endpoints(WebChat(client))
    return Starlette(routes=[Route("/", index), Mount("/", chat)])


def test_streamed_text(browser: Chrome) -> None:
    """The first half is visible before the model sends the second."""
    model = GatedModel()
    with serving(page_with(ChatClient.create(model))) as address:
        browser.get(address)
        write(browser, "Trains?")
        until(browser, lambda: shown(browser, ".assistant .text") == ["There are"])
        assert shown(browser, "[data-status=streaming]") != []
        model.gate.set()
        until(browser, lambda: shown(browser, ".assistant .text") == ["There are two trains."])


def test_resumed_stream(browser: Chrome, tmp_path: Path) -> None:
    """A page that was reloaded shows the turn that runs, and after a decision its result."""
    model, booking = GatedModel(), call("book_train", {"number": "IC 1"}, id="call_9")
    with launch(f"sqlite:///{tmp_path / 'turns.db'}"):
        with serving(page_with(durable(ChatClient.create(model), name="resumed"))) as address:
            browser.get(address)
            write(browser, "Trains?")
            until(browser, lambda: shown(browser, ".assistant .text") == ["There are"])
            browser.refresh()
            until(browser, lambda: shown(browser, ".assistant .text") == ["There are"])
            model.gate.set()
            until(browser, lambda: shown(browser, ".assistant .text") == ["There are two trains."])
        scripted = travel_client(ScriptedModel(["Let me book it.", booking], "Booked."))
        with serving(page_with(durable(scripted, name="waits"))) as address:
            browser.get(address)
            write(browser, "Book it.")
            until(browser, lambda: "approval-requested" in "".join(shown(browser, ".tool")))
            browser.refresh()
            until(browser, lambda: "approval-requested" in "".join(shown(browser, ".tool")))
            click(browser, "Allow")
            texts = ["Let me book it.", "Booked."]
            until(browser, lambda: shown(browser, ".assistant .text") == texts)
            assert shown(browser, ".error") == []
            assert console_errors(browser) == []


def test_approval(browser: Chrome) -> None:
    """Tools are shown; an approval continues the message; each message is stored once."""
    memory = MessageWindowChatMemory()
    booking: Any = call("book_train", {"number": "IC 1"}, id="call_9")
    model = ScriptedModel(
        [call("find_trains", {"city": "Rome"}, id="call_1")],
        "Two trains.",
        ["Let me book it.", booking],
        "Booked.",
    )
    with serving(page_with(travel_client(model, memory=memory))) as address:
        browser.get(address)
        write(browser, "Trains?")
        until(browser, lambda: shown(browser, ".assistant .text") == ["Two trains."])
        (found,) = shown(browser, ".tool")
        assert found == (
            'find_trains({"city":"Rome"}): output-available ["IC 1 to Rome","IC 3 to Rome"]'
        )

        write(browser, "Book it.")
        until(browser, lambda: "approval-requested" in shown(browser, ".tool")[-1])
        click(browser, "Allow")
        until(browser, lambda: shown(browser, ".assistant .text")[-1:] == ["Booked."])
        assert shown(browser, ".tool")[-1] == (
            'book_train({"number":"IC 1"}): output-available "Booked a seat on IC 1."'
        )
        assert len(shown(browser, ".assistant")) == 2
        assert shown(browser, ".error") == []
        script = "return Array.from(document.querySelectorAll('main > div'), each => each.id)"
        ids = browser.execute_script(script)
        assert console_errors(browser) == []

    stored = memory.get("c1")
    assert len(stored) == 8
    assert [stored[0].id, stored[1].id, stored[4].id, stored[5].id] == ids, json.dumps(ids)


def test_error(browser: Chrome) -> None:
    """The page shows an error without internals, and can continue."""
    model = ScriptedModel(LookupError("a secret"), "Hello.")
    with serving(page_with(travel_client(model))) as address:
        browser.get(address)
        write(browser, "Hello?")
        until(browser, lambda: shown(browser, ".error"))
        assert shown(browser, ".error") == ["Something went wrong. Please try again."]
        write(browser, "Hello?")
        until(browser, lambda: shown(browser, ".assistant .text") == ["Hello."])
