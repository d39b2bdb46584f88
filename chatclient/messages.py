"""The messages of a conversation: immutable and compared by value."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from chatclient.checks import check_kind
from chatclient.errors import WrongTypeError
from chatclient.parts import (
    PARTS,
    Media,
    Part,
    ProviderPart,
    Reasoning,
    ToolCall,
    ToolCallChunk,
    as_tuple,
    check_parts,
    join_parts,
    parts_of,
    text_of,
    with_text,
)
from chatclient.values import EMPTY, freeze_fields, frozen

__all__ = [
    "ENDS_TURN",
    "AssistantMessage",
    "Media",
    "Message",
    "Part",
    "ProviderPart",
    "Reasoning",
    "Role",
    "SystemMessage",
    "ToolCall",
    "ToolCallChunk",
    "ToolResponse",
    "ToolResponseMessage",
    "UserMessage",
    "as_messages",
    "begins_turn",
    "ends_turn",
    "flat_messages",
    "last_turn_begin",
    "last_user_message",
    "system_messages",
    "without_system",
]

Role = Literal["system", "user", "assistant", "tool"]

ENDS_TURN = "ends_turn"
"""In the metadata of a `ToolResponseMessage`: the model had nothing to say to it, and the turn is
over. Memory sets it, and so do the `messages()` of an answer."""


class Message:
    """One message of a conversation; see its four kinds."""

    # A provider keeps the message's wire form here, so that a long history is encoded once. It is
    # no field: neither compared, nor copied, nor pickled.
    __slots__ = ("_wire",)

    role: ClassVar[Role]
    metadata: Mapping[str, Any]

    @property
    def text(self) -> str:
        """The message's text; empty when it has none."""
        raise NotImplementedError  # pragma: no cover

    def wire(self, dialect: object) -> bytes | None:
        """Return the form last kept for *dialect*, if any."""
        kept: tuple[object, bytes] | None = getattr(self, "_wire", None)
        return kept[1] if kept is not None and kept[0] is dialect else None

    def keep_wire(self, dialect: object, form: bytes) -> bytes:
        """Keep *form* as this message's wire form in *dialect*, and return it."""
        object.__setattr__(self, "_wire", (dialect, form))
        return form


@dataclass(frozen=True, slots=True)
class SystemMessage(Message):
    """What the application tells the model about its task.

    Raises:
        WrongTypeError: It is not a text.
    """

    role: ClassVar[Role] = "system"
    content: str
    metadata: Mapping[str, Any] = EMPTY

    def __post_init__(self) -> None:
        check_kind("the content of a system message", self.content, str)
        object.__setattr__(self, "metadata", frozen(self.metadata, "metadata"))

    @property
    def text(self) -> str:
        """The instruction."""
        return self.content

    def mutate(self, *, text: str | None = None, metadata: Mapping[str, Any] | None = None) -> Self:
        """Return a copy with the given values changed."""
        return type(self)(
            self.content if text is None else text,
            self.metadata if metadata is None else metadata,
        )


@dataclass(frozen=True, slots=True, init=False, repr=False)
class UserMessage(Message):
    """What the user says: text and media, in any order.

    Args:
        content: The text, or a sequence of texts and media in the order they are meant.
        media: Media that follow the content.
        metadata: Whatever the application wants to remember; not sent.

    Raises:
        WrongTypeError: Something among them is no part of such a message.
    """

    role: ClassVar[Role] = "user"
    parts: tuple[str | Media | ProviderPart, ...]
    metadata: Mapping[str, Any]

    def __init__(
        self,
        content: str | Media | Iterable[str | Media | ProviderPart] | None = None,
        media: Media | Iterable[Media] = (),
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        parts = join_parts(content, media)
        check_parts(parts, (str, Media, ProviderPart), "no text and no media")
        object.__setattr__(self, "parts", parts)
        object.__setattr__(self, "metadata", frozen(metadata, "metadata"))

    @property
    def text(self) -> str:
        """All text parts, joined."""
        return text_of(self.parts)

    @property
    def media(self) -> tuple[Media, ...]:
        """All media, in order."""
        return parts_of(self.parts, Media)

    def mutate(
        self,
        *,
        text: str | None = None,
        media: Iterable[Media] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Self:
        """Return a copy with the given values changed."""
        parts: tuple[Any, ...] = self.parts
        if text is not None:
            parts = with_text(parts, text)
        if media is not None:
            parts = (*(part for part in parts if not isinstance(part, Media)), *media)
        return type(self)(parts, metadata=self.metadata if metadata is None else metadata)

    def __repr__(self) -> str:
        return _repr(self, self.parts)


@dataclass(frozen=True, slots=True, init=False, repr=False)
class AssistantMessage(Message):
    """What the model says: text, tool calls, reasoning and media, in the order it said them.

    Args:
        content: The text, or a sequence of parts in their order.
        tool_calls: Tool calls that follow the content.
        media: Media that follow the content, before the tool calls.
        reasoning: Reasoning that goes before the content.
        metadata: Whatever the application wants to remember, and the provider's own values.

    Raises:
        WrongTypeError: Something among them is not a part of a message.
    """

    role: ClassVar[Role] = "assistant"
    parts: tuple[Part, ...]
    metadata: Mapping[str, Any]

    def __init__(
        self,
        content: str | Iterable[Part] | None = None,
        tool_calls: ToolCall | Iterable[ToolCall] = (),
        *,
        media: Media | Iterable[Media] = (),
        reasoning: Reasoning | Iterable[Reasoning] = (),
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        parts: tuple[Part, ...]
        parts = (*as_tuple(reasoning), *join_parts(content, media), *as_tuple(tool_calls))
        check_parts(parts, PARTS, "no text, no media, no tool call")
        object.__setattr__(self, "parts", parts)
        object.__setattr__(self, "metadata", frozen(metadata, "metadata"))

    @property
    def text(self) -> str:
        """All text parts, joined; reasoning is not among them."""
        return text_of(self.parts)

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The tool calls, in order."""
        return parts_of(self.parts, ToolCall)

    @property
    def media(self) -> tuple[Media, ...]:
        """All media, in order."""
        return parts_of(self.parts, Media)

    @property
    def reasoning(self) -> tuple[Reasoning, ...]:
        """The reasoning parts, in order."""
        return parts_of(self.parts, Reasoning)

    def mutate(
        self,
        *,
        text: str | None = None,
        tool_calls: Iterable[ToolCall] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Self:
        """Return a copy with the given values changed; other parts stay where they are."""
        parts: tuple[Any, ...] = self.parts
        if text is not None:
            parts = with_text(parts, text)
        if tool_calls is not None:
            parts = (*(part for part in parts if not isinstance(part, ToolCall)), *tool_calls)
        return type(self)(parts, metadata=self.metadata if metadata is None else metadata)

    def __repr__(self) -> str:
        return _repr(self, self.parts)


@dataclass(frozen=True, slots=True)
class ToolResponse:
    """What a tool answered.

    Attributes:
        id: The id of the call that it answers.
        name: The tool that was called.
        data: The answer as text, usually JSON.
        is_error: Whether the tool failed and `data` says why.
        media: Images and other content of the answer.
        metadata: Whatever the application wants to remember; not sent.

    Raises:
        WrongTypeError: The answer is not a text.
    """

    id: str
    name: str
    data: str
    is_error: bool = False
    media: tuple[Media, ...] = ()
    metadata: Mapping[str, Any] = EMPTY

    def __post_init__(self) -> None:
        check_kind("the data of a tool response", self.data, str, "write json.dumps(...)")
        if self.metadata is not EMPTY:
            freeze_fields(self, "metadata")


@dataclass(frozen=True, slots=True, init=False)
class ToolResponseMessage(Message):
    """The answers to all tool calls of one assistant message, in the order of the calls.

    Raises:
        WrongTypeError: Something among them is no answer.
    """

    role: ClassVar[Role] = "tool"
    responses: tuple[ToolResponse, ...]
    metadata: Mapping[str, Any]

    def __init__(
        self,
        responses: ToolResponse | Iterable[ToolResponse],
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        several = as_tuple(responses)
        for each in several:
            check_kind("a tool's answer", each, ToolResponse)
        object.__setattr__(self, "responses", several)
        object.__setattr__(self, "metadata", frozen(metadata, "metadata"))

    @property
    def text(self) -> str:
        """Empty: a tool's answer is not a text of the conversation."""
        return ""

    def mutate(
        self,
        *,
        responses: Iterable[ToolResponse] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Self:
        """Return a copy with the given values changed."""
        return type(self)(
            self.responses if responses is None else responses,
            self.metadata if metadata is None else metadata,
        )


def _repr(message: Message, parts: Sequence[Any]) -> str:
    shown = repr(parts[0]) if len(parts) == 1 else repr(list(parts))
    metadata = f", metadata={dict(message.metadata)!r}" if message.metadata else ""
    return f"{type(message).__name__}({shown}{metadata})"


def as_messages(messages: Message | Iterable[Message]) -> tuple[Message, ...]:
    """Return *messages*, one or several, as a tuple once each is known to be one.

    Raises:
        WrongTypeError: One of them is something else.
    """
    result = messages if isinstance(messages, tuple) else as_tuple(messages)
    for message in result:
        if not isinstance(message, Message):
            hint = "wrap text in UserMessage(...)"
            if isinstance(message, Mapping):
                hint = "messages of Chat Completions go through messages_from_openai([...])"
            msg = f"expected messages, got {message!r}; {hint}"
            raise WrongTypeError(msg)
    return result


def flat_messages(given: Iterable[Message | Iterable[Message]]) -> tuple[Message, ...]:
    """Return the messages in *given*, one by one or in collections, in one tuple.

    Raises:
        WrongTypeError: One of them is something else.
    """
    return tuple(message for each in given for message in as_messages(each))


def system_messages(messages: Iterable[Message]) -> tuple[SystemMessage, ...]:
    """Return the system messages among *messages*."""
    return tuple([message for message in messages if isinstance(message, SystemMessage)])


def without_system(messages: Iterable[Message]) -> tuple[Message, ...]:
    """Return *messages* without the system messages."""
    return tuple(message for message in messages if not isinstance(message, SystemMessage))


def last_user_message(messages: Sequence[Message]) -> UserMessage | None:
    """Return the last user message, or None."""
    return next((each for each in reversed(messages) if isinstance(each, UserMessage)), None)


def begins_turn(messages: Sequence[Message], at: int) -> bool:
    """Return whether a turn begins at index *at*: with the first of one or more user messages.

    What the user says behind the answers of tools is said to a turn that still runs, unless these
    end it.
    """
    if not isinstance(messages[at], UserMessage):
        return False
    while at and isinstance(messages[at - 1], SystemMessage):
        at -= 1
    return not at or ends_turn(messages[at - 1])


def ends_turn(message: Message) -> bool:
    """Return whether a turn that ends with *message* is over: with an answer, or `ENDS_TURN`."""
    if isinstance(message, ToolResponseMessage):
        return bool(message.metadata.get(ENDS_TURN))
    return not isinstance(message, UserMessage)


def last_turn_begin(messages: Sequence[Message]) -> int | None:
    """Return where the last turn of *messages* begins, or None where none does."""
    return next((at for at in reversed(range(len(messages))) if begins_turn(messages, at)), None)
