"""Media in tool results: supported media are sent, others are described in text."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from chatclient import (
    AssistantMessage,
    ChatClient,
    Media,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
)
from chatclient.testing import Ask
from tests.support import vendor_schemas
from tests.support.loopback import LoopbackServer
from tests.support.servers import Reply
from tests.support.services import SERVICES, TEXT, Service


@pytest.fixture(params=SERVICES, ids=str)
def service(request: pytest.FixtureRequest) -> Service:
    found: Service = request.param
    return found


@pytest.fixture
def sent_request() -> list[Any]:
    """Return the request that the server received."""
    return []


@pytest.fixture
def url(sent_request: list[Any], service: Service, ask: Ask) -> Iterator[str]:
    """Return the URL of a server that answers every request."""

    def answer(_path: str, _headers: dict[str, str], body: Any) -> Reply:
        sent_request.append(body)
        return Reply(service.answer(streaming=ask.streaming))

    with LoopbackServer(answer) as server:
        yield server.url


@pytest.mark.parametrize("is_error", [False, True])
def test_unsupported_tool_media_is_described(
    ask: Ask, service: Service, url: str, sent_request: list[Any], *, is_error: bool
) -> None:
    """The turn continues: no provider accepts all of a sound, a drawing and an image by id."""
    shown = (
        Media("audio/wav", b"RIFF", name="song.wav"),
        Media("image/svg+xml", b"<svg/>"),
        Media("image/png", "", id="file-1"),
        Media("text/csv", "", id="file-2"),
        Media("image/png", b"\x89PNG"),
    )
    seen = ToolResponse("c1", "play", "played", is_error, shown)
    history = [
        UserMessage("Play."),
        AssistantMessage(tool_calls=ToolCall("c1", "play", "{}")),
        ToolResponseMessage(seen),
    ]
    with service.model(url) as model:
        result = ask(ChatClient.create(model).prompt().messages(*history))

    assert result.text == TEXT
    [body] = sent_request
    problems: vendor_schemas.Problems = getattr(vendor_schemas, f"{service}_problems")()
    sent = json.dumps(body)
    assert "iVBORw" in sent  # an image that every API accepts
    assert "played" in sent
    assert "cannot be shown: " in sent
    assert problems({k: v for k, v in body.items() if k != "stream"}) == []
