"""What messages are made of: text, media, reasoning, tool calls."""

import base64
import mimetypes
import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, get_args

from chatclient.checks import check_kind
from chatclient.errors import UsageError, WrongTypeError
from chatclient.texts import shortened
from chatclient.values import EMPTY, freeze_fields

_P = TypeVar("_P")

# A URL, of whatever scheme, or a provider's own name of a file, which has no ending.
_URL_OR_ID = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+:|[\w-]{0,80}(?:/[\w-]{1,80})?$")
_MOST_SHOWN = 60


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
        UsageError: *data* is a text and no URL, such as the name of a file, or not even a text.
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
            msg = f"this provider needs the bytes of {self.data!r}, not its address"
            raise UsageError(msg)
        return base64.b64encode(self.data).decode()

    def url(self) -> str:
        """Return the URL: the given one, or a `data:` URL that holds the content."""
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
        freeze_fields(self, "data")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A model's request to run a tool.

    Attributes:
        id: Ties the response to the call.
        name: Which tool.
        arguments: A JSON object, exactly as the model wrote it (so perhaps malformed).
        metadata: The provider's own values, sent back with the message.

    Raises:
        WrongTypeError: The arguments are not a text.
    """

    id: str
    name: str
    arguments: str
    metadata: Mapping[str, Any] = EMPTY

    def __post_init__(self) -> None:
        check_kind("the arguments of a tool call", self.arguments, str, "write json.dumps(...)")
        if self.metadata is not EMPTY:
            freeze_fields(self, "metadata")


def invented_call_id() -> str:
    """Return an id for a call that came without one: its result has to name it."""
    return f"call_{uuid.uuid4().hex[:24]}"


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
        freeze_fields(self, "data")


Part: TypeAlias = str | Media | Reasoning | ToolCall | ToolCallChunk | ProviderPart
"""A piece of a message; plain text is a plain `str`."""

PARTS: tuple[Any, ...] = get_args(Part)


def join_parts(content: Any, more: Any) -> tuple[Any, ...]:
    """Return the parts of a message: its content, and *more* after it."""
    if content is None or content == "":
        return as_tuple(more)
    return (*as_tuple(content), *as_tuple(more))


def as_tuple(given: Any) -> tuple[Any, ...]:
    """Return what there is one or more of, as a tuple; whether it is right is seen later."""
    # By far the most common come first: an abstract class is slow.
    if isinstance(given, (tuple, list)):
        return tuple(given)
    one = isinstance(given, (str, Mapping)) or not isinstance(given, Iterable)
    return (given,) if one else tuple(given)


def check_parts(parts: tuple[object, ...], kinds: tuple[type, ...], hint: str) -> None:
    """Make sure that *parts* are of *kinds*.

    Raises:
        WrongTypeError: One of them is something else; the message ends with *hint*.
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
    """Return *parts* with all their text replaced by *text*, where the first of it stood.

    Without any, it goes after what was thought, as in a new message.
    """
    places = [i for i, part in enumerate(parts) if isinstance(part, str) or _is_cited(part)]
    at = places[0] if places else sum(isinstance(part, Reasoning) for part in parts)
    kept = [part for i, part in enumerate(parts) if i not in places]
    return (*kept[:at], text, *kept[at:]) if text else tuple(kept)


def new_text(change: str | Callable[[str], str], text: str) -> str:
    """Return *change*, or what it makes of *text*.

    Raises:
        WrongTypeError: That is not a text, but None for instance, where a function returns nothing.
    """
    new: object = change(text) if callable(change) else change
    check_kind("the new text", new, str, "a function from the old text must return it")
    return str(new)


def parts_of(parts: tuple[Any, ...], kind: type[_P]) -> tuple[_P, ...]:
    """Return those of *parts* that are of *kind*."""
    return tuple([part for part in parts if isinstance(part, kind)])


def _is_cited(part: object) -> bool:
    return isinstance(part, ProviderPart) and bool(part.text)
