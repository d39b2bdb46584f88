"""What was sent last, of which the next request is the continuation as a rule."""

from collections.abc import Callable, Hashable
from typing import Any

from chatclient.messages import Message


class Transcript:
    """Joins the JSON of a conversation's messages, and only of those that are new to it.

    The next round of a conversation begins with what was sent in the last one: the very same
    messages, which the comparison sees by their identity. Threads may share a transcript: what
    they see is always one whole conversation.
    """

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: tuple[tuple[Message, ...], bytes, Hashable] = ((), b"", None)

    def joined(
        self,
        messages: tuple[Message, ...],
        form: Hashable,
        wire_of: Callable[[Message, Any], bytes],
    ) -> bytes:
        """Return *messages* as JSON elements with commas between.

        Args:
            messages: The whole conversation.
            form: On what else than the message its JSON depends.
            wire_of: Returns a message in that form, perhaps as no element at all.
        """
        known, wire, last = self._last
        size = len(known)
        if form is not last or size > len(messages) or messages[:size] != known:
            size, wire = 0, b""
        elements = [wire, *[wire_of(message, form) for message in messages[size:]]]
        wire = b",".join([element for element in elements if element])
        self._last = (messages, wire, form)
        return wire
