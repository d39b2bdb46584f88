"""Decodes responses of the Converse API; no I/O."""

from collections.abc import Mapping
from typing import Any

from chatclient._internal.frozen import EMPTY, FrozenDict, frozen
from chatclient.chat.messages import AssistantMessage, Part, ProviderPart, Reasoning, ToolCall
from chatclient.chat.parts import generate_call_id
from chatclient.chat.response import (
    ChatResponse,
    ChatResponseMetadata,
    FinishReason,
    Generation,
    Usage,
)
from chatclient.providers.bedrock.encoding import PROVIDER, Block, decode_media
from chatclient.providers.http.auth import Headers
from chatclient.providers.http.error_details import request_id
from chatclient.providers.http.errors import invalid_response, raise_for_error
from chatclient.providers.wire.fields import (
    MALFORMED,
    dump_arguments,
    int_field,
    other_fields,
    text_field,
)

SERVER_TOOL = "server_tool_use"
"""The type of a call that Bedrock answers itself."""

_FINISH_REASONS: dict[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_call",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "guardrail_intervened": "content_filter",
    "content_filtered": "content_filter",
    "malformed_model_output": "error",
    "malformed_tool_use": "error",
}


def decode_response(data: Any, headers: Headers = EMPTY) -> ChatResponse:
    """Return the response in *data*, or raise the error that it reports."""
    raise_for_error(PROVIDER, data, headers)
    try:
        blocks = data["output"]["message"]["content"]
        parts = [part for block in blocks if (part := decode_block(block)) is not None]
        metadata = ChatResponseMetadata(
            usage=decode_usage(data.get("usage") or {}),
            request_id=request_id(headers),
            values=other_fields(data, ("output", "stopReason", "usage")),
        )
        return ChatResponse((generation_of(parts, data.get("stopReason")),), metadata)
    except MALFORMED as error:
        raise invalid_response(PROVIDER, data, error) from error


def generation_of(parts: list[Part], native: Any, *, calls: bool = False) -> Generation:
    """Return the generation of *parts*, after streamed *calls*, with its stop reason."""
    native = text_field(native) or None
    reason = None if native is None else _FINISH_REASONS.get(native, "stop")
    # `tool_use` is also sent for tools of Bedrock, and `end_turn` with calls by some models.
    calls = calls or any(isinstance(part, ToolCall) for part in parts)
    if reason in ("stop", "tool_call"):
        reason = "tool_call" if calls else "stop"
    return Generation(AssistantMessage(parts), reason, native)


def decode_block(block: Block) -> Part | None:
    """Return the part of a complete content block, or None if it is empty."""
    match block:
        case {"text": text}:
            return text_field(text) or None
        case {"toolUse": {"type": str(kind)}} if kind == SERVER_TOOL:
            return ProviderPart(PROVIDER, FrozenDict(block))
        case {"toolUse": call}:
            id = text_field(call.get("toolUseId")) or generate_call_id()
            return ToolCall(id, text_field(call["name"]), dump_arguments(call.get("input")))
        case {"reasoningContent": reasoning}:
            return _reasoning(reasoning, block)
        case {"citationsContent": {"content": content}}:
            text = "".join(text_field(each.get("text")) for each in content)
            return ProviderPart(PROVIDER, FrozenDict(block), text)
        case {"image": image} if (media := decode_media("image", image)) is not None:
            return media
        case _:
            return ProviderPart(PROVIDER, FrozenDict(block))


def _reasoning(reasoning: Block, block: Block) -> Reasoning | None:
    shown = reasoning.get("reasoningText")
    if shown is None:
        return Reasoning(provider=PROVIDER, data=FrozenDict(block))
    text, signature = text_field(shown.get("text")), text_field(shown.get("signature"))
    return Reasoning(text, signature or None, PROVIDER) if text or signature else None


def decode_usage(usage: Mapping[str, Any]) -> Usage:
    """Return the usage; the API's `inputTokens` do not include cached tokens."""
    read = int_field(usage.get("cacheReadInputTokens"))
    written = int_field(usage.get("cacheWriteInputTokens"))
    return Usage(
        (int_field(usage.get("inputTokens")) or 0) + (read or 0) + (written or 0),
        int_field(usage.get("outputTokens")) or 0,
        read,
        written,
        native=frozen(usage),
    )
