"""Ends the processes of Node.js that tests of frontends have started."""

from collections.abc import Iterator

import pytest

from tests.support.node import close_scripts


@pytest.fixture(scope="module", autouse=True)
def _scripts() -> Iterator[None]:
    yield
    close_scripts()
