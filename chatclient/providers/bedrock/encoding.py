"""Encodes messages and options for the Converse API; no I/O."""

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from chatclient._internal.frozen import EMPTY
from chatclient._internal.json import dumps, dumps_exact, loads_exact
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
from chatclient.chat.tool import ToolDefinition
from chatclient.errors import UsageError
from chatclient.providers.anthropic.encoding import Dialect, valid_call_id
from chatclient.providers.anthropic.options import encode_reasoning, sampling
from chatclient.providers.wire.common_options import (
    CommonOptions,
    Encode,
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
    other_fields,
    unsupported_message,
    valid_tool_name,
)
from chatclient.providers.wire.request_body import merge_extra
from chatclient.providers.wire.sendable_schemas import ANTHROPIC_RULES
from chatclient.providers.wire.tools import sendable_definitions

PROVIDER = "bedrock"
"""The provider's name in errors and parts of messages."""

CONVERSE = Dialect()
"""The dialect under which messages cache their blocks."""

CACHE_POINT = {"cachePoint": {"type": "default"}}
"""A block that ends a cached prefix."""

_MAX_POINTS = 4  # the API refuses requests with more

Block = Mapping[str, Any]


def settle_points(turns: bytes, system: bytes, others: bytes, *, nova: bool) -> tuple[bytes, bytes]:
    """Return *turns* and *system* without the cache points that the API refuses.

    Of two in a row the first is kept, and of more than four in the request the newest. Nova takes
    no lifetime, and no point after the result of a tool.

    Args:
        turns: The messages, as JSON.
        system: The system blocks, as JSON.
        others: The JSON of the rest of the request, whose points count, too.
        nova: Whether the model is a Nova.
    """
    if b'"cachePoint":' not in turns + system:
        return turns, system
    messages, blocks = loads_exact(b"[%b]" % turns), loads_exact(b"[%b]" % system)
    allowed = max(_MAX_POINTS - others.count(b'"cachePoint":'), 0)
    # All requests start with the system blocks, so their points are the last to be left out.
    for content in (blocks, *(message["content"] for message in reversed(messages))):
        settled: list[Any] = []
        for block in content:
            before = settled[-1] if settled else {}
            if "cachePoint" not in block:
                settled.append(block)
            elif "cachePoint" not in before and not (nova and "toolResult" in before):
                settled.append(CACHE_POINT if nova else block)
        points = [index for index, block in enumerate(settled) if "cachePoint" in block]
        for index in reversed(points[: max(len(points) - allowed, 0)]):
            del settled[index]
        allowed -= min(len(points), allowed)
        content[:] = settled
    return dumps_exact(messages)[1:-1].encode(), dumps_exact(blocks)[1:-1].encode()


def encode_blocks(message: Message, _dialect: Dialect = CONVERSE) -> list[Block]:
    """Return *message* as content blocks; there are none for blank text."""
    blocks, marker = _blocks(message), message.metadata.get("cache_control")
    if not blocks or not marker:
        return blocks
    ttl = {"ttl": marker["ttl"]} if isinstance(marker, Mapping) and "ttl" in marker else {}
    return [*blocks, {"cachePoint": {"type": "default", **ttl}}]


def _blocks(message: Message) -> list[Block]:
    match message:
        case SystemMessage():
            guarded = message.metadata.get("guard_content")
            return _guarded(message.text, guarded) if guarded else _text(message.text)
        case UserMessage():
            return [block for part in message.parts for block in _user_blocks(part)]
        case AssistantMessage():
            return [block for part in message.parts for block in _assistant_blocks(part)]
        case ToolResponseMessage():
            return [_tool_result(response) for response in message.responses]
        case _:
            raise unsupported_message(message)


def _text(text: str) -> list[Block]:
    # The API rejects blank text, although its models may write it.
    return [{"text": text}] if text.strip() else []


def _guarded(text: str, qualifiers: Any) -> list[Block]:
    """Return system text that a guardrail checks, for example against its grounding."""
    more = {} if qualifiers is True else {"qualifiers": qualifiers}
    return [{"guardContent": {"text": {"text": text, **more}}}] if text.strip() else []


def _user_blocks(part: str | Media | ProviderPart) -> list[Block]:
    match part:
        case str():
            return _text(part)
        case Media():
            return [_media(part)]
        case _:
            return _own_block(part)


def _assistant_blocks(part: Part) -> list[Block]:
    match part:
        case str():
            return _text(part)
        case Reasoning():
            if part.provider != PROVIDER:
                return []
            if part.data is not None:
                return [part.data]
            # Claude rejects reasoning without a signature; models without signatures
            # do not need theirs.
            if not part.signature:
                return []
            text = {"text": part.text, "signature": part.signature}
            return [{"reasoningContent": {"reasoningText": text}}]
        case ToolCall():
            name, input = valid_tool_name(part.name), arguments_object(part.arguments)
            return [
                {"toolUse": {"toolUseId": valid_call_id(part.id), "name": name, "input": input}}
            ]
        case ProviderPart():
            return _own_block(part)
        case _:
            return []  # models accept no media of the assistant


def _own_block(part: ProviderPart) -> list[Block]:
    return [part.data] if part.provider == PROVIDER else _text(part.text)


def _tool_result(response: ToolResponse) -> Block:
    media, errors = encode_tool_media(response.media, _result_media)
    texts = [block for text in (response.data, *errors) for block in _text(text)]
    content = [*texts, *media] or [{"text": "error" if response.is_error else "(empty)"}]
    result: dict[str, Any] = {"toolUseId": valid_call_id(response.id), "content": content}
    if response.is_error:  # not all models accept a status
        result["status"] = "error"
    return {"toolResult": result}


_VIDEO = {"quicktime": "mov", "x-matroska": "mkv", "x-flv": "flv", "x-ms-wmv": "wmv"}
_VIDEO |= {"3gpp": "three_gp"} | {name: name for name in ("mp4", "webm", "mpeg")}
_AUDIO = {"mpeg": "mp3", "x-wav": "wav", "x-m4a": "m4a", "x-flac": "flac", "x-matroska": "mka"}
_AUDIO |= {name: name for name in ("mp3", "mp4", "wav", "ogg", "opus", "aac", "flac", "webm")}
_FORMATS = {
    "image": {"png": "png", "jpeg": "jpeg", "jpg": "jpeg", "gif": "gif", "webp": "webp"},
    "video": _VIDEO,
    "audio": _AUDIO,
}
_DOCUMENTS = {
    "application/pdf": "pdf",
    "application/msword": "doc",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": "docx",
    "application/vnd.ms-excel": "xls",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": "xlsx",
    "application/json": "txt",
    "application/xml": "txt",
    "application/yaml": "txt",
    "text/csv": "csv",
    "text/html": "html",
    "text/markdown": "md",
}
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9\s()\[\]-]")
_MAX_NAME = 200


def _media(media: Media) -> Block:
    kind, _, subtype = media.mime_type.partition("/")
    format = _FORMATS.get(kind, {}).get(subtype)
    if format is not None:
        return {kind: {"format": format, "source": _source(media)}}
    format = _document_format(media)
    if format is None:
        msg = f"the Converse API takes no {media.mime_type}; convert it"
        raise UsageError(msg)
    more = {key: media.metadata[key] for key in ("context", "citations") if key in media.metadata}
    document = {"format": format, "name": _document_name(media), "source": _source(media), **more}
    return {"document": document}


def _result_media(media: Media) -> Block:
    block = _media(media)
    if "audio" in block:
        msg = f"results of tools in the Converse API hold no {media.mime_type}"
        raise UsageError(msg)
    return block


def _document_format(media: Media) -> str | None:
    text = "txt" if media.mime_type.startswith("text/") else None
    return _DOCUMENTS.get(media.mime_type, text)


def _document_name(media: Media) -> str:
    """Return a name without characters that the API does not allow."""
    stem = (media.name or "").rpartition(".")[0] or media.name or ""
    return " ".join(_NOT_IN_NAMES.sub(" ", stem).split())[:_MAX_NAME] or "document"


def with_unique_names(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return *messages* with different names of all documents, as the API requires.

    The first document of a name keeps it, and the others get numbers, so the beginning of a
    conversation is the same in each request.
    """
    taken: dict[str, int] = {}  # the last number of each name
    return tuple([_with_unique_names(message, taken) for message in messages])


def _with_unique_names(message: Message, taken: dict[str, int]) -> Message:
    if isinstance(message, UserMessage):
        parts = tuple([_with_unique_name(part, taken) for part in message.parts])
        if parts != message.parts:
            return UserMessage(parts, metadata=message.metadata)
    if isinstance(message, ToolResponseMessage):
        media = [tuple([_with_unique_name(m, taken) for m in r.media]) for r in message.responses]
        if media != [each.media for each in message.responses]:
            pairs = zip(message.responses, media, strict=True)
            return message.mutate(responses=[replace(each, media=m) for each, m in pairs])
    return message


def _with_unique_name(part: Any, taken: dict[str, int]) -> Any:
    """Return *part*, with another name if it is a document whose name is among *taken*."""
    match part:
        case Media() if _document_format(part):
            name = _document_name(part)
        case ProviderPart(provider="bedrock", data={"document": {"name": str(name)}}):
            pass
        case _:
            return part
    key, free = name.casefold(), name
    number = taken.get(key, 0)
    while free.casefold() in taken:
        number += 1
        free = f"{name[: _MAX_NAME - len(str(number)) - 1]} {number}"
    taken[key] = max(number, 1)
    taken.setdefault(free.casefold(), 1)
    if free == name:
        return part
    if isinstance(part, Media):
        return replace(part, name=free)
    return replace(part, data={"document": {**part.data["document"], "name": free}})


def _source(media: Media) -> Block:
    if isinstance(media.data, str) and media.data.startswith("s3://"):
        return {"s3Location": {"uri": media.data}}
    content = base64_of(media)
    return {"bytes": media.base64() if content is None else content}


def decode_media(kind: str, block: Block) -> Media | None:
    """Return the medium in *block*, of *kind* `image` for example, or None if it has no content."""
    source = block.get("source") or {}
    if "bytes" not in source:
        return None
    return Media(f"{kind}/{block['format']}", base64.b64decode(source["bytes"]))


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
