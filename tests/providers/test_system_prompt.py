"""Prompts that consist of a system message."""

import json
from typing import Any

import httpx
import pytest

from chatclient import ChatClient
from chatclient.errors import InvalidRequestError
from chatclient.providers import AnthropicChatModel, GeminiChatModel


@pytest.mark.parametrize(
    ("kind", "field", "expected"),
    [
        (
            AnthropicChatModel,
            "messages",
            [{"role": "user", "content": [{"type": "text", "text": "Say hi."}]}],
        ),
        (GeminiChatModel, "contents", [{"role": "user", "parts": [{"text": "Say hi."}]}]),
    ],
)
def test_system_message_alone(kind: Any, field: str, expected: Any) -> None:
    """APIs with a separate field for system messages get a message of the user."""
    bodies: list[Any] = []

    def refuse(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        return httpx.Response(400, json={"error": {"message": "no"}})

    with httpx.Client(transport=httpx.MockTransport(refuse)) as http:
        model = kind("m", api_key="k", base_url="http://test", http_client=http)
        with pytest.raises(InvalidRequestError):
            ChatClient.create(model).prompt().system("Say hi.").call().content()

    [body] = bodies
    assert body[field] == expected
    assert not {"system", "systemInstruction"} & body.keys()
