"""Models by name: `provider:model`."""

import importlib
from collections.abc import Callable
from typing import Any

from chatclient.checks import check_kind
from chatclient.errors import UsageError
from chatclient.model import ChatModel

# Modules are imported when their provider is first asked for.
_PROVIDERS = {
    "anthropic": ("chatclient.providers.anthropic", "AnthropicChatModel"),
    "gemini": ("chatclient.providers.gemini", "GeminiChatModel"),
    "local": ("chatclient.providers.local", "LocalChatModel"),
    "ollama": ("chatclient.providers.ollama", "OllamaChatModel"),
    "openai": ("chatclient.providers.openai", "OpenAIChatModel"),
    "openai-responses": ("chatclient.providers.openai_responses", "OpenAIResponsesChatModel"),
}
COMPATIBLE = (
    "azure",
    "deepseek",
    "groq",
    "llamacpp",
    "lmstudio",
    "mistral",
    "openrouter",
    "together",
    "vllm",
    "xai",
)


def chat_model(name: str, **settings: Any) -> ChatModel:
    """Return the model called *name*, such as `openai:gpt-5-mini`, `groq:…` or `local`.

    Args:
        name: The provider and, after a colon, the model; without it the provider's default.
        **settings: What else the model is made with, such as `max_retries`.

    Raises:
        UsageError: There is no such provider, or it has no default model.
    """
    check_kind("the name of a model", name, str)
    provider, _, model = name.partition(":")
    if provider in COMPATIBLE:
        if not model:
            msg = f"{name!r} names no model; write {provider}:model"
            raise UsageError(msg)
        compatible = _load("chatclient.providers.compatible", "compatible_model")
        return compatible(provider, model, **settings)
    if provider not in _PROVIDERS:
        known = ", ".join(sorted((*_PROVIDERS, *COMPATIBLE)))
        msg = (
            f"{name!r} names no provider; write provider:model, such as openai:gpt-5-mini, with one"
            f" of {known}"
        )
        raise UsageError(msg)
    kind: Callable[..., ChatModel] = _load(*_PROVIDERS[provider])
    return kind(model=model, **settings) if model else kind(**settings)


def _load(module: str, name: str) -> Callable[..., ChatModel]:
    found: Callable[..., ChatModel] = getattr(importlib.import_module(module), name)
    return found
