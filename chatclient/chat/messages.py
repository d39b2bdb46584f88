"""The messages of a conversation: immutable and compared by value."""

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from chatclient._internal.checks import attribute_hints, check_moment, check_type
from chatclient._internal.frozen import EMPTY, frozen
from chatclient.chat.parts import (
    PARTS,
    Media,
    Part,
    ProviderPart,
    Reasoning,
    ToolCall,
    ToolCallChunk,
    ToolResponse,
    as_tuple,
    check_parts,
    join_parts,
    parts_of,
    text_of,
    with_text,
)
from chatclient.errors import WrongTypeError

__all__ = [
    "ENDED_EARLY",
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
    "flat_messages",
    "last_user_message",
    "system_messages",
    "without_system",
]

Role = Literal["system", "user", "assistant", "tool"]

ENDS_TURN = "ends_turn"
"""Metadata key of a `ToolResponseMessage` that ends a turn, without an answer of the model to it.
Set by memory and by the `messages()` of a response."""

ENDED_EARLY = "ended_early"
"""Metadata key of the last message of a stored turn that was stopped, or that failed while a
frontend displayed it. Set by memory."""


class Message:
    """One message of a conversation; see its four kinds.

    A message may have an `id`, such as that of a chat frontend; it is neither sent nor compared. A
    memory recognises resent messages by it, and gives one to each message that it stores without.
    A repository sets `stored_at`, a time in UTC, in messages that have none; it is neither sent nor
    compared.
    """

    # A provider's encoding of the message, cached so that a long history is encoded once. It is
    # not a field: neither compared nor copied nor pickled.
    __slots__ = ("_wire",)

    role: ClassVar[Role]
    metadata: Mapping[str, Any]
    id: str | None
    stored_at: datetime | None

    @property
    def text(self) -> str:
        """The text of the message; may be empty."""
        raise NotImplementedError  # pragma: no cover

    if not TYPE_CHECKING:  # type checkers know all attributes
        __getattr__ = attribute_hints({"content": "its text is its .text"})

        def __init__(self, *_given: object, **_named: object) -> None:
            if type(self) is Message:
                msg = (
                    "Message is the base class of all messages: make a UserMessage, SystemMessage,"
                    " AssistantMessage or ToolResponseMessage"
                )
                raise WrongTypeError(msg)

    def with_id(self, id: str) -> Self:
        """Return a copy with this id."""
        return self._with("id", id)

    def with_stored_at(self, moment: datetime) -> Self:
        """Return a copy with this time of storing, which has a time zone."""
        check_moment("the time of storing", moment)
        result = self._with("stored_at", moment)
        if (wire := getattr(self, "_wire", None)) is not None:  # a repository copies what was sent
            object.__setattr__(result, "_wire", wire)
        return result

    def _set(self, metadata: Any, id: str | None, stored_at: datetime | None) -> None:
        if stored_at is not None:
            check_moment("the time of storing", stored_at)
        metadata = frozen(metadata, "metadata") if metadata else EMPTY
        object.__setattr__(self, "metadata", metadata)
        object.__setattr__(self, "id", id)
        object.__setattr__(self, "stored_at", stored_at)

    def _with(self, name: str, value: object) -> Self:
        kind = type(self)
        if kind.__module__ != __name__:  # a subclass may have further attributes
            result = copy(self)
        else:  # several times faster
            result = object.__new__(kind)
            for each in kind.__slots__:
                object.__setattr__(result, each, getattr(self, each))
        object.__setattr__(result, name, value)
        return result

    def wire(self, settings: object) -> bytes | None:
        """Return the cached encoding with *settings*, if they are those of the last one."""
        cached: tuple[object, bytes] | None = getattr(self, "_wire", None)
        return cached[1] if cached is not None and cached[0] is settings else None

    def cache_wire(self, settings: object, encoded: bytes) -> bytes:
        """Cache *encoded*, this message as encoded with *settings*, and return it."""
        object.__setattr__(self, "_wire", (settings, encoded))
        return encoded


@dataclass(frozen=True, slots=True)
class SystemMessage(Message):
    """Instructions of the application to the model.

    Attributes:
        content: The text.
        metadata: Values for the application; not sent.
        id: Identifies the message in its conversation, see `Message`; not compared.
        stored_at: When a repository stored it, see `Message`; not compared.

    Raises:
        WrongTypeError: The content is not a text.
    """

    role: ClassVar[Role] = "system"
    content: str
    metadata: Mapping[str, Any] = EMPTY
    id: str | None = field(default=None, compare=False)
    stored_at: datetime | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_type("the content of a system message", self.content, str)
        self._set(self.metadata, self.id, self.stored_at)

    @property
    def text(self) -> str:
        """The instructions."""
        return self.content

    def mutate(self, *, text: str | None = None, metadata: Mapping[str, Any] | None = None) -> Self:
        """Return a copy with the given values replaced."""
        return type(self)(
            self.content if text is None else text,
            self.metadata if metadata is None else metadata,
            self.id,
            self.stored_at,
        )


def _repr(self: "UserMessage | AssistantMessage") -> str:
    parts = self.parts
    shown = repr(parts[0]) if len(parts) == 1 else repr(list(parts))
    metadata = f", metadata={dict(self.metadata)!r}" if self.metadata else ""
    id = f", id={self.id!r}" if self.id is not None else ""
    return f"{type(self).__name__}({shown}{metadata}{id})"


@dataclass(frozen=True, slots=True, init=False, repr=False)
class UserMessage(Message):
    """A message of the user: text and media, in any order.

    Args:
        content: The text, or texts and media in their order.
        media: Media after the content.
        metadata: Values for the application; not sent.
        id: Identifies the message in its conversation, see `Message`; not compared.
        stored_at: When a repository stored it, see `Message`; not compared.

    Raises:
        WrongTypeError: A part is neither text nor media.
    """

    role: ClassVar[Role] = "user"
    parts: tuple[str | Media | ProviderPart, ...]
    metadata: Mapping[str, Any]
    id: str | None = field(compare=False)
    stored_at: datetime | None = field(compare=False, repr=False)

    def __init__(
        self,
        content: str | Media | Iterable[str | Media | ProviderPart] | None = None,
        media: Media | Iterable[Media] = (),
        metadata: Mapping[str, Any] | None = None,
        id: str | None = None,
        stored_at: datetime | None = None,
    ) -> None:
        parts = join_parts(content, media)
        check_parts(parts, (str, Media, ProviderPart), "no text and no media")
        object.__setattr__(self, "parts", parts)
        self._set(metadata, id, stored_at)

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
        """Return a copy with the given values replaced."""
        parts: tuple[Any, ...] = self.parts
        if text is not None:
            parts = with_text(parts, text)
        if media is not None:
            parts = (*(part for part in parts if not isinstance(part, Media)), *media)
        metadata = self.metadata if metadata is None else metadata
        return type(self)(parts, metadata=metadata, id=self.id, stored_at=self.stored_at)

    __repr__ = _repr


@dataclass(frozen=True, slots=True, init=False, repr=False)
class AssistantMessage(Message):
    """A message of the model: text, tool calls, reasoning and media, in their order.

    Args:
        content: The text, or parts in their order.
        tool_calls: Tool calls after the content and the media.
        media: Media after the content.
        reasoning: Reasoning before the content.
        metadata: Values of the application and of the provider.
        id: Identifies the message in its conversation, see `Message`; not compared.
        stored_at: When a repository stored it, see `Message`; not compared.

    Attributes:
        tool_calls: The tool calls among the parts, in order.

    Raises:
        WrongTypeError: Something in it is not a part of a message.
    """

    role: ClassVar[Role] = "assistant"
    parts: tuple[Part, ...]
    metadata: Mapping[str, Any]
    id: str | None = field(compare=False)
    stored_at: datetime | None = field(compare=False, repr=False)
    # Stored, because each round asks for it several times.
    tool_calls: tuple[ToolCall, ...] = field(init=False, compare=False)

    def __init__(
        self,
        content: str | Iterable[Part] | None = None,
        tool_calls: ToolCall | Iterable[ToolCall] = (),
        *,
        media: Media | Iterable[Media] = (),
        reasoning: Reasoning | Iterable[Reasoning] = (),
        metadata: Mapping[str, Any] | None = None,
        id: str | None = None,
        stored_at: datetime | None = None,
    ) -> None:
        parts = join_parts(content, media)
        if reasoning != () or tool_calls != ():
            parts = (*as_tuple(reasoning), *parts, *as_tuple(tool_calls))
        check_parts(parts, PARTS, "no text, no media, no tool call")
        object.__setattr__(self, "parts", parts)
        object.__setattr__(self, "tool_calls", parts_of(parts, ToolCall))
        self._set(metadata, id, stored_at)

    @property
    def text(self) -> str:
        """All text parts, joined, without the reasoning."""
        return text_of(self.parts)

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
        """Return a copy with the given values replaced; other parts keep their positions."""
        parts: tuple[Any, ...] = self.parts
        if text is not None:
            parts = with_text(parts, text)
        if tool_calls is not None:
            parts = (*(part for part in parts if not isinstance(part, ToolCall)), *tool_calls)
        metadata = self.metadata if metadata is None else metadata
        return type(self)(parts, metadata=metadata, id=self.id, stored_at=self.stored_at)

    __repr__ = _repr


@dataclass(frozen=True, slots=True, init=False)
class ToolResponseMessage(Message):
    """The results of all tool calls of one assistant message, in the order of the calls.

    Attributes:
        responses: The answers.
        metadata: Values for the application; not sent.
        id: Identifies the message in its conversation, see `Message`; not compared.
        stored_at: When a repository stored it, see `Message`; not compared.

    Raises:
        WrongTypeError: One of them is not a `ToolResponse`.
    """

    role: ClassVar[Role] = "tool"
    responses: tuple[ToolResponse, ...]
    metadata: Mapping[str, Any]
    id: str | None = field(compare=False)
    stored_at: datetime | None = field(compare=False, repr=False)

    def __init__(
        self,
        responses: ToolResponse | Iterable[ToolResponse],
        metadata: Mapping[str, Any] | None = None,
        id: str | None = None,
        stored_at: datetime | None = None,
    ) -> None:
        for each in (several := as_tuple(responses)):
            check_type("a tool's answer", each, ToolResponse)
        object.__setattr__(self, "responses", several)
        self._set(metadata, id, stored_at)

    @property
    def text(self) -> str:
        """Always empty: results of tools are not text of the conversation."""
        return ""

    def mutate(
        self,
        *,
        responses: Iterable[ToolResponse] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Self:
        """Return a copy with the given values replaced."""
        return type(self)(
            self.responses if responses is None else responses,
            self.metadata if metadata is None else metadata,
            self.id,
            self.stored_at,
        )


def as_messages(messages: Message | Iterable[Message]) -> tuple[Message, ...]:
    """Return *messages*, one or several, as a tuple.

    Raises:
        WrongTypeError: One of them is not a message.
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
    """Return the messages in *given*, single ones or collections, as one tuple.

    Raises:
        WrongTypeError: One of them is not a message.
    """
    return tuple(message for each in given for message in as_messages(each))


def system_messages(messages: Iterable[Message]) -> tuple[SystemMessage, ...]:
    """Return the system messages among *messages*."""
    return tuple([message for message in messages if isinstance(message, SystemMessage)])


def without_system(messages: Iterable[Message]) -> tuple[Message, ...]:
    """Return *messages* without the system messages."""
    return tuple([message for message in messages if message.role != "system"])


def last_user_message(messages: Sequence[Message]) -> UserMessage | None:
    """Return the last user message, or None."""
    return next((each for each in reversed(messages) if isinstance(each, UserMessage)), None)
