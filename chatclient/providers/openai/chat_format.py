"""Converts conversations from and to the JSON of Chat Completions; no I/O."""

import base64
import mimetypes
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

from chatclient._internal.checks import check_type
from chatclient._internal.frozen import EMPTY, FrozenDict
from chatclient.chat.messages import (
    AssistantMessage,
    Media,
    Message,
    ProviderPart,
    SystemMessage,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
    as_messages,
)
from chatclient.errors import UsageError
from chatclient.providers.openai.chat_decoding import decode_message
from chatclient.providers.openai.chat_encoding import encode_message
from chatclient.providers.openai.dialect import OPENAI
from chatclient.providers.wire.fields import MALFORMED


def messages_to_openai(messages: Message | Iterable[Message]) -> list[dict[str, Any]]:
    """Return *messages* in OpenAI's format, with one message per tool result.

    The format has no fields for reasoning and metadata. To store complete messages, see
    `chatclient.chat.serialization.message_to_dict`.

    Raises:
        WrongTypeError: An item is not a message.
        UsageError: A message has media that Chat Completions do not accept.
    """
    return [body for message in as_messages(messages) for body in encode_message(message, OPENAI)]


def messages_from_openai(messages: Iterable[Mapping[str, Any]]) -> list[Message]:
    """Return *messages* in OpenAI's format as message objects.

    Consecutive tool results become one message; their names are taken from the tool calls.

    Raises:
        WrongTypeError: An item is not a mapping.
        UsageError: A message is malformed; the error contains its index.
    """
    check_type("a conversation of Chat Completions", messages, Iterable, "put messages into a list")
    return list(_read(enumerate(messages)))


def _read(messages: Iterable[tuple[int, Mapping[str, Any]]]) -> Iterator[Message]:
    names: dict[str, str] = {}
    for is_result, group in groupby(messages, key=lambda each: _role(*each) == "tool"):
        if is_result:
            yield ToolResponseMessage([_result(at, body, names) for at, body in group])
            continue
        for at, body in group:
            message = _message(at, body)
            if isinstance(message, AssistantMessage):
                names.update((call.id, call.name) for call in message.tool_calls)
            yield message


def _role(at: int, body: Mapping[str, Any]) -> Any:
    check_type(f"message {at} of Chat Completions", body, Mapping)
    return body.get("role")


def _message(at: int, body: Mapping[str, Any]) -> Message:
    reader = _READERS.get(body.get("role"))
    if reader is None:
        msg = f"its role must be one of {[*_READERS, 'tool']}, not {body.get('role')!r}"
        raise _malformed(at, msg)
    try:
        return reader(body)
    except MALFORMED as error:
        raise _malformed(at, error) from error


def _system(body: Mapping[str, Any]) -> SystemMessage:
    role = body["role"]
    metadata = EMPTY if role == "system" else FrozenDict({"role": role})
    return SystemMessage(_text(body["content"]), metadata)


def _user(body: Mapping[str, Any]) -> UserMessage:
    content, name = body["content"], body.get("name")
    parts = [content] if isinstance(content, str) else [_part(part) for part in content]
    return UserMessage(parts, metadata={"name": name} if name else None)


def _assistant(body: Mapping[str, Any]) -> AssistantMessage:
    message = decode_message(body, OPENAI.provider)
    if not all(call.name for call in message.tool_calls):
        msg = "a tool call has no name"
        raise ValueError(msg)
    return message


_READERS: Mapping[Any, Callable[[Mapping[str, Any]], Message]] = {
    "system": _system,
    "developer": _system,
    "user": _user,
    "assistant": _assistant,
}


def _result(at: int, body: Mapping[str, Any], names: Mapping[str, str]) -> ToolResponse:
    try:
        id, content = body["tool_call_id"], body["content"]
        name = names.get(id) or body.get("name") or ""
        images = [] if isinstance(content, str) else [part for part in content if _is_image(part)]
        media = tuple(_image(part["image_url"]) for part in images)
        return ToolResponse(id, name, _text(content), media=media)
    except MALFORMED as error:
        raise _malformed(at, error) from error


def _malformed(at: int, error: object) -> UsageError:
    why = f"there is no {error}" if isinstance(error, KeyError) else error
    return UsageError(f"message {at} is not one of Chat Completions: {why}")


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content if not _is_image(part))


def _is_image(part: Mapping[str, Any]) -> bool:
    return bool(part["type"] == "image_url")


def _part(part: Mapping[str, Any]) -> str | Media | ProviderPart:
    """Return a content part; unknown types become a `ProviderPart`."""
    kind = part["type"]
    if kind == "text" and part.keys() <= {"type", "text"}:
        text: str = part["text"]
        return text
    if kind == "image_url":
        return _image(part[kind])
    if kind == "input_audio":
        audio = part[kind]
        subtype = {"mp3": "mpeg"}.get(audio["format"], audio["format"])
        return Media(f"audio/{subtype}", base64.b64decode(audio["data"]))
    if kind == "file" and part[kind].get("file_data"):
        file = part[kind]
        return _media(file["file_data"], "application/pdf", name=file.get("filename"))
    return ProviderPart(OPENAI.provider, FrozenDict(part), part.get("text") or "")


def _image(image: Any) -> Media:
    fields = {"url": image} if isinstance(image, str) else dict(image)
    return _media(fields.pop("url"), "image/png", metadata=FrozenDict(fields))


def _media(url: str, default: str, **details: Any) -> Media:
    """Return the media of a URL or `data:` URL; *default* is its type if the URL has none."""
    head, is_data, content = url.partition(";base64,")
    if is_data:
        return Media(head.removeprefix("data:") or default, base64.b64decode(content), **details)
    return Media(mimetypes.guess_type(url.partition("?")[0])[0] or default, url, **details)
