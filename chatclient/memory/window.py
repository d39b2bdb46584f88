"""How much of a conversation is used: by messages, by tokens, or both."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from chatclient.checks import check_callable, check_kind
from chatclient.errors import UsageError
from chatclient.json import dumps
from chatclient.messages import (
    AssistantMessage,
    Media,
    Message,
    ProviderPart,
    Reasoning,
    SystemMessage,
    ToolCall,
    ToolResponseMessage,
    UserMessage,
    begins_turn,
    system_messages,
    without_system,
)

TokenEstimator = Callable[[Message], int]
"""Says how many tokens a message comes to, roughly or exactly."""

_MESSAGE_TOKENS = 4  # what marks a message's role, begin and end
_MEDIA_TOKENS = 1000  # about a large image; providers count by size, which we do not know
_FIRST_LOOK = 32  # messages a window of tokens is looked for in at first


def estimated_tokens(message: Message) -> int:
    """Return about how many tokens *message* comes to: one for four bytes of UTF-8.

    That fits English and code and is too much rather than too little for most other languages.
    Images and other media count as a thousand each.
    """
    if isinstance(message, UserMessage | AssistantMessage):
        texts, media = _contents(message.parts)
    elif isinstance(message, ToolResponseMessage):
        texts = [text for response in message.responses for text in (response.id, response.data)]
        media = sum(len(response.media) for response in message.responses)
    else:
        texts, media = [message.text], 0
    size = sum(len(text.encode(errors="replace")) for text in texts)
    return -(-size // 4) + _MESSAGE_TOKENS + media * _MEDIA_TOKENS


def _contents(parts: Sequence[object]) -> tuple[list[str], int]:
    """Return the texts of a message's parts, and how many media are among them."""
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
    """How much all messages of a window may come to, by one measure."""

    most: int
    measure: TokenEstimator | None  # None counts messages

    def of(self, message: Message) -> int:
        return 1 if self.measure is None else self.measure(message)

    def start(self, messages: Sequence[Message]) -> int:
        """Return where the longest end of *messages* begins that fits and consists of turns."""
        room = self.most - sum(map(self.of, system_messages(messages)))
        start = None
        for at in range(len(messages) - 1, -1, -1):
            message = messages[at]
            if isinstance(message, SystemMessage):
                continue
            room -= 1 if self.measure is None else self.measure(message)
            if room < 0 and start is not None:
                return start
            if isinstance(message, UserMessage) and begins_turn(messages, at):
                start = at
        return 0


@dataclass(frozen=True, slots=True)
class Window:
    """The newest part of a conversation: as many whole turns as its limits allow.

    A turn begins with the user's message and ends before the next one's, so tool calls and their
    responses stay together. System messages are always kept, and count. The newest turn is always
    kept, even where it alone exceeds a limit: it may be the one that is running.

    `Window.messages(50) & Window.tokens(4000)` holds both.
    """

    limits: tuple[_Limit, ...]

    @classmethod
    def messages(cls, most: int = 20) -> Self:
        """Return the window of at most so many messages.

        Raises:
            UsageError: It is less than one.
        """
        return cls._of(most, None, "messages")

    @classmethod
    def tokens(cls, most: int, estimator: TokenEstimator = estimated_tokens) -> Self:
        """Return the window of at most so many tokens, as *estimator* counts them.

        Raises:
            UsageError: It is less than one, or *estimator* cannot be called.
        """
        return cls._of(most, estimator, "tokens")

    @classmethod
    def _of(cls, most: int, measure: TokenEstimator | None, what: str) -> Self:
        check_kind(f"the number of {what} in a window", most, int)
        if measure is not None:
            check_callable("what counts tokens", measure, takes=("message",))
        if most < 1:
            msg = f"a window must hold at least one of the {what} it counts, not {most!r}"
            raise UsageError(msg)
        return cls((_Limit(most, measure),))

    def __and__(self, other: "Window") -> "Window":
        """Return the window that both are: what it holds fits into either."""
        check_kind("a window", other, Window, "write Window.messages(20)")
        return Window((*self.limits, *other.limits))

    @property
    def first_look(self) -> int:
        """How many messages to load in order to find the window in them, as a rule."""
        counts = [limit.most for limit in self.limits if limit.measure is None]
        # One more, to see whether a turn begins where the window does.
        return min(counts) + 1 if counts else _FIRST_LOOK

    def start(self, messages: Sequence[Message]) -> int:
        """Return the index of the first of *messages* that is kept; system messages aside."""
        return max([limit.start(messages) for limit in self.limits])

    def kept(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Return those of *messages* that are in the window, system messages first."""
        return kept_from(messages, self.start(messages))


def kept_from(messages: Sequence[Message], start: int) -> tuple[Message, ...]:
    """Return *messages* from index *start* on, behind all system messages."""
    return (*system_messages(messages), *without_system(messages[start:]))
