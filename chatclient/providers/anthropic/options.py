"""Encodes options and output schemas for Anthropic's Messages API; no I/O."""

from collections.abc import Mapping, Sequence
from typing import Any

from chatclient._internal.frozen import EMPTY
from chatclient._internal.json import dumps
from chatclient._internal.json_schema import has_open_object, is_recursive
from chatclient.chat.options import ChatOptions
from chatclient.chat.server_tools import McpConnector
from chatclient.chat.tool import ToolDefinition
from chatclient.errors import UsageError
from chatclient.providers.anthropic.encoding import PROVIDER
from chatclient.providers.anthropic.reasoning import (
    can_force_calls,
    encode_reasoning,
    sampling,
    thinking_in,
)
from chatclient.providers.anthropic.server_tools import SERVER_TOOLS, mcp_servers
from chatclient.providers.wire.cache_control import (
    count_breakpoints,
    ends_marked,
    may_add_breakpoint,
)
from chatclient.providers.wire.common_options import CommonOptions, automatic, field, lacking
from chatclient.providers.wire.fields import option_fields
from chatclient.providers.wire.sendable_schemas import ANTHROPIC_RULES
from chatclient.providers.wire.sendable_tools import sendable_definitions
from chatclient.providers.wire.server_tools import ServerTools, deferred_tools, with_server_tools

# "JSON Schema limitations" in
# https://platform.claude.com/docs/en/build-with-claude/structured-outputs
_KEYWORDS = frozenset(
    {
        *("type", "title", "description", "default", "enum", "const", "anyOf", "allOf"),
        *("$defs", "properties", "required", "additionalProperties", "items"),
    }
)
_FORMATS = frozenset(
    {
        *("date-time", "time", "date", "duration"),
        *("email", "hostname", "uri", "ipv4", "ipv6", "uuid"),
    }
)


def is_enforceable(schema: Mapping[str, Any]) -> bool:
    """Return whether *schema* has neither objects with arbitrary keys nor recursion."""
    return not has_open_object(schema) and not is_recursive(schema)


def enforceable(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return *schema* with unsupported keywords moved to descriptions.

    Objects are closed unless they have `additionalProperties`.
    """
    result = {k: _nested(k, value) for k, value in schema.items() if _is_supported(k, value)}
    if "oneOf" in schema:
        result["anyOf"] = _nested("anyOf", schema["oneOf"])
    if "$ref" in schema:
        return {"$ref": schema["$ref"], **{k: result[k] for k in ("$defs",) if k in result}}
    if schema.get("type") == "object" or "properties" in schema:
        result.setdefault("additionalProperties", False)
    moved = {k: v for k, v in schema.items() if k not in result and k[0] != "$" and k != "oneOf"}
    if moved:
        texts = [schema.get("description"), f"Constraints: {dumps(moved).decode()}"]
        result["description"] = "\n\n".join(filter(None, texts))
    return result


def _is_supported(key: str, value: Any) -> bool:
    match key:
        case "format":
            return value in _FORMATS
        case "minItems":
            return value in (0, 1)
        case _:
            return key in _KEYWORDS


def _nested(key: str, value: Any) -> Any:
    """Return the value of a keyword with the schemas in it converted."""
    match key, value:
        case ("properties" | "$defs", Mapping()):
            return {name: _nested("items", schema) for name, schema in value.items()}
        case ("anyOf" | "allOf", list() | tuple()):
            return [_nested("items", schema) for schema in value]
        case ("items", Mapping()):
            return enforceable(value)
        case _:
            return value


_MAX_TOKENS = 16_384  # required by the API; supported by all current models


def _tool_choice(choice: str, options: ChatOptions) -> Mapping[str, Any] | str:
    if not options.tool_callbacks and not _server_tools(options):
        return EMPTY
    if choice in ("auto", "none"):
        return {"tool_choice.type": choice}
    if not can_force_calls(options):
        return "it cannot be forced to call a tool, at least while it thinks"
    if choice == "required":
        return {"tool_choice.type": "any"}
    return {"tool_choice.type": "tool", "tool_choice.name": choice}


def _parallel_tool_calls(allowed: bool, options: ChatOptions) -> Mapping[str, Any]:  # noqa: FBT001
    has_tools = options.tool_callbacks or _server_tools(options)
    if allowed or not has_tools or options.tool_choice == "none":
        return EMPTY  # several calls are the default
    sequential: dict[str, Any] = {"tool_choice.disable_parallel_tool_use": True}
    forced = options.tool_choice not in (None, "auto") and can_force_calls(options)
    return sequential if forced else {"tool_choice.type": "auto", **sequential}


def _service_tier(tier: str, _options: ChatOptions) -> Mapping[str, Any] | str:
    if tier in ("flex", "priority"):
        return "the API has the tiers 'auto' and 'standard_only'"
    return {"service_tier": "standard_only" if tier == "default" else tier}


COMMON_OPTIONS = CommonOptions(
    "Anthropic",
    {
        "temperature": sampling("temperature", 1),
        "top_p": sampling("top_p"),
        "top_k": sampling("top_k"),
        "max_tokens": field("max_tokens"),
        "stop": field("stop_sequences"),
        "seed": lacking("the API has no seed"),
        "presence_penalty": lacking("the API has no penalties"),
        "frequency_penalty": lacking("the API has no penalties"),
        "tool_choice": _tool_choice,
        "parallel_tool_calls": _parallel_tool_calls,
        "reasoning": encode_reasoning,
        "cache": automatic,  # encoded as breakpoints, which depend on the prompt
        "service_tier": _service_tier,
        "user_id": field("metadata.user_id"),
    },
    {"reasoning": ("thinking", "effort")},
)
"""How the API takes the common options."""


def encode_options(
    options: ChatOptions, *, streaming: bool, server_tools: ServerTools = SERVER_TOOLS
) -> dict[str, Any]:
    """Return the fields of a request that its options determine.

    Args:
        options: The options.
        streaming: Whether the answer is streamed.
        server_tools: The encoders of the tools that the server has.
    """
    servers = mcp_servers(options) if McpConnector in server_tools else []
    deferred = deferred_tools(options, server_tools)
    options = with_server_tools(options, COMMON_OPTIONS.provider, server_tools)
    options = COMMON_OPTIONS.settle(options)
    body = {**option_fields(options, {"model": "model"}), **COMMON_OPTIONS.encode(options)}
    thinking = body.get("thinking") or thinking_in(options)
    body.setdefault("max_tokens", _MAX_TOKENS + thinking.get("budget_tokens", 0))
    output = {
        **body.pop("output_config", {}),
        **option_fields(options, {"effort": "effort"}),
        **_format(options),
    }
    fields = {
        "thinking": thinking,
        "output_config": output,
        "tools": _tools(options, deferred),
        "mcp_servers": servers,
        "stream": streaming,
    }
    body.update({name: value for name, value in fields.items() if value})
    return body


def _server_tools(options: ChatOptions) -> Sequence[Mapping[str, Any]]:
    return getattr(options, "server_tools", None) or ()


def _tools(options: ChatOptions, deferred: frozenset[str]) -> list[dict[str, Any]]:
    tools = [_tool(each) for each in sendable_definitions(options, ANTHROPIC_RULES)]
    for tool in tools:
        if tool["name"] in deferred:
            tool["defer_loading"] = True
    tools += [dict(tool) for tool in _server_tools(options)]
    loaded = [tool for tool in tools if not _is_deferred(tool)]  # the API refuses other marks
    if loaded and options.cache is not None and may_add_breakpoint(dumps(tools)):
        loaded[-1].setdefault("cache_control", cache_control(options))
    return tools


def _is_deferred(tool: Mapping[str, Any]) -> bool:
    return bool({**tool.get("default_config", EMPTY), **tool}.get("defer_loading"))


def _tool(definition: ToolDefinition) -> dict[str, Any]:
    provider_options = definition.provider_options.get(PROVIDER, EMPTY)
    schema, strict = definition.input_schema, provider_options.get("strict", definition.strict)
    if strict and not is_enforceable(schema):
        strict = None
    tool = {
        **{key: value for key, value in provider_options.items() if key != "strict"},
        "name": definition.name,
        "description": definition.description,
        "input_schema": enforceable(schema) if strict else schema,
    }
    return tool if strict is None else {**tool, "strict": strict}


def cache_control(options: ChatOptions) -> dict[str, Any]:
    """Return the breakpoint that *options* request."""
    return {"type": "ephemeral", **option_fields(options, {"cache_ttl": "ttl"})}


def without_own_breakpoints(options: ChatOptions, messages: bytes) -> ChatOptions:
    """Return *options* without `auto` if the application has set a breakpoint itself.

    Ours could come before one that lives longer, which the API refuses.

    Args:
        options: The options.
        messages: The JSON of the messages.
    """
    if options.cache != "auto":
        return options
    definitions = sendable_definitions(options, ANTHROPIC_RULES)
    tools = [dict(each.provider_options.get(PROVIDER, EMPTY)) for each in definitions]
    own = dumps([tools, [dict(tool) for tool in _server_tools(options)], dict(options.extra)])
    return options.mutate(cache=None) if count_breakpoints(messages + own) else options


def with_cache_control(system: bytes, options: ChatOptions, rest: bytes = b"") -> bytes:
    """Return *system* blocks with a cache breakpoint in the last, if *options* request it.

    There is none if the last block has one, or *system* and the *rest* have as many as allowed.
    """
    if not system or options.cache in (None, "tools") or ends_marked(system):
        return system
    if not may_add_breakpoint(rest + system):
        return system
    return b'%b,"cache_control":%b}' % (system[:-1], dumps(cache_control(options)))


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
