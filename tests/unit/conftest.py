"""Send requests in two modes only: what is tested here does not depend on the mode."""

import pytest

from chatclient.testing import Ask


@pytest.fixture(params=["call", "astream"])
def ask(request: pytest.FixtureRequest) -> Ask:
    return Ask(request.param)
