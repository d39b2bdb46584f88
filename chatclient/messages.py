"""The messages of a conversation: immutable and compared by value."""

import base64
import mimetypes
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeAlias, TypeVar, get_args

from chatclient.checks import check_kind
from chatclient.errors import UsageError, WrongTypeError
from chatclient.values import EMPTY, frozen, own

Role = Literal["system", "user", "assistant", "tool"]

# A URL, of whatever scheme, or a provider's own name of a file, which has no ending.
_URL_OR_ID = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+:|[\w-]{0,80}(?:/[\w-]{1,80})?$")
_MOST_SHOWN = 60

# --- parts ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Media:
    """An image, a sound, a document or any other content that is not text.

    Attributes:
        mime_type: Such as `image/png`.
        data: The content itself, or where the provider finds it: a URL or a provider's file URI.
        id: The provider's id of the content, if it has one.
        name: A file name, shown to models that take one.
        metadata: Whatever the application wants to remember.

    Raises:
        UsageError: *data* is a text and no URL, such as the name of a file.
    """

    mime_type: str
    data: bytes | str = field(repr=False)
    id: str | None = None
    name: str | None = None
    metadata: Mapping[str, Any] = EMPTY

    def __post_init__(self) -> None:
        if self.metadata is not EMPTY:
            own(self, "metadata")
        if isinstance(self.data, str) and self.id is None and not _URL_OR_ID.match(self.data):
            shown = self.data if len(self.data) <= _MOST_SHOWN else f"{self.data[:_MOST_SHOWN]}…"
            msg = (
                f"{shown!r} is not a URL; use Media.from_file(path) for a file, and give content"
                " that is here as bytes"
            )
            raise UsageError(msg)

    @classmethod
    def from_file(cls, path: str | Path, mime_type: str | None = None) -> "Media":
        """Read a file; the type is guessed from its name unless given.

        Raises:
            UsageError: The type cannot be guessed.
            OSError: The file cannot be read.
        """
        path = Path(path)
        # Not strictly: before Python 3.13, WebP is known only then.
        mime_type = mime_type or mimetypes.guess_type(path.name, strict=False)[0]
        if mime_type is None:
            msg = f"cannot tell the type of {path.name!r}; pass mime_type="
            raise UsageError(msg)
        return cls(mime_type, path.read_bytes(), name=path.name)

    @property
    def is_url(self) -> bool:
        """Whether `data` says where the content is, rather than being it."""
        return isinstance(self.data, str)

    def base64(self) -> str:
        """Return the content in base 64.

        Raises:
            UsageError: The content is only known by URL.
        """
        if isinstance(self.data, str):
            msg = f"the content of {self.data!r} is not here; this provider wants the bytes"
            raise UsageError(msg)
        return base64.b64encode(self.data).decode()

    def url(self) -> str:
        """Return the URL: the given one, or a `data:` URL that holds the content."""
        if isinstance(self.data, str):
            return self.data
        return f"data:{self.mime_type};base64,{self.base64()}"


@dataclass(frozen=True, slots=True)
class Reasoning:
    """What a model thought on the way to its answer.

    Attributes:
        text: The thoughts, or their summary; empty when the provider keeps them to itself.
        signature: The provider's proof, to be sent back unchanged with the message.
        provider: Whose proof it is; other providers are not sent this part.
        data: The provider's own form of the part, when text and signature are not all of it.
    """

    text: str = ""
    signature: str | None = None
    provider: str = ""
    data: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        own(self, "data")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A model's request to run a tool.

    Attributes:
        id: Ties the response to the call.
        name: Which tool.
        arguments: A JSON object, exactly as the model wrote it (so perhaps malformed).
        metadata: The provider's own values, sent back with the message.
    """

    id: str
    name: str
    arguments: str
    metadata: Mapping[str, Any] = EMPTY

    def __post_init__(self) -> None:
        if self.metadata is not EMPTY:
            own(self, "metadata")


@dataclass(frozen=True, slots=True)
class ToolCallChunk:
    """A fragment of a tool call, in a chunk of a stream; `MessageAggregator` joins them.

    Attributes:
        index: Which of the parallel calls, if the provider numbers them.
        id: The call's id, in at least one of its fragments as a rule.
        name: The tool's name, whole, in at least one fragment.
        arguments: The next piece of the arguments.
        metadata: The provider's own values.
    """

    index: int | None = None
    id: str = ""
    name: str = ""
    arguments: str = ""
    metadata: Mapping[str, Any] = EMPTY


@dataclass(frozen=True, slots=True)
class ProviderPart:
    """Something only one provider knows: kept, stored and sent back to it unchanged.

    Attributes:
        provider: Whose it is; other providers are sent only its text.
        data: The provider's JSON.
        text: What of it is text of the message, such as a cited passage.
    """

    provider: str
    data: Mapping[str, Any]
    text: str = ""

    def __post_init__(self) -> None:
        own(self, "data")


Part: TypeAlias = str | Media | Reasoning | ToolCall | ToolCallChunk | ProviderPart
"""A piece of a message; plain text is a plain `str`."""

_PARTS: tuple[Any, ...] = get_args(Part)

# --- messages -------------------------------------------------------------------------------

_P = TypeVar("_P")


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
        WrongTypeError: It is no text.
    """

    role: ClassVar[Role] = "system"
    content: str
    metadata: Mapping[str, Any] = EMPTY

    def __post_init__(self) -> None:
        check_kind("the content of a system message", self.content, str)
        object.__setattr__(self, "metadata", frozen(self.metadata))

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


def _parts(content: Any, more: Any) -> tuple[Any, ...]:
    if content is None or content == "":
        return _several(more)
    return (*_several(content), *_several(more))


def _several(given: Any) -> tuple[Any, ...]:
    """Return what there is one or more of, as a tuple; whether it is right is seen later."""
    one = isinstance(given, str | Mapping) or not isinstance(given, Iterable)
    return (given,) if one else tuple(given)


def _check_parts(parts: tuple[object, ...], kinds: tuple[type, ...], hint: str) -> None:
    for part in parts:
        if not isinstance(part, kinds):
            msg = f"{part!r} is not a part of a message: {hint}"
            raise WrongTypeError(msg)


def _text(parts: tuple[Any, ...]) -> str:
    if len(parts) == 1 and type(parts[0]) is str:
        return parts[0]
    return "".join(
        part if isinstance(part, str) else part.text
        for part in parts
        if isinstance(part, str | ProviderPart)
    )


def _with_text(parts: tuple[Any, ...], text: str) -> tuple[Any, ...]:
    """Return *parts* with all their text replaced by *text*, where the first of it stood.

    Without any, it goes after what was thought, as in a new message.
    """
    places = [i for i, part in enumerate(parts) if isinstance(part, str) or _is_cited(part)]
    at = places[0] if places else sum(isinstance(part, Reasoning) for part in parts)
    kept = [part for i, part in enumerate(parts) if i not in places]
    return (*kept[:at], text, *kept[at:]) if text else tuple(kept)


def _is_cited(part: object) -> bool:
    return isinstance(part, ProviderPart) and bool(part.text)


def _of(parts: tuple[Any, ...], kind: type[_P]) -> tuple[_P, ...]:
    return tuple(part for part in parts if isinstance(part, kind))


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
        parts = _parts(content, media)
        _check_parts(parts, (str, Media, ProviderPart), "no text and no media")
        object.__setattr__(self, "parts", parts)
        object.__setattr__(self, "metadata", frozen(metadata))

    @property
    def text(self) -> str:
        """All text parts, joined."""
        return _text(self.parts)

    @property
    def media(self) -> tuple[Media, ...]:
        """All media, in order."""
        return _of(self.parts, Media)

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
            parts = _with_text(parts, text)
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
        parts = (*_several(reasoning), *_parts(content, media), *_several(tool_calls))
        _check_parts(parts, _PARTS, "no text, no media, no tool call")
        object.__setattr__(self, "parts", parts)
        object.__setattr__(self, "metadata", frozen(metadata))

    @property
    def text(self) -> str:
        """All text parts, joined; reasoning is not among them."""
        return _text(self.parts)

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The tool calls, in order."""
        return _of(self.parts, ToolCall)

    @property
    def media(self) -> tuple[Media, ...]:
        """All media, in order."""
        return _of(self.parts, Media)

    @property
    def reasoning(self) -> tuple[Reasoning, ...]:
        """The reasoning parts, in order."""
        return _of(self.parts, Reasoning)

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
            parts = _with_text(parts, text)
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
    """

    id: str
    name: str
    data: str
    is_error: bool = False
    media: tuple[Media, ...] = ()
    metadata: Mapping[str, Any] = EMPTY

    def __post_init__(self) -> None:
        if self.metadata is not EMPTY:
            own(self, "metadata")


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
        several = _several(responses)
        for each in several:
            check_kind("a tool's answer", each, ToolResponse)
        object.__setattr__(self, "responses", several)
        object.__setattr__(self, "metadata", frozen(metadata))

    @property
    def text(self) -> str:
        """Empty: a tool's answer is no text of the conversation."""
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
    result = messages if isinstance(messages, tuple) else _several(messages)
    for message in result:
        if not isinstance(message, Message):
            msg = f"expected messages, got {message!r}; wrap text in UserMessage(...)"
            raise WrongTypeError(msg)
    return result


def flat_messages(given: Iterable[Message | Iterable[Message]]) -> tuple[Message, ...]:
    """Return the messages in *given*, one by one or in collections, in one tuple.

    Raises:
        WrongTypeError: One of them is something else.
    """
    return tuple(message for each in given for message in as_messages(each))
