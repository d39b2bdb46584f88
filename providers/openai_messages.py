"""Conversations as Chat Completions write them, in which other programs keep theirs; no I/O."""

import base64
import mimetypes
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

from chatclient.checks import check_kind
from chatclient.errors import UsageError
from chatclient.messages import (
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
from chatclient.providers.fields import MISSHAPEN
from chatclient.providers.openai_decoding import message_of
from chatclient.providers.openai_dialect import OPENAI
from chatclient.providers.openai_encoding import encode_message
from chatclient.values import EMPTY, FrozenDict


def messages_to_openai(messages: Message | Iterable[Message]) -> list[dict[str, Any]]:
    """Return *messages* as OpenAI is sent them, each result of a tool as a message of its own.

    What that form has no place for is left out: the model's thoughts, and metadata. To store
    messages with all that they have, see `chatclient.serialization.message_to_dict`.

    Raises:
        WrongTypeError: One of them is not a message.
        UsageError: One has media that Chat Completions do not take.
    """
    return [body for message in as_messages(messages) for body in encode_message(message, OPENAI)]


def messages_from_openai(messages: Iterable[Mapping[str, Any]]) -> list[Message]:
    """Return the conversation that *messages* of Chat Completions are.

    Results that follow one another become one message, and are named after their calls.

    Raises:
        WrongTypeError: One of them is no mapping.
        UsageError: One is not of that form; the error says which.
    """
    check_kind("a conversation of Chat Completions", messages, Iterable, "put messages into a list")
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
    check_kind(f"message {at} of Chat Completions", body, Mapping)
    return body.get("role")


def _message(at: int, body: Mapping[str, Any]) -> Message:
    reader = _READERS.get(body.get("role"))
    if reader is None:
        msg = f"its role must be one of {[*_READERS, 'tool']}, not {body.get('role')!r}"
        raise _misshapen(at, msg)
    try:
        return reader(body)
    except MISSHAPEN as error:
        raise _misshapen(at, error) from error


def _system(body: Mapping[str, Any]) -> SystemMessage:
    role = body["role"]
    metadata = EMPTY if role == "system" else FrozenDict({"role": role})
    return SystemMessage(_text(body["content"]), metadata)


def _user(body: Mapping[str, Any]) -> UserMessage:
    content, name = body["content"], body.get("name")
    parts = [content] if isinstance(content, str) else [_part(part) for part in content]
    return UserMessage(parts, metadata={"name": name} if name else None)


def _assistant(body: Mapping[str, Any]) -> AssistantMessage:
    message = message_of(body, OPENAI.provider)
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
        shown = [] if isinstance(content, str) else [part for part in content if _shows(part)]
        media = tuple(_image(part["image_url"]) for part in shown)
        return ToolResponse(id, name, _text(content), media=media)
    except MISSHAPEN as error:
        raise _misshapen(at, error) from error


def _misshapen(at: int, error: object) -> UsageError:
    why = f"there is no {error}" if isinstance(error, KeyError) else error
    return UsageError(f"message {at} is not one of Chat Completions: {why}")


# --- content --------------------------------------------------------------------------------


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content if not _shows(part))


def _shows(part: Mapping[str, Any]) -> bool:
    shows: bool = part["type"] == "image_url"
    return shows


def _part(part: Mapping[str, Any]) -> str | Media | ProviderPart:
    """Return a part of the content; what only the provider knows stays as it is."""
    kind = part["type"]
    if kind == "text" and part.keys() <= {"type", "text"}:
        text: str = part["text"]
        return text
    if kind == "image_url":
        return _image(part[kind])
    if kind == "input_audio":
        return _sound(part[kind])
    if kind == "file" and part[kind].get("file_data"):
        file = part[kind]
        return _media(file["file_data"], "application/pdf", name=file.get("filename"))
    return ProviderPart(OPENAI.provider, FrozenDict(part), part.get("text") or "")


def _image(image: Any) -> Media:
    said = {"url": image} if isinstance(image, str) else dict(image)
    return _media(said.pop("url"), "image/png", metadata=FrozenDict(said))


def _sound(sound: Mapping[str, Any]) -> Media:
    form = sound["format"]
    return Media(f"audio/{_SOUNDS.get(form, form)}", base64.b64decode(sound["data"]))


_SOUNDS = {"mp3": "mpeg"}


def _media(url: str, otherwise: str, **more: Any) -> Media:
    """Return what is behind a URL, or in it; *otherwise* is its type if nothing tells."""
    head, is_here, content = url.partition(";base64,")
    if is_here:
        return Media(head.removeprefix("data:") or otherwise, base64.b64decode(content), **more)
    return Media(mimetypes.guess_type(url.partition("?")[0])[0] or otherwise, url, **more)
