"""Encodes messages and their media for Chat Completions; no I/O."""

import hashlib
import mimetypes
import re
from collections.abc import Mapping
from functools import partial
from itertools import takewhile
from typing import Any

from chatclient.chat.messages import (
    AssistantMessage,
    Media,
    Message,
    ProviderPart,
    Reasoning,
    SystemMessage,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
)
from chatclient.errors import UsageError
from chatclient.providers.openai.dialect import REASONING_FIELD, Dialect
from chatclient.providers.openai.reasoning import FIELDS, reasoning_item, tagged_text
from chatclient.providers.wire.fields import (
    arguments_json,
    base64_of,
    encode_tool_media,
    is_inline,
    unsupported_message,
    valid_tool_name,
)

_ACKNOWLEDGEMENT = AssistantMessage("I have the results.")


def prepare_messages(messages: tuple[Message, ...], dialect: Dialect) -> tuple[Message, ...]:
    """Return *messages* in a sequence of roles that the server accepts."""
    if dialect.one_system_message:
        messages = _with_one_system_message(messages)
    if dialect.user_after_tool:
        return messages
    result: list[Message] = []
    for message in messages:
        follows_results = bool(result) and isinstance(result[-1], ToolResponseMessage)
        if follows_results and isinstance(message, UserMessage):
            result.append(_ACKNOWLEDGEMENT)
        result.append(message)
    return tuple(result)


def _with_one_system_message(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    first = tuple(takewhile(lambda message: isinstance(message, SystemMessage), messages))
    # Metadata may contain a cache breakpoint.
    if len(first) < 2 or any(message.metadata for message in first):  # noqa: PLR2004
        return messages
    return (SystemMessage("\n\n".join(message.text for message in first)), *messages[len(first) :])


def encode_message(message: Message, dialect: Dialect) -> list[dict[str, Any]]:
    """Return *message* as JSON objects; each tool response becomes a message.

    The message's metadata may contain the speaker's `name`, and `cache_control`, a prompt-cache
    breakpoint that gateways forward to Anthropic's models.
    """
    elements = _elements(message, dialect)
    if not message.metadata.keys().isdisjoint(("name", "cache_control")) and elements:
        element = elements[-1]
        name, breakpoint_ = message.metadata.get("name"), message.metadata.get("cache_control")
        if isinstance(name, str) and name and element["role"] != "tool":
            element = {"name": _NOT_IN_NAMES.sub("_", name)[:64], **element}
        content = element["content"]
        if breakpoint_ and content and dialect.takes_cache_control:
            parts = [_text(content)] if isinstance(content, str) else content
            last = {**parts[-1], "cache_control": breakpoint_}
            element = {**element, "content": [*parts[:-1], last]}
        elements[-1] = element
    return elements


_NOT_IN_NAMES = re.compile(r"[\s<|\\/>]+")


def _elements(message: Message, dialect: Dialect) -> list[dict[str, Any]]:
    match message:
        case SystemMessage():
            return [
                {
                    "role": message.metadata.get("role", dialect.system_role),
                    "content": message.content,
                }
            ]
        case UserMessage():
            return [_user(message, dialect)]
        case AssistantMessage():
            return [_assistant(message, dialect)]
        case ToolResponseMessage():
            elements: list[dict[str, Any]] = [
                {
                    "role": "tool",
                    "tool_call_id": _call_id(response.id, dialect),
                    "content": response.data,
                }
                for response in message.responses
            ]
            if dialect.names_tools:
                for element, response in zip(elements, message.responses, strict=True):
                    element["name"] = response.name
            media = [part for r in message.responses for part in _media_content(r, dialect)]
            if media and not dialect.user_after_tool:
                elements.append(_assistant(_ACKNOWLEDGEMENT, dialect))
            # A tool message can only contain text; media follow in a user message.
            return [*elements, {"role": "user", "content": media}] if media else elements
        case _:
            raise unsupported_message(message)


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _user(message: UserMessage, dialect: Dialect) -> dict[str, Any]:
    body: dict[str, Any] = {"role": "user", "content": ""}
    if len(message.parts) == 1 and isinstance(message.parts[0], str):
        body["content"] = message.parts[0]
        return body
    content: list[dict[str, Any]] = []
    for part in message.parts:
        if isinstance(part, ProviderPart) and part.provider == dialect.provider:
            # A content part of the provider's, or message fields such as `name`.
            if "type" in part.data:
                content.append(dict(part.data))
            else:
                body.update(part.data)
        elif isinstance(part, Media):
            content.append(media_part(part, dialect))
        elif text := part if isinstance(part, str) else part.text:
            content.append(_text(text))
    if content:
        body["content"] = content
    return body


def _assistant(message: AssistantMessage, dialect: Dialect) -> dict[str, Any]:
    text, fields = _text_and_fields(message, dialect)
    tagged = tagged_text(message.parts, dialect.provider)
    content: Any = tagged + text or None
    # Reasoning is sent back in one of four ways, or not: OpenAI itself takes none here.
    if tagged:
        pass  # 1. in tags, as part of the text
    elif dialect.reasoning_field == "content":
        content = _content_with_thinking(message, dialect) or content  # 2. as Mistral's parts
    elif dialect.reasoning_field and (message.reasoning or dialect.needs_reasoning):
        items = [reasoning_item(r) for r in message.reasoning if r.provider == dialect.provider]
        if items := [dict(item) for item in items if item is not None]:
            content = [*items, _text(text)] if text else items  # 3. as Databricks' parts
        elif fields.keys().isdisjoint(FIELDS):
            fields.update(_reasoning_field(message, dialect))  # 4. in a field of the message
    if calls := message.tool_calls:
        fields["tool_calls"] = [_tool_call(call, dialect) for call in calls]
    elif content is None and not fields.keys() & {"refusal", "audio"}:
        content = ""
    return {"role": "assistant", "content": content, **fields}


def _text_and_fields(message: AssistantMessage, dialect: Dialect) -> tuple[str, dict[str, Any]]:
    """Return the text of a message, and the parts that become separate fields."""
    texts: list[str] = []
    fields: dict[str, Any] = {}
    for part in message.parts:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, ProviderPart):
            returned = _returned_fields(part, dialect)
            for name, value in returned.items():
                old = fields.get(name)
                if isinstance(old, str) and isinstance(value, str):
                    fields[name] = old + value
                elif isinstance(old, list | tuple) and isinstance(value, list | tuple):
                    fields[name] = [*old, *value]
                elif isinstance(old, Mapping) and isinstance(value, Mapping):
                    fields[name] = {**old, **value}
                else:
                    fields[name] = value
            if not returned:
                texts.append(part.text)
    # The text of an audio answer is its transcript, which the server has.
    return "" if "audio" in fields else "".join(texts), fields


def _returned_fields(part: ProviderPart, dialect: Dialect) -> dict[str, Any]:
    """Return the fields of a part that the server expects back."""
    if part.provider != dialect.provider or "type" in part.data:  # a content part has a type
        return {}
    return {name: value for name, value in part.data.items() if name in dialect.resent_fields}


def _reasoning_field(message: AssistantMessage, dialect: Dialect) -> dict[str, str]:
    """Return the reasoning in the field that the server expects."""
    name = dialect.reasoning_field
    if name == "received":
        name = message.metadata.get(REASONING_FIELD)
    if name is None:
        return {}
    texts = [r.text for r in message.reasoning if r.provider in ("", dialect.provider)]
    return {name: "".join(texts)} if texts or dialect.needs_reasoning else {}


def _content_with_thinking(message: AssistantMessage, dialect: Dialect) -> list[dict[str, Any]]:
    """Return the message as content parts including reasoning; empty if it has only text."""
    content: list[dict[str, Any]] = []
    for part in message.parts:
        if isinstance(part, Reasoning) and part.provider in ("", dialect.provider):
            thinking = {"type": "thinking", "thinking": [_text(part.text)]}
            content.append(dict(part.data) if part.data else thinking)
        elif isinstance(part, ProviderPart):
            is_native = part.provider == dialect.provider and "type" in part.data
            text_parts = [_text(part.text)] if part.text else []
            content.extend([dict(part.data)] if is_native else text_parts)
        elif isinstance(part, str) and part:
            content.append(_text(part))
    return [] if all(part["type"] == "text" for part in content) else content


def _tool_call(call: ToolCall, dialect: Dialect) -> dict[str, Any]:
    id, name, metadata = _call_id(call.id, dialect), valid_tool_name(call.name), call.metadata
    if metadata.get("type") == "custom":
        custom = {"name": name, "input": call.arguments}
        return {"id": id, "type": "custom", "custom": custom}
    if dialect.parses_arguments:  # chat templates of many models parse them
        arguments = arguments_json(call.arguments)
    else:
        arguments = call.arguments.strip() or "{}"
    function = {"name": name, "arguments": arguments}
    body: dict[str, Any] = {"id": id, "type": "function", "function": function}
    if "extra_content" in metadata and "extra_content" in dialect.resent_fields:
        body["extra_content"] = metadata["extra_content"]
    return body


def _call_id(id: str, dialect: Dialect) -> str:
    """Return the id of a call in the form that the server accepts; deterministic."""
    length = dialect.call_id_length
    if length is None:
        return shorten_id(id, dialect.max_call_id_length)
    if len(id) == length and id.isalnum() and id.isascii():
        return id
    return _digest(id, length)


def shorten_id(id: str, max_length: int | None) -> str:
    """Return *id*, or a digest of it if it is longer than *max_length*."""
    return id if max_length is None or len(id) <= max_length else _digest(id, max_length)


def _digest(id: str, length: int) -> str:
    return hashlib.sha256(id.encode()).hexdigest()[:length]


def _media_content(response: ToolResponse, dialect: Dialect) -> list[dict[str, Any]]:
    if not response.media:
        return []
    introduction = f"Content returned by tool {response.name} (call {response.id}):"
    media, errors = encode_tool_media(response.media, partial(media_part, dialect=dialect))
    return [_text(introduction), *media, *map(_text, errors)]


def media_part(media: Media, dialect: Dialect) -> dict[str, Any]:
    """Return *media* as a content part, or raise `UsageError` if the server does not accept it."""
    kind = media.mime_type.partition("/")[0]
    known = dialect.inline_types
    if known and kind in ("image", "audio") and is_inline(media) and media.mime_type not in known:
        raise UsageError(f"{_rejection(media, dialect)}; convert it")
    if kind == "image":
        detail = {key: media.metadata[key] for key in ("detail",) if key in media.metadata}
        return {"type": "image_url", "image_url": {"url": _url(media, dialect), **detail}}
    if kind == "audio" and (content := base64_of(media)) is not None:
        subtype = media.mime_type.partition("/")[2]
        audio = {
            "data": content,
            "format": {"mpeg": "mp3", "x-wav": "wav", "wave": "wav", "vnd.wave": "wav"}.get(
                subtype, subtype
            ),
        }
        return {"type": "input_audio", "input_audio": audio}
    if kind == "video" and (name := dialect.video_field) is not None:
        return {"type": name, name: {"url": _url(media, dialect)}}
    if dialect.document_field == "document_url":
        return {"type": "document_url", "document_url": _url(media, dialect)}
    if media.id is not None:
        return {"type": "file", "file": {"file_id": media.id}}
    if not dialect.documents_by_url and not is_inline(media):
        raise UsageError(f"{_rejection(media, dialect)} by its URL in {_alternative(kind)}")
    return {"type": "file", "file": {"filename": file_name(media), "file_data": media.url()}}


def _url(media: Media, dialect: Dialect) -> str:
    if url := media.url():
        return url
    kind = media.mime_type.partition("/")[0]
    raise UsageError(f"{_rejection(media, dialect)} by its id in {_alternative(kind)}")


def _rejection(media: Media, dialect: Dialect) -> str:
    return f"{dialect.provider} takes no {media.mime_type}"


def _alternative(kind: str) -> str:
    # The Responses API accepts neither audio nor video.
    other = "" if kind in ("audio", "video") else ", or ask through the Responses API"
    return f"Chat Completions; send the bytes{other}"


def file_name(media: Media) -> str:
    """Return the file name; the provider reads the type from its extension."""
    return media.name or f"file{mimetypes.guess_extension(media.mime_type) or ''}"
