"""Send requests in one blocking and one asynchronous mode, which both use sessions."""

import pytest

from chatclient.testing import Ask


@pytest.fixture(params=["call", "astream"])
def ask(request: pytest.FixtureRequest) -> Ask:
    return Ask(request.param)
