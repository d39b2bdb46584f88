"""Attribute names and JSON forms of OpenTelemetry's conventions for generative AI.

They are those of version 0.1.0: https://github.com/open-telemetry/semantic-conventions-genai.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from chatclient._internal.frozen import EMPTY
from chatclient._internal.json import dumps, loads
from chatclient.chat.messages import (
    Media,
    Message,
    Reasoning,
    ToolCall,
    ToolResponseMessage,
    system_messages,
    without_system,
)
from chatclient.chat.options import ChatOptions
from chatclient.chat.prompt import Prompt
from chatclient.chat.response import ChatResponse, Usage
from chatclient.chat.tool import ToolDefinition

# Provider names of the conventions that differ from ours.
_PROVIDERS = {
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "moonshot": "moonshot_ai",
    "vertex": "gcp.vertex_ai",
    "xai": "x_ai",
}

COST = "chatclient.usage.cost"
"""Attribute for the cost of model calls."""
CURRENCY = "chatclient.usage.currency"
"""Attribute for the currency of the cost."""

_REQUESTED = {
    "model": "gen_ai.request.model",
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "max_tokens": "gen_ai.request.max_tokens",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "seed": "gen_ai.request.seed",
    "stop": "gen_ai.request.stop_sequences",
    "tool_choice": "chatclient.request.tool_choice",
}
_REASONING_LEVEL = "gen_ai.request.reasoning.level"
_REASONING_BUDGET = "chatclient.request.reasoning.budget"
_PORTS = {"http": 80, "https": 443}


def provider_name(provider: str) -> str:
    """Return the conventions' name of a provider."""
    return _PROVIDERS.get(provider, provider)


def option_attributes(options: ChatOptions) -> dict[str, Any]:
    """Return the values of *options* by attribute name; None for those that are not set."""
    found = {attribute: getattr(options, name) for name, attribute in _REQUESTED.items()}
    if (reasoning := options.reasoning) is not None:
        found[_REASONING_LEVEL if isinstance(reasoning, str) else _REASONING_BUDGET] = reasoning
    return found


@lru_cache(maxsize=256)
def server_attributes(address: str) -> Mapping[str, Any]:
    """Return the host and port of a model's *address*; empty if it is not the URL of one server."""
    try:
        url = urlsplit(address)
        port = url.port or _PORTS.get(url.scheme)
    except ValueError:
        return EMPTY
    # A composite model joins the addresses of several with spaces.
    if not url.hostname or port is None or " " in address:
        return EMPTY
    return {"server.address": url.hostname, "server.port": port}


def tool_names(options: ChatOptions) -> tuple[str, ...] | None:
    """Return the names of the tools in *options*, sorted; None without any."""
    return tuple(sorted(c.definition.name for c in options.tool_callbacks or ())) or None


def finish_reasons(response: ChatResponse) -> tuple[str, ...]:
    """Return the known finish reasons of the generations of *response*."""
    return tuple(g.finish_reason for g in response.generations if g.finish_reason is not None)


def usage_counts(usage: Usage) -> dict[str, Any]:
    """Return the numbers of tokens of a model call by attribute name, and the cost if known.

    Zeros are left out.
    """
    parts = {
        "gen_ai.usage.cache_read.input_tokens": usage.cache_read_tokens,
        "gen_ai.usage.cache_write.input_tokens": usage.cache_write_tokens,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens,
    }
    return total_usage(usage) | {name: count for name, count in parts.items() if count}


def total_usage(usage: Usage) -> dict[str, Any]:
    """Return the numbers of tokens of a complete turn by attribute name, and the cost if known."""
    counts = {
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
    }
    found: dict[str, Any] = {name: count for name, count in counts.items() if count}
    if usage.cost is not None:
        found |= {COST: float(usage.cost.amount), CURRENCY: usage.cost.currency}
    return found


def content_attributes(prompt: Prompt, response: ChatResponse | None) -> Mapping[str, str]:
    """Return the messages of *prompt* and *response*, and the tools, as JSON by attribute name."""
    callbacks = prompt.options.tool_callbacks or ()
    generations = () if response is None else response.generations
    found = {
        "gen_ai.system_instructions": [_text(m.text) for m in system_messages(prompt.messages)],
        "gen_ai.input.messages": [_message(m) for m in without_system(prompt.messages)],
        "gen_ai.tool.definitions": [_tool(callback.definition) for callback in callbacks],
        "gen_ai.output.messages": [_message(each.output) for each in generations],
    }
    return {name: dumps(value).decode() for name, value in found.items() if value}


def _message(message: Message) -> dict[str, Any]:
    if isinstance(message, ToolResponseMessage):
        parts = [
            {"type": "tool_call_response", "id": answer.id, "response": answer.data}
            for answer in message.responses
        ]
        return {"role": "tool", "parts": parts}
    parts = [_part(part) for part in getattr(message, "parts", (message.text,))]
    return {"role": message.role, "parts": parts}


def _part(part: Any) -> dict[str, Any]:
    match part:
        case str():
            return _text(part)
        case ToolCall(id=id, name=name, arguments=arguments):
            return {"type": "tool_call", "id": id, "name": name, "arguments": _decoded(arguments)}
        case Reasoning():
            return {"type": "reasoning", "content": part.text}
        case Media():
            kind = part.mime_type.partition("/")[0]
            modality = kind if kind in ("image", "video", "audio") else "document"
            found = {"modality": modality, "mime_type": part.mime_type}
            if part.id is not None:
                return {"type": "file", **found, "file_id": part.id}
            if isinstance(part.data, str):
                return {"type": "uri", **found, "uri": part.data}
            # The form `blob` requires the content.
            return {"type": "media", **found, "bytes": len(part.data)}
        case _:
            return {"type": type(part).__name__}


def _decoded(arguments: str) -> Any:
    """Return the arguments of a call as the object that they are; text that is none unchanged."""
    try:
        return loads(arguments or "{}")
    except ValueError:
        return arguments


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "content": text}


def _tool(definition: ToolDefinition) -> dict[str, Any]:
    return {
        "type": "function",
        "name": definition.name,
        "description": definition.description,
        "parameters": definition.input_schema,
    }
