"""What stores keep: digests as keys, and JSON or an error that says what has none."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from chatclient.errors import ChatMemoryError
from chatclient.json import dumps, has_json_form, loads
from chatclient.messages import Message
from chatclient.serialization import message_from_dict, message_to_dict


def digest(text: str) -> str:
    """Return *text* as part of a key: always of one length, and compared alike everywhere."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def message_json(message: Message, conversation_id: str) -> bytes:
    """Return *message*, which belongs to a conversation, as JSON.

    Raises:
        ChatMemoryError: Something in it has no JSON form.
    """
    return as_json(message_to_dict(message), f"the {message.role}'s message", conversation_id)


def message_of(stored: str | bytes) -> Message:
    """Return the message that `message_json` wrote.

    Raises:
        ValueError: It has not written this.
    """
    return message_from_dict(loads(stored))


def messages_of(stored: Iterable[str | bytes], conversation_id: str) -> tuple[Message, ...]:
    """Return the messages of a conversation.

    Raises:
        ChatMemoryError: One of them cannot be read.
    """
    try:
        return tuple(map(message_of, stored))
    except ValueError as error:
        msg = f"what is stored of conversation {conversation_id!r} cannot be read"
        raise ChatMemoryError(msg, conversation_id=conversation_id) from error


def as_json(value: Mapping[str, Any], what: str, conversation_id: str) -> bytes:
    """Return *value* as JSON.

    Args:
        value: What is to be kept.
        what: What to call it in the error.
        conversation_id: Which conversation, or session, it belongs to.

    Raises:
        ChatMemoryError: Something in it has no JSON form.
    """
    try:
        return dumps(value)
    except TypeError as error:
        keys, culprit = _without_json(value)
        msg = (
            f"{what} cannot be stored: {''.join(keys)} is of type {type(culprit).__name__}, "
            "which has no JSON form; use texts, numbers, truth values, and lists and mappings of "
            "these"
        )
        raise ChatMemoryError(msg, conversation_id=conversation_id) from error


def _without_json(value: Any) -> tuple[list[str], Any]:
    """Return the keys that lead to what has no JSON form in *value*, and that itself."""
    keys: list[str] = []
    seen: set[int] = set()
    while id(value) not in seen:  # what contains itself would never end
        seen.add(id(value))
        for key, item in _items(value):
            if not has_json_form(item):
                keys.append(f"[{key!r}]" if keys else str(key))
                value = item
                break
    return keys, value


def _items(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return value.items()
    return enumerate(value) if isinstance(value, list | tuple) else ()
