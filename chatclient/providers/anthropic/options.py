"""Encodes options for Anthropic's Messages API; no I/O."""

from collections.abc import Mapping, Sequence
from typing import Any

from chatclient._internal.frozen import EMPTY
from chatclient._internal.json import dumps
from chatclient.chat.options import ChatOptions
from chatclient.chat.tool import ToolDefinition
from chatclient.errors import UsageError
from chatclient.providers.anthropic.encoding import PROVIDER
from chatclient.providers.anthropic.schemas import enforceable, is_enforceable
from chatclient.providers.wire.fields import merge_extra, option_fields
from chatclient.providers.wire.sendable_schemas import ANTHROPIC_RULES
from chatclient.providers.wire.sendable_tools import sendable_definitions

_MAX_TOKENS = 16_384  # required by the API; supported by all current models
_NAMES = {
    "model": "model",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "stop": "stop_sequences",
    "service_tier": "service_tier",
}


def encode_options(options: ChatOptions, *, streaming: bool) -> dict[str, Any]:
    """Return the request body without messages and system text."""
    thinking = thinking_in(options)
    body = option_fields(options, _NAMES)
    body["max_tokens"] = options.max_tokens or _MAX_TOKENS + thinking.get("budget_tokens", 0)
    fields = {
        "thinking": thinking,
        "metadata": option_fields(options, {"user_id": "user_id"}),
        "output_config": {**option_fields(options, {"effort": "effort"}), **_format(options)},
        "tools": _tools(options),
        "tool_choice": _tool_choice(options),
        "cache_control": _cache_control(options)
        if _cache_scope(options) == "conversation"
        else None,
        "stream": streaming,
    }
    body.update({name: value for name, value in fields.items() if value})
    return merge_extra(body, options.extra)


def thinking_in(options: ChatOptions) -> Mapping[str, Any]:
    """Return the API's field `thinking`."""
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


def _cache_scope(options: ChatOptions) -> str | None:
    """Return which part of the prompt is cached."""
    scope: str | None = getattr(options, "cache", None)
    return scope


def _server_tools(options: ChatOptions) -> Sequence[Mapping[str, Any]]:
    return getattr(options, "server_tools", None) or ()


def _tools(options: ChatOptions) -> list[dict[str, Any]]:
    tools = [_tool(each) for each in sendable_definitions(options, ANTHROPIC_RULES)]
    tools += [dict(tool) for tool in _server_tools(options)]
    if tools and _cache_scope(options) is not None:
        tools[-1]["cache_control"] = _cache_control(options)
    return tools


def _tool(definition: ToolDefinition) -> dict[str, Any]:
    own = definition.provider_options.get(PROVIDER, EMPTY)
    schema, strict = definition.input_schema, own.get("strict", definition.strict)
    if strict and not is_enforceable(schema):
        strict = None
    tool = {
        **{key: value for key, value in own.items() if key != "strict"},
        "name": definition.name,
        "description": definition.description,
        "input_schema": enforceable(schema) if strict else schema,
    }
    return tool if strict is None else {**tool, "strict": strict}


def _tool_choice(options: ChatOptions) -> dict[str, Any] | None:
    if not options.tool_callbacks and not _server_tools(options):
        return None
    sequential = options.parallel_tool_calls is False
    choice = options.tool_choice or ("auto" if sequential else None)
    if choice is None or choice == "none":
        return {"type": "none"} if choice else None
    types = {"auto": {"type": "auto"}, "required": {"type": "any"}}
    field = types.get(choice, {"type": "tool", "name": choice})
    return {**field, "disable_parallel_tool_use": True} if sequential else field


def _cache_control(options: ChatOptions) -> dict[str, Any]:
    return {"type": "ephemeral", **option_fields(options, {"cache_ttl": "ttl"})}


def with_cache_control(system: bytes, options: ChatOptions) -> bytes:
    """Return *system* blocks with a cache breakpoint in the last, if *options* request it."""
    # The message may already have a breakpoint. Quotes in texts are escaped, so only fields match.
    has_breakpoint = b'"cache_control":' in system[system.rfind(b'{"type":"text"') :]
    if _cache_scope(options) in (None, "tools") or has_breakpoint:
        return system
    return b'%b,"cache_control":%b}' % (system[:-1], dumps(_cache_control(options)))


def check_enforceable(schema: Mapping[str, Any] | None) -> None:
    """Raise `UsageError` for an output schema that the API rejects, or interprets differently."""
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
