"""`LoopMessages`: the conversation of a running tool loop."""

from chatclient.chat.messages import Message, without_system


class LoopMessages:
    """The conversation of a running tool loop, and what of it the next round sends.

    Args:
        messages: The prompt that the loop was called with.

    Attributes:
        history: The complete conversation.
        to_send: The messages that the next round sends; a hook may have changed them.
    """

    def __init__(self, messages: tuple[Message, ...]) -> None:
        self.history = self.to_send = messages

    @property
    def earlier(self) -> tuple[Message, ...]:
        """The messages of the history that precede those to send."""
        if self.to_send is self.history:
            return ()
        spoken = without_system(self.history)
        sent = without_system(self.to_send)
        places = (i for first in sent for i, message in enumerate(spoken) if message is first)
        return spoken[: next(places, max(0, len(spoken) - len(sent)))]

    def append(self, messages: tuple[Message, ...]) -> None:
        """Append *messages* to the history and to what is sent."""
        self.history = (*self.history, *messages)
        self.to_send = (*self.to_send, *messages)

    def restart(self, history: tuple[Message, ...]) -> None:
        """Continue from *history*, and send all of it."""
        self.history = self.to_send = history
