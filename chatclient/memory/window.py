"""`Window`: the newest turns of a conversation, limited by messages, tokens or both."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from chatclient._internal.checks import check_callable, check_type
from chatclient._internal.json import dumps
from chatclient.chat.message_merging import begins_turn
from chatclient.chat.messages import (
    AssistantMessage,
    Media,
    Message,
    ProviderPart,
    Reasoning,
    SystemMessage,
    ToolCall,
    ToolResponseMessage,
    UserMessage,
    system_messages,
    without_system,
)
from chatclient.errors import UsageError

TokenEstimator = Callable[[Message], int]
"""Returns the number of tokens of a message, estimated or exact."""

_MESSAGE_TOKENS = 4  # overhead of a message: its role and delimiters
_MEDIA_TOKENS = 1000  # about one large image; providers count by dimensions, unknown here
_INITIAL_COUNT = 32  # messages loaded first for a window limited by tokens only


def estimated_tokens(message: Message) -> int:
    """Return the estimated number of tokens of *message*: one for four bytes of UTF-8.

    The estimate is close for English and code, and usually too high for other languages.
    Each image or other media item counts as 1,000 tokens.
    """
    if isinstance(message, UserMessage | AssistantMessage):
        texts, media = _texts_and_media_count(message.parts)
    elif isinstance(message, ToolResponseMessage):
        texts = [text for response in message.responses for text in (response.id, response.data)]
        media = sum(len(response.media) for response in message.responses)
    else:
        texts, media = [message.text], 0
    size = sum(len(text.encode(errors="replace")) for text in texts)
    return -(-size // 4) + _MESSAGE_TOKENS + media * _MEDIA_TOKENS


def _texts_and_media_count(parts: Sequence[object]) -> tuple[list[str], int]:
    texts: list[str] = []
    media = 0
    for part in parts:
        match part:
            case str():
                texts.append(part)
            case Reasoning():
                texts.append(part.text)
            case ToolCall():
                texts += [part.id, part.name, part.arguments]
            case ProviderPart():
                texts.append(dumps(part.data).decode())
            case Media():
                media += 1
            case _:
                pass
    return texts, media


@dataclass(frozen=True, slots=True)
class _Limit:
    """The maximum size of all messages in a window, by one measure."""

    most: int
    measure: TokenEstimator | None  # None counts messages

    def size(self, message: Message) -> int:
        return 1 if self.measure is None else self.measure(message)

    def start(self, messages: Sequence[Message]) -> int:
        """Return the start index of the longest suffix of complete turns that fits."""
        room = self.most - sum(map(self.size, system_messages(messages)))
        start = None
        for at in range(len(messages) - 1, -1, -1):
            message = messages[at]
            if isinstance(message, SystemMessage):
                continue
            room -= self.size(message)
            if room < 0 and start is not None:
                return start
            if isinstance(message, UserMessage) and begins_turn(messages, at):
                start = at
        return 0


@dataclass(frozen=True, slots=True)
class Window:
    """The newest part of a conversation: as many complete turns as its limits allow.

    A turn begins with a user message and ends before the next one, so tool calls and their
    responses are never separated. System messages are always included and count. The newest
    turn is always included, even if it alone exceeds a limit, because it may be in progress.

    `Window.messages(50) & Window.tokens(4000)` applies both limits.
    """

    limits: tuple[_Limit, ...]

    @classmethod
    def messages(cls, most: int = 20) -> Self:
        """Return a window of at most *most* messages.

        Raises:
            UsageError: *most* is less than one.
        """
        return cls._with_limit(most, None, "messages")

    @classmethod
    def tokens(cls, most: int, estimator: TokenEstimator = estimated_tokens) -> Self:
        """Return a window of at most *most* tokens, counted by *estimator*.

        Raises:
            UsageError: *most* is less than one, or *estimator* cannot be called.
        """
        check_callable("a token estimator", estimator, takes=("message",))
        return cls._with_limit(most, estimator, "tokens")

    @classmethod
    def _with_limit(cls, most: int, measure: TokenEstimator | None, unit: str) -> Self:
        check_type(f"the number of {unit} in a window", most, int)
        if most < 1:
            msg = f"a window must hold at least one of the {unit} it counts, not {most!r}"
            raise UsageError(msg)
        return cls((_Limit(most, measure),))

    def __and__(self, other: "Window") -> "Window":
        """Return a window with the limits of both."""
        check_type("a window", other, Window, "write Window.messages(20)")
        return Window((*self.limits, *other.limits))

    @property
    def initial_count(self) -> int:
        """The number of messages to load first; usually enough to contain the window."""
        counts = [limit.most for limit in self.limits if limit.measure is None]
        # One more shows whether a turn begins at the start of the window.
        return min(counts) + 1 if counts else _INITIAL_COUNT

    def start(self, messages: Sequence[Message]) -> int:
        """Return the index of the first message in the window, ignoring system messages."""
        return max(limit.start(messages) for limit in self.limits)

    def select(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Return the messages in the window, system messages first."""
        return messages_from(messages, self.start(messages))


def messages_from(messages: Sequence[Message], start: int) -> tuple[Message, ...]:
    """Return all system messages, then the other messages from index *start*."""
    return (*system_messages(messages), *without_system(messages[start:]))
