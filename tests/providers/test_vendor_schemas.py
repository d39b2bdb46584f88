"""Generated requests have the form that the providers' own packages prescribe."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings, strategies as st

from chatclient import ChatModel, Message, Prompt
from chatclient.chat.message_merging import merge_consecutive
from chatclient.errors import UsageError
from chatclient.providers import (
    AnthropicChatModel,
    BedrockChatModel,
    GeminiChatModel,
    OllamaChatModel,
    OpenAIChatModel,
    OpenAIResponsesChatModel,
)
from tests.support import vendor_schemas
from tests.support.bodies import body_of
from tests.support.generated_prompts import conversations, options

NAMES: Mapping[str, tuple[str, ...]] = {
    "anthropic": ("claude-haiku-4-5", "claude-opus-4-8", "claude-sonnet-4-20250514"),
    "bedrock": ("anthropic.claude-x", "amazon.nova-2-lite-v1:0", "mistral.voxtral"),
    "chat": ("gpt-4.1", "gpt-5-mini", "gpt-5.4"),
    "responses": ("gpt-4.1", "gpt-5-mini", "gpt-5.4"),
    "gemini": ("gemini-2.5-flash", "gemini-3-flash"),
    "ollama": ("qwen3",),
}
MODELS: Mapping[str, Callable[[str], ChatModel]] = {
    "anthropic": lambda name: AnthropicChatModel(name, api_key="k"),
    "bedrock": lambda name: BedrockChatModel(name, api_key="k", base_url="http://b"),
    "chat": lambda name: OpenAIChatModel(name, api_key="k"),
    "responses": lambda name: OpenAIResponsesChatModel(name, api_key="k"),
    "gemini": lambda name: GeminiChatModel(name, api_key="k"),
    "ollama": OllamaChatModel,
}
SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)


@pytest.mark.parametrize("count", [20, pytest.param(300, marks=pytest.mark.exhaustive(in_ci=True))])
@pytest.mark.parametrize("api", MODELS)
def test_generated_requests(api: str, count: int) -> None:
    """Each request that is sent is valid by the types of the provider's package."""
    problems: vendor_schemas.Problems = getattr(vendor_schemas, f"{api}_problems")()
    models = {name: MODELS[api](name) for name in NAMES[api]}

    def check(name: str, messages: tuple[Message, ...], given: dict[str, Any]) -> None:
        model = models[name]
        prompt = Prompt.of(merge_consecutive(messages), model.options.mutate(**given).as_defaults())
        try:
            body = body_of(model, prompt)
        except UsageError:  # the user's media, and schemas, that a provider does not take
            assume(False)
        assert problems(body) == []

    run = given(st.sampled_from(NAMES[api]), conversations(), options)(check)
    settings(max_examples=count, suppress_health_check=SLOW)(run)()
