"""Responses in the JSON of Anthropic's Messages API; no I/O."""

import time
import uuid
from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

from chatclient.messages import AssistantMessage, Part, ProviderPart, Reasoning, ToolCall
from chatclient.providers.anthropic_encoding import CALL_KEYS, PROVIDER, Block
from chatclient.providers.error_bodies import request_id
from chatclient.providers.failures import refuse_error, unreadable
from chatclient.providers.fields import (
    MISSHAPEN,
    arguments_of,
    beside,
    count_of,
    number_of,
    text_of,
)
from chatclient.providers.keys import Headers
from chatclient.response import (
    ChatResponse,
    ChatResponseMetadata,
    FinishReason,
    Generation,
    RateLimit,
    Usage,
)
from chatclient.values import EMPTY, FrozenDict, frozen

PAUSED = "pause_turn"
"""The stop reason of a turn that is not over: the API wants to be asked to go on."""

CONTAINER = "anthropic_container"
"""In a message's metadata: the id of the container in which the model runs code."""

_FINISH_REASONS: dict[str, FinishReason | None] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_call",
    "refusal": "content_filter",
    PAUSED: None,  # the model goes on when its message is sent back
}


def decode_response(data: Any, headers: Headers = EMPTY) -> ChatResponse:
    """Return the response that a whole answer spells.

    Raises:
        ProviderError: The answer is an error in disguise.
        InvalidResponseError: The answer is of no known form.
    """
    refuse_error(PROVIDER, data, headers)
    try:
        return decode_message(data, headers, data.get("usage") or {})
    except MISSHAPEN as error:
        raise unreadable(PROVIDER, data) from error


_MESSAGE_KEYS = ("id", "model", "usage", "content", "role", "type", "stop_reason")
GENERATION_KEYS = ("stop_sequence", "stop_details")


def decode_message(
    data: Mapping[str, Any], headers: Headers, usage: Mapping[str, Any]
) -> ChatResponse:
    """Return the response that a message is; *usage* may know more than the message."""
    blocks = data["content"] or ()  # null at gateways that have nothing to say
    parts = [part for block in blocks if (part := decode_block(block)) is not None]
    metadata = ChatResponseMetadata(
        id=data.get("id") or "",
        model=data.get("model") or "",
        usage=decode_usage(usage),
        rate_limit=rate_limit(headers),
        request_id=request_id(headers),
        values=beside(data, (*_MESSAGE_KEYS, *GENERATION_KEYS)),
    )
    return ChatResponse((generation_of(parts, data),), metadata)


def generation_of(parts: list[Part], end: Mapping[str, Any], *, calls: bool = False) -> Generation:
    """Return the generation of *parts* that ended as *end* says, with tool calls before or not."""
    native = end.get("stop_reason")
    calls = calls or any(isinstance(part, ToolCall) for part in parts)
    metadata = FrozenDict({k: v for k in GENERATION_KEYS if (v := end.get(k)) is not None})
    message = AssistantMessage(parts, metadata=_at_work_in(end.get("container")))
    return Generation(message, _finish_reason(native, calls=calls), native, metadata=metadata)


def _at_work_in(container: Any) -> Mapping[str, Any]:
    id = container.get("id") if isinstance(container, Mapping) else None
    return FrozenDict({CONTAINER: id}) if id else EMPTY


def _finish_reason(native: str | None, *, calls: bool) -> FinishReason | None:
    reason = None if native is None else _FINISH_REASONS.get(native, "stop")
    return "tool_call" if calls and reason == "stop" else reason


def decode_block(block: Block) -> Part | None:
    """Return the part that a whole content block is, or None when there is nothing in it."""
    match block["type"]:
        case "text":
            text = text_of(block.get("text"))
            if text and block.get("citations"):
                return ProviderPart(PROVIDER, FrozenDict(block), text)
            return text or None
        case "thinking":
            thoughts = text_of(block.get("thinking"))
            signature = text_of(block.get("signature")) or None
            return Reasoning(thoughts, signature, PROVIDER) if thoughts or signature else None
        case "redacted_thinking":
            return Reasoning(provider=PROVIDER, data=FrozenDict(block))
        case "tool_use":
            arguments = arguments_of(block.get("input"))
            # The result has to name one.
            id = text_of(block.get("id")) or f"toolu_{uuid.uuid4().hex[:24]}"
            return ToolCall(id, text_of(block["name"]), arguments, call_metadata(block))
        case _:
            return ProviderPart(PROVIDER, FrozenDict(block))


def call_metadata(block: Block) -> Mapping[str, Any]:
    """Return what a tool call says beside its name and arguments."""
    more = {key: block[key] for key in CALL_KEYS if block.get(key) is not None}
    return FrozenDict(more) if more else EMPTY


def decode_usage(usage: Mapping[str, Any]) -> Usage:
    """Return what was spent; the API counts cached input beside the other input."""
    read = number_of(usage.get("cache_read_input_tokens"))
    written = number_of(usage.get("cache_creation_input_tokens"))
    details = usage.get("output_tokens_details") or {}
    return Usage(
        (number_of(usage.get("input_tokens")) or 0) + (read or 0) + (written or 0),
        number_of(usage.get("output_tokens")) or 0,
        read,
        written,
        number_of(details.get("thinking_tokens")),
        frozen(usage),
    )


def rate_limit(headers: Headers) -> RateLimit | None:
    """Return what the `anthropic-ratelimit-*` headers say is left."""
    if "anthropic-ratelimit-requests-remaining" not in headers:
        return None

    def number(name: str) -> int | None:
        return count_of(headers.get(f"anthropic-ratelimit-{name}", ""))

    def seconds(name: str) -> float | None:
        return _seconds_until(headers.get(f"anthropic-ratelimit-{name}"), headers.get("date"))

    return RateLimit(
        number("requests-limit"),
        number("requests-remaining"),
        seconds("requests-reset"),
        number("tokens-limit"),
        number("tokens-remaining"),
        seconds("tokens-reset"),
    )


def _seconds_until(moment: str | None, date: str | None) -> float | None:
    """Return how far *moment* lies ahead, by the server's clock where it sends its time."""
    try:
        then = datetime.fromisoformat(moment or "").timestamp()
        now = parsedate_to_datetime(date).timestamp() if date else time.time()
    except (ValueError, OverflowError):  # such as the year 99999
        return None
    return max(0.0, then - now)
