"""Options of Anthropic's API: reasoning, server tools, prompt caching; no I/O.

The API pauses long turns; they continue when the answer is sent back. If a turn waits for tools of
the application, code may still run in a container, whose id the next request has to contain.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from chatclient._internal.frozen import EMPTY
from chatclient._internal.json import dumps
from chatclient._internal.json_schema import has_open_object, is_recursive
from chatclient.chat.messages import AssistantMessage, Message, UserMessage
from chatclient.chat.options import ChatOptions
from chatclient.chat.prompt import Prompt
from chatclient.chat.response import ChatResponse
from chatclient.chat.server_tools import (
    CodeExecution,
    McpConnector,
    ToolSearch,
    WebFetch,
    WebSearch,
)
from chatclient.chat.tool import ToolDefinition
from chatclient.errors import UsageError
from chatclient.providers.anthropic.decoding import CONTAINER, PAUSED
from chatclient.providers.anthropic.encoding import PROVIDER
from chatclient.providers.http.continuation import Continuation
from chatclient.providers.wire.common_options import (
    CommonOptions,
    Encode,
    automatic,
    count_breakpoints,
    encode_effort,
    ends_marked,
    field,
    is_off,
    lacking,
    may_add_breakpoint,
)
from chatclient.providers.wire.fields import option_fields
from chatclient.providers.wire.sendable_schemas import ANTHROPIC_RULES
from chatclient.providers.wire.tools import (
    ServerTools,
    deferred_tools,
    sendable_definitions,
    server_tools_in,
    with_server_tools,
)

# platform.claude.com/docs/en/build-with-claude/thinking: models that do not think, models with a
# budget in tokens, and models whose reasoning cannot be switched off. All others choose a budget
# from an effort.
_WITHOUT_THINKING = re.compile(r"claude-(?:3-(?!7)|2|instant)")
_WITH_BUDGET = re.compile(
    r"claude-(?:3-7|(?:opus|sonnet)-4-(?:[01]\b|[56]|20)|haiku-4|(?:opus|sonnet)-4(?:$|@))"
)
_ADAPTIVE = re.compile(r"claude-(?!3|2|instant|haiku-4|(?:opus|sonnet)-4(?:$|@|-(?:[015]\b|20)))")
_ALWAYS_THINKING = re.compile(r"claude-(?:fable|mythos)")
# platform.claude.com/docs/en/models/opus-5-5/whats-new-opus-5-5, and the pages of other models.
_WITHOUT_FORCED_CALLS = re.compile(
    r"claude-(?:(?:opus|sonnet)-5[-.]5|(?:fable|mythos)-5[-.][12]\b)"
)

_EFFORTS = ("low", "medium", "high", "max")
_LEAST_BUDGET = 1024
_BUDGETS = {"minimal": 1024, "low": 4096, "medium": 8192, "high": 16_384, "max": 32_768}

MCP_BETA = "mcp-client-2025-11-20"
"""The beta feature that connects to MCP servers."""

# platform.claude.com/docs/en/agents-and-tools/tool-use/tool-search-tool: from version 4.5.
_WITHOUT_TOOL_SEARCH = re.compile(r"claude-(?:[23]|instant|(?:opus|sonnet)-4-(?:0|1|2025))")

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


def encode_reasoning(value: Any, options: ChatOptions) -> Mapping[str, Any] | str:
    """Encode the option for the model in *options*."""
    model = options.model or ""
    if is_off(value):
        if _ALWAYS_THINKING.search(model):
            return "it always reasons"
        return EMPTY if _WITHOUT_THINKING.search(model) else {"thinking": {"type": "disabled"}}
    if _WITHOUT_THINKING.search(model):
        return "it does not reason"
    if _ADAPTIVE.search(model) and not (isinstance(value, int) and _WITH_BUDGET.search(model)):
        effort = encode_effort(value, "output_config.effort", _EFFORTS)
        return effort if isinstance(effort, str) else {**effort, "thinking": {"type": "adaptive"}}
    tokens = value if isinstance(value, int) else _BUDGETS[value]
    if options.max_tokens is not None:
        tokens = min(tokens, options.max_tokens - 1)
        if tokens < _LEAST_BUDGET:
            return f"it reasons with {_LEAST_BUDGET} tokens at least, fewer than max_tokens"
    return {"thinking": {"type": "enabled", "budget_tokens": max(tokens, _LEAST_BUDGET)}}


def thinking_in(options: ChatOptions) -> Mapping[str, Any]:
    """Return the API's field `thinking`."""
    thinking: int | str | Mapping[str, Any] | None = getattr(options, "thinking", None)
    match thinking:
        case None:
            if options.reasoning is None:
                return EMPTY
            fields = encode_reasoning(options.reasoning, options)
            return EMPTY if isinstance(fields, str) else fields.get("thinking", EMPTY)
        case int():
            return {"type": "enabled", "budget_tokens": thinking}
        case str():
            return {"type": thinking}
        case _:
            return thinking


def can_force_calls(options: ChatOptions) -> bool:
    """Return whether the model may be forced to call a tool."""
    # It may not while it thinks with a budget; some models never may.
    return (
        thinking_in(options).get("type") != "enabled"
        and _WITHOUT_FORCED_CALLS.search(options.model or "") is None
    )


# platform.claude.com/docs/en/models: since Opus 4.7, models choose by themselves.
_WITHOUT_SAMPLING = re.compile(
    r"claude-(?:(?:opus|sonnet)-4-[7-9]|(?:opus|sonnet|haiku|fable|mythos)-[5-9])"
)


def sampling(name: str, neutral: float | None = None) -> Encode:
    """Return the encoder of a sampling option, of which thinking models take only *neutral*."""

    def encode(value: Any, options: ChatOptions) -> Mapping[str, Any] | str:
        if value != neutral:
            if _WITHOUT_SAMPLING.search(options.model or ""):
                return "it has no sampling options"
            if thinking_in(options).get("type") == "enabled":
                return "models do not take it while they think"
        return {name: value}

    return encode


def _of_web(kind: str, tool: WebSearch | WebFetch) -> Mapping[str, Any] | str:
    if tool.allowed_domains and tool.blocked_domains:
        return "domains are either allowed or blocked"
    fields = {
        "allowed_domains": tool.allowed_domains or None,
        "blocked_domains": tool.blocked_domains or None,
        "max_uses": tool.max_uses,
    }
    given = {name: value for name, value in fields.items() if value is not None}
    return {"type": kind, "name": tool.name, **given}


def _mcp(tool: McpConnector, _options: ChatOptions) -> Mapping[str, Any]:
    toolset: dict[str, Any] = {"type": "mcp_toolset", "mcp_server_name": tool.label}
    if tool.allowed_tools:
        toolset["default_config"] = {"enabled": False}
        toolset["configs"] = {name: {"enabled": True} for name in tool.allowed_tools}
    return toolset


def _tool_search(tool: ToolSearch, options: ChatOptions) -> Mapping[str, Any] | str:
    model = (options.model or "").lower()
    if "claude" not in model or _WITHOUT_TOOL_SEARCH.search(model):
        return "it cannot search tools; Claude can from version 4.5"
    name = f"tool_search_tool_{tool.variant or 'bm25'}"
    return {"type": f"{name}_20251119", "name": name}


SERVER_TOOLS: ServerTools = {
    WebSearch: lambda tool, _options: _of_web("web_search_20250305", tool),
    WebFetch: lambda tool, _options: _of_web("web_fetch_20250910", tool),
    CodeExecution: lambda tool, _options: {"type": "code_execution_20250825", "name": tool.name},
    McpConnector: _mcp,
    ToolSearch: _tool_search,
}
"""The encoder of each server tool that the API has."""

# platform.claude.com/docs/en/build-with-claude/overview
VERTEX_TOOLS: ServerTools = {kind: SERVER_TOOLS[kind] for kind in (WebSearch, ToolSearch)}
"""The encoder of each server tool that Vertex AI has."""


def mcp_servers(options: ChatOptions) -> list[Mapping[str, Any]]:
    """Return the MCP servers in *options* as the request's `mcp_servers`."""
    servers: list[Mapping[str, Any]] = []
    for each in server_tools_in(options, McpConnector):
        server = {"type": "url", "name": each.label, "url": each.url}
        if each.authorization is not None:
            server["authorization_token"] = each.authorization
        servers.append(server)
    return servers


def runs_tools(options: ChatOptions) -> bool:
    """Return whether there may be server-side tools; only turns with them are paused."""
    given = getattr(options, "server_tools", None) or options.extra
    return bool(given or server_tools_in(options))


def _next_prompt(prompt: Prompt, answer: ChatResponse) -> Prompt | None:
    if not answer.paused or answer.has_tool_calls():  # whose results are required first
        return None
    return Prompt.of((*prompt.messages, answer.message), prompt.options)


PAUSED_TURNS = Continuation(PAUSED, _next_prompt)
"""Continues paused turns."""


def with_container(prompt: Prompt) -> ChatOptions:
    """Return the options of *prompt*, with the container of its unfinished turn, if any."""
    options = prompt.options
    id = _container_of(prompt.messages) if runs_tools(options) else None
    if id is None:
        return options
    given: str | Mapping[str, Any] | None = options.extra.get("container")
    match given:
        case str():
            return options
        case Mapping():  # other settings of the container, such as skills
            container: Any = {"id": id, **given}
        case _:
            container = id
    return options.mutate(extra={**options.extra, "container": container})


def _container_of(messages: tuple[Message, ...]) -> str | None:
    """Return the id of the container that the turn at the end of *messages* uses, if any."""
    end = len(messages)
    while end and isinstance(messages[end - 1], UserMessage):
        end -= 1
    if end < len(messages) and end and isinstance(messages[end - 1], AssistantMessage):
        return None  # a new turn
    for message in reversed(messages[:end]):
        if isinstance(message, UserMessage):
            break
        if isinstance(id := message.metadata.get(CONTAINER), str):
            return id
    return None


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
    tools = [_tool(each) for each in sendable_definitions(options, ANTHROPIC_RULES)]
    for tool in tools:
        if tool["name"] in deferred:
            tool["defer_loading"] = True
    tools += [dict(tool) for tool in _server_tools(options)]
    loaded = [tool for tool in tools if not _is_deferred(tool)]  # the API refuses other marks
    if loaded and options.cache is not None and may_add_breakpoint(dumps(tools)):
        loaded[-1].setdefault("cache_control", cache_control(options))
    fields = {
        "thinking": thinking,
        "output_config": output,
        "tools": tools,
        "mcp_servers": servers,
        "stream": streaming,
    }
    body.update({name: value for name, value in fields.items() if value})
    return body


def _server_tools(options: ChatOptions) -> Sequence[Mapping[str, Any]]:
    return getattr(options, "server_tools", None) or ()


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
