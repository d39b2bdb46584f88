"""Chromium without a window, for tests of pages."""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from tests.support.waiting import LONG


@contextlib.contextmanager
def chromium() -> Iterator[Chrome]:
    """Yield a browser; the test is skipped without one."""
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("Chromium and its driver are not installed (Debian: chromium-driver)")
    options = ChromeOptions()
    options.binary_location = program
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    chrome = Chrome(options=options, service=ChromeService(driver))
    chrome.set_window_size(800, 900)
    try:
        yield chrome
    finally:
        chrome.quit()


def shown(browser: Chrome, selector: str) -> list[str]:
    """Return the texts of the elements that a CSS selector finds."""
    script = "return Array.from(document.querySelectorAll(arguments[0]), e => e.innerText.trim())"
    texts: list[str] = browser.execute_script(script, selector)
    return texts


def until(browser: Chrome, condition: Callable[[], object]) -> None:
    """Wait for *condition*; elements that the page replaces are looked for again."""
    gone = (NoSuchElementException, StaleElementReferenceException)
    WebDriverWait(browser, LONG, 0.05, ignored_exceptions=gone).until(lambda _: condition())


def click(browser: Chrome, label: str) -> None:
    """Click on the button with *label*, once it is there."""

    def clicked() -> bool:
        browser.find_element(By.XPATH, f"//button[text()='{label}']").click()
        return True

    until(browser, clicked)


def write(browser: Chrome, text: str) -> None:
    """Send *text* in the field of the page, once it is enabled."""
    until(browser, lambda: browser.find_element(By.ID, "text").is_enabled())
    browser.find_element(By.ID, "text").send_keys(text + "\n")


def console_errors(browser: Chrome) -> list[Any]:
    console: Any = browser.execute("getLog", {"type": "browser"})["value"]
    return [line for line in console if line["level"] == "SEVERE"]
