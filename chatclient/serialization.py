"""Messages as JSON values, both ways; how memory stores them."""

import base64
from collections.abc import Mapping
from typing import Any

from chatclient.errors import UsageError
from chatclient.messages import (
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
from chatclient.values import EMPTY, FrozenDict, frozen


def message_to_dict(message: Message) -> dict[str, Any]:
    """Return *message* as JSON values, from which `message_from_dict` makes an equal one."""
    result: dict[str, Any] = {"role": message.role}
    match message:
        case SystemMessage():
            result["content"] = message.content
        case UserMessage() | AssistantMessage():
            result["content"] = [_part_to_dict(part) for part in message.parts]
        case ToolResponseMessage():
            result["responses"] = [_response_to_dict(r) for r in message.responses]
        case _:
            msg = f"{type(message).__name__} is no message of this library and cannot be stored"
            raise TypeError(msg)
    if message.metadata:
        result["metadata"] = dict(message.metadata)
    return result


def message_from_dict(data: Mapping[str, Any]) -> Message:
    """Return the message that `message_to_dict` wrote.

    Raises:
        UsageError: *data* is no stored message.
    """
    metadata = data.get("metadata")
    try:
        match data.get("role"):
            case "system":
                return SystemMessage(data["content"], frozen(metadata))
            case "user":
                return UserMessage(_parts_from(data["content"]), metadata=metadata)
            case "assistant":
                return AssistantMessage(_parts_from(data["content"]), metadata=metadata)
            case "tool":
                responses = [_response_from_dict(r) for r in data["responses"]]
                return ToolResponseMessage(responses, metadata)
            case role:
                msg = f"no stored message: unknown role {role!r}"
                raise UsageError(msg)
    except (KeyError, TypeError) as error:
        msg = f"no stored message: {error!r}"
        raise UsageError(msg) from error


def _part_to_dict(part: Part) -> Any:
    match part:
        case str():
            return part
        case Media():
            return _media_to_dict(part)
        case Reasoning(text, signature, provider, data):
            content = {"text": text, "signature": signature, "provider": provider, "data": data}
            return _stored("reasoning", content)
        case ToolCall(id, name, arguments, metadata):
            content = {"id": id, "name": name, "arguments": arguments, "metadata": metadata}
            return {"type": "tool_call", **_without_defaults(content, ("metadata",))}
        case ToolCallChunk(index, id, name, arguments, metadata):
            content = {"id": id, "name": name, "arguments": arguments, "metadata": metadata}
            return _stored("tool_call_chunk", {"index": index, **content})
        case ProviderPart(provider, data, text):
            return _stored("provider", {"provider": provider, "data": data, "text": text})


def _stored(kind: str, content: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, **_without_defaults(content, tuple(content))}


def _without_defaults(content: dict[str, Any], optional: tuple[str, ...]) -> dict[str, Any]:
    return {
        key: dict(value) if isinstance(value, Mapping) else value
        for key, value in content.items()
        if key not in optional or (value is not None and value not in ("", EMPTY))
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
    content = {
        key: FrozenDict(value) if isinstance(value, Mapping) else value
        for key, value in data.items()
        if key != "type"
    }
    if data["type"] == "media":
        return _media_from_dict(content)
    part: Part = _PART_KINDS[data["type"]](**content)
    return part


def _parts_from(content: Any) -> list[Any]:
    return [content] if isinstance(content, str) else [_part_from(part) for part in content]


def _media_to_dict(media: Media) -> dict[str, Any]:
    where = {"url": media.data} if isinstance(media.data, str) else {"base64": media.base64()}
    content = {"id": media.id, "name": media.name, "metadata": media.metadata}
    return {"type": "media", "mime_type": media.mime_type, **where, **_stored("media", content)}


def _media_from_dict(content: dict[str, Any]) -> Media:
    content.pop("type", None)
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
    media = tuple(_media_from_dict(dict(item)) for item in data.get("media", ()))
    return ToolResponse(
        id=data["id"],
        name=data["name"],
        data=data["data"],
        is_error=data.get("is_error", False),
        media=media,
        metadata=frozen(data.get("metadata")),
    )
