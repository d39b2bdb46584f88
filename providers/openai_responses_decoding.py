"""Whole answers of OpenAI's Responses as responses, and what streams have in common with them."""

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from typing import Any

from chatclient.aggregator import MessageAggregator
from chatclient.errors import ProviderError
from chatclient.messages import (
    AssistantMessage,
    Media,
    Part,
    ProviderPart,
    Reasoning,
    ToolCallChunk,
)
from chatclient.providers.error_bodies import request_id
from chatclient.providers.failures import error_from, unreadable
from chatclient.providers.fields import MISSHAPEN, arguments_of, beside, number_of, text_of
from chatclient.providers.keys import Headers
from chatclient.providers.openai_metadata import rate_limit
from chatclient.providers.openai_responses_encoding import CONVERSATION, PROVIDER, Item
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


def decode_response(
    data: Any, provider: str, headers: Headers = EMPTY, origin: str = PROVIDER
) -> ChatResponse:
    """Return the response that a whole answer spells.

    Args:
        data: The answer's JSON.
        provider: What the server is called in errors.
        headers: The answer's headers.
        origin: Whose reasoning it has; see `Form`.

    Raises:
        ProviderError: The answer says that it failed.
        InvalidResponseError: The answer is of no known form.
    """
    if not _is_response(data):
        if isinstance(data, Mapping) and data.get("error"):
            raise failure(data, provider, headers)
        raise unreadable(provider, data)
    if failed(data):
        raise failure(data, provider, headers)
    try:
        items = items_of(data)
        parts = [part for at, item in enumerate(items) for part in decode_item(item, at, origin)]
        whole = MessageAggregator()  # joins the parts exactly as those of a stream are joined
        whole.add(ending(data, kinds_of(items), parts, headers))
        return whole.response()
    except MISSHAPEN as error:
        raise unreadable(provider, data) from error


def _is_response(data: Any) -> bool:
    if not isinstance(data, Mapping):
        return False
    output = data.get("output", "")  # null at gateways that have nothing to say
    return isinstance(output, list) or (output is None and data.get("object") == "response")


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


# --- items ----------------------------------------------------------------------------------

CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
"""Calls of the application's tools, and where each says what to call it with."""


def decode_item(item: Item, number: int, origin: str, said: str = "") -> list[Part]:
    """Return the parts that an output item becomes.

    Args:
        item: The item, whole.
        number: Tells parallel calls apart.
        origin: Whose reasoning it is; see `Form`.
        said: What of its text (or reasoning, or arguments) a stream has already told.
    """
    match item.get("type"):
        case "message":
            return _message_parts(item, said)
        case "reasoning":
            return _reasoning_parts(item, origin, said)
        case "function_call" | "custom_tool_call":
            return [_call_chunk(item, number, said)]
        case "image_generation_call" if (image := _image(item)) is not None:
            return [image]
        case _:
            return [ProviderPart(PROVIDER, FrozenDict(item))]


def rest_of(whole: str, said: str) -> str:
    """Return what of *whole* has not been *said*; nothing where it does not begin with that."""
    return whole[len(said) :] if whole.startswith(said) else ""


def _message_parts(item: Item, said: str) -> list[Part]:
    parts: list[Part] = []
    content: list[dict[str, Any]] = []
    for piece in item.get("content") or ():
        slot = {key: value for key, value in piece.items() if value not in (None, [])}
        content.append(slot)
        is_text = piece.get("type") == "output_text"
        text = (piece.get("text") if is_text else piece.get("refusal")) or ""
        if is_text:
            slot.pop("text", None)
            slot["length"] = len(text)
        new = rest_of(text, said)
        said = rest_of(said, text)
        if new:
            parts.append(new if is_text else refusal(new))
    kept = {key: value for key, value in item.items() if value is not None}
    return [*parts, ProviderPart(PROVIDER, FrozenDict({**kept, "content": content}))]


def refusal(text: str) -> ProviderPart:
    """Return the part that says *text* in refusal, just as Chat Completions has it."""
    return ProviderPart(PROVIDER, FrozenDict({"refusal": text}), text)


def _reasoning_parts(item: Item, origin: str, said: str) -> list[Part]:
    texts = item.get("summary") or item.get("content") or ()
    new = rest_of("".join(text.get("text") or "" for text in texts), said)
    thoughts = [Reasoning(new, provider=origin)] if new else []
    return [*thoughts, Reasoning(provider=origin, data=FrozenDict(item))]


def _call_chunk(item: Item, number: int, said: str) -> ToolCallChunk:
    field = CALLS[item["type"]]
    arguments = item.get(field)
    if arguments or field == "arguments":  # the other kind is free text, which may be none
        arguments = arguments_of(arguments)
    known = ("call_id", "name", field, *(["type"] if field == "arguments" else []))
    more = beside(item, known)
    return ToolCallChunk(
        number,
        text_of(item.get("call_id") or item.get("id")),
        text_of(item.get("name")),
        rest_of(arguments or "", said),
        FrozenDict({PROVIDER: more}) if more else EMPTY,
    )


def _image(item: Item) -> Media | None:
    """Return the image that *item* holds, if the item can be made again from it."""
    result = item.get("result") or ""
    try:
        image = base64.b64decode(result, validate=True)
    except binascii.Error:
        return None
    if not image or base64.b64encode(image).decode() != result:
        return None
    more = FrozenDict({PROVIDER: beside(item, ("result",))})
    return Media(f"image/{item.get('output_format') or 'png'}", image, metadata=more)
