"""Options of the Converse API, and their encoding; no I/O."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from chatclient._internal.checks import check_choice
from chatclient._internal.json import dumps
from chatclient.chat.messages import AssistantMessage, Message
from chatclient.chat.options import ChatOptions
from chatclient.chat.tool import ToolDefinition
from chatclient.providers.bedrock.encoding import CACHE_POINT
from chatclient.providers.wire.fields import merge_extra, option_fields, valid_tool_name
from chatclient.providers.wire.sendable_schemas import ANTHROPIC_RULES
from chatclient.providers.wire.sendable_tools import sendable_definitions

CachedUpTo = Literal["tools", "system", "conversation"]
"""The cached prefix of a prompt."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BedrockChatOptions(ChatOptions):
    """Additional options of Amazon Bedrock's Converse API.

    The API has no seed, no penalties, and nothing against parallel tool calls; those options are
    not sent. `top_k` is sent to Claude and Nova. Other fields of the API, such as
    `performanceConfig`, `serviceTier` and `requestMetadata`, go into `extra`.

    Attributes:
        thinking: Reasoning of Claude: a budget in tokens, a mode such as `adaptive`, or the
            complete value of Claude's field.
        cache: Cached prefix of the prompt: the tools, also the system text, or also the
            conversation. Claude and Nova cache.
        guardrail: The guardrail of the request, as the API's `guardrailConfig`.
        model_fields: Fields that only this model knows (`additionalModelRequestFields`).
        server_tools: Names of tools that Bedrock runs, such as `nova_grounding`.

    Raises:
        UsageError: *cache* is not a known value, or an option of `ChatOptions` is invalid.
    """

    thinking: int | str | Mapping[str, Any] | None = None
    cache: CachedUpTo | None = None
    guardrail: Mapping[str, Any] | None = None
    model_fields: Mapping[str, Any] | None = None
    server_tools: str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        ChatOptions.__post_init__(self)  # slots: there is no `super()` without arguments
        check_choice("cache", self.cache, None, CachedUpTo)


_INFERENCE = {
    "max_tokens": "maxTokens",
    "temperature": "temperature",
    "top_p": "topP",
    "stop": "stopSequences",
}
_NOVA = re.compile(r"amazon\.nova")


def is_claude(model: str) -> bool:
    """Return whether *model* is one of Anthropic."""
    return "anthropic." in model or "claude" in model


def forces_calls(model: str) -> bool:
    """Return whether *model* accepts a tool choice; the API refuses it for all others."""
    return is_claude(model) or _NOVA.search(model) is not None


def encode_options(options: ChatOptions) -> dict[str, Any]:
    """Return the request body without messages, system text and tools."""
    fields = {
        "inferenceConfig": option_fields(options, _INFERENCE),
        "additionalModelRequestFields": _model_fields(options),
        "guardrailConfig": getattr(options, "guardrail", None),
        "outputConfig": _output_config(options),
    }
    body = {name: value for name, value in fields.items() if value}
    return merge_extra(body, options.extra)


def _model_fields(options: ChatOptions) -> dict[str, Any]:
    model, fields = options.model or "", dict[str, Any]()
    if thinking := thinking_in(options):
        fields["thinking"] = thinking
    if options.top_k is not None and is_claude(model):
        fields["top_k"] = options.top_k
    elif options.top_k is not None and _NOVA.search(model):
        fields["inferenceConfig"] = {"topK": options.top_k}
    return merge_extra(fields, getattr(options, "model_fields", None) or {})


def thinking_in(options: ChatOptions) -> Mapping[str, Any]:
    """Return Claude's field `thinking`; empty if it is not set."""
    thinking: int | str | Mapping[str, Any] | None = getattr(options, "thinking", None)
    match thinking:
        case None:
            return {}
        case int():
            return {"type": "enabled", "budget_tokens": thinking}
        case str():
            return {"type": thinking}
        case _:
            return thinking


def _output_config(options: ChatOptions) -> dict[str, Any] | None:
    if options.output_schema is None:
        return None
    schema = {"schema": dumps(options.output_schema).decode()}  # the API wants a text
    return {"textFormat": {"type": "json_schema", "structure": {"jsonSchema": schema}}}


def cached_up_to(options: ChatOptions) -> CachedUpTo | None:
    """Return which prefix of the prompt is cached."""
    cache: CachedUpTo | None = getattr(options, "cache", None)
    return cache


def encode_tools(options: ChatOptions, messages: Iterable[Message]) -> dict[str, Any] | None:
    """Return the request's `toolConfig`; *messages* are those of the request.

    The API has no choice `none`: then tools are left out. But if *messages* have tool calls, the
    API requires tools; then those are offered, or if there are none, those that were called.
    """
    offered = [_tool(each) for each in sendable_definitions(options, ANTHROPIC_RULES)]
    offered += [{"systemTool": {"name": name}} for name in _server_tools(options)]
    choice = options.tool_choice
    if not offered or choice == "none":
        called = _called(messages)
        offered = (offered or [_called_tool(name) for name in called]) if called else []
        choice = None
    if not offered:
        return None
    if cached_up_to(options) is not None:
        offered.append(CACHE_POINT)
    config: dict[str, Any] = {"tools": offered}
    if choice is not None:
        choices: dict[str, Any] = {"auto": {"auto": {}}, "required": {"any": {}}}
        config["toolChoice"] = choices.get(choice, {"tool": {"name": choice}})
    return config


def _server_tools(options: ChatOptions) -> Sequence[str]:
    names: str | Sequence[str] = getattr(options, "server_tools", None) or ()
    return (names,) if isinstance(names, str) else names


def _tool(definition: ToolDefinition) -> dict[str, Any]:
    tool: dict[str, Any] = {"name": definition.name}
    if definition.description.strip():  # the API rejects a blank one
        tool["description"] = definition.description
    tool["inputSchema"] = {"json": definition.input_schema}
    return {"toolSpec": {**tool, "strict": True} if definition.strict else tool}


def _called(messages: Iterable[Message]) -> list[str]:
    """Return the names of the tools that *messages* call."""
    answers = (each for each in messages if isinstance(each, AssistantMessage))
    names = (valid_tool_name(call.name) for each in answers for call in each.tool_calls)
    return list(dict.fromkeys(names))


def _called_tool(name: str) -> dict[str, Any]:
    schema = {"json": {"type": "object"}}
    return {"toolSpec": {"name": name, "description": "Not available.", "inputSchema": schema}}
