"""What a method of a service returns, and how a request is asked for it."""

from collections import abc
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, get_args, get_origin

from chatclient.accessors import executions_in, pending_in, refuse_waiting
from chatclient.chain import SOURCES, ChatClientResponse
from chatclient.client import ChatClientRequestSpec
from chatclient.errors import UsageError
from chatclient.events import StreamEvent
from chatclient.messages import AssistantMessage
from chatclient.response import ChatResponse, FinishReason, Usage
from chatclient.structured import StructuredOutputConverter
from chatclient.structured.converters import converter_of
from chatclient.tools import PendingTurn, ToolExecution

T = TypeVar("T")

Answer = Callable[[ChatClientRequestSpec], Any]
"""Puts a request and returns what the method returns: a value, a coroutine, an iterator."""


@dataclass(frozen=True, slots=True)
class Result(Generic[T]):
    """An answer with what led to it; a return type for methods of a service.

    Attributes:
        content: The answer itself.
        usage: What it cost, over all rounds of the tool loop.
        finish_reason: Why the model stopped, or None.
        sources: What advisors say the answer rests on.
        tool_executions: Every tool call that was run for it, in order.
        response: The whole response.
        pending_turn: The turn, if it waits for approval: `client.resume` goes on with it, and a
            text is only what the model has said so far.
    """

    content: T
    usage: Usage
    finish_reason: FinishReason | None
    sources: tuple[Any, ...]
    tool_executions: tuple[ToolExecution, ...]
    response: ChatClientResponse
    pending_turn: PendingTurn | None = None

    @classmethod
    def of(cls, content: T, response: ChatClientResponse) -> "Result[T]":
        """Return *content* with what *response* says about it."""
        chat = response.chat_response
        return cls(
            content,
            chat.usage,
            chat.finish_reason,
            tuple(response.context.get(SOURCES, ())),
            executions_in(response),
            response,
            pending_in(response),
        )


_STREAMS = (abc.Iterator, abc.Iterable, abc.Generator)
_ASYNC_STREAMS = (abc.AsyncIterator, abc.AsyncIterable, abc.AsyncGenerator)


def answer_for(kind: Any, *, is_async: bool) -> Answer:
    """Return how a request is put whose answer is to be a *kind*.

    Raises:
        UsageError: No answer could be made a *kind*.
    """
    kind = _without_alias(kind)
    origin = get_origin(kind) or kind
    _refuse_what_is_unknown(kind, origin)
    if origin in _STREAMS or origin in _ASYNC_STREAMS:
        if is_async:
            msg = "is `async def` and returns an iterator; make it a plain `def`"
            raise UsageError(msg)
        item = _inside(kind)
        asynchronous = origin in _ASYNC_STREAMS
        if item is str:
            return _awords if asynchronous else _words
        return _stream(_pieces_of(item), asynchronous=asynchronous)
    wrapped = origin is Result
    if wrapped:
        kind = _inside(kind)
    read = _reader(kind)
    # Nothing has to be asked for where any answer will do.
    converter = converter_of(str if read else kind)
    # A text, or nothing, does not say that there is no answer yet.
    refuses_waiting = kind in (str, None, type(None))
    whole = _Whole(read, converter, wrapped=wrapped, refuses_waiting=refuses_waiting)
    return whole.ask_async if is_async else whole.ask


def _without_alias(kind: Any) -> Any:
    """Return the type that a `type` statement has given a name to."""
    while hasattr(kind, "__value__"):
        kind = kind.__value__
    return kind


def _inside(kind: Any) -> Any:
    """Return what an iterator or a `Result` is declared to be of; a text, if nothing is said.

    Raises:
        UsageError: It is of another of them.
    """
    item = _without_alias((get_args(kind) or (str,))[0])
    if (get_origin(item) or item) in (Result, *_STREAMS, *_ASYNC_STREAMS):
        msg = (
            "returns a Result and a stream in one; take an iterator of StreamEvent, whose last"
            " event, Done, has the response"
        )
        raise UsageError(msg)
    return item


def _refuse_what_is_unknown(kind: Any, origin: Any) -> None:
    """Make sure that *kind* says of which type the answer is, once it is there.

    Raises:
        UsageError: It does not.
    """
    if origin in (abc.Awaitable, abc.Coroutine):
        msg = "returns an awaitable; make it `async def`, and declare what comes of awaiting it"
        raise UsageError(msg)
    unbound = () if kind is origin else getattr(kind, "__parameters__", ())
    if unbound or isinstance(kind, TypeVar):
        msg = f"returns {kind}, which is only a type variable; declare a type"
        raise UsageError(msg)


class _Whole:
    """Asks for a whole answer, and makes of it what the method returns."""

    def __init__(
        self,
        read: Callable[[ChatClientResponse], Any] | None,
        converter: StructuredOutputConverter[Any],
        *,
        wrapped: bool,
        refuses_waiting: bool,
    ) -> None:
        self._read = read
        self._converter = converter
        self._wrapped = wrapped
        self._refuses_waiting = refuses_waiting

    def ask(self, request: ChatClientRequestSpec) -> Any:
        """Put *request*, blocking."""
        call = request.call()
        entity = None if self._read else call.entity(self._converter)
        return self._returned(entity, call.chat_client_response())

    async def ask_async(self, request: ChatClientRequestSpec) -> Any:
        """Put *request*, asynchronously."""
        call = request.acall()
        entity = None if self._read else await call.entity(self._converter)
        return self._returned(entity, await call.chat_client_response())

    def _returned(self, entity: Any, response: ChatClientResponse) -> Any:
        content = self._read(response) if self._read else entity
        if self._wrapped:
            return Result.of(content, response)
        if self._refuses_waiting:
            refuse_waiting(response)
        return content


def _message_of(response: ChatClientResponse) -> AssistantMessage:
    result = response.chat_response.result
    return result.output if result is not None else AssistantMessage()


# What can be made of any answer; for all else the model is told what is wanted.
_READERS: Mapping[Any, Callable[[ChatClientResponse], Any]] = {
    str: lambda response: response.chat_response.text,
    None: lambda _response: None,
    type(None): lambda _response: None,
    AssistantMessage: _message_of,
    ChatResponse: lambda response: response.chat_response,
    ChatClientResponse: lambda response: response,
}


def _reader(kind: Any) -> Callable[[ChatClientResponse], Any] | None:
    try:
        return _READERS.get(kind)
    except TypeError:  # what is said about the type cannot be hashed
        return None


def _words(request: ChatClientRequestSpec) -> Iterator[str]:
    stream = request.stream()
    yield from stream.content()
    refuse_waiting(stream.response)


async def _awords(request: ChatClientRequestSpec) -> AsyncIterator[str]:
    stream = request.astream()
    async with stream.content() as pieces:
        async for piece in pieces:
            yield piece
    refuse_waiting(stream.response)


_EVENTS: Any = StreamEvent | object  # those of the application among them


def _pieces_of(item: Any) -> Callable[[Any], Any]:
    """Return what is taken of a stream, blocking or not, whose pieces are to be *item*s."""
    if item in (StreamEvent, _EVENTS, Any):
        return lambda stream: stream.events()
    if any(each in get_args(StreamEvent) for each in (item, *get_args(item))):
        msg = "returns some of the events; all of them are an iterator of StreamEvent"
        raise UsageError(msg)
    if item is ChatResponse:
        return lambda stream: stream.chat_response()
    if item is ChatClientResponse:
        return lambda stream: stream.chat_client_response()
    converter = converter_of(item)
    return lambda stream: stream.entity(converter)


def _stream(pieces: Callable[[Any], Any], *, asynchronous: bool) -> Answer:
    if asynchronous:
        return lambda request: pieces(request.astream())
    return lambda request: pieces(request.stream())
