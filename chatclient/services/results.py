"""The methods of a service: their decorators and annotations, and what their return types do."""

from collections import abc
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, get_args, get_origin

from chatclient._internal.annotations import alias_value
from chatclient.chain.chain import ChatClientResponse
from chatclient.chat.events import StreamEvent
from chatclient.chat.messages import AssistantMessage
from chatclient.chat.pending_turn import PendingTurn
from chatclient.chat.response import ChatResponse, FinishReason, Usage
from chatclient.chat.tool import ToolExecution
from chatclient.client.accessors import executions_in, pending_in, require_answer
from chatclient.client.request import ChatClientRequestSpec
from chatclient.errors import UsageError
from chatclient.extend import check_type
from chatclient.structured.converters import StructuredOutputConverter, converter_of
from chatclient.tools.function.parameters import ToolMemoryId

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__chatclient_service__"


class MemoryId(ToolMemoryId):
    """Marks the parameter that is the conversation id: `Annotated[str, MemoryId]`.

    Numbers are allowed, too. For a tool it is equivalent to `ToolMemoryId`: the library supplies
    the value, and the model does not see the parameter.
    """


@dataclass(frozen=True, slots=True)
class Texts:
    """The texts of the decorators of a method or an interface; None without a decorator."""

    system: str | Path | None = None
    user: str | Path | None = None


def system_message(text: str | Path) -> Callable[[F], F]:
    """Set the system text of a method, or of all methods of an interface.

    Args:
        text: A template with the method's parameters as placeholders, or the path of a UTF-8 file
            with it, read by `ai_service`. The text of a method replaces that of the interface, and
            that of the interface replaces the client's.

    Raises:
        WrongTypeError: *text* is neither; for example, the parentheses are missing.
    """
    check_type("a system message", text, (str, Path), 'write @system_message("...")')

    def mark(target: F) -> F:
        setattr(target, _MARK, Texts(text, texts_of(target).user))
        return target

    return mark


def user_message(text: str | Path) -> Callable[[F], F]:
    """Set the user text of a method.

    Args:
        text: A template with the method's parameters as placeholders, or the path of a UTF-8 file
            with it, read by `ai_service`.

    Raises:
        WrongTypeError: *text* is neither; for example, the parentheses are missing.
        UsageError: A class is decorated.
    """
    check_type("a user message", text, (str, Path), 'write @user_message("...")')

    def mark(target: F) -> F:
        if isinstance(target, type):
            msg = f"@user_message is for methods, not for the class {target.__name__}"
            raise UsageError(msg)
        setattr(target, _MARK, Texts(texts_of(target).system, text))
        return target

    return mark


def texts_of(target: Any) -> Texts:
    """Return the texts of the decorators of *target*, without those of base classes."""
    texts = vars(target).get(_MARK) if hasattr(target, "__dict__") else None
    return texts if isinstance(texts, Texts) else Texts()


T = TypeVar("T")

Sender = Callable[[ChatClientRequestSpec], Any]
"""Sends a request and returns the result of the method: a value, a coroutine or an iterator."""


@dataclass(frozen=True, slots=True)
class Result(Generic[T]):
    """An answer with its metadata; a return type for methods of a service.

    Attributes:
        content: The answer.
        usage: The tokens used in all rounds of the tool loop.
        finish_reason: The finish reason, or None.
        sources: The documents that the answer is based on.
        tool_executions: The executed tool calls, in order.
        response: The response.
        pending_turn: The turn for `client.resume`, if it waits for approval; a text in *content* is
            not the final answer then. Else None.
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
        """Return *content* with the metadata of *response*."""
        chat = response.chat_response
        return cls(
            content,
            chat.usage,
            chat.finish_reason,
            response.turn.sources,
            executions_in(response),
            response,
            pending_in(response),
        )


_STREAMS = (abc.Iterator, abc.Iterable, abc.Generator)
_ASYNC_STREAMS = (abc.AsyncIterator, abc.AsyncIterable, abc.AsyncGenerator)


def sender_for(kind: Any, *, is_async: bool) -> Sender:
    """Return a function that sends a request and returns its result as a *kind*.

    Raises:
        UsageError: *kind* is not supported.
    """
    kind = _without_alias(kind)
    origin = get_origin(kind) or kind
    if origin in (abc.Awaitable, abc.Coroutine):
        msg = "returns an awaitable; make it `async def`, and annotate the type of the result"
        raise UsageError(msg)
    unbound = () if kind is origin else getattr(kind, "__parameters__", ())
    if unbound or isinstance(kind, TypeVar):
        msg = f"returns {kind}, which is only a type variable; declare a type"
        raise UsageError(msg)
    if origin in _STREAMS or origin in _ASYNC_STREAMS:
        if is_async:
            msg = "is `async def` and returns an iterator; make it a plain `def`"
            raise UsageError(msg)
        item = _item_type(kind)
        asynchronous = origin in _ASYNC_STREAMS
        if item is str:
            return _async_text_stream if asynchronous else _text_stream
        items = _items_of(item)
        if asynchronous:
            return lambda request: items(request.astream())
        return lambda request: items(request.stream())
    wrapped = origin is Result
    if wrapped:
        kind = _item_type(kind)
    read = _reader(kind)
    converter = converter_of(str if read else kind)
    # A text, or None, cannot represent a turn that waits for approval.
    refuses_waiting = kind in (str, None, type(None))
    call = _Call(read, converter, wrapped=wrapped, refuses_waiting=refuses_waiting)
    return call.send_async if is_async else call.send


def _without_alias(kind: Any) -> Any:
    """Return the type that a `type` statement names."""
    while hasattr(kind, "__value__"):
        kind = alias_value(kind)
    return kind


def _item_type(kind: Any) -> Any:
    """Return the type argument of an iterator or a `Result`; `str` without one.

    Raises:
        UsageError: It is itself an iterator or a `Result`.
    """
    item = _without_alias((get_args(kind) or (str,))[0])
    if (get_origin(item) or item) in (Result, *_STREAMS, *_ASYNC_STREAMS):
        msg = (
            "returns a Result and a stream in one; take an iterator of StreamEvent, whose last"
            " event, Done, has the response"
        )
        raise UsageError(msg)
    return item


class _Call:
    """Sends requests without streaming, and returns the result of the method."""

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

    def send(self, request: ChatClientRequestSpec) -> Any:
        """Send *request*, blocking."""
        call = request.call()
        entity = None if self._read else call.entity(self._converter)
        return self._result(entity, call.chat_client_response())

    async def send_async(self, request: ChatClientRequestSpec) -> Any:
        """Send *request*, asynchronously."""
        call = request.acall()
        entity = None if self._read else await call.entity(self._converter)
        return self._result(entity, await call.chat_client_response())

    def _result(self, entity: Any, response: ChatClientResponse) -> Any:
        content = self._read(response) if self._read else entity
        if self._wrapped:
            return Result.of(content, response)
        if self._refuses_waiting:
            require_answer(response)
        return content


def _message_of(response: ChatClientResponse) -> AssistantMessage:
    result = response.chat_response.result
    return result.output if result is not None else AssistantMessage()


# Types that every response can be converted to; others need a format or a schema in the request.
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
    except TypeError:  # annotations of the type cannot be hashed
        return None


def _text_stream(request: ChatClientRequestSpec) -> Iterator[str]:
    stream = request.stream()
    yield from stream.content()
    require_answer(stream.response)


async def _async_text_stream(request: ChatClientRequestSpec) -> AsyncIterator[str]:
    stream = request.astream()
    async with stream.content() as pieces:
        async for piece in pieces:
            yield piece
    require_answer(stream.response)


_EVENTS: Any = StreamEvent | object  # including events of the application


def _items_of(item: Any) -> Callable[[Any], Any]:
    """Return a function that returns the iterator of *item*s of a stream, blocking or not."""
    if item in (StreamEvent, _EVENTS, Any):
        return lambda stream: stream.events()
    if any(each in get_args(StreamEvent) for each in (item, *get_args(item))):
        msg = "returns only some types of events; use an iterator of StreamEvent"
        raise UsageError(msg)
    if item is ChatResponse:
        return lambda stream: stream.chat_response()
    if item is ChatClientResponse:
        return lambda stream: stream.chat_client_response()
    converter = converter_of(item)
    return lambda stream: stream.entity(converter)
