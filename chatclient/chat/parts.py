"""The parts of messages: text, media, reasoning, tool calls and their responses."""

import base64
import mimetypes
import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, InitVar, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, get_args

from chatclient._internal.checks import check_type
from chatclient._internal.frozen import EMPTY, freeze_fields
from chatclient._internal.text import shortened
from chatclient.errors import UsageError, WrongTypeError

_P = TypeVar("_P")

# A URL of any scheme, or a provider's file id, which has no extension.
_URL_OR_ID = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+:|[\w-]{0,80}(?:/[\w-]{1,80})?$")
_MOST_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Media:
    """An image, a sound, a document or other content that is not text.

    Attributes:
        mime_type: The MIME type, such as `image/png`.
        data: The content as bytes, or its URL or the provider's file URI.
        id: The provider's id of the content, or None.
        name: The file name, for models that accept one.
        metadata: Values for the application; not sent.

    Raises:
        UsageError: *data* is neither bytes nor a URL, but a file name for example.
    """

    mime_type: str
    data: bytes | str = field(repr=False)
    id: str | None = None
    name: str | None = None
    metadata: Mapping[str, Any] = EMPTY

    def __post_init__(self) -> None:
        if self.metadata is not EMPTY:
            freeze_fields(self, "metadata")
        given: object = self.data
        if not isinstance(given, bytes | str):
            object.__setattr__(self, "data", _as_bytes(given))
        elif isinstance(self.data, str) and self.id is None and not _URL_OR_ID.match(self.data):
            shown = shortened(self.data, _MOST_SHOWN)
            msg = (
                f"{shown!r} is not a URL; use Media.from_file(path) for a file, and pass content"
                " as bytes"
            )
            raise UsageError(msg)

    @classmethod
    def from_file(cls, path: str | Path, mime_type: str | None = None) -> "Media":
        """Read a file; without *mime_type*, it is guessed from the file name.

        Raises:
            UsageError: The type cannot be guessed.
            OSError: The file cannot be read.
        """
        path = Path(path)
        # strict=False: before Python 3.13, WebP is not among the strict types.
        mime_type = mime_type or mimetypes.guess_type(path.name, strict=False)[0]
        if mime_type is None:
            msg = f"cannot tell the type of {path.name!r}; pass mime_type="
            raise UsageError(msg)
        return cls(mime_type, path.read_bytes(), name=path.name)

    @property
    def is_url(self) -> bool:
        """Whether `data` is a URL or a file URI, not the content."""
        return isinstance(self.data, str)

    def base64(self) -> str:
        """Return the content encoded in Base64.

        Raises:
            UsageError: `data` is a URL.
        """
        if isinstance(self.data, str):
            msg = f"this provider needs the bytes of {self.data!r}, not its address"
            raise UsageError(msg)
        return base64.b64encode(self.data).decode()

    def url(self) -> str:
        """Return the URL in `data`, or a `data:` URL of the content."""
        if isinstance(self.data, str):
            return self.data
        return f"data:{self.mime_type};base64,{self.base64()}"


def _as_bytes(content: object) -> bytes:
    if isinstance(content, bytearray | memoryview):
        return bytes(content)
    msg = f"media must be bytes or a URL, not {content!r}; use Media.from_file(path) for a file"
    raise WrongTypeError(msg)


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Reasoning of a model before its answer.

    Attributes:
        text: The reasoning or a summary of it; empty if the provider does not disclose it.
        signature: The provider's signature, which must be sent back unchanged with the message.
        provider: The provider that signed it; the part is not sent to other providers.
        data: The provider's JSON of the part, if it has more than text and signature.
    """

    text: str = ""
    signature: str | None = None
    provider: str = ""
    data: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        freeze_fields(self, "data")


class _HasKey:
    """Stores the key of a tool call outside of the dataclass fields."""

    __slots__ = ("_stored_key",)


class _Key:
    """Descriptor of a tool call's key, which is created at its first access.

    `dataclasses.replace` passes the key to the copy.
    """

    def __get__(self, call: _HasKey | None, _owner: type) -> object:
        if call is None:  # the default of the parameter
            return None
        try:
            return call._stored_key  # type: ignore[attr-defined]  # noqa: SLF001
        except AttributeError:
            key = object()
            object.__setattr__(call, "_stored_key", key)
            return key


@dataclass(frozen=True, slots=True)
class ToolCall(_HasKey):
    """A model's request to run a tool.

    Attributes:
        id: The id that the tool's response refers to.
        name: The tool's name.
        arguments: A JSON object as the model wrote it, possibly malformed.
        metadata: The provider's own values, sent back with the message.

    Raises:
        WrongTypeError: *arguments* is not a text.
    """

    id: str
    name: str
    arguments: str
    metadata: Mapping[str, Any] = EMPTY
    _: KW_ONLY
    _key: InitVar[object] = _Key()

    def __post_init__(self, _key: object) -> None:
        check_type("the arguments of a tool call", self.arguments, str, "write json.dumps(...)")
        if self.metadata is not EMPTY:
            freeze_fields(self, "metadata")
        if _key is not None:
            object.__setattr__(self, "_stored_key", _key)


def call_key(call: ToolCall) -> object:
    """Return the unique key of *call* in this process; equal calls have different keys.

    Copies made by `dataclasses.replace` are the same call and have the same key.
    """
    key: object = getattr(call, "_key")  # noqa: B009 - type checkers hide an `InitVar`
    return key


def has_key(call: ToolCall) -> bool:
    """Return whether *call* has a key already: whether `call_key` was called with it."""
    return hasattr(call, "_stored_key")


def with_new_key(call: ToolCall) -> ToolCall:
    """Return a copy of *call* with a new key."""
    return replace(call, _key=object())


def generate_call_id() -> str:
    """Return a random id for a tool call that the server sent without one."""
    return f"call_{uuid.uuid4().hex[:24]}"


@dataclass(frozen=True, slots=True)
class ToolResponse:
    """The result of one tool call.

    Attributes:
        id: The id of the call.
        name: The name of the tool.
        data: The result as text, usually JSON.
        is_error: Whether the call failed; `data` is the error message then.
        media: Images and other content of the result.
        metadata: Values for the application; not sent.

    Raises:
        WrongTypeError: *data* is not a text.
    """

    id: str
    name: str
    data: str
    is_error: bool = False
    media: tuple[Media, ...] = ()
    metadata: Mapping[str, Any] = EMPTY

    def __post_init__(self) -> None:
        check_type("the data of a tool response", self.data, str, "write json.dumps(...)")
        if self.metadata is not EMPTY:
            freeze_fields(self, "metadata")


@dataclass(frozen=True, slots=True)
class ToolCallChunk:
    """A fragment of a tool call in a stream; `MessageAggregator` joins them.

    Attributes:
        index: The number of the call among parallel calls, if the provider sends one.
        id: The id of the call; usually in one fragment at least.
        name: The complete name of the tool; in one fragment at least.
        arguments: The next fragment of the arguments.
        metadata: The provider's own values.
    """

    index: int | None = None
    id: str = ""
    name: str = ""
    arguments: str = ""
    metadata: Mapping[str, Any] = EMPTY


@dataclass(frozen=True, slots=True)
class ProviderPart:
    """A provider-specific part, stored and sent back to its provider unchanged.

    Attributes:
        provider: The provider; others receive only the text.
        data: The provider's JSON.
        text: The text of the part, which counts as text of the message, such as a cited passage.
    """

    provider: str
    data: Mapping[str, Any]
    text: str = ""

    def __post_init__(self) -> None:
        freeze_fields(self, "data")


Part: TypeAlias = str | Media | Reasoning | ToolCall | ToolCallChunk | ProviderPart
"""A part of a message; text is a `str`."""

PARTS: tuple[Any, ...] = get_args(Part)


def join_parts(content: Any, media: Any) -> tuple[Any, ...]:
    """Return *content* and *media*, each one part or several, as a tuple."""
    if content is None or content == "":
        return as_tuple(media) if media else ()
    parts = (content,) if type(content) is str else as_tuple(content)
    return (*parts, *as_tuple(media)) if media else parts


def as_tuple(given: Any) -> tuple[Any, ...]:
    """Return *given*, one value or several, as a tuple."""
    # First the most common types: checks against an abstract class are slow.
    if isinstance(given, (tuple, list)):
        return tuple(given)
    one = isinstance(given, (str, Mapping)) or not isinstance(given, Iterable)
    return (given,) if one else tuple(given)


def check_parts(parts: tuple[object, ...], kinds: tuple[type, ...], hint: str) -> None:
    """Check that each of *parts* is of one of *kinds*.

    Raises:
        WrongTypeError: One has another type; the message ends with *hint*.
    """
    for part in parts:
        if not isinstance(part, kinds):
            msg = f"{part!r} is not a part of a message: {hint}"
            raise WrongTypeError(msg)


def text_of(parts: tuple[Any, ...]) -> str:
    """Return the text of *parts*, joined."""
    if len(parts) == 1 and type(parts[0]) is str:
        return parts[0]
    return "".join(
        part if isinstance(part, str) else part.text
        for part in parts
        if isinstance(part, (str, ProviderPart))
    )


def with_text(parts: tuple[Any, ...], text: str) -> tuple[Any, ...]:
    """Return *parts* with their text replaced by *text*, at the position of the first text.

    Without text in *parts*, it is inserted after the reasoning.
    """
    indexes = [
        i
        for i, part in enumerate(parts)
        if isinstance(part, str) or (isinstance(part, ProviderPart) and bool(part.text))
    ]
    position = indexes[0] if indexes else sum(isinstance(part, Reasoning) for part in parts)
    other_parts = [part for i, part in enumerate(parts) if i not in indexes]
    return (*other_parts[:position], text, *other_parts[position:]) if text else tuple(other_parts)


def new_text(change: str | Callable[[str], str], text: str) -> str:
    """Return *change*, or its result for *text* if it is a function.

    Raises:
        WrongTypeError: The result is not a text: a function that returns None, for example.
    """
    new: object = change(text) if callable(change) else change
    check_type("the new text", new, str, "a function from the old text must return it")
    return str(new)


def parts_of(parts: tuple[Any, ...], kind: type[_P]) -> tuple[_P, ...]:
    """Return the *parts* of type *kind*."""
    if not parts or len(parts) == 1:  # the common cases
        return parts if parts and isinstance(parts[0], kind) else ()
    return tuple([part for part in parts if isinstance(part, kind)])
