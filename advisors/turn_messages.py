"""The messages of a turn in the tool loop, and which of them the turn itself has said."""

from collections.abc import Sequence

from chatclient.messages import Message, UserMessage, without_system


class TurnMessages:
    """What has been said up to a point of a turn.

    Args:
        messages: What the loop was sent.
        before: What the turn had said on its way when an advisor asked again; empty if none did.
            The advisor may have added messages to it, and have rewritten the user's.

    Attributes:
        history: The whole conversation.
        to_send: What of it the next round is sent.
        before: See above.
    """

    def __init__(self, messages: tuple[Message, ...], before: Sequence[Message]) -> None:
        self.history = self.to_send = messages
        self.before = before
        self._begin = _begin_of(before, messages)
        self._look_through(messages[self._begin :])

    @property
    def said(self) -> tuple[Message, ...]:
        """What models and tools have said on the way, without the answer that ends the turn."""
        said = self.history[self._begin :]
        if not self._added and not self._own_words:
            return said
        return tuple(self._own_words.get(id(m), m) for m in said if not _is_among(m, self._added))

    @property
    def earlier(self) -> tuple[Message, ...]:
        """What was said before the messages to send; a hook may have added to these."""
        if self.to_send is self.history:
            return ()
        spoken = without_system(self.history)
        sent = without_system(self.to_send)
        places = (at for m in sent for at, each in enumerate(spoken) if each is m)
        return spoken[: next(places, max(0, len(spoken) - len(sent)))]

    def say(self, messages: tuple[Message, ...]) -> None:
        """Make *messages* a part of the turn."""
        self.history = (*self.history, *messages)
        self.to_send = (*self.to_send, *messages)

    def go_back_to(self, messages: tuple[Message, ...]) -> None:
        """Go back to *messages*, the conversation as it was when the turn came to wait."""
        self.history, self._begin = messages, len(messages)

    def go_on(self, history: tuple[Message, ...], since: Sequence[Message]) -> None:
        """Go on from *history*, and from what advisors have said *since* the turn has waited."""
        since = tuple(m for m in since if not _is_among(m, history))
        self._look_through(since)
        self.history = self.to_send = (*history, *since)

    def _look_through(self, messages: Sequence[Message]) -> None:
        """Note which of *messages* advisors have added to what was said on the way.

        Note, too, what they have made of the user's words among it: the original ones are
        remembered.
        """
        added = [m for m in messages if not _is_among(m, self.before)]
        said = [m for m in self.before if isinstance(m, UserMessage) and not _is_among(m, messages)]
        changed = [m for m in added if isinstance(m, UserMessage)][: len(said)]
        self._own_words = {id(m): own for m, own in zip(changed, said, strict=False)}
        self._added = tuple(m for m in added if not _is_among(m, changed))


def _begin_of(said: Sequence[Message], history: Sequence[Message]) -> int:
    """Return where in *history* what was said on the way begins: with *said*, or after its end."""
    if not said:
        return len(history)
    return next((at for at, message in enumerate(history) if message is said[0]), len(history))


def _is_among(message: Message, messages: Sequence[Message]) -> bool:
    return any(message is each for each in messages)
