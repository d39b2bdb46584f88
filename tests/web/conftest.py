"""Fixtures of tests of frontends."""

from collections.abc import Iterator

import pytest
from selenium.webdriver import Chrome

from tests.support.browser import chromium
from tests.support.node import close_scripts


@pytest.fixture
def browser() -> Iterator[Chrome]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module", autouse=True)
def _scripts() -> Iterator[None]:
    yield
    close_scripts()
