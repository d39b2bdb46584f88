"""Options as the fields of a request to Anthropic's Messages API; no I/O."""

from collections.abc import Mapping, Sequence
from typing import Any

from chatclient.errors import UsageError
from chatclient.json import dumps
from chatclient.options import ChatOptions
from chatclient.providers.anthropic_schemas import enforceable, is_enforceable
from chatclient.providers.fields import fields_of, overlaid
from chatclient.tool import ToolDefinition
from chatclient.values import EMPTY

_MAX_TOKENS = 16_384  # the API wants a bound; every current model can write so much
_NAMES = {
    "model": "model",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "stop": "stop_sequences",
    "service_tier": "service_tier",
}


def encode_options(options: ChatOptions, *, streaming: bool) -> dict[str, Any]:
    """Return all of a request but its messages and system text."""
    thinking = thinking_in(options)
    body = fields_of(options, _NAMES)
    body["max_tokens"] = options.max_tokens or _MAX_TOKENS + thinking.get("budget_tokens", 0)
    found = {
        "thinking": thinking,
        "metadata": fields_of(options, {"user_id": "user_id"}),
        "output_config": {**fields_of(options, {"effort": "effort"}), **_format(options)},
        "tools": _tools(options),
        "tool_choice": _tool_choice(options),
        "cache_control": _cache_control(options) if _cached(options) == "conversation" else None,
        "stream": streaming,
    }
    body.update({name: value for name, value in found.items() if value})
    return overlaid(body, options.extra)


def thinking_in(options: ChatOptions) -> Mapping[str, Any]:
    """Return the API's field that says whether the model thinks, and how much."""
    thinking: int | str | Mapping[str, Any] | None = getattr(options, "thinking", None)
    match thinking:
        case None:
            return EMPTY
        case int():
            return {"type": "enabled", "budget_tokens": thinking}
        case str():
            return {"type": thinking}
        case _:
            return thinking


def _cached(options: ChatOptions) -> str | None:
    """Return up to where the prompt is to be cached."""
    cached: str | None = getattr(options, "cache", None)
    return cached


def _server_tools(options: ChatOptions) -> Sequence[Mapping[str, Any]]:
    return getattr(options, "server_tools", None) or ()


def _tools(options: ChatOptions) -> list[dict[str, Any]]:
    tools = [_tool(callback.definition) for callback in options.tool_callbacks or ()]
    tools += [dict(tool) for tool in _server_tools(options)]
    if tools and _cached(options) is not None:
        tools[-1]["cache_control"] = _cache_control(options)
    return tools


def _tool(definition: ToolDefinition) -> dict[str, Any]:
    schema, strict = definition.input_schema, definition.strict
    if strict and not is_enforceable(schema):
        strict = None
    tool = {
        "name": definition.name,
        "description": definition.description,
        "input_schema": enforceable(schema) if strict else schema,
    }
    return tool if strict is None else {**tool, "strict": strict}


def _tool_choice(options: ChatOptions) -> dict[str, Any] | None:
    if not options.tool_callbacks and not _server_tools(options):
        return None
    one_at_a_time = options.parallel_tool_calls is False
    wanted = options.tool_choice or ("auto" if one_at_a_time else None)
    if wanted is None or wanted == "none":
        return {"type": "none"} if wanted else None
    kinds = {"auto": {"type": "auto"}, "required": {"type": "any"}}
    choice = kinds.get(wanted, {"type": "tool", "name": wanted})
    return {**choice, "disable_parallel_tool_use": True} if one_at_a_time else choice


def _cache_control(options: ChatOptions) -> dict[str, Any]:
    return {"type": "ephemeral", **fields_of(options, {"cache_ttl": "ttl"})}


def marked(system: bytes, options: ChatOptions) -> bytes:
    """Return system blocks, the last of them marked as the end of what is cached, if wanted."""
    # A message may have marked itself. Quotes inside of texts are escaped: this finds fields only.
    is_marked = b'"cache_control":' in system[system.rfind(b'{"type":"text"') :]
    if _cached(options) in (None, "tools") or is_marked:
        return system
    return b'%b,"cache_control":%b}' % (system[:-1], dumps(_cache_control(options)))


def refuse_unenforceable(schema: Mapping[str, Any] | None) -> None:
    """Refuse an output schema that the API would refuse, or read as another one.

    Raises:
        UsageError: It is one.
    """
    if schema is not None and not is_enforceable(schema):
        msg = (
            "Anthropic cannot enforce a schema that contains itself or has objects with "
            "arbitrary keys; name all properties and close the objects, or ask for the answer "
            "with entity(..., native=True) in place of `output_schema`"
        )
        raise UsageError(msg)


def _format(options: ChatOptions) -> dict[str, Any]:
    schema = options.output_schema
    if schema is None:
        return {}
    return {"format": {"type": "json_schema", "schema": enforceable(schema)}}
