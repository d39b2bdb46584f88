"""Send requests in two modes only: the model is slow, and other tests cover the other modes."""

import pytest

from chatclient.testing import Ask


@pytest.fixture(params=["call", "astream"])
def ask(request: pytest.FixtureRequest) -> Ask:
    return Ask(request.param)
