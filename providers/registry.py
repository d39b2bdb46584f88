"""Models by name: `provider:model`."""

import importlib

from chatclient.errors import UsageError
from chatclient.model import ChatModel

# Modules are imported when their provider is first asked for.
_PROVIDERS = {
    "openai": ("chatclient.providers.openai", "OpenAIChatModel"),
    "local": ("chatclient.providers.local", "LocalChatModel"),
}


def chat_model(name: str) -> ChatModel:
    """Return the model called *name*, such as `openai:gpt-5-mini` or `local`.

    Args:
        name: The provider and, after a colon, the model; without it the provider's default.

    Raises:
        UsageError: There is no such provider.
    """
    provider, _, model = name.partition(":")
    if provider not in _PROVIDERS:
        known = ", ".join(sorted(_PROVIDERS))
        msg = f"{name!r} names no provider; write provider:model with one of {known}"
        raise UsageError(msg)
    module, cls = _PROVIDERS[provider]
    kind = getattr(importlib.import_module(module), cls)
    made: ChatModel = kind(model=model) if model else kind()
    return made
