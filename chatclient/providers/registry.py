"""Models by name: `provider:model`."""

import importlib
from collections.abc import Callable
from typing import Any

from chatclient._internal.checks import check_type
from chatclient.chat.model import ChatModel
from chatclient.errors import UsageError

# Modules are imported on first use.
_PROVIDERS = {
    "anthropic": ("chatclient.providers.anthropic.model", "AnthropicChatModel"),
    "azure": ("chatclient.providers.azure", "azure_model"),
    "bedrock": ("chatclient.providers.bedrock.model", "BedrockChatModel"),
    "gemini": ("chatclient.providers.gemini.model", "GeminiChatModel"),
    "local": ("chatclient.providers.local.choice", "local_model"),
    "ollama": ("chatclient.providers.ollama.model", "OllamaChatModel"),
    "openai": ("chatclient.providers.openai.chat", "OpenAIChatModel"),
    "openai-responses": ("chatclient.providers.openai.responses", "OpenAIResponsesChatModel"),
    "vertex": ("chatclient.providers.vertex", "vertex_model"),
}
COMPATIBLE = (
    "azure",
    "deepseek",
    "groq",
    "llamacpp",
    "lmstudio",
    "minimax",
    "mistral",
    "moonshot",
    "openrouter",
    "together",
    "vllm",
    "xai",
    "zhipu",
)
_WITHOUT_DEFAULT = (*COMPATIBLE, "bedrock", "vertex")


def chat_model(name: str, **settings: Any) -> ChatModel:
    """Return the model called *name*, such as `openai:gpt-5-mini`, `groq:…` or `local`.

    Args:
        name: The provider, and after a colon the model; default: the provider's default model.
        **settings: Other arguments of the model, such as `max_retries`.

    Raises:
        UsageError: The provider is unknown, or has no default model.
    """
    check_type("the name of a model", name, str)
    provider, _, model = name.partition(":")
    if provider in _WITHOUT_DEFAULT and not model:
        msg = f"{name!r} names no model; write {provider}:model"
        raise UsageError(msg)
    if provider in _PROVIDERS:
        kind: Callable[..., ChatModel] = _load(*_PROVIDERS[provider])
        return kind(model=model, **settings) if model else kind(**settings)
    if provider in COMPATIBLE:
        compatible = _load("chatclient.providers.compatible", "compatible_model")
        return compatible(provider, model, **settings)
    known = ", ".join(sorted({*_PROVIDERS, *COMPATIBLE}))
    msg = (
        f"{name!r} names no provider; write provider:model, such as openai:gpt-5-mini, with one"
        f" of {known}"
    )
    raise UsageError(msg)


def _load(module: str, name: str) -> Callable[..., ChatModel]:
    found: Callable[..., ChatModel] = getattr(importlib.import_module(module), name)
    return found
