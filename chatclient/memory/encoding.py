"""Encodes stored data (ids, texts, messages), and finds messages stored before a given time."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from chatclient._internal.json import dumps, has_json_form, loads
from chatclient.chat.message_merging import begins_turn
from chatclient.chat.messages import Message, SystemMessage, system_messages
from chatclient.chat.serialization import message_from_dict, message_to_dict
from chatclient.chat.stored_values import from_stored, to_stored
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


def message_json(message: Message) -> str:
    """Return *message* as JSON.

    A value without a JSON form is left out, named and logged: the turn was paid for.
    """
    return dumps(to_stored(message_to_dict(message))).decode()


def message_of(stored: str | bytes) -> Message:
    """Return the message that `message_json` encoded.

    Raises:
        ValueError: *stored* is not such JSON.
    """
    return message_from_dict(from_stored(loads(stored)))


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


def stamped(messages: Sequence[Message], moment: datetime | None = None) -> tuple[Message, ...]:
    """Return *messages* with `stored_at`; those that have none get *moment*, by default now.

    For repositories, which store the result.
    """
    moment = moment or datetime.now(UTC)
    return tuple(
        [each if each.stored_at is not None else each.with_stored_at(moment) for each in messages]
    )


def without_older(messages: Sequence[Message], cutoff: datetime) -> tuple[Message, ...]:
    """Return *messages* without the turns that have messages stored before *cutoff*.

    Turns are left out completely, so that the rest is a valid conversation. Messages without a time
    count as stored before the next one with a time, or else as new. System messages stay as long as
    a turn does.
    """
    start = 0
    bounds = [at for at in range(1, len(messages)) if begins_turn(messages, at)]
    for begin, end in zip((0, *bounds), (*bounds, len(messages)), strict=True):
        if any(_is_older(m, cutoff) for m in messages[begin:end] if m.role != "system"):
            start = end
    kept = (*system_messages(messages[:start]), *messages[start:])
    if all(isinstance(message, SystemMessage) for message in kept):
        return tuple(message for message in kept if not _is_older(message, cutoff))
    return kept


def _is_older(message: Message, cutoff: datetime) -> bool:
    return message.stored_at is not None and message.stored_at < cutoff
