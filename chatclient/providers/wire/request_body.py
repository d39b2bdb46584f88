"""Joins the parts of a request body, most of which were encoded for an earlier one; no I/O."""

from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar
from weakref import ref

from chatclient._internal.frozen import EMPTY
from chatclient._internal.json import dumps, dumps_exact, loads_exact
from chatclient.chat.messages import Message
from chatclient.chat.options import ChatOptions

_S = TypeVar("_S", bound=Hashable)
_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)

Fields = Mapping[str, Any]


def cached_json(
    message: Message, settings: _S, encode: Callable[[Message, _S], Iterable[Mapping[str, Any]]]
) -> bytes:
    """Return *message* as JSON elements with commas between, cached in it by *settings*."""
    cached = message.wire(settings)
    if cached is not None:
        return cached
    return message.cache_wire(settings, dumps(list(encode(message, settings)))[1:-1])


class _Encode(Protocol[_T_co]):
    def __call__(self, options: ChatOptions, *, streaming: bool) -> _T_co: ...


class EncodedOptions(Generic[_T]):
    """Caches the result for the options of the last request.

    Only a weak reference to the options is kept, because they contain the request's tool context.
    """

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: tuple[ref[ChatOptions], bool, _T] | None = None

    def get(self, options: ChatOptions, encode: _Encode[_T], *, streaming: bool = False) -> _T:
        """Return the result of *encode*, cached if *options* are those of the last call."""
        last = self._last
        if last is None or last[0]() is not options or last[1] != streaming:
            last = self._last = (ref(options), streaming, encode(options, streaming=streaming))
        return last[2]


class _Conversation(NamedTuple):
    """A conversation, its JSON, and the end offset of each message in it."""

    messages: tuple[Message, ...] = ()
    wire: bytes = b""
    ends: Sequence[int] = ()
    settings: Hashable = None


class WireCache:
    """Joins the JSON of messages, and reuses that of the prefix shared with the last request.

    Messages are compared by identity. Threads may share a cache: the last conversation is replaced
    atomically.
    """

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last = _Conversation()

    def join(
        self,
        messages: tuple[Message, ...],
        settings: _S,
        encode: Callable[[Message, _S], Iterable[Mapping[str, Any]]],
    ) -> bytes:
        """Return *messages*, encoded with *settings*, as JSON elements separated by commas.

        *settings* are all that the encoding depends on besides the message, such as a dialect; they
        are compared by identity.
        """
        last = self._last
        shared = _common_prefix(last.messages, messages) if settings is last.settings else 0
        ends = [*last.ends[:shared]]
        end = ends[-1] if ends else 0
        elements = [last.wire[:end]]
        for message in messages[shared:]:
            element = cached_json(message, settings, encode)
            if element:
                elements.append(element)
                end += len(element) + (end > 0)
            ends.append(end)
        wire = b",".join(elements if elements[0] else elements[1:])
        self._last = _Conversation(messages, wire, ends, settings)
        return wire


def _common_prefix(last: tuple[Message, ...], new: tuple[Message, ...]) -> int:
    """Return the length of the common prefix."""
    size = len(last)
    if new[:size] == last:  # the usual case, and faster
        return size
    pairs = enumerate(zip(last, new, strict=False))
    return next((at for at, (one, other) in pairs if one is not other), min(size, len(new)))


class RequestHead:
    """The fields of a request that its options determine, encoded once.

    All bodies are made by `body`, so `extra` is merged in one place, and no field occurs twice.

    Args:
        fields: The fields of the options.
        extra: The option `extra`.
    """

    __slots__ = ("_extra", "_fields", "_names", "_wire")

    def __init__(self, fields: Fields, extra: Fields) -> None:
        self._fields, self._extra = fields, extra
        merged = merge_extra(fields, extra)
        self._names = frozenset(merged)
        self._wire = dumps(merged)[1:-1]

    @property
    def wire(self) -> bytes:
        """The JSON of the fields, without the braces."""
        return self._wire

    def body(self, messages: Mapping[str, bytes] = EMPTY) -> bytes:
        """Return the complete request; *messages* are the fields, as JSON, that depend on them."""
        if self._names.isdisjoint(messages):
            encoded = [b'"%b":%b' % (name.encode(), value) for name, value in messages.items()]
            return b"{%b}" % b",".join([self._wire, *encoded] if self._wire else encoded)
        decoded = {name: loads_exact(value) for name, value in messages.items()}
        fields = {**self._fields, **decoded}
        return dumps_exact(merge_extra(fields, self._extra, joined=messages)).encode()


def merge_extra(body: Fields, extra: Fields, joined: Container[str] = ()) -> dict[str, Any]:
    """Return a request body with the fields of *extra*, which override it.

    Objects are merged field by field unless their `type` differs. Lists are concatenated if they
    are `tools`, or in the fields *joined*.
    """
    result = {**body, **extra}
    for name in body.keys() & extra.keys():
        value, added = body[name], extra[name]
        if not (isinstance(value, Mapping) and isinstance(added, Mapping)):
            result[name] = _joined(value, added) if name == "tools" or name in joined else added
            continue
        merged = {**value, **added}
        if value.get("type", merged.get("type")) != merged.get("type"):
            continue
        for key in value.keys() & added.keys():
            if key == "tools" or name in joined:
                merged[key] = _joined(value[key], added[key])
        result[name] = merged
    return result


def _joined(value: Any, added: Any) -> Any:
    """Return two lists as one, and otherwise *added*."""
    are_lists = isinstance(value, list | tuple) and isinstance(added, list | tuple)
    return [*value, *added] if are_lists else added
