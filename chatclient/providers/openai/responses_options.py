"""Encodes options for OpenAI's Responses API; no I/O."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from chatclient._internal.frozen import EMPTY
from chatclient.chat.options import ChatOptions
from chatclient.chat.tool import ToolDefinition
from chatclient.chat.withheld_tool import allowed_names
from chatclient.providers.openai.chat_options import (
    enforceable,
    json_schema_format,
    with_own_strict,
)
from chatclient.providers.openai.efforts import SAMPLING, effort, openai_effort
from chatclient.providers.openai.responses_encoding import PROVIDER, EncodingSettings
from chatclient.providers.openai.server_tools import SERVER_TOOLS
from chatclient.providers.wire.common_options import (
    COMMON_OPTIONS,
    CommonOptions,
    Encode,
    automatic,
    field,
    lacking,
)
from chatclient.providers.wire.fields import option_fields
from chatclient.providers.wire.sendable_schemas import OPENAI_RULES, SchemaRules
from chatclient.providers.wire.sendable_tools import sendable_definitions
from chatclient.providers.wire.server_tools import deferred_tools, with_server_tools

_NAMES = {
    name: name
    for name in (
        *("model", "instructions", "previous_response_id", "conversation"),
        *("background", "truncation", "prompt_cache_key", "prompt_cache_retention"),
        *("user", "safety_identifier", "top_logprobs", "max_tool_calls"),
    )
} | {"request_metadata": "metadata"}
_REASONING_NAMES = {"reasoning_effort": "effort", "reasoning_summary": "summary"}
_TEXT_NAMES = {"verbosity": "verbosity", "response_format": "format"}
_ENCRYPTED_REASONING = "reasoning.encrypted_content"
# Other models reject requests for encrypted reasoning. The name may have a vendor prefix.
_REASONING_MODEL = re.compile(r"(^|[/:.])(o\d|gpt-[5-9](?!.*-chat)|codex|grok)")
# These models also reject reasoning items of other models.
_REASONLESS_MODEL = re.compile(r"(^|[/:.])(chatgpt|gpt-[34]|gpt-[5-9].*-chat)")


def _tool_choice(choice: str, options: ChatOptions) -> Mapping[str, Any]:
    builtin = getattr(options, "server_tools", None) or ()
    if not builtin and not options.tool_callbacks:
        return EMPTY
    return {"tool_choice": _chosen_tool(choice, builtin)}


def _allowed_tools(allowed: Sequence[str], choice: str | None) -> Any:
    """Return the tool choice of a request in which only the *allowed* tools may be called."""
    if choice == "none" or not allowed:
        return "none"
    tools = [{"type": "function", "name": name} for name in allowed]
    return {"type": "allowed_tools", "mode": choice or "auto", "tools": tools}


def _parallel_tool_calls(allowed: bool, options: ChatOptions) -> Mapping[str, Any]:  # noqa: FBT001
    has_tools = options.tool_callbacks or getattr(options, "server_tools", None)
    return {"parallel_tool_calls": allowed} if has_tools else EMPTY


_COMPATIBLE: Mapping[str, Encode] = {
    **{name: field(name) for name in COMMON_OPTIONS},
    "max_tokens": field("max_output_tokens"),
    "tool_choice": _tool_choice,
    "parallel_tool_calls": _parallel_tool_calls,
    "reasoning": effort("none", "low", "medium", "high", path="reasoning.effort"),
    "cache": automatic,
    "user_id": field("safety_identifier"),
}
# developers.openai.com/api/reference/resources/responses/methods/create
_MISSING = ("top_k", "stop", "seed", "presence_penalty", "frequency_penalty")
_OPENAI: Mapping[str, Encode] = {
    **_COMPATIBLE,
    **SAMPLING,
    **{name: lacking("the Responses API has no such option") for name in _MISSING},
    "reasoning": openai_effort("reasoning.effort"),
}
_OWN = {"reasoning": ("reasoning_effort",), "user_id": ("user", "safety_identifier")}
OPENAI_OPTIONS = CommonOptions("OpenAI", _OPENAI, _OWN)
"""How OpenAI's Responses take the common options."""
COMPATIBLE_OPTIONS = CommonOptions("openai-compatible", _COMPATIBLE, _OWN)
"""How the Responses of compatible servers take the common options."""


# Caches compare settings by identity, so equal values must give the same object.
_settings = lru_cache(maxsize=64)(EncodingSettings)


def encoding_settings(options: ChatOptions, origin: str = PROVIDER) -> EncodingSettings:
    """Return how messages are encoded for *options* and the server *origin*."""
    values = options.set_values()
    custom = [tool for tool in values.get("server_tools", ()) if tool.get("type") == "custom"]
    return _settings(
        values.get("system_role", "system"),
        _is_stored(values),
        frozenset(tool["name"] for tool in custom),
        _REASONLESS_MODEL.search(values.get("model", "")) is None,
        origin,
    )


def without_reasoning(settings: EncodingSettings) -> EncodingSettings:
    """Return *settings* for a model that takes no reasoning."""
    return _settings(
        settings.system_role,
        settings.stored,
        settings.custom_tools,
        False,  # noqa: FBT003 - equal arguments are cached
        settings.origin,
    )


def encode_options(
    options: ChatOptions,
    *,
    streaming: bool,
    common: CommonOptions = OPENAI_OPTIONS,
    rules: SchemaRules = OPENAI_RULES,
) -> dict[str, Any]:
    """Return the fields of a request that its options determine."""
    deferred = deferred_tools(options, SERVER_TOOLS)
    options = common.settle(with_server_tools(options, common.provider, SERVER_TOOLS))
    given = options.set_values()
    stored = _is_stored(given)
    body = common.encode(options) | option_fields(options, _NAMES)
    body["store"] = stored
    if include := _include(given, stored=stored):
        body["include"] = include
    if reasoning := option_fields(options, _REASONING_NAMES):
        body["reasoning"] = {**body.get("reasoning", {}), **reasoning}
    if text := _text(options):
        body["text"] = text
    tools = _tools(given, encoding_settings(options), sendable_definitions(options, rules))
    body |= _with_deferred(tools, deferred)
    if (allowed := allowed_names(options)) is not None:
        body["tool_choice"] = _allowed_tools(allowed, options.tool_choice)
    body["stream"] = streaming  # some gateways stream by default
    return body


def _is_stored(given: Mapping[str, Any]) -> bool:
    # A background response is stored until it is fetched.
    stored: bool = given.get("store", bool(given.get("background")))
    return stored


def _include(given: Mapping[str, Any], *, stored: bool) -> list[str]:
    include = list(given.get("include", ()))
    reasons = _REASONING_MODEL.search(given.get("model", "")) is not None
    if (
        reasons
        and not stored
        and given.get("include") != ()
        and _ENCRYPTED_REASONING not in include
    ):
        include.append(_ENCRYPTED_REASONING)
    return include


def _text(options: ChatOptions) -> dict[str, Any]:
    text = option_fields(options, _TEXT_NAMES)
    if options.output_schema is not None:
        text["format"] = {"type": "json_schema", **json_schema_format(options.output_schema)}
    return text


def _tools(
    given: Mapping[str, Any], settings: EncodingSettings, definitions: Iterable[ToolDefinition]
) -> dict[str, Any]:
    builtin: Iterable[Mapping[str, Any]] = given.get("server_tools", ())
    strict: bool = given.get("strict_tools", False)
    functions = [_function(d, strict) for d in definitions if d.name not in settings.custom_tools]
    if not functions and not builtin:
        return {}
    return {"tools": [*functions, *builtin]}


def _with_deferred(body: dict[str, Any], deferred: frozenset[str]) -> dict[str, Any]:
    """Return *body* with the functions marked that a tool search has to find first."""
    for tool in body.get("tools", ()) if deferred else ():
        if tool["type"] == "function" and tool["name"] in deferred:
            tool["defer_loading"] = True
    return body


def _function(definition: ToolDefinition, strict: bool) -> dict[str, Any]:  # noqa: FBT001
    provider_options = definition.provider_options.get(PROVIDER, EMPTY)
    definition = with_own_strict(definition, provider_options)
    enforce = strict and definition.strict is None
    strict_schema = enforceable(definition.input_schema) if enforce else None
    return {
        **provider_options,
        "type": "function",
        "name": definition.name,
        "description": definition.description,
        "parameters": strict_schema or definition.input_schema,
        # The default is true, with which the provider changes the schema.
        "strict": definition.strict or strict_schema is not None,
    }


def _chosen_tool(choice: str, builtin: Iterable[Mapping[str, Any]]) -> Any:
    if choice in ("auto", "none", "required"):
        return choice
    for tool in builtin:
        if choice == tool.get("server_label"):
            return {"type": "mcp", "server_label": choice}
        if choice == tool.get("name"):
            return {"type": tool["type"], "name": choice}
        if choice == tool["type"]:
            return {"type": choice}
    return {"type": "function", "name": choice}
