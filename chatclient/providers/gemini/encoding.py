"""Encodes messages, options and server tools for Gemini; no I/O."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chatclient._internal.frozen import EMPTY, without
from chatclient._internal.json import loads
from chatclient.chat.messages import (
    AssistantMessage,
    Media,
    Message,
    Part,
    ProviderPart,
    Reasoning,
    SystemMessage,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
)
from chatclient.chat.options import ChatOptions
from chatclient.chat.prompt import Prompt
from chatclient.chat.response import ChatResponse
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
from chatclient.errors import UsageError
from chatclient.providers.gemini.decoding import INVENTED_ID, PROVIDER, part_metadata
from chatclient.providers.http.continuation import Continuation
from chatclient.providers.wire.common_options import (
    CommonOptions,
    automatic,
    encode_effort,
    field,
    is_off,
    lacking,
)
from chatclient.providers.wire.fields import (
    arguments_object,
    base64_of,
    encode_tool_media,
    option_fields,
    unsupported_message,
    valid_tool_name,
)
from chatclient.providers.wire.request_body import cached_json
from chatclient.providers.wire.sendable_schemas import GEMINI_RULES
from chatclient.providers.wire.tools import (
    EncodeServerTool,
    ServerTools,
    sendable_definitions,
    with_server_tools,
)

# Google's documented value for calls of other models, which are rejected without a signature.
_FOREIGN_SIGNATURE = "skip_thought_signature_validator"


@dataclass(frozen=True, slots=True, eq=False)
class Dialect:
    """Differences between generations of Gemini models.

    Attributes:
        media_in_results: Whether the media of a tool result are part of its function response;
            for older models they are separate parts.
        checks_signatures: Whether the first function call of a message requires a thought
            signature.
    """

    media_in_results: bool = False
    checks_signatures: bool = False


UP_TO_2 = Dialect()
FROM_3 = Dialect(media_in_results=True, checks_signatures=True)

_FROM_3 = re.compile(r"gemini-(?:[3-9]|\d{2}|[a-z-]*latest$)")


def dialect_of(model: str) -> Dialect:
    """Return the dialect of *model*, from its name."""
    return FROM_3 if _FROM_3.search(model) else UP_TO_2


def _next_prompt(prompt: Prompt, answer: ChatResponse) -> Prompt | None:
    """Return *prompt* with the continuation token of *answer*, or None if it is complete."""
    if len(answer.generations) != 1:
        return None
    generation = answer.generations[0]
    token = generation.metadata.get("continuationToken")
    if not token or generation.native_finish_reason != _UNFINISHED:
        return None
    extra = {**prompt.options.extra, "continuationToken": token}
    return Prompt.of(prompt.messages, prompt.options.mutate(extra=extra))


_UNFINISHED = "CONTINUATION"
LONG_ANSWERS = Continuation(_UNFINISHED, _next_prompt)
"""Continues answers that are too long for one request."""


@dataclass(frozen=True, slots=True)
class EncodedConversation:
    """An encoded conversation, which the next request usually continues.

    Attributes:
        messages: The messages.
        dialect: The dialect of the JSON.
        system: The parts of the system instruction.
        contents: The contents.
        answers_tools: Whether the last content consists of tool results.
    """

    messages: tuple[Message, ...] = ()
    dialect: Dialect = UP_TO_2
    system: bytes = b""
    contents: bytes = b""
    answers_tools: bool = False

    def continued(self, messages: tuple[Message, ...], dialect: Dialect) -> "EncodedConversation":
        """Encode *messages*; if this conversation is a prefix, only the new ones."""
        size = len(self.messages)
        is_prefix = dialect is self.dialect and messages[:size] == self.messages
        prefix = self if is_prefix else EncodedConversation()
        system, contents, answers_tools = [prefix.system], [prefix.contents], prefix.answers_tools
        for message in messages[len(prefix.messages) :]:
            parts = cached_json(message, dialect, encode_message)
            if not parts:  # the API rejects contents without parts
                continue
            if message.role == "system":
                system.append(parts)
                continue
            if answers_tools and message.role == "tool":
                # The responses to one round of calls have to be in one content.
                contents[-1] = b"%b,%b]}" % (contents[-1][:-2], parts)
                continue
            role = b"model" if message.role == "assistant" else b"user"
            contents.append(b'{"role":"%b","parts":[%b]}' % (role, parts))
            answers_tools = message.role == "tool"
        return EncodedConversation(
            messages,
            dialect,
            b",".join(filter(None, system)),
            b",".join(filter(None, contents)),
            answers_tools,
        )


def encode_message(message: Message, dialect: Dialect) -> list[dict[str, Any]]:
    """Return the parts of *message* in the API's format."""
    match message:
        case SystemMessage():
            return [{"text": message.text}] if message.text else []
        case UserMessage():
            return [part for p in message.parts if (part := _part(p)) is not None]
        case AssistantMessage():
            parts = [part for p in message.parts if (part := _part(p)) is not None]
            return _sign(parts) if dialect.checks_signatures else parts
        case ToolResponseMessage():
            return _results(message.responses, dialect)
        case _:
            raise unsupported_message(message)


def _part(part: Part) -> dict[str, Any] | None:
    match part:
        case str():
            return {"text": part} if part else None
        case Media():
            return _media(part)
        case ToolCall():
            function = {
                "name": valid_tool_name(part.name),
                "args": arguments_object(part.arguments),
            }
            return {"functionCall": _with_id(function, part.id), **part_metadata(part.metadata)}
        case Reasoning(provider="gemini"):
            if part.data is not None:
                return dict(part.data)
            thought: dict[str, Any] = {"text": part.text, "thought": True}
            return (
                thought
                if part.signature is None
                else {**thought, "thoughtSignature": part.signature}
            )
        case ProviderPart(provider="gemini"):
            return dict(part.data)
        case ProviderPart(text=text) if text:
            return {"text": text}
        case _:
            return None  # reasoning and data of other providers


def _media(media: Media) -> dict[str, Any]:
    metadata = part_metadata(media.metadata)
    content = base64_of(media)
    if content is not None:
        return {"inlineData": {"mimeType": media.mime_type, "data": content}, **metadata}
    if not media.data:
        msg = f"Gemini finds files by their URI, not by an id such as {media.id!r}"
        raise UsageError(f"{msg}; pass the URI as the data, Media({media.mime_type!r}, uri)")
    return {"fileData": {"mimeType": media.mime_type, "fileUri": media.data}, **metadata}


# Fields of a part that those of function responses lack; media of an agent may have them.
_NOT_IN_RESULTS = ("thoughtSignature", "thought", "partMetadata", "audioTranscription")


def _result_media(media: Media) -> dict[str, Any]:
    return without(_media(media), *_NOT_IN_RESULTS)


def _with_id(function: dict[str, Any], id: str) -> dict[str, Any]:
    return {"id": id, **function} if id and not id.startswith(INVENTED_ID) else function


def _sign(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    calls = [part for part in parts if "functionCall" in part]
    if calls and not any("thoughtSignature" in part for part in calls):
        calls[0]["thoughtSignature"] = _FOREIGN_SIGNATURE
    return parts


def _results(responses: Sequence[ToolResponse], dialect: Dialect) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    following: list[dict[str, Any]] = []
    for response in responses:
        name = valid_tool_name(response.name)
        function: dict[str, Any] = {"name": name, "response": _result(response)}
        media, errors = encode_tool_media(response.media, _result_media)
        if media and dialect.media_in_results:
            function["parts"] = media
        elif media:
            if len(responses) > 1:
                following.append({"text": f"Content returned by tool {response.name}:"})
            following.extend(media)
        following.extend({"text": error} for error in errors)
        parts.append({"functionResponse": _with_id(function, response.id)})
    return [*parts, *following]


def _result(response: ToolResponse) -> dict[str, Any]:
    """Return a tool's result as an object, which the API requires.

    Some keys are special: of an object with `output` the model sees only that value, `error` marks
    a failure, and `$ref` at any depth refers to media of the result, and is rejected if there are
    none of that name. Results with these keys are nested, or sent as text.
    """
    try:
        value = loads(response.data)
    except ValueError:
        value = response.data
    if _has_reference(value):
        value = response.data
    if response.is_error:
        return value if isinstance(value, dict) and "error" in value else {"error": value}
    if not isinstance(value, dict) or "error" in value or ("output" in value and len(value) > 1):
        return {"result": value}
    return value


def _has_reference(value: Any) -> bool:
    """Return whether an object in *value*, at any depth, has the key `$ref`."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            if "$ref" in item:
                return True
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)
    return False


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
