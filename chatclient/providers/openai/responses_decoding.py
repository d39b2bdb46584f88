"""Decodes responses of OpenAI's Responses API, and items of its streams; no I/O."""

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from typing import Any

from chatclient._internal.frozen import EMPTY, FrozenDict
from chatclient.chat.aggregator import MessageAggregator
from chatclient.chat.messages import (
    AssistantMessage,
    Media,
    Part,
    ProviderPart,
    Reasoning,
    ToolCallChunk,
)
from chatclient.chat.response import (
    NO_USAGE,
    ChatResponse,
    ChatResponseMetadata,
    FinishReason,
    Generation,
    Usage,
)
from chatclient.errors import ProviderError
from chatclient.providers.http.auth import Headers
from chatclient.providers.http.errors import error_from_data, invalid_response, request_id
from chatclient.providers.openai.chat_decoding import rate_limit
from chatclient.providers.openai.responses_encoding import CONVERSATION, PROVIDER, Item
from chatclient.providers.wire.fields import (
    MALFORMED,
    dump_arguments,
    int_field,
    other_fields,
    text_field,
)

# Codes of errors in the request; they are reported without an HTTP status.
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
    """Return the response in *data*, or raise the error that it reports."""
    if not _is_response(data):
        if isinstance(data, Mapping) and data.get("error"):
            raise failure_error(data, provider, headers)
        raise invalid_response(provider, data)
    if is_failed(data):
        raise failure_error(data, provider, headers)
    try:
        items = output_items(data)
        parts = [part for at, item in enumerate(items) for part in decode_item(item, at, origin)]
        joined = MessageAggregator()  # joins parts in the same way as for streams
        joined.add(final_chunk(data, item_types(items), parts, headers))
        return joined.response()
    except MALFORMED as error:
        raise invalid_response(provider, data, error) from error


def _is_response(data: Any) -> bool:
    if not isinstance(data, Mapping):
        return False
    output = data.get("output", "")  # null at some gateways
    return isinstance(output, list) or (output is None and data.get("object") == "response")


def is_failed(data: Item) -> bool:
    """Return whether *data*, a response, reports a failure."""
    return bool(data.get("error")) and data.get("status") in _FAILED


def failure_error(data: Item, provider: str, headers: Headers) -> ProviderError:
    """Return the error that a failed response, or an event, describes."""
    error = data.get("error") or data
    code = error.get("code") if isinstance(error, Mapping) else None
    status = 400 if isinstance(code, str) and _REFUSED.search(code) else 0
    return error_from_data(provider, status, {"error": error}, headers)


def output_items(data: Item) -> list[Item]:
    """Return the output items of a response."""
    return [item for item in data.get("output") or () if isinstance(item, Mapping)]


def item_types(items: Iterable[Item]) -> set[str]:
    """Return the types of *items*, and `refusal` if a message contains one."""
    types = {str(item.get("type")) for item in items}
    contents = (item.get("content") or () for item in items if item.get("type") == "message")
    if any(piece.get("type") == "refusal" for content in contents for piece in content):
        types.add("refusal")
    return types


def final_chunk(data: Item, types: set[str], parts: list[Part], headers: Headers) -> ChatResponse:
    """Return the last chunk of a response, with *parts*, finish reason and metadata."""
    details = data.get("incomplete_details") or {}
    native = details.get("reason") or data.get("status")
    reason = _FINISH_REASONS.get(str(native))
    if reason == "stop":
        if not types.isdisjoint(CALLS):
            reason = "tool_call"
        elif "refusal" in types:
            reason = "content_filter"
    conversation = data.get("conversation")
    id = conversation.get("id") if isinstance(conversation, Mapping) else None
    message = AssistantMessage(parts, metadata=FrozenDict({CONVERSATION: id}) if id else EMPTY)
    return ChatResponse((Generation(message, reason, native),), metadata_of(data, headers))


def metadata_of(data: Item, headers: Headers) -> ChatResponseMetadata:
    """Return the metadata of a response."""
    return ChatResponseMetadata(
        id=data.get("id") or "",
        model=data.get("model") or "",
        usage=_usage(data),
        rate_limit=rate_limit(headers),
        request_id=request_id(headers),
        values=other_fields(data, ("id", "model", "usage", "output", "object")),
    )


def _usage(data: Item) -> Usage:
    """Return the usage of a response, with that of the model that drew its images."""
    usage: Item = data.get("usage") or {}
    if not usage:
        return NO_USAGE
    of_tools = data.get("tool_usage") or {}
    if (of_tools.get("web_search") or {}).get("num_requests"):
        usage = {**usage, "tool_usage": of_tools}
    images = of_tools.get("image_gen") or {}
    seen = int_field(images.get("input_tokens")) or 0
    drawn = int_field(images.get("output_tokens")) or 0
    native = usage
    if seen or drawn:
        tools = (tool for tool in data.get("tools") or () if tool.get("type") == _DRAWING)
        model = next(tools, EMPTY).get("model") or _DRAWING
        native = {"requests": [usage, {**images, "model": model}]}
    of_input = usage.get("input_tokens_details") or {}
    of_output = usage.get("output_tokens_details") or {}
    return Usage(
        (int_field(usage.get("input_tokens")) or 0) + seen,
        (int_field(usage.get("output_tokens")) or 0) + drawn,
        int_field(of_input.get("cached_tokens")),
        int_field(of_input.get("cache_write_tokens")),
        int_field(of_output.get("reasoning_tokens")),
        FrozenDict(native),
    )


_DRAWING = "image_generation"
CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
"""The field with the arguments, by type of tool call."""


def decode_item(item: Item, number: int, origin: str, received: str = "") -> list[Part]:
    """Return the parts of a complete output item, without text that was already *received*."""
    match item.get("type"):
        case "message":
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
                new = remainder(text, received)
                received = remainder(received, text)
                if new:
                    parts.append(new if is_text else refusal(new))
            kept = {key: value for key, value in item.items() if value is not None}
            return [*parts, ProviderPart(PROVIDER, FrozenDict({**kept, "content": content}))]
        case "reasoning":
            texts = item.get("summary") or item.get("content") or ()
            shown = [each for text in texts if (each := text.get("text"))]
            new = remainder(PART_SEPARATOR.join(shown), received)
            text = [Reasoning(new, provider=origin)] if new else []
            return [*text, Reasoning(provider=origin, data=FrozenDict(item))]
        case "function_call" | "custom_tool_call":
            field = CALLS[item["type"]]
            arguments = item.get(field)
            if arguments or field == "arguments":  # the input of a custom tool is text, maybe empty
                arguments = dump_arguments(arguments)
            own_fields = ("call_id", "name", field, *(["type"] if field == "arguments" else []))
            extra = other_fields(item, own_fields)
            return [
                ToolCallChunk(
                    number,
                    text_field(item.get("call_id") or item.get("id")),
                    text_field(item.get("name")),
                    remainder(arguments or "", received),
                    FrozenDict({PROVIDER: extra}) if extra else EMPTY,
                )
            ]
        case "image_generation_call" if (image := _image(item)) is not None:
            return [image]
        case _:
            return [ProviderPart(PROVIDER, FrozenDict(item))]


def remainder(text: str, received: str) -> str:
    """Return *text* without the prefix *received*; empty if it has another prefix."""
    return text[len(received) :] if text.startswith(received) else ""


def refusal(text: str) -> ProviderPart:
    """Return a refusal in the same form as that of Chat Completions."""
    return ProviderPart(PROVIDER, FrozenDict({"refusal": text}), text)


PART_SEPARATOR = "\n\n"  # between the parts of a reasoning summary


def _image(item: Item) -> Media | None:
    """Return the image in *item*, or None if *item* could not be restored from it."""
    result = item.get("result") or ""
    try:
        image = base64.b64decode(result, validate=True)
    except binascii.Error:
        return None
    if not image or base64.b64encode(image).decode() != result:
        return None
    more = FrozenDict({PROVIDER: other_fields(item, ("result",))})
    return Media(f"image/{item.get('output_format') or 'png'}", image, metadata=more)
