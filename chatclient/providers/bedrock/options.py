"""Options of the Converse API, and their encoding; no I/O."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chatclient._internal.frozen import EMPTY
from chatclient._internal.json import dumps
from chatclient.chat.messages import AssistantMessage, Message
from chatclient.chat.options import ChatOptions
from chatclient.chat.tool import ToolDefinition
from chatclient.providers.anthropic.options import encode_reasoning, sampling
from chatclient.providers.bedrock.encoding import CACHE_POINT
from chatclient.providers.wire.common_options import (
    CommonOptions,
    Encode,
    automatic,
    encode_effort,
    field,
    is_off,
    lacking,
)
from chatclient.providers.wire.fields import other_fields, valid_tool_name
from chatclient.providers.wire.request_body import merge_extra
from chatclient.providers.wire.sendable_schemas import ANTHROPIC_RULES
from chatclient.providers.wire.tools import sendable_definitions


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BedrockChatOptions(ChatOptions):
    """Additional options of Amazon Bedrock's Converse API.

    Other fields of the API, such as `performanceConfig` and `requestMetadata`, go into `extra`.

    Attributes:
        thinking: Reasoning of Claude: a budget in tokens, a mode such as `adaptive`, or the
            complete value of Claude's field.
        guardrail: The guardrail of the request, as the API's `guardrailConfig`.
        model_fields: Fields that only this model knows (`additionalModelRequestFields`).
        server_tools: Names of tools that Bedrock runs, such as `nova_grounding`.
    """

    thinking: int | str | Mapping[str, Any] | None = None
    guardrail: Mapping[str, Any] | None = None
    model_fields: Mapping[str, Any] | None = None
    server_tools: str | Sequence[str] | None = None


_NOVA = re.compile(r"amazon\.nova")
_TAKES_EFFORT = re.compile(r"amazon\.nova|openai\.gpt-oss")
_EFFORTS = ("low", "medium", "high", "max")


def is_claude(model: str) -> bool:
    """Return whether *model* is one of Anthropic."""
    return "anthropic." in model or "claude" in model


def is_nova(model: str) -> bool:
    """Return whether *model* is a Nova."""
    return _NOVA.search(model) is not None


def forces_calls(model: str) -> bool:
    """Return whether *model* accepts a tool choice; the API refuses it for all others."""
    return is_claude(model) or is_nova(model)


def _sampling(path: str, neutral: float | None = None) -> Encode:
    """Return the encoder of a sampling option, which not every Claude takes."""
    of_claude = sampling(path, neutral)

    def encode(value: Any, options: ChatOptions) -> Mapping[str, Any] | str:
        return of_claude(value, options) if is_claude(options.model or "") else {path: value}

    return encode


_top_k_of_claude = sampling("additionalModelRequestFields.top_k")


def _top_k(value: int, options: ChatOptions) -> Mapping[str, Any] | str:
    model = options.model or ""
    if is_claude(model):
        return _top_k_of_claude(value, options)
    if is_nova(model):
        return {"additionalModelRequestFields.inferenceConfig.topK": value}
    return "only Claude and Nova take it"


def _reasoning(value: str | int, options: ChatOptions) -> Mapping[str, Any] | str:
    if not is_claude(options.model or ""):
        if is_off(value):
            return EMPTY
        if not _TAKES_EFFORT.search(options.model or ""):
            return "only Claude, Nova and gpt-oss are known to; others may have `model_fields`"
        return encode_effort(value, "outputConfig.effort", _EFFORTS)
    fields = encode_reasoning(value, options)
    if isinstance(fields, str):
        return fields
    return {f"additionalModelRequestFields.{path}": each for path, each in fields.items()}


def _parallel_tool_calls(allowed: bool, options: ChatOptions) -> Mapping[str, Any] | str:  # noqa: FBT001
    if allowed or not options.tool_callbacks:
        return EMPTY
    return "its models may always ask for several tools"


COMMON_OPTIONS = CommonOptions(
    "Bedrock",
    {
        "temperature": _sampling("inferenceConfig.temperature", 1),
        "top_p": _sampling("inferenceConfig.topP"),
        "top_k": _top_k,
        "max_tokens": field("inferenceConfig.maxTokens"),
        "stop": field("inferenceConfig.stopSequences"),
        "seed": lacking("the API has no seed"),
        "presence_penalty": lacking("the API has no penalties"),
        "frequency_penalty": lacking("the API has no penalties"),
        "tool_choice": automatic,  # encoded with the tools, which depend on the messages
        "parallel_tool_calls": _parallel_tool_calls,
        "reasoning": _reasoning,
        "cache": automatic,  # encoded as points in the prompt
        "service_tier": field("serviceTier.type"),
        "user_id": lacking("the API does not ask for it"),
    },
    {"reasoning": ("thinking",)},
)
"""How the API takes the common options."""


def encode_options(options: ChatOptions, *, streaming: bool) -> dict[str, Any]:
    """Return the fields of a request that its options alone determine."""
    options = COMMON_OPTIONS.settle(options)
    body = COMMON_OPTIONS.encode(options)
    fields = body.pop("additionalModelRequestFields", {})
    if thinking := thinking_in(options):
        fields["thinking"] = thinking
    guardrail: Mapping[str, Any] = getattr(options, "guardrail", None) or EMPTY
    # How the answer is checked while it arrives: the API refuses it without a stream.
    more = {
        "additionalModelRequestFields": merge_extra(
            fields, getattr(options, "model_fields", None) or {}
        ),
        "guardrailConfig": guardrail
        if streaming
        else other_fields(guardrail, ("streamProcessingMode",)),
        "outputConfig": {**body.get("outputConfig", {}), **_output_format(options)},
    }
    body.update({name: value for name, value in more.items() if value})
    return body


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


def _output_format(options: ChatOptions) -> dict[str, Any]:
    if options.output_schema is None:
        return {}
    schema = {"schema": dumps(options.output_schema).decode()}  # the API wants a text
    return {"textFormat": {"type": "json_schema", "structure": {"jsonSchema": schema}}}


def encode_tools(options: ChatOptions, messages: Iterable[Message]) -> dict[str, Any] | None:
    """Return the request's `toolConfig`; *messages* are those of the request.

    The API has no choice `none`: then tools are left out. But if *messages* have tool calls, the
    API requires tools; then those are offered, or if there are none, those that were called.
    """
    offered = [_tool(each) for each in sendable_definitions(options, ANTHROPIC_RULES)]
    offered += [{"systemTool": {"name": name}} for name in _server_tools(options)]
    choice = options.tool_choice
    if not offered or choice == "none":
        answers = (each for each in messages if isinstance(each, AssistantMessage))
        names = (valid_tool_name(call.name) for each in answers for call in each.tool_calls)
        called = list(dict.fromkeys(names))
        offered = (offered or [_called_tool(name) for name in called]) if called else []
        choice = None
    if not offered:
        return None
    if options.cache is not None and not is_nova(options.model or ""):  # Nova refuses it here
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


def _called_tool(name: str) -> dict[str, Any]:
    schema = {"json": {"type": "object"}}
    return {"toolSpec": {"name": name, "description": "Not available.", "inputSchema": schema}}
