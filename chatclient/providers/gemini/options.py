"""Encodes options and server tools for Gemini; no I/O."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from chatclient._internal.frozen import EMPTY
from chatclient.chat.options import ChatOptions
from chatclient.chat.server_tools import (
    CodeExecution,
    FileSearch,
    McpConnector,
    ServerTool,
    WebFetch,
    WebSearch,
)
from chatclient.chat.tool import ToolDefinition
from chatclient.chat.withheld_tool import allowed_names
from chatclient.providers.gemini.decoding import PROVIDER
from chatclient.providers.gemini.encoding import FROM_3, dialect_of
from chatclient.providers.wire.common_options import (
    CommonOptions,
    automatic,
    encode_effort,
    field,
    is_off,
    lacking,
)
from chatclient.providers.wire.fields import option_fields
from chatclient.providers.wire.sendable_schemas import GEMINI_RULES
from chatclient.providers.wire.tools import (
    EncodeServerTool,
    ServerTools,
    sendable_definitions,
    with_server_tools,
)

_EncodeTool = Callable[[Any], Mapping[str, Any] | str]

# ai.google.dev/gemini-api/docs/thinking: levels since Gemini 3, budgets with 2.5.
_BEFORE_2_5 = re.compile(r"gemini-(?:1|2\.0)")
_WITH_BUDGET = re.compile(r"gemini-2\.5")
_WITH_MINIMAL = re.compile(r"gemini-3(?:\.[1-6])?-flash")
_WITHOUT_MEDIUM = re.compile(r"gemini-3-pro")
_LEVEL, _BUDGET = (
    f"generationConfig.thinkingConfig.{name}" for name in ("thinkingLevel", "thinkingBudget")
)
_BUDGETS = {"minimal": 512, "low": 1024, "medium": 8192, "high": 24_576, "max": 24_576}
_LARGEST_OF_PRO = 32_768


def _has_functions(options: ChatOptions) -> bool:
    """Return whether functions are offered."""
    return any(not isinstance(each, ServerTool) for each in options.tool_callbacks or ())


def _beside_functions(encode_tool: _EncodeTool) -> EncodeServerTool:
    """Return the encoder of a tool that models before Gemini 3 do not combine with functions."""

    def encode(tool: Any, options: ChatOptions) -> Mapping[str, Any] | str:
        if _has_functions(options) and dialect_of(options.model or "") is not FROM_3:
            return "before Gemini 3, it has no tools of its own beside functions"
        return encode_tool(tool)

    return encode


def _of_web(field: str) -> _EncodeTool:
    def encode_tool(tool: WebSearch | WebFetch) -> Mapping[str, Any] | str:
        if tool.allowed_domains or tool.blocked_domains or tool.max_uses is not None:
            return "it can be limited neither to domains nor in number"
        return {field: {}}

    return encode_tool


def _files(tool: FileSearch) -> Mapping[str, Any]:
    limit = {} if tool.max_results is None else {"topK": tool.max_results}
    return {"fileSearch": {"fileSearchStoreNames": tool.stores, **limit}}


def _mcp(tool: McpConnector) -> Mapping[str, Any] | str:
    if tool.allowed_tools:
        return "it takes all tools of a server"
    transport: dict[str, Any] = {"url": tool.url}
    if tool.authorization is not None:
        transport["headers"] = {"Authorization": f"Bearer {tool.authorization}"}
    return {"mcpServers": [{"name": tool.label, "streamableHttpTransport": transport}]}


SERVER_TOOLS: ServerTools = {
    WebSearch: _beside_functions(_of_web("googleSearch")),
    WebFetch: _beside_functions(_of_web("urlContext")),
    CodeExecution: _beside_functions(lambda _tool: {"codeExecution": {}}),
    FileSearch: _beside_functions(_files),
    McpConnector: _beside_functions(_mcp),
}
"""The encoder of each server tool that the API has."""

VERTEX_TOOLS: ServerTools = {
    kind: SERVER_TOOLS[kind] for kind in (WebSearch, WebFetch, CodeExecution)
}
"""The encoder of each server tool that Vertex AI has."""


def _reasoning(value: Any, options: ChatOptions) -> Mapping[str, Any] | str:
    model = options.model or ""
    is_pro = "-pro" in model
    if _BEFORE_2_5.search(model):
        return EMPTY if is_off(value) else "it does not reason"
    if _WITH_BUDGET.search(model):
        if is_off(value):
            return "it always reasons" if is_pro else {_BUDGET: 0}
        if value == "max" and is_pro:
            return {_BUDGET: _LARGEST_OF_PRO}
        return {_BUDGET: value if isinstance(value, int) else _BUDGETS[value]}
    if isinstance(value, int) and value:
        return {_BUDGET: value}
    levels = ("minimal",) if _WITH_MINIMAL.search(model) else ()
    medium = () if _WITHOUT_MEDIUM.search(model) else ("medium",)
    return encode_effort(value, _LEVEL, (*levels, "low", *medium, "high"))


_MODES = {"auto": "AUTO", "none": "NONE", "required": "ANY"}


def _tool_choice(choice: str, options: ChatOptions) -> Mapping[str, Any]:
    config = _calling_config(choice, options)
    return {"toolConfig.functionCallingConfig": config} if config else EMPTY


def _calling_config(choice: str | None, options: ChatOptions) -> Mapping[str, Any]:
    tools = options.tool_callbacks or ()
    if not tools:
        return EMPTY
    if (allowed := allowed_names(options)) is not None:
        if choice == "none" or not allowed:
            return {"mode": "NONE"}
        # ai.google.dev/api/caching: names may be given with ANY and VALIDATED only.
        mode = "ANY" if choice == "required" else "VALIDATED"
        return {"mode": mode, "allowedFunctionNames": allowed}
    if choice in (None, "auto") and any(tool.definition.strict for tool in tools):
        return {"mode": "VALIDATED"}
    if choice is None:
        return EMPTY
    if choice in _MODES:
        return {"mode": _MODES[choice]}
    return {"mode": "ANY", "allowedFunctionNames": [choice]}


def can_withhold(options: ChatOptions) -> bool:
    """Return whether the model in *options* has the mode `VALIDATED`, with names of tools."""
    return _BEFORE_2_5.search(options.model or "") is None


def _parallel_tool_calls(allowed: bool, options: ChatOptions) -> Mapping[str, Any] | str:  # noqa: FBT001
    if allowed or not options.tool_callbacks:
        return EMPTY
    return "its models may always ask for several tools"


def _service_tier(tier: str, _options: ChatOptions) -> Mapping[str, Any]:
    return {"serviceTier": "standard" if tier in ("auto", "default") else tier}


COMMON_OPTIONS = CommonOptions(
    "Gemini",
    {
        "temperature": field("generationConfig.temperature"),
        "top_p": field("generationConfig.topP"),
        "top_k": field("generationConfig.topK"),
        "max_tokens": field("generationConfig.maxOutputTokens"),
        "stop": field("generationConfig.stopSequences"),
        "seed": field("generationConfig.seed"),
        "presence_penalty": field("generationConfig.presencePenalty"),
        "frequency_penalty": field("generationConfig.frequencyPenalty"),
        "tool_choice": _tool_choice,
        "parallel_tool_calls": _parallel_tool_calls,
        "reasoning": _reasoning,
        "cache": automatic,
        "service_tier": _service_tier,
        "user_id": lacking("the API does not ask for it"),
    },
    {"reasoning": ("thinking_budget", "thinking_level")},
)
"""How the API takes the common options."""

_GENERATION = {
    "candidate_count": "candidateCount",
    "response_mime_type": "responseMimeType",
    "response_modalities": "responseModalities",
    "response_logprobs": "responseLogprobs",
    "logprobs": "logprobs",
    "media_resolution": "mediaResolution",
    "speech_config": "speechConfig",
    "image_config": "imageConfig",
}
_THINKING = {
    "thinking_budget": "thinkingBudget",
    "thinking_level": "thinkingLevel",
    "include_thoughts": "includeThoughts",
}


def encode_options(
    options: ChatOptions, server_tools: ServerTools = SERVER_TOOLS
) -> dict[str, Any]:
    """Return the fields of a request that its options determine.

    Args:
        options: The options.
        server_tools: The encoders of the tools that the server has.
    """
    offered = options.tool_callbacks
    options = with_server_tools(options, COMMON_OPTIONS.provider, server_tools)
    has_both = server_tools is SERVER_TOOLS  # Vertex AI has no such field
    has_both = has_both and options.tool_callbacks is not offered and bool(options.tool_callbacks)
    options = COMMON_OPTIONS.settle(options)
    body = COMMON_OPTIONS.encode(options)
    generation = body.pop("generationConfig", {}) | option_fields(options, _GENERATION)
    if thinking := option_fields(options, _THINKING):
        generation["thinkingConfig"] = {**generation.get("thinkingConfig", {}), **thinking}
    if options.output_schema is not None:
        generation["responseMimeType"] = "application/json"
        generation["responseJsonSchema"] = options.output_schema
    body |= option_fields(options, {"cached_content": "cachedContent", "labels": "labels"})
    if generation:
        body["generationConfig"] = generation
    if thresholds := getattr(options, "safety_settings", None):
        body["safetySettings"] = [
            {"category": category, "threshold": threshold}
            for category, threshold in thresholds.items()
        ]
    body.update(_tools(options))
    if has_both:  # ai.google.dev/gemini-api/docs/tool-combination
        body["toolConfig"] = {
            **body.get("toolConfig", {}),
            "includeServerSideToolInvocations": True,
        }
    return body


def _tools(options: ChatOptions) -> dict[str, Any]:
    definitions = sendable_definitions(options, GEMINI_RULES)
    tools: list[Any] = [dict(tool) for tool in getattr(options, "server_tools", None) or ()]
    if definitions:
        tools.insert(0, {"functionDeclarations": [_declaration(d) for d in definitions]})
    body: dict[str, Any] = {"tools": tools} if tools else {}
    if options.tool_choice is None and (config := _calling_config(None, options)):
        body["toolConfig"] = {"functionCallingConfig": config}
    return body


def _declaration(definition: ToolDefinition) -> dict[str, Any]:
    return {
        **definition.provider_options.get(PROVIDER, EMPTY),
        "name": definition.name,
        "description": definition.description,
        "parametersJsonSchema": definition.input_schema,
    }
