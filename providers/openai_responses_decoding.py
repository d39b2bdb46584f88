"""Whole answers of OpenAI's Responses as responses, and what streams have in common with them."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from chatclient.aggregator import MessageAggregator
from chatclient.errors import ProviderError
from chatclient.messages import AssistantMessage, Part
from chatclient.providers.failures import error_from, request_id, unreadable
from chatclient.providers.fields import MISSHAPEN, beside, number_of
from chatclient.providers.keys import Headers
from chatclient.providers.openai_metadata import rate_limit
from chatclient.providers.openai_responses_codec import CALLS, CONVERSATION, Item, decode_item
from chatclient.response import (
    NO_USAGE,
    ChatResponse,
    ChatResponseMetadata,
    FinishReason,
    Generation,
    Usage,
)
from chatclient.values import EMPTY, FrozenDict

# Errors that are none of the provider's; its codes for these name no status.
_REFUSED = re.compile(r"image|invalid|_policy|data_residency")
_FAILED = ("failed", "cancelled")
_FINISH_REASONS: dict[str, FinishReason] = {
    "completed": "stop",
    "complete": "stop",
    "incomplete": "length",
    "max_output_tokens": "length",
    "content_filter": "content_filter",
    "failed": "error",
    "cancelled": "error",
}


def decode_response(data: Any, provider: str, headers: Headers = EMPTY) -> ChatResponse:
    """Return the response that a whole answer spells.

    Args:
        data: The answer's JSON.
        provider: What the server is called in errors.
        headers: The answer's headers.

    Raises:
        ProviderError: The answer says that it failed.
        InvalidResponseError: The answer is of no known form.
    """
    if not isinstance(data, Mapping) or not isinstance(data.get("output"), list):
        if isinstance(data, Mapping) and data.get("error"):
            raise failure(data, provider, headers)
        raise unreadable(provider, data)
    if failed(data):
        raise failure(data, provider, headers)
    try:
        items = items_of(data)
        parts = [part for at, item in enumerate(items) for part in decode_item(item, at)]
        whole = MessageAggregator()  # joins the parts exactly as those of a stream are joined
        whole.add(ending(data, kinds_of(items), parts, headers))
        return whole.response()
    except MISSHAPEN as error:
        raise unreadable(provider, data) from error


def failed(data: Item) -> bool:
    """Return whether *data*, a response, says that it failed."""
    return bool(data.get("error")) and data.get("status") in _FAILED


def failure(data: Item, provider: str, headers: Headers) -> ProviderError:
    """Return the error that a failed response, or an event, describes."""
    error = data.get("error") or data
    code = error.get("code") if isinstance(error, Mapping) else None
    status = 400 if isinstance(code, str) and _REFUSED.search(code) else 0
    return error_from(provider, status, {"error": error}, headers)


def items_of(data: Item) -> list[Item]:
    """Return the output items of a response."""
    return [item for item in data.get("output") or () if isinstance(item, Mapping)]


def kinds_of(items: Iterable[Item]) -> set[str]:
    """Return which kinds of items there are; a refusal counts as one."""
    kinds = {str(item.get("type")) for item in items}
    contents = (item.get("content") or () for item in items if item.get("type") == "message")
    if any(piece.get("type") == "refusal" for content in contents for piece in content):
        kinds.add("refusal")
    return kinds


def ending(data: Item, kinds: set[str], parts: list[Part], headers: Headers) -> ChatResponse:
    """Return the chunk that ends a response: its last parts and what is known about it."""
    details = data.get("incomplete_details") or {}
    native = details.get("reason") or data.get("status")
    reason = _FINISH_REASONS.get(str(native))
    if reason == "stop":
        if not kinds.isdisjoint(CALLS):
            reason = "tool_call"
        elif "refusal" in kinds:
            reason = "content_filter"
    message = AssistantMessage(parts, metadata=_held_in(data.get("conversation")))
    return ChatResponse((Generation(message, reason, native),), metadata_of(data, headers))


def _held_in(conversation: Any) -> Mapping[str, Any]:
    id = conversation.get("id") if isinstance(conversation, Mapping) else None
    return FrozenDict({CONVERSATION: id}) if id else EMPTY


def metadata_of(data: Item, headers: Headers) -> ChatResponseMetadata:
    """Return what a response says beside its output."""
    return ChatResponseMetadata(
        id=data.get("id") or "",
        model=data.get("model") or "",
        usage=_usage(data.get("usage") or {}),
        rate_limit=rate_limit(headers),
        request_id=request_id(headers),
        values=beside(data, ("id", "model", "usage", "output", "object")),
    )


def _usage(usage: Item) -> Usage:
    if not usage:
        return NO_USAGE
    of_input = usage.get("input_tokens_details") or {}
    of_output = usage.get("output_tokens_details") or {}
    return Usage(
        number_of(usage.get("input_tokens")) or 0,
        number_of(usage.get("output_tokens")) or 0,
        number_of(of_input.get("cached_tokens")),
        number_of(of_input.get("cache_write_tokens")),
        number_of(of_output.get("reasoning_tokens")),
        FrozenDict(usage),
    )
