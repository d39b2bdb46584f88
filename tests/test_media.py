"""What tools show, with every provider: what its API takes is sent, and the rest is told."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import Ask
from loopback import LoopbackServer
from servers import Reply
from services import SERVICES, TEXT, Service

from chatclient import (
    AssistantMessage,
    ChatClient,
    Media,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
)


@pytest.fixture(params=SERVICES, ids=str)
def service(request: pytest.FixtureRequest) -> Service:
    found: Service = request.param
    return found


@pytest.fixture
def asked() -> list[Any]:
    """Return what the server will have been asked."""
    return []


@pytest.fixture
def url(asked: list[Any], service: Service, ask: Ask) -> Iterator[str]:
    """Return where the service is, which answers everything."""

    def answer(_path: str, _headers: dict[str, str], body: Any) -> Reply:
        asked.append(body)
        return Reply(service.answer(streaming=ask.streaming))

    with LoopbackServer(answer) as server:
        yield server.url


@pytest.mark.parametrize("is_error", [False, True])
def test_what_a_tool_shows_in_a_form_that_the_api_does_not_know_is_told(
    ask: Ask, service: Service, url: str, asked: list[Any], *, is_error: bool
) -> None:
    """The tool has run, so the turn goes on: no provider takes a sound and an image by an id."""
    shown = (
        Media("audio/wav", b"RIFF", name="song.wav"),
        Media("image/png", "", id="file-1"),
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
    sent = json.dumps(asked)
    assert "iVBORw" in sent  # the image that every API takes
    assert "played" in sent
    assert "cannot be shown: " in sent
