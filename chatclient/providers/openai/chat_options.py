"""Encodes options for Chat Completions, and schemas for OpenAI's strict mode; no I/O."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from chatclient._internal.frozen import EMPTY
from chatclient._internal.json_schema import strict_form
from chatclient.chat.options import ChatOptions
from chatclient.chat.tool import ToolDefinition
from chatclient.chat.withheld_tool import allowed_names
from chatclient.providers.openai.dialect import Dialect
from chatclient.providers.wire.common_options import (
    COMMON_OPTIONS,
    CommonOptions,
    Encode,
    automatic,
    field,
    is_off,
    lacking,
)
from chatclient.providers.wire.fields import option_fields
from chatclient.providers.wire.sendable_tools import sendable_definitions
from chatclient.providers.wire.server_tools import server_tools_in, with_server_tools

_WITHHOLDING = re.compile(r"(^|[/:.])gpt-[5-9](?!.*-chat)")


@lru_cache(maxsize=64)
def common_options(dialect: Dialect) -> CommonOptions:
    """Return how the server takes the common options."""
    encoders: dict[str, Encode] = {
        **{name: field(name) for name in COMMON_OPTIONS},
        "max_tokens": field(dialect.max_tokens),
        "seed": field(dialect.seed),
        "tool_choice": _tool_choice if dialect.forces_calls else _unforced_tool_choice,
        "parallel_tool_calls": _parallel_tool_calls,
        "reasoning": dialect.reasoning,
        "cache": automatic,
        "user_id": field(dialect.user_id),
        **dialect.sampling,
        **{name: lacking(f"{dialect.provider} has no such option") for name in dialect.unsupported},
    }
    own = {"reasoning": ("reasoning_effort",), "user_id": ("user", "safety_identifier")}
    return CommonOptions(dialect.provider, encoders, own)


def _tool_choice(choice: str, options: ChatOptions) -> Mapping[str, Any]:
    if not options.tool_callbacks:
        return EMPTY
    if choice in ("auto", "none", "required"):
        return {"tool_choice": choice}
    return {"tool_choice": {"type": "function", "function": {"name": choice}}}


def _allowed_tools(allowed: Sequence[str], choice: str | None) -> Any:
    """Return the tool choice of a request in which only the *allowed* tools may be called."""
    if choice == "none" or not allowed:
        return "none"
    tools = [{"type": "function", "function": {"name": name}} for name in allowed]
    return {"type": "allowed_tools", "allowed_tools": {"mode": choice or "auto", "tools": tools}}


def can_withhold(options: ChatOptions) -> bool:
    """Return whether OpenAI's model in *options* can withhold tools.

    developers.openai.com, guide to GPT-5; not together with tools that the provider runs:
    github.com/openai/openai-python/issues/2537
    """
    own = getattr(options, "server_tools", None) or server_tools_in(options)
    return not own and _WITHHOLDING.search(options.model or "") is not None


def _unforced_tool_choice(choice: str, options: ChatOptions) -> Mapping[str, Any] | str:
    forced = choice not in ("auto", "none") and bool(options.tool_callbacks)
    # Models that reason cannot be forced. `deepseek-chat` does not; others by `thinking`.
    told = is_off(options.reasoning) or "thinking" in options.extra
    if forced and not told and "deepseek-chat" not in (options.model or ""):
        return "its models cannot be forced to call a tool"
    return _tool_choice(choice, options)


def _parallel_tool_calls(allowed: bool, options: ChatOptions) -> Mapping[str, Any]:  # noqa: FBT001
    return {"parallel_tool_calls": allowed} if options.tool_callbacks else EMPTY


_OPTION_FIELDS = {
    name: name
    for name in (
        *("model", "n", "reasoning_effort", "verbosity", "user"),
        *("safety_identifier", "logit_bias", "logprobs", "top_logprobs", "store", "modalities"),
        *("audio", "prediction", "prompt_cache_key", "prompt_cache_retention"),
        "web_search_options",
    )
}


def encode_options(options: ChatOptions, dialect: Dialect, *, streaming: bool) -> dict[str, Any]:
    """Return the fields of a request that its options determine."""
    common = common_options(dialect)
    options = common.settle(with_server_tools(options, dialect.provider))
    body = common.encode(options) | option_fields(options, _OPTION_FIELDS)
    renamed = (
        ("metadata", getattr(options, "request_metadata", None)),
        ("response_format", _response_format(options)),
    )
    body.update({name: value for name, value in renamed if value is not None})
    body.update(_tools(options, dialect))
    if (allowed := allowed_names(options)) is not None:
        body["tool_choice"] = _allowed_tools(allowed, options.tool_choice)
    body["stream"] = streaming  # some gateways stream by default
    if streaming and dialect.usage_in_stream:
        body["stream_options"] = {"include_usage": True}
    return body


def _tools(options: ChatOptions, dialect: Dialect) -> dict[str, Any]:
    if not options.tool_callbacks:
        return {}
    strict: bool | None = getattr(options, "strict_tools", None)
    definitions = sendable_definitions(options, dialect.tool_schemas)
    tools = [_tool(each, dialect.provider, strict=strict) for each in definitions]
    return {"tools": tools}


def _tool(definition: ToolDefinition, provider: str, *, strict: bool | None) -> dict[str, Any]:
    provider_options = definition.provider_options.get(provider, EMPTY)
    definition = with_own_strict(definition, provider_options)
    function: dict[str, Any] = {
        **provider_options,
        "name": definition.name,
        "description": definition.description,
        "parameters": definition.input_schema,
    }
    if definition.strict is not None:
        function["strict"] = definition.strict
    elif strict is not None:
        strict_schema = enforceable(definition.input_schema) if strict else None
        function["strict"] = strict_schema is not None
        function["parameters"] = strict_schema or definition.input_schema
    return {"type": "function", "function": function}


def _response_format(options: ChatOptions) -> Mapping[str, Any] | None:
    schema = options.output_schema
    if schema is None:
        return getattr(options, "response_format", None)
    return {"type": "json_schema", "json_schema": json_schema_format(schema)}


def json_schema_format(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return *schema* as the `json_schema` response format of both OpenAI APIs."""
    # The API rejects names such as `list[Film]`.
    name = re.sub(r"[^a-zA-Z0-9_-]+", "_", str(schema.get("title") or "")).strip("_")[:64]
    strict_schema = enforceable(schema)
    return {
        "name": name or "answer",
        "schema": strict_schema or schema,
        "strict": strict_schema is not None,
    }


def enforceable(schema: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return *schema* in the form that strict mode requires, or None.

    Open objects and optional properties have no equivalent in strict mode. Unsupported keywords,
    such as lengths, are removed.
    """
    return strict_form(schema) if _is_closed(schema) else None


def with_own_strict(
    definition: ToolDefinition, provider_options: Mapping[str, Any]
) -> ToolDefinition:
    """Return *definition* as strict as in *provider_options*, its options for the provider.

    A schema that has no strict form stays as it is, and is not enforced.
    """
    if "strict" not in provider_options or provider_options["strict"] == definition.strict:
        return definition
    strict_schema = strict_form(definition.input_schema) if provider_options["strict"] else None
    return replace(
        definition,
        strict=strict_schema is not None,
        input_schema=definition.input_schema if strict_schema is None else strict_schema,
    )


def _is_closed(schema: Any) -> bool:
    """Return whether all objects of a schema are closed, and all their properties required."""
    if isinstance(schema, list | tuple):
        return all(_is_closed(item) for item in schema)
    if not isinstance(schema, Mapping):
        return True
    properties = schema.get("properties")
    if isinstance(properties, Mapping) or schema.get("type") == "object":
        named = properties if isinstance(properties, Mapping) else {}
        if schema.get("additionalProperties") is not False:
            return False
        if set(named) != set(schema.get("required") or ()):
            return False
        return all(_is_closed(value) for value in (*named.values(), *_definitions(schema)))
    return all(_is_closed(value) for value in schema.values())


def _definitions(schema: Mapping[str, Any]) -> Iterator[Any]:
    for key in ("$defs", "definitions"):
        yield from (schema.get(key) or {}).values()
