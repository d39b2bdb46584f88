"""Converts messages, responses and errors to and from JSON values.

What is stored passes `chatclient.chat.stored_values` as well, which gives metadata its JSON form.
"""

import base64
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from chatclient._internal.frozen import FrozenDict, frozen
from chatclient.chat.messages import (
    AssistantMessage,
    Media,
    Message,
    Part,
    ProviderPart,
    Reasoning,
    SystemMessage,
    ToolCall,
    ToolCallChunk,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
)
from chatclient.chat.response import (
    ChatResponse,
    ChatResponseMetadata,
    Cost,
    Generation,
    RateLimit,
    Usage,
)
from chatclient.chat.stored_values import equal_form, from_stored, register_stored_type
from chatclient.chat.tool import ToolResult
from chatclient.errors import ChatClientError, RecordedError, UsageError


def message_to_dict(message: Message) -> dict[str, Any]:
    """Return *message* as JSON values, for `message_from_dict`."""
    result: dict[str, Any] = {"role": message.role}
    match message:
        case SystemMessage():
            result["content"] = message.content
        case UserMessage() | AssistantMessage():
            result["content"] = [_part_to_dict(part) for part in message.parts]
        case ToolResponseMessage():
            result["responses"] = [_response_to_dict(r) for r in message.responses]
        case _:
            msg = f"{type(message).__name__} is not a message of this library and cannot be stored"
            raise TypeError(msg)
    if message.metadata:
        result["metadata"] = dict(message.metadata)
    if message.id is not None:
        result["id"] = message.id
    if message.stored_at is not None:
        result["stored_at"] = message.stored_at.isoformat()
    return result


def message_from_dict(data: Mapping[str, Any], *, trusted: bool = True) -> Message:
    """Return the message in *data*, the result of `message_to_dict`.

    Args:
        data: The message.
        trusted: Whether to keep its metadata, parts of which have a meaning for the library and for
            providers, the data that providers get as they are, and its time of storing. Not for a
            message that a browser sends, for example; check the role of such a message, too. Its
            ids must be texts.

    Raises:
        UsageError: *data* is not a stored message; messages of Chat Completions have another form.
    """
    try:
        return _message_from(data if trusted else _untrusted(data))
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        msg = f"not a stored message: {error!r}"
        raise UsageError(msg) from error


def _untrusted(data: Any) -> Any:
    """Return *data*, a message or part, without what providers and the library take as it is."""
    if isinstance(data, list):
        return [_untrusted(item) for item in data if _type_of(item) != "provider"]
    if not isinstance(data, Mapping):
        return data
    if not isinstance(id := data.get("id"), str | None):
        msg = f"an id must be a text, not {id!r:.80}"
        raise TypeError(msg)
    left_out = {"metadata", "stored_at"}
    if _type_of(data) == "reasoning":
        left_out.add("data")
    return {
        key: _untrusted(value) if key in ("content", "responses", "media") else value
        for key, value in data.items()
        if key not in left_out
    }


def _type_of(item: Any) -> Any:
    return item.get("type") if isinstance(item, Mapping) else None


_ONLY_IN_CHAT_COMPLETIONS = frozenset({"tool_calls", "tool_call_id"})


def _message_from(data: Mapping[str, Any]) -> Message:
    if not _ONLY_IN_CHAT_COMPLETIONS.isdisjoint(data):
        msg = "messages of Chat Completions are read by messages_from_openai([...])"
        raise ValueError(msg)
    metadata, id, stored = data.get("metadata"), data.get("id"), data.get("stored_at")
    stored_at = None if stored is None else datetime.fromisoformat(stored)
    match data.get("role"):
        case "system":
            return SystemMessage(data["content"], frozen(metadata), id, stored_at)
        case "user":
            return UserMessage(
                _parts_from(data["content"]), metadata=metadata, id=id, stored_at=stored_at
            )
        case "assistant":
            return AssistantMessage(
                _parts_from(data["content"]), metadata=metadata, id=id, stored_at=stored_at
            )
        case "tool":
            responses = [_response_from_dict(r) for r in data["responses"]]
            return ToolResponseMessage(responses, metadata, id, stored_at)
        case role:
            raise LookupError(f"unknown role {role!r}")


def _part_to_dict(part: Part) -> Any:
    match part:
        case str():
            return part
        case Media():
            return _media_to_dict(part)
        case Reasoning():
            return {"type": "reasoning", **_fields(part)}
        case ToolCall():
            return {"type": "tool_call", **_fields(part)}
        case ToolCallChunk():
            return {"type": "tool_call_chunk", **_fields(part)}
        case ProviderPart():
            return {"type": "provider", **_fields(part)}
        case _:
            raise TypeError(f"{type(part).__name__} is not a part of a message")


def _fields(part: Any) -> dict[str, Any]:
    """Return the fields of *part* that differ from their defaults."""
    return {
        field.name: dict(value) if isinstance(value, Mapping) else value
        for field in fields(part)
        if (value := getattr(part, field.name)) != field.default
    }


_PART_KINDS: dict[str, type[Any]] = {
    "reasoning": Reasoning,
    "tool_call": ToolCall,
    "tool_call_chunk": ToolCallChunk,
    "provider": ProviderPart,
}


def _part_from(data: Any) -> Part:
    if isinstance(data, str):
        return data
    content = _content(data)
    if data["type"] == "media":
        return _media_from_dict(content)
    part: Part = _PART_KINDS[data["type"]](**content)
    return part


def _content(data: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: FrozenDict(value) if isinstance(value, Mapping) else value
        for key, value in data.items()
        if key != "type"
    }


def _parts_from(content: Any) -> list[Any]:
    return [content] if isinstance(content, str) else [_part_from(part) for part in content]


def _media_to_dict(media: Media) -> dict[str, Any]:
    content = _fields(media)
    data = content.pop("data")
    where = {"url": data} if media.is_url else {"base64": media.base64()}
    return {"type": "media", **where, **content}


def _media_from_dict(content: dict[str, Any]) -> Media:
    encoded = content.pop("base64", None)
    data = content.pop("url") if encoded is None else base64.b64decode(encoded)
    return Media(data=data, **content)


def _response_to_dict(response: ToolResponse) -> dict[str, Any]:
    result: dict[str, Any] = {"id": response.id, "name": response.name, "data": response.data}
    if response.is_error:
        result["is_error"] = True
    if response.media:
        result["media"] = [_media_to_dict(media) for media in response.media]
    if response.metadata:
        result["metadata"] = dict(response.metadata)
    return result


def _response_from_dict(data: Mapping[str, Any]) -> ToolResponse:
    media = tuple(_media_from_dict(_content(item)) for item in data.get("media", ()))
    return ToolResponse(
        id=data["id"],
        name=data["name"],
        data=data["data"],
        is_error=data.get("is_error", False),
        media=media,
        metadata=frozen(data.get("metadata")),
    )


# --- responses ------------------------------------------------------------------------------


def response_to_dict(response: ChatResponse) -> dict[str, Any]:
    """Return *response* as JSON values, for `response_from_dict`."""
    return {
        "generations": [
            {**_set_fields(generation), "output": message_to_dict(generation.output)}
            for generation in response.generations
        ],
        "metadata": _set_fields(response.metadata),
    }


def response_from_dict(data: Mapping[str, Any]) -> ChatResponse:
    """Return the response in *data*, the result of `response_to_dict`.

    Raises:
        UsageError: *data* is not a stored response.
    """
    try:
        fields = dict(data["metadata"])
        if "usage" in fields:
            fields["usage"] = usage_from_dict(fields["usage"])
        if "rate_limit" in fields:
            fields["rate_limit"] = RateLimit(**fields["rate_limit"])
        return ChatResponse(
            tuple(_generation_from(generation) for generation in data["generations"]),
            ChatResponseMetadata(**fields),
        )
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        msg = f"not a stored response: {error!r}"
        raise UsageError(msg) from error


def usage_to_dict(usage: Usage) -> dict[str, Any]:
    """Return *usage* as JSON values, for `usage_from_dict`."""
    return _set_fields(usage)


def usage_from_dict(data: Mapping[str, Any]) -> Usage:
    """Return the usage in *data*, the result of `usage_to_dict`."""
    cost = data.get("cost")
    if cost is None:
        return Usage(**data)
    return Usage(**{**data, "cost": Cost(**{**cost, "amount": Decimal(cost.get("amount", 0))})})


def _set_fields(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that differ from their defaults, as JSON values."""
    found: dict[str, Any] = {}
    for field in fields(value):
        item = getattr(value, field.name)
        if item == field.default or field.name == "output":
            continue
        if isinstance(item, Decimal):
            item = str(item)
        found[field.name] = _set_fields(item) if is_dataclass(item) else item
    return found


def _generation_from(data: Mapping[str, Any]) -> Generation:
    output = message_from_dict(data["output"])
    if not isinstance(output, AssistantMessage):
        msg = f"a generation of role {output.role!r}"
        raise TypeError(msg)
    return Generation(**{**data, "output": output})


# --- tool calls, their responses and results ------------------------------------------------


def call_to_dict(call: ToolCall) -> dict[str, Any]:
    """Return *call* as JSON values, for `call_from_dict`."""
    return {"type": "tool_call", **_fields(call)}


def call_from_dict(data: Mapping[str, Any]) -> ToolCall:
    """Return the call in *data*, the result of `call_to_dict`."""
    return ToolCall(**_content(data))


def tool_response_to_dict(response: ToolResponse) -> dict[str, Any]:
    """Return *response* as JSON values, for `tool_response_from_dict`."""
    return _response_to_dict(response)


def tool_response_from_dict(data: Mapping[str, Any]) -> ToolResponse:
    """Return the response in *data*, the result of `tool_response_to_dict`."""
    return _response_from_dict(data)


def tool_result_to_dict(result: ToolResult) -> dict[str, Any]:
    """Return *result* as JSON values; its value is None if nothing equal could be read again."""
    response = ToolResponse("", "", result.text, result.is_error, result.media, result.metadata)
    return {
        **_response_to_dict(response),
        "return_direct": result.return_direct,
        "value": equal_form(result.value),
    }


def tool_result_from_dict(data: Mapping[str, Any]) -> ToolResult:
    """Return the result in *data*, the result of `tool_result_to_dict`."""
    # Older records have null for metadata without a JSON form.
    response = _response_from_dict({**data, "metadata": data.get("metadata") or {}})
    return ToolResult(
        response.data,
        response.media,
        response.is_error,
        response.metadata,
        from_stored(data["value"]),
        data["return_direct"],
    )


# --- errors ---------------------------------------------------------------------------------


def error_to_dict(error: BaseException) -> dict[str, Any]:
    """Return *error* as JSON values, for `error_from_dict`.

    Attributes are None if nothing equal could be read again.
    """
    kind = type(error)
    attributes = {name: equal_form(value) for name, value in vars(error).items() if name != "trail"}
    return {
        "module": kind.__module__,
        "name": kind.__qualname__,
        "message": str(error.args[0]) if error.args else str(error),
        "attributes": attributes,
    }


def error_from_dict(data: Mapping[str, Any]) -> Exception:
    """Return the error in *data*, the result of `error_to_dict`.

    It has the class of the original error if a loaded module defines it; otherwise it is a
    `RecordedError`. Nothing is imported, and no constructor is called.
    """
    found: Any = sys.modules.get(data["module"])
    for part in data["name"].split("."):
        found = getattr(found, part, None)
    message = data["message"]
    if not (isinstance(found, type) and issubclass(found, Exception)):
        return RecordedError(f"{data['name']}: {message}", kind=f"{data['module']}.{data['name']}")
    error = found.__new__(found)
    error.args = (message,)
    attributes = from_stored(data["attributes"])
    if isinstance(error, ChatClientError):  # their sequences are tuples
        attributes = {k: tuple(v) if isinstance(v, list) else v for k, v in attributes.items()}
    vars(error).update(attributes)
    return error


for _kind in (SystemMessage, UserMessage, AssistantMessage, ToolResponseMessage):
    register_stored_type(_kind, f"{_kind.role} message", message_to_dict, message_from_dict)
_PARTS: tuple[type[Any], ...] = (Media, Reasoning, ToolCall, ToolCallChunk, ProviderPart)
for _part in _PARTS:
    register_stored_type(_part, _part.__name__, _part_to_dict, _part_from)
register_stored_type(ToolResponse, "tool response", _response_to_dict, _response_from_dict)
register_stored_type(Usage, "usage", usage_to_dict, usage_from_dict)
