"""`Window`: the newest turns of a conversation, limited by messages, tokens or both."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from chatclient._internal.checks import check_callable, check_type
from chatclient._internal.json import dumps
from chatclient.chat.message_merging import begins_turn, last_turn_start
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
    keep: int
    measure: TokenEstimator | None  # None counts messages

    def size(self, message: Message) -> int:
        return 1 if self.measure is None else self.measure(message)

    def cuts(self, dialogue: Sequence[Message], room: int) -> tuple[int, int]:
        """Return the first indexes from which the messages fit into `most` and into `keep`.

        Args:
            dialogue: The messages without system messages.
            room: What the system messages leave of `most`.
        """
        last = len(dialogue)
        for at in range(len(dialogue) - 1, -1, -1):
            room -= self.size(dialogue[at])
            if room < 0:
                return at + 1, last
            if room >= self.most - self.keep:
                last = at
        return 0, last


@dataclass(frozen=True, slots=True)
class Window:
    """The newest part of a conversation: complete turns within its limits.

    A turn begins with a user message and ends before the next one, so tool calls and their
    responses are never separated. System messages are always included and count. The newest
    turn is always included, even if it alone exceeds a limit, because it may be in progress.

    A window moves in blocks, so that providers can cache the beginning of the prompts: when the
    conversation exceeds a limit, a window drops turns until about `keep` is left, and grows again.
    Its start depends on the stored conversation only. It never has less than the newest complete
    turns that fit into `keep`.

    `Window.messages(50) & Window.tokens(4000)` applies both limits.
    """

    limits: tuple[_Limit, ...]

    @classmethod
    def messages(cls, most: int = 40, *, keep: int | None = None) -> Self:
        """Return a window of at most *most* messages.

        Args:
            most: The maximum number of messages.
            keep: How many messages are kept when the window moves; default: half of *most*.
                With *most*, the window slides with each turn.

        Raises:
            UsageError: *most* is less than one, or *keep* is not between one and *most*.
        """
        return cls._with_limit(most, keep, None, "messages")

    @classmethod
    def tokens(
        cls, most: int, estimator: TokenEstimator = estimated_tokens, *, keep: int | None = None
    ) -> Self:
        """Return a window of at most *most* tokens, counted by *estimator*.

        Args:
            most: The maximum number of tokens.
            estimator: Counts the tokens of a message.
            keep: How many tokens are kept at least when the window moves, less a part of a turn;
                default: half of *most*. With *most*, the window slides with each turn.

        Raises:
            UsageError: *most* is less than one, *keep* is not between one and *most*, or
                *estimator* cannot be called.
        """
        check_callable("a token estimator", estimator, takes=("message",))
        return cls._with_limit(most, keep, estimator, "tokens")

    @classmethod
    def _with_limit(
        cls, most: int, keep: int | None, measure: TokenEstimator | None, unit: str
    ) -> Self:
        check_type(f"the number of {unit} in a window", most, int)
        if most < 1:
            msg = f"a window must hold at least one of the {unit} it counts, not {most!r}"
            raise UsageError(msg)
        if keep is None:
            keep = (most + 1) // 2
        check_type(f"the number of {unit} that a window keeps", keep, int)
        if not 1 <= keep <= most:
            msg = f"a window of {most} {unit} can keep 1 to {most} when it moves, not {keep!r}"
            raise UsageError(msg)
        return cls((_Limit(most, keep, measure),))

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

    def start(self, messages: Sequence[Message], older: int | None = 0) -> int:
        """Return the index of the first message in the window, ignoring system messages.

        Args:
            messages: The conversation or its newest messages.
            older: The number of messages before *messages*. With None, the longest possible
                window is returned.

        Returns:
            0 if all *messages* are in the window, or if the window begins before them.
        """
        systems, dialogue = system_messages(messages), without_system(messages)
        rooms = [limit.most - sum(map(limit.size, systems)) for limit in self.limits]
        cuts = [limit.cuts(dialogue, room) for limit, room in zip(self.limits, rooms, strict=True)]
        start, last = max(first for first, _ in cuts), max(end for _, end in cuts)
        if not start:
            return 0
        if older is not None and start < last:
            limit = self.limits[0]
            block = limit.most - limit.keep
            if limit.measure is None and len(self.limits) == 1:  # `last` is one block after `start`
                start = -(-(older + start) // block) * block - older
            else:
                start = block_start(older + start, older + last) - older
        # Turns are not divided: tool calls need their results.
        while start < len(dialogue) and not begins_turn(dialogue, start):
            start += 1
        # The newest turn stays, even if it alone exceeds a limit.
        if start >= len(dialogue):
            start = last_turn_start(dialogue) or 0
        if systems and start:
            places = [at for at, m in enumerate(messages) if not isinstance(m, SystemMessage)]
            return places[start]
        return start

    def select(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Return the messages in the window, system messages first."""
        return messages_from(messages, self.start(messages))


def messages_from(messages: Sequence[Message], start: int) -> tuple[Message, ...]:
    """Return all system messages, then the other messages from index *start*."""
    return (*system_messages(messages), *without_system(messages[start:]))


def block_start(first: int, end: int) -> int:
    """Return the position at which a block starts, out of those from *first* to before *end*.

    While both ends grow, it stays the same for long, on average for half of the range: it is the
    position that is divisible by the highest power of two.
    """
    size: int = 1 << ((first - 1) ^ (end - 1)).bit_length() - 1
    return (end - 1) // size * size
