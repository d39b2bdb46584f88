"""The chat page, in Chromium."""

from pathlib import Path

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

from chatclient import AssistantMessage, ChatClient, Media, ToolContext, tool
from chatclient.chat import Reasoning
from chatclient.testing import ScriptedModel, call
from chatclient.web import UiState, WebChat, web_app
from tests.support.browser import click, console_errors, shown, until, write
from tests.support.gated_model import GatedModel
from tests.support.web_app import travel_client
from tests.support.web_server import serving

pytestmark = pytest.mark.process("browser with our page")

PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d494844520000000100000001080600000 01f15c4890000000d49444154789c63f8"
    "cfc0f01f0005000 1ff56c7 2f0d0000000049454e44ae426082".replace(" ", "")
)


def test_streamed_text_and_stop(browser: Chrome) -> None:
    """Text is visible while the model writes, and Stop cancels the request."""
    model = GatedModel()
    with serving(web_app(WebChat(ChatClient.create(model)))) as address:
        browser.get(address)
        write(browser, "Trains?")
        until(browser, lambda: shown(browser, ".assistant .text") == ["There are"])
        assert not browser.find_element(By.ID, "text").is_enabled()
        click(browser, "Stop")
        assert model.closed.wait(20)
        until(browser, lambda: shown(browser, ".error") == ["Stopped."])
        assert shown(browser, ".assistant .text") == ["There are"]


def test_tools_approval_and_reload(browser: Chrome) -> None:
    """Calls, their results and buttons are shown, also after a reload; the trail is below."""
    booking = call("book_train", {"number": "IC 1"}, id="call_9")
    model = ScriptedModel(
        [call("find_trains", {"city": "Rome"}, id="call_1")],
        "Two trains.",
        ["Let me book it.", booking],
        "Booked.",
        [booking],
        "As you like.",
    )
    with serving(web_app(WebChat(travel_client(model), trail=True))) as address:
        browser.get(address)
        write(browser, "Trains?")
        until(browser, lambda: shown(browser, ".assistant .text") == ["Two trains."])
        assert shown(browser, ".tool summary") == ["find_trains done"]
        browser.find_element(By.CSS_SELECTOR, ".tool summary").click()
        assert "IC 3 to Rome" in shown(browser, ".tool .output")[0]
        assert "round 1: ScriptedModel" in browser.execute_script(
            "return document.querySelector('.trail pre').textContent"
        )

        write(browser, "Book it.")
        until(browser, lambda: shown(browser, ".tool summary")[-1] == "book_train waits for you")
        browser.refresh()
        until(browser, lambda: shown(browser, ".tool summary")[-1:] == ["book_train waits for you"])
        assert not browser.find_element(By.ID, "text").is_enabled()
        click(browser, "Allow")
        until(browser, lambda: shown(browser, ".assistant .text")[-1:] == ["Booked."])
        assert shown(browser, ".user .text") == ["Trains?", "Book it."]

        write(browser, "Once more.")
        until(browser, lambda: shown(browser, ".tool summary")[-1] == "book_train waits for you")
        click(browser, "Deny")
        until(browser, lambda: shown(browser, ".assistant .text")[-1:] == ["As you like."])
        assert shown(browser, ".tool summary")[-1] == "book_train not allowed"
        assert shown(browser, ".error") == []
        click(browser, "New chat")
        until(browser, lambda: shown(browser, ".message") == [])
        assert console_errors(browser) == []


def test_reasoning_files_and_state(browser: Chrome) -> None:
    """Reasoning is folded, images are shown, and the state is."""

    @tool(effect="read")
    async def count(context: ToolContext) -> int:
        """Count."""
        await context.emit(UiState({"count": 2}))
        return 2

    model = ScriptedModel(
        AssistantMessage([Reasoning("Let me think.")], call("count", id="call_1")),
        AssistantMessage("Here.", media=Media("image/png", PIXEL)),
    )
    with serving(web_app(WebChat(travel_client(model, count)))) as address:
        browser.get(address)
        write(browser, "Count.")
        until(browser, lambda: shown(browser, ".assistant .text") == ["Here."])
        assert shown(browser, ".reasoning summary") == ["Reasoning"]
        assert shown(browser, ".data summary") == ["state"]
        script = "return document.querySelector('img').naturalWidth"
        until(browser, lambda: browser.execute_script(script) == 1)
        assert console_errors(browser) == []


def test_themes(browser: Chrome, tmp_path: Path) -> None:
    """The page follows the system, and the button changes the theme for good."""
    background = "return getComputedStyle(document.body).backgroundColor"
    with serving(web_app(WebChat(travel_client(ScriptedModel())))) as address:
        browser.get(address)
        light = browser.execute_script(background)
        media = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        dark = browser.execute_script(background)
        assert (light, dark) == ("rgb(246, 247, 249)", "rgb(21, 24, 28)")

        browser.find_element(By.ID, "theme").click()
        assert browser.execute_script(background) == light
        browser.refresh()
        assert browser.execute_script(background) == light
        browser.find_element(By.ID, "theme").click()
        assert browser.execute_script(background) == dark
