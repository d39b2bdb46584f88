"""JSON that was sent before, kept because the next request wants it again as a rule."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar
from weakref import ref

from chatclient.json import dumps
from chatclient.messages import Message
from chatclient.options import ChatOptions

_F = TypeVar("_F", bound=Hashable)
_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)


def kept_wire(
    message: Message, form: _F, encode: Callable[[Message, _F], Iterable[Mapping[str, Any]]]
) -> bytes:
    """Return *message* as JSON elements with commas between; encoded once, then kept with it.

    Args:
        message: What to encode.
        form: On what else than the message its JSON depends; known by its identity.
        encode: Returns the elements of a message in that form, perhaps none.
    """
    kept = message.wire(form)
    if kept is not None:
        return kept
    return message.keep_wire(form, dumps(list(encode(message, form)))[1:-1])


class _Encode(Protocol[_T_co]):
    def __call__(self, options: ChatOptions, *, streaming: bool) -> _T_co: ...


class EncodedOptions(Generic[_T]):
    """Remembers what the last options came to: as a rule, the next request has the very same ones.

    The options themselves are not held on to. With them, what a request tells its tools would live
    as long as the model.
    """

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: tuple[ref[ChatOptions], bool, _T] | None = None

    def get(self, options: ChatOptions, encode: _Encode[_T], *, streaming: bool = False) -> _T:
        """Return what *options* come to; the very same ones are not encoded again.

        Args:
            options: Those of the request.
            encode: Returns what they come to.
            streaming: Whether the answer is to be streamed, where the request says so.
        """
        last = self._last
        if last is None or last[0]() is not options or last[1] != streaming:
            last = self._last = (ref(options), streaming, encode(options, streaming=streaming))
        return last[2]


class _Sent(NamedTuple):
    """A conversation and its JSON, with where the JSON of each message ends."""

    messages: tuple[Message, ...] = ()
    wire: bytes = b""
    ends: Sequence[int] = ()
    form: Hashable = None


class WireCache:
    """Joins the JSON of a conversation's messages, and only of those that are new to it.

    The next round of a conversation begins with what was sent in the last one, and another request
    with what it has in common with it: the very same messages, known by their identity. Threads may
    share a cache: what they see is always one whole conversation.
    """

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last = _Sent()

    def join(
        self,
        messages: tuple[Message, ...],
        form: _F,
        encode: Callable[[Message, _F], Iterable[Mapping[str, Any]]],
    ) -> bytes:
        """Return *messages* as JSON elements with commas between.

        Args:
            messages: The whole conversation.
            form: On what else than the message its JSON depends; known by its identity.
            encode: Returns the elements of a message in that form, perhaps none.
        """
        last = self._last
        known = _common(last.messages, messages) if form is last.form else 0
        ends = [*last.ends[:known]]
        end = ends[-1] if ends else 0
        elements = [last.wire[:end]]
        for message in messages[known:]:
            element = kept_wire(message, form, encode)
            if element:
                elements.append(element)
                end += len(element) + (end > 0)
            ends.append(end)
        wire = b",".join(elements if elements[0] else elements[1:])
        self._last = _Sent(messages, wire, ends, form)
        return wire


def _common(these: tuple[Message, ...], those: tuple[Message, ...]) -> int:
    """Return how many messages both begin with."""
    size = len(these)
    if those[:size] == these:  # as a rule, and at once
        return size
    pairs = enumerate(zip(these, those, strict=False))
    return next((at for at, (one, other) in pairs if one is not other), min(size, len(those)))
