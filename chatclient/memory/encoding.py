"""Encodes stored data: digests of ids, texts for databases, and JSON of messages."""

import hashlib
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from chatclient._internal.json import dumps, has_json_form, loads
from chatclient.chat.messages import Message
from chatclient.chat.serialization import message_from_dict, message_to_dict
from chatclient.errors import ChatMemoryError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def microseconds(moment: datetime) -> int:
    """Return *moment* in microseconds since 1970."""
    return (moment - _EPOCH) // _MICROSECOND


def moment_of(number: int) -> datetime:
    """Return the time *number*, in microseconds since 1970."""
    return _EPOCH + number * _MICROSECOND


def digest(text: str) -> str:
    """Return the SHA-256 of *text*: a key of fixed length that any database compares exactly."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def entry_digest(name: str, value: str) -> str:
    """Return the key of an index for metadata *name* with the text *value*."""
    return digest(dumps([name, value]).decode())


def storable(text: str) -> str:
    """Return *text* in a form that every database can store; `restored` is the inverse.

    Usually that is *text* itself. PostgreSQL does not store NUL, and no database stores lone
    surrogates; such a text becomes a JSON string, as does one that begins with a quote.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        plain = False
    else:
        plain = "\0" not in text and not text.startswith('"')
    return text if plain else dumps(text).decode()


def restored(text: str) -> str:
    """Return the text that `storable` encoded."""
    return str(loads(text)) if text.startswith('"') else text


def message_json(message: Message, conversation_id: str) -> str:
    """Return *message* as JSON; *conversation_id* is for the error.

    Raises:
        ChatMemoryError: The message contains a value without a JSON form.
    """
    return as_json(message_to_dict(message), f"the {message.role} message", conversation_id)


def message_of(stored: str | bytes) -> Message:
    """Return the message that `message_json` encoded.

    Raises:
        ValueError: *stored* is not such JSON.
    """
    return message_from_dict(loads(stored))


def messages_of(stored: Iterable[str | bytes], conversation_id: str) -> tuple[Message, ...]:
    """Return the messages of a conversation.

    Raises:
        ChatMemoryError: One of them cannot be decoded.
    """
    try:
        return tuple(map(message_of, stored))
    except ValueError as error:
        msg = f"the stored messages of conversation {conversation_id!r} cannot be read"
        raise ChatMemoryError(msg, conversation_id=conversation_id) from error


def as_json(value: Mapping[str, Any], name: str, conversation_id: str) -> str:
    """Return *value* as JSON.

    Args:
        value: The data to store.
        name: Its name in the error message.
        conversation_id: The conversation or session that contains it, for the error.

    Raises:
        ChatMemoryError: It contains a value without a JSON form.
    """
    try:
        return dumps(value).decode()
    except TypeError as error:
        path, culprit = _find_unserializable(value)
        msg = (
            f"{name} cannot be stored: {path} is of type {type(culprit).__name__}, "
            "which has no JSON form; use texts, numbers, truth values, and lists and mappings of "
            "these"
        )
        raise ChatMemoryError(msg, conversation_id=conversation_id) from error


def _find_unserializable(value: Any) -> tuple[str, Any]:
    """Return the path to the innermost value in *value* without a JSON form, and that value."""
    path = ""
    seen: set[int] = set()
    while id(value) not in seen:  # a value may contain itself
        seen.add(id(value))
        for key, item in _items(value):
            if not has_json_form(item):
                path += f"[{key!r}]" if path else str(key)
                value = item
                break
    return path, value


def _items(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return value.items()
    return enumerate(value) if isinstance(value, list | tuple) else ()
