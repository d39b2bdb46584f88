"""Decodes responses of Anthropic's Messages API; no I/O."""

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

from chatclient._internal.frozen import EMPTY, FrozenDict, frozen
from chatclient.chat.messages import AssistantMessage, Part, ProviderPart, Reasoning, ToolCall
from chatclient.chat.response import (
    ChatResponse,
    ChatResponseMetadata,
    FinishReason,
    Generation,
    RateLimit,
    Usage,
)
from chatclient.providers.anthropic.encoding import CALL_KEYS, PROVIDER, Block
from chatclient.providers.http.auth import Headers
from chatclient.providers.http.error_details import request_id
from chatclient.providers.http.errors import invalid_response, raise_for_error
from chatclient.providers.wire.fields import (
    MALFORMED,
    dump_arguments,
    int_field,
    other_fields,
    parse_count,
    text_field,
)

PAUSED = "pause_turn"
"""The stop reason of a turn that is continued by another request."""

CONTAINER = "anthropic_container"
"""Key in a message's metadata: the id of the container in which the model runs code."""

_FINISH_REASONS: dict[str, FinishReason | None] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_call",
    "refusal": "content_filter",
    PAUSED: None,
}


def decode_response(data: Any, headers: Headers = EMPTY) -> ChatResponse:
    """Return the response in *data*, or raise the error that it reports."""
    raise_for_error(PROVIDER, data, headers)
    try:
        return decode_message(data, headers, data.get("usage") or {})
    except MALFORMED as error:
        raise invalid_response(PROVIDER, data, error) from error


_MESSAGE_KEYS = ("id", "model", "usage", "content", "role", "type", "stop_reason")
GENERATION_KEYS = ("stop_sequence", "stop_details")


def decode_message(
    data: Mapping[str, Any], headers: Headers, usage: Mapping[str, Any]
) -> ChatResponse:
    """Return the response in *data*, a message; its own usage may be outdated in streams."""
    blocks = data["content"] or ()  # null at some gateways
    parts = [part for block in blocks if (part := decode_block(block)) is not None]
    metadata = ChatResponseMetadata(
        id=data.get("id") or "",
        model=data.get("model") or "",
        usage=decode_usage(usage),
        rate_limit=rate_limit(headers),
        request_id=request_id(headers),
        values=other_fields(data, (*_MESSAGE_KEYS, *GENERATION_KEYS)),
    )
    return ChatResponse((generation_of(parts, data),), metadata)


def generation_of(parts: list[Part], end: Mapping[str, Any], *, calls: bool = False) -> Generation:
    """Return the generation of *parts*, after streamed *calls*, with the stop reason in *end*."""
    native = end.get("stop_reason")
    calls = calls or any(isinstance(part, ToolCall) for part in parts)
    metadata = FrozenDict({k: v for k in GENERATION_KEYS if (v := end.get(k)) is not None})
    message = AssistantMessage(parts, metadata=_container_metadata(end.get("container")))
    return Generation(message, _finish_reason(native, calls=calls), native, metadata=metadata)


def _container_metadata(container: Any) -> Mapping[str, Any]:
    id = container.get("id") if isinstance(container, Mapping) else None
    return FrozenDict({CONTAINER: id}) if id else EMPTY


def _finish_reason(native: str | None, *, calls: bool) -> FinishReason | None:
    reason = None if native is None else _FINISH_REASONS.get(native, "stop")
    return "tool_call" if calls and reason == "stop" else reason


def decode_block(block: Block) -> Part | None:
    """Return the part of a complete content block, or None if it is empty."""
    match block["type"]:
        case "text":
            text = text_field(block.get("text"))
            if text and block.get("citations"):
                return ProviderPart(PROVIDER, FrozenDict(block), text)
            return text or None
        case "thinking":
            text = text_field(block.get("thinking"))
            signature = text_field(block.get("signature")) or None
            return Reasoning(text, signature, PROVIDER) if text or signature else None
        case "redacted_thinking":
            return Reasoning(provider=PROVIDER, data=FrozenDict(block))
        case "tool_use":
            arguments = dump_arguments(block.get("input"))
            # The tool's result refers to an id.
            id = text_field(block.get("id")) or f"toolu_{uuid.uuid4().hex[:24]}"
            return ToolCall(id, text_field(block["name"]), arguments, call_metadata(block))
        case _:
            return ProviderPart(PROVIDER, FrozenDict(block))


def call_metadata(block: Block) -> Mapping[str, Any]:
    """Return the other fields of a tool call, which are sent back."""
    metadata = {key: block[key] for key in CALL_KEYS if block.get(key) is not None}
    return FrozenDict(metadata) if metadata else EMPTY


def decode_usage(usage: Mapping[str, Any]) -> Usage:
    """Return the usage; the API's `input_tokens` do not include cached tokens."""
    requests = [usage, *_other_requests(usage.get("iterations") or ())]

    def total(name: str) -> int | None:
        numbers = [number for each in requests if (number := int_field(each.get(name))) is not None]
        return sum(numbers) if numbers else None

    read, written = total("cache_read_input_tokens"), total("cache_creation_input_tokens")
    details = usage.get("output_tokens_details") or {}
    listed = {"requests": requests} if len(requests) > 1 else {}
    return Usage(
        (total("input_tokens") or 0) + (read or 0) + (written or 0),
        total("output_tokens") or 0,
        read,
        written,
        int_field(details.get("thinking_tokens")),
        frozen({**usage, **listed}),
    )


def _other_requests(iterations: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the usage of those *iterations* that the other fields do not include.

    These are compactions, advisors, and models whose answer was replaced by that of a fallback: one
    that has written nothing is not billed.
    """
    served = [each.get("model") for each in iterations if each.get("type") == "fallback_message"]
    for each in iterations:
        declined = served and each.get("model") not in (None, *served) and each.get("output_tokens")
        if each.get("type") in ("compaction", "advisor_message") or declined:
            yield each


def rate_limit(headers: Headers) -> RateLimit | None:
    """Return the rate limit in the `anthropic-ratelimit-*` headers, or None."""
    if "anthropic-ratelimit-requests-remaining" not in headers:
        return None

    def number(name: str) -> int | None:
        return parse_count(headers.get(f"anthropic-ratelimit-{name}", ""))

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
    """Return the seconds until *moment*, by the server's clock if *date* is its time."""
    try:
        then = datetime.fromisoformat(moment or "").timestamp()
        now = parsedate_to_datetime(date).timestamp() if date else time.time()
    except (ValueError, OverflowError):  # such as the year 99999
        return None
    return max(0.0, then - now)
