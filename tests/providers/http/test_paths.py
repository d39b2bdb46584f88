"""Names and ids are single steps of a request's path."""

from collections.abc import Callable

import httpx
import pytest

from chatclient import ChatModel
from chatclient.errors import ProviderError, UsageError
from chatclient.providers import BedrockChatModel, GeminiChatModel, azure_model
from chatclient.providers.http.auth import ExpiringCredentials, SecretHeaders
from chatclient.providers.vertex import VertexAnthropicChatModel

URL = "https://api.test/base"
MODELS: dict[str, Callable[[str, httpx.Client], ChatModel]] = {
    "gemini": lambda name, http: GeminiChatModel(name, api_key="k", base_url=URL, http_client=http),
    "bedrock": lambda name, http: BedrockChatModel(
        name, api_key="k", base_url=URL, http_client=http
    ),
    "vertex": lambda name, http: VertexAnthropicChatModel(
        name,
        api_key=ExpiringCredentials(lambda: (SecretHeaders({"authorization": "t"}), None)),
        base_url=URL,
        http_client=http,
    ),
    "azure": lambda name, http: azure_model(
        name, endpoint=URL, api_key="k", api_version="2024-10-21", http_client=http
    ),
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_names_of_models(make: Callable[[str, httpx.Client], ChatModel]) -> None:
    """A name cannot leave its place in the path; `..` is an error before anything is sent."""
    sent: list[httpx.URL] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request.url)
        return httpx.Response(400, json={"error": {"message": "no"}})

    with httpx.Client(transport=httpx.MockTransport(answer)) as http:
        for name in ("..", "."):
            with pytest.raises(UsageError, match="cannot be a model's name"):
                make(name, http).call("Hi")
        assert sent == []
        with pytest.raises(ProviderError, match="no"):
            make("a?b#c", http).call("Hi")

    [url] = sent
    assert url.host == "api.test"
    assert b"/a%3Fb%23c" in url.raw_path
