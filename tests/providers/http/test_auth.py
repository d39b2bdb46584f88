"""Base URLs and API keys of a wrong type."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from chatclient import Prompt
from chatclient.errors import WrongTypeError
from chatclient.providers.anthropic.model import AnthropicChatModel
from chatclient.providers.compatible import compatible_model
from chatclient.providers.embeddings import (
    GeminiEmbeddingModel,
    OllamaEmbeddingModel,
    OpenAIEmbeddingModel,
)
from chatclient.providers.gemini.model import GeminiChatModel
from chatclient.providers.ollama.model import OllamaChatModel
from chatclient.providers.openai.chat import OpenAIChatModel
from chatclient.providers.openai.moderation import OpenAIModerationModel
from chatclient.providers.openai.responses import OpenAIResponsesChatModel

SECRET = "sk-secret"
SERVER = "http://127.0.0.1:9"
MAKERS: list[Callable[..., Any]] = [
    AnthropicChatModel,
    GeminiChatModel,
    OllamaChatModel,
    OpenAIChatModel,
    OpenAIResponsesChatModel,
    GeminiEmbeddingModel,
    OllamaEmbeddingModel,
    OpenAIEmbeddingModel,
    OpenAIModerationModel,
    lambda **settings: compatible_model("groq", "m", **settings),
]
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a URL": (
        {"base_url": httpx.URL(f"http://me:{SECRET}@127.0.0.1:9")},
        "base_url must be a text, not a URL; of a URL pass str(url)",
    ),
    "an address in bytes": (
        {"base_url": f"http://me:{SECRET}@127.0.0.1:9".encode()},
        "base_url must be a text, not a bytes",
    ),
    "a key that hides itself": (
        {"api_key": SecretStr(SECRET)},
        "api_key must be a text or a function that returns one, such as its get_secret_value()",
    ),
    "a key in bytes": (
        {"api_key": SECRET.encode()},
        "api_key must be a text or a function that returns one, not a bytes",
    ),
    "a list of headers": (
        {"headers": [("x-key", SECRET)]},
        "headers must be a mapping of names to texts, not a list",
    ),
    "a header that is a number": (
        {"headers": {"x-tenant": 5}},
        "the header 'x-tenant' must be a text, not a int",
    ),
    "a header that hides itself": (
        {"headers": {"x-key": SecretStr(SECRET)}},
        "the header 'x-key' must be a text, such as its get_secret_value(), not a SecretStr",
    ),
    "a header in bytes": (
        {"headers": {b"x-key": SECRET}},
        "the name of a header must be a text, not a bytes",
    ),
}


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(("given", "message"), WRONG.values(), ids=WRONG)
def test_non_string_settings_are_rejected(
    make: Callable[..., Any], given: dict[str, Any], message: str
) -> None:
    """A model with such a setting cannot be made, and the error shows no secret."""
    with pytest.raises(WrongTypeError) as caught:
        make(**{"api_key": "k", "base_url": SERVER, **given})

    assert message in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("returned", [SECRET.encode(), SecretStr(SECRET), 5])
def test_key_function_must_return_a_string(returned: object) -> None:
    """A key function that returns another type raises before a request is sent."""
    model = OpenAIChatModel("m", api_key=lambda: returned, base_url=SERVER)  # type: ignore[arg-type]

    with pytest.raises(
        WrongTypeError, match="a function returns as api_key must be a text"
    ) as error:
        model.call(Prompt("x"))
    assert SECRET not in str(error.value)
