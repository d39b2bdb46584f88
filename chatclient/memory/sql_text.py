"""Texts and messages as SQL databases keep them."""

from chatclient.json import dumps, loads
from chatclient.memory.stored import message_json
from chatclient.messages import Message


def storable(text: str) -> str:
    """Return *text* in a form that every database takes; `restored` makes it of that again.

    Nearly always it is the text itself. PostgreSQL knows no NUL, and no database half a surrogate
    pair; a text with such is stored as JSON, and so is one that looks like it.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        plain = False
    else:
        plain = "\0" not in text and not text.startswith('"')
    return text if plain else dumps(text).decode()


def restored(text: str) -> str:
    """Return what `storable` was given."""
    return str(loads(text)) if text.startswith('"') else text


def message_text(message: Message, conversation_id: str) -> str:
    """Return *message*, which belongs to a conversation, as JSON.

    Raises:
        ChatMemoryError: Something in it has no JSON form.
    """
    return message_json(message, conversation_id).decode()
