"""Reads and validates JSON fields of requests and responses, and encodes media."""

import base64
import re
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, TypeVar

from chatclient._internal.frozen import EMPTY, FrozenDict
from chatclient._internal.json import dumps, dumps_exact, loads
from chatclient._internal.json_repair import repair_json
from chatclient.chat.messages import Media
from chatclient.chat.options import ChatOptions
from chatclient.errors import UsageError

_T = TypeVar("_T")


def option_fields(
    options: ChatOptions, names: Mapping[str, str], unsupported: Container[str] = ()
) -> dict[str, Any]:
    """Return the *options* that are set and not *unsupported*, under the API's *names*."""
    return {
        field: value
        for name, field in names.items()
        if name not in unsupported
        and (value := getattr(options, name, None)) is not None
        and value != ()
    }


def parse_object(text: str | bytes) -> dict[str, Any] | None:
    """Return the JSON object in *text*, or None if it is not a JSON object."""
    try:
        value = loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def unsupported_message(message: object) -> UsageError:
    """Return the error for a message class that no provider can send."""
    return UsageError(f"{type(message).__name__} is not a kind of message that can be sent")


def arguments_object(text: str) -> dict[str, Any]:
    """Return the arguments of an earlier tool call as an object.

    Services reject every later request of a conversation that contains anything else. Invalid JSON
    is repaired if possible; otherwise the text becomes the value of a field.
    """
    arguments = parse_object(text) if text.strip() else {}
    if arguments is None:
        arguments = parse_object(repair_json(text) or "")
    return {"malformed_arguments": text} if arguments is None else arguments


def arguments_json(text: str) -> str:
    """Return the arguments of an earlier tool call as a JSON object; valid JSON is unchanged."""
    text = text.strip() or "{}"
    return text if parse_object(text) is not None else dumps(arguments_object(text)).decode()


_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")
_MAX_NAME_LENGTH = 64


def valid_tool_name(name: str) -> str:
    """Return the *name* of an earlier tool call with invalid characters replaced.

    Models may invent names such as `functions.add`, and services reject every later request of a
    conversation that contains one.
    """
    return _NOT_IN_NAMES.sub("_", name)[:_MAX_NAME_LENGTH] or "unknown"


def dump_arguments(value: Any) -> str:
    """Return the arguments of a call, received as JSON text, as an object or missing, as JSON."""
    return value if isinstance(value, str) and value else dumps_exact(value or {})


MALFORMED = (AttributeError, IndexError, KeyError, TypeError, ValueError)
"""Errors raised while a malformed response is decoded."""


def text_field(value: Any) -> str:
    """Return the value of an optional text field (empty if missing), or raise `TypeError`."""
    if type(value) is str:
        return value
    if value:
        msg = f"{value!r:.80} is not a text"
        raise TypeError(msg)
    return ""


def int_field(value: Any) -> int | None:
    """Return the value of an optional integer field, which may be sent as text."""
    if value is None or type(value) is int:
        return value
    if isinstance(value, str):
        return int(value) if value else None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    msg = f"{value!r:.80} is not a number"
    raise TypeError(msg)


def other_fields(data: Mapping[str, Any], known: Container[str]) -> Mapping[str, Any]:
    """Return the fields of *data* that are neither *known* nor null."""
    rest = {key: value for key, value in data.items() if value is not None and key not in known}
    return FrozenDict(rest) if rest else EMPTY


_DIGITS = 18


def parse_count(text: str) -> int | None:
    """Return *text*, such as a header, as a number, or None if it is not a number."""
    return int(text) if len(text) <= _DIGITS and text.isascii() and text.isdigit() else None


def base64_of(media: Media) -> str | None:
    """Return the content of *media* as base64, or None if it has only a URL or id."""
    if not isinstance(media.data, str):
        return media.base64()
    head, is_encoded, content = media.data.partition(";base64,")
    return content if is_encoded and head.startswith("data:") else None


_COMPLETE = re.compile("[^=]+=*")


def join_base64(pieces: Iterable[str]) -> str:
    """Return the base64 of what *pieces* encode together: a text in pieces, or several texts."""
    complete = _COMPLETE.findall("".join(pieces))
    if len(complete) < 2:  # noqa: PLR2004 - only the last piece has padding, if any
        return "".join(complete)
    return base64.b64encode(b"".join(map(base64.b64decode, complete))).decode()


def encode_tool_media(
    media: Iterable[Media], encode: Callable[[Media], _T]
) -> tuple[list[_T], list[str]]:
    """Return the encoded media of a tool result, and messages about those that the API rejects.

    Rejected media (for which *encode* raises `UsageError`) are no error, because that would fail
    every later request of the conversation.
    """
    encoded: list[_T] = []
    messages: list[str] = []
    for item in media:
        try:
            encoded.append(encode(item))
        except UsageError as error:
            messages.append(f"[{item.name or item.mime_type} cannot be shown: {error}]")
    return encoded, messages


def is_inline(media: Media) -> bool:
    """Return whether *media* contains its content, as bytes or a `data:` URL."""
    return not isinstance(media.data, str) or media.data.startswith("data:")
