"""The default `prompt_cache_key`: of OpenAI itself, for each conversation."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from chatclient import ChatClient
from chatclient.providers.azure import azure_model
from chatclient.providers.openai.chat import OpenAIChatModel
from chatclient.providers.openai.responses import OpenAIResponsesChatModel
from tests.support.servers import completion

Make = Callable[..., Any]
RESPONSE = {
    "id": "r",
    "object": "response",
    "status": "completed",
    "model": "m",
    "output": [
        {
            "type": "message",
            "id": "m",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "hi", "annotations": []}],
        }
    ],
}


def sent_by(make: Make, *conversations: str | None, **options: Any) -> list[Any]:
    """Return the keys in the requests of *make*'s model in conversations with these ids."""
    bodies: list[dict[str, Any]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        responses = request.url.path.endswith("/responses")
        return httpx.Response(200, json=RESPONSE if responses else completion("hi"))

    with httpx.Client(transport=httpx.MockTransport(answer)) as http:
        client = ChatClient.create(make(http_client=http))
        for conversation in conversations:
            request = client.prompt("hi").options(**options)
            if conversation is not None:
                request = request.conversation(conversation)
            request.call().content()
    return [body.get("prompt_cache_key") for body in bodies]


@pytest.mark.parametrize("model", [OpenAIChatModel, OpenAIResponsesChatModel])
def test_keys_distinguish_conversations(model: Any) -> None:
    """The same in each process, and neither the id nor a hash that anybody could compute."""

    def make(key: str = "sk-1", **http: Any) -> Any:
        return model("m", api_key=key, **http)

    one, same, other, none = sent_by(make, "alice", "alice", "bob", None)
    assert one == same != other
    assert none is None
    assert "alice" not in one
    assert len(one) == 32
    assert sent_by(make, "alice") == [one]
    assert sent_by(lambda **http: make("sk-2", **http), "alice") != [one]


@pytest.mark.parametrize("model", [OpenAIChatModel, OpenAIResponsesChatModel])
def test_own_keys_are_kept(model: Any) -> None:
    """A key may be an option, or a field of the request."""

    def make(**http: Any) -> Any:
        return model("m", api_key="k", **http)

    assert sent_by(make, "c", prompt_cache_key="mine") == ["mine"]
    assert sent_by(make, "c", extra={"prompt_cache_key": "mine"}) == ["mine"]


@pytest.mark.parametrize(
    "make",
    [
        lambda **http: OpenAIChatModel("m", api_key="k", base_url="https://gate.test/v1", **http),
        lambda **http: OpenAIResponsesChatModel(
            "m", api_key="k", base_url="https://gate.test/v1", **http
        ),
        lambda **http: azure_model("m", api_key="k", endpoint="https://a.openai.azure.com", **http),
        lambda **http: azure_model(
            "m",
            api_key="k",
            endpoint="https://a.openai.azure.com",
            api_version="2024-10-21",
            **http,
        ),
        lambda **http: OpenAIChatModel("m", api_key=lambda: "changes", **http),
    ],
    ids=["gateway", "gateway, responses", "Azure", "Azure, dated", "key function"],
)
def test_no_key_where_it_may_be_refused(make: Make) -> None:
    """Other servers may reject unknown fields; they get a key that the application sets."""
    assert sent_by(make, "c") == [None]
    assert sent_by(make, "c", prompt_cache_key="mine") == ["mine"]
