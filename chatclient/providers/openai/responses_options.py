"""Encodes options for OpenAI's Responses API; no I/O."""

import re
from collections.abc import Container, Iterable, Mapping
from functools import lru_cache
from typing import Any

from chatclient._internal.frozen import EMPTY
from chatclient.chat.options import ChatOptions
from chatclient.chat.tool import ToolDefinition
from chatclient.providers.openai.responses_encoding import PROVIDER, Form
from chatclient.providers.openai.schemas import enforceable, json_schema_format, with_own_strict
from chatclient.providers.wire.fields import merge_extra, option_fields
from chatclient.providers.wire.sendable_schemas import OPENAI_RULES, SchemaRules
from chatclient.providers.wire.sendable_tools import sendable_definitions

_NAMES = {
    name: name
    for name in (
        *("model", "temperature", "top_p", "top_k", "presence_penalty", "frequency_penalty"),
        *("seed", "stop", "service_tier", "instructions", "previous_response_id", "conversation"),
        *("background", "truncation", "prompt_cache_key", "prompt_cache_retention"),
        *("user", "safety_identifier", "top_logprobs", "max_tool_calls"),
    )
} | {"max_tokens": "max_output_tokens", "request_metadata": "metadata"}
_REASONING_NAMES = {"reasoning_effort": "effort", "reasoning_summary": "summary"}
_TEXT_NAMES = {"verbosity": "verbosity", "response_format": "format"}
_ENCRYPTED_REASONING = "reasoning.encrypted_content"
# Other models reject requests for encrypted reasoning. The name may have a vendor prefix.
_REASONING_MODEL = re.compile(r"(^|[/:.])(o\d|gpt-[5-9](?!.*-chat)|codex|grok)")
# These models also reject reasoning items of other models.
_REASONLESS_MODEL = re.compile(r"(^|[/:.])(chatgpt|gpt-[34]|gpt-[5-9].*-chat)")


# Caches compare forms by identity, so equal values must give the same object.
_form = lru_cache(maxsize=64)(Form)


def form_for(options: ChatOptions, origin: str = PROVIDER) -> Form:
    """Return the form of messages for *options* and the server *origin*."""
    given = options.set_values()
    custom = [tool for tool in given.get("server_tools", ()) if tool.get("type") == "custom"]
    return _form(
        given.get("system_role", "system"),
        _is_stored(given),
        frozenset(tool["name"] for tool in custom),
        _REASONLESS_MODEL.search(given.get("model", "")) is None,
        origin,
    )


def without_reasoning(form: Form) -> Form:
    """Return *form* without reasoning."""
    return _form(form.system_role, form.stored, form.custom_tools, False, form.origin)  # noqa: FBT003


def encode_options(
    options: ChatOptions,
    *,
    streaming: bool,
    unsupported: Container[str] = (),
    rules: SchemaRules = OPENAI_RULES,
) -> dict[str, Any]:
    """Return the request body without input."""
    given = options.set_values()
    stored = _is_stored(given)
    body = option_fields(options, _NAMES, unsupported)
    body["store"] = stored
    if include := _include(given, stored=stored):
        body["include"] = include
    if reasoning := option_fields(options, _REASONING_NAMES):
        body["reasoning"] = reasoning
    if text := _text(options):
        body["text"] = text
    body |= _tools(given, form_for(options), sendable_definitions(options, rules))
    body["stream"] = streaming  # some gateways stream by default
    return merge_extra(body, options.extra)


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
    given: Mapping[str, Any], form: Form, definitions: Iterable[ToolDefinition]
) -> dict[str, Any]:
    builtin: Iterable[Mapping[str, Any]] = given.get("server_tools", ())
    strict: bool = given.get("strict_tools", False)
    functions = [_function(d, strict) for d in definitions if d.name not in form.custom_tools]
    if not functions and not builtin:
        return {}
    body: dict[str, Any] = {"tools": [*functions, *builtin]}
    if "tool_choice" in given:
        body["tool_choice"] = _tool_choice(given["tool_choice"], builtin)
    if "parallel_tool_calls" in given:
        body["parallel_tool_calls"] = given["parallel_tool_calls"]
    return body


def _function(definition: ToolDefinition, strict: bool) -> dict[str, Any]:  # noqa: FBT001
    own = definition.provider_options.get(PROVIDER, EMPTY)
    definition = with_own_strict(definition, own)
    form = enforceable(definition.input_schema) if strict and definition.strict is None else None
    return {
        **own,
        "type": "function",
        "name": definition.name,
        "description": definition.description,
        "parameters": form or definition.input_schema,
        # The default is true, with which the provider changes the schema.
        "strict": definition.strict or form is not None,
    }


def _tool_choice(choice: str, builtin: Iterable[Mapping[str, Any]]) -> Any:
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
