"""How OpenAI's models, and compatible servers, take the option `reasoning`; no I/O."""

import re
from collections.abc import Mapping
from typing import Any

from chatclient._internal.frozen import EMPTY
from chatclient.chat.options import ChatOptions
from chatclient.providers.wire.common_options import Encode, encode_effort, is_off

_UP_TO_HIGH = ("low", "medium", "high")
_UP_TO_XHIGH = (*_UP_TO_HIGH, "xhigh")
_UP_TO_MAX = (*_UP_TO_XHIGH, "max")
_ALL = ("none", "minimal", *_UP_TO_MAX)

# developers.openai.com/api/docs/guides/reasoning and the pages of the models; the first match
# counts. Models without efforts do not reason.
_BY_MODEL = [
    (re.compile(rf"(?:^|[/:]){name}"), efforts)
    for name, efforts in (
        (r"(?:gpt-[34]|chatgpt|gpt-5-chat)", ()),
        (r"o\d", _UP_TO_HIGH),
        (r"gpt-5\.\d+-chat", ("medium",)),
        (r"gpt-5-pro", ("high",)),
        (r"gpt-5-codex", _UP_TO_HIGH),
        (r"gpt-5(?!\.)", ("minimal", *_UP_TO_HIGH)),
        (r"gpt-5\.1-codex-max", _UP_TO_XHIGH),
        (r"gpt-5\.1-codex", _UP_TO_HIGH),
        (r"gpt-5\.1(?!\d)", ("none", *_UP_TO_HIGH)),
        (r"gpt-5\.[2-5]-pro", ("medium", "high", "xhigh")),
        (r"gpt-5\.[2-5](?!\d)", ("none", *_UP_TO_XHIGH)),
        (r"gpt-5\.", ("none", *_UP_TO_MAX)),
        (r"gpt-6", _UP_TO_MAX),
    )
]
# These reason only on request.
_OPT_IN = re.compile(r"(?:^|[/:])gpt-5\.[1-4](?!\d)(?!.*(?:chat|pro|5\.1-codex))")


def efforts_of(model: str) -> tuple[str, ...] | None:
    """Return the efforts that OpenAI's *model* takes, none if it does not reason; None: unknown."""
    return next((efforts for name, efforts in _BY_MODEL if name.search(model)), None)


def reasons(options: ChatOptions) -> bool:
    """Return whether OpenAI's model in *options* is known to reason with these options."""
    model = options.model or ""
    if not efforts_of(model) or "reasoning" in options.extra or "reasoning_effort" in options.extra:
        return False
    effort = getattr(options, "reasoning_effort", None)
    if effort is None:
        effort = options.reasoning
    return _OPT_IN.search(model) is None if effort is None else not is_off(effort)


def _unless_reasoning(name: str, neutral: float) -> Encode:
    """Return the encoder of a sampling option, of which reasoning models take only *neutral*."""

    def encode(value: Any, options: ChatOptions) -> Mapping[str, Any] | str:
        if value != neutral and reasons(options):
            return "models that reason do not take it"
        return {name: value}

    return encode


_WITHOUT_STOP = re.compile(r"(?:^|[/:])(?:o\d|gpt-5(?!\.|-chat))")


def stop(value: Any, options: ChatOptions) -> Mapping[str, Any] | str:
    """Encode the option `stop` for OpenAI's models."""
    if _WITHOUT_STOP.search(options.model or ""):
        return "models that reason do not take it"
    return {"stop": value}


SAMPLING: Mapping[str, Encode] = {
    "temperature": _unless_reasoning("temperature", 1),
    "top_p": _unless_reasoning("top_p", 1),
    "presence_penalty": _unless_reasoning("presence_penalty", 0),
    "frequency_penalty": _unless_reasoning("frequency_penalty", 0),
    "stop": stop,
}
"""Encoders of the options that OpenAI's reasoning models do not take."""


def openai_effort(path: str) -> Encode:
    """Return the encoder for OpenAI's models, with the effort in the field *path*."""

    def encode(value: Any, options: ChatOptions) -> Mapping[str, Any] | str:
        offered = efforts_of(options.model or "")
        return encode_effort(value, path, _ALL if offered is None else offered)

    return encode


def effort(*offered: str, path: str = "reasoning_effort") -> Encode:
    """Return the encoder for a server whose models take the efforts *offered*."""

    def encode(value: Any, _options: ChatOptions) -> Mapping[str, Any] | str:
        return encode_effort(value, path, offered)

    return encode


COMPATIBLE_EFFORT = effort("none", *_UP_TO_HIGH)
"""The encoder for servers of which nothing else is known."""


def switch(path: str, on: Any, off: Any, efforts: Encode | None = None) -> Encode:
    """Return the encoder for a server with a switch in *path*.

    Args:
        path: The field.
        on: The field's value for models that reason.
        off: The field's value for models that do not.
        efforts: Encodes efforts, if the server takes these besides.
    """

    def encode(value: Any, options: ChatOptions) -> Mapping[str, Any] | str:
        if is_off(value):
            return {path: off}
        if efforts is not None:
            fields = efforts(value, options)
            return fields if isinstance(fields, str) else {path: on, **fields}
        if isinstance(value, int):
            return "reasoning is on or off; there is no number of tokens"
        return {path: on}

    return encode


def or_budget(path: str, efforts: Encode) -> Encode:
    """Return the encoder for a server that takes *efforts*, or a number of tokens in *path*."""

    def encode(value: Any, options: ChatOptions) -> Mapping[str, Any] | str:
        if isinstance(value, int) and value:
            return {path: value}
        return efforts(value, options)

    return encode


def groq_effort(value: Any, options: ChatOptions) -> Mapping[str, Any] | str:
    """Encode the option for Groq: Qwen's reasoning is on or off, that of GPT-OSS has efforts."""
    if "qwen" in (options.model or ""):
        return _GROQ_QWEN(value, options)
    return _GROQ(value, options)


_GROQ_QWEN = switch("reasoning_effort", "default", "none")
_GROQ = effort(*_UP_TO_HIGH)

# llama.cpp and vLLM pass these to the chat template; templates of models that do not reason ignore
# them.
_ENABLED = "chat_template_kwargs.enable_thinking"
LLAMA_CPP = switch(_ENABLED, on=True, off=False)
"""The encoder for llama.cpp, which has no efforts."""


def llama_cpp(value: Any, options: ChatOptions) -> Mapping[str, Any] | str:
    """Encode the option for llama.cpp, which takes a number of tokens but no effort."""
    if isinstance(value, int) and value:
        return {_ENABLED: True, "thinking_budget_tokens": value}
    return LLAMA_CPP(value, options)


def local(value: Any, options: ChatOptions) -> Mapping[str, Any] | str:
    """Encode the option for models on this machine; those of the extras do not reason."""
    if "qwen2.5-coder" in (options.model or "").lower():
        return EMPTY if is_off(value) else "it does not reason"
    return llama_cpp(value, options)
