"""What a request gives: an answer, or a stream of what happens on the way to it."""

import asyncio
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from dataclasses import replace
from typing import Any, Self, TypeVar

from chatclient.advisors.tool_calling import PENDING_TURN, TOOL_EXECUTIONS
from chatclient.chain import ChatClientResponse
from chatclient.errors import UsageError
from chatclient.events import Done, ReasoningDelta, TextDelta
from chatclient.messages import AssistantMessage, Reasoning
from chatclient.response import ChatResponse, Generation
from chatclient.runtime import AsyncEvents, Runtime, drive, drive_stream
from chatclient.tools import PendingTurn, ToolExecution
from chatclient.values import EMPTY

T = TypeVar("T")

Run = Callable[[Runtime], Coroutine[Any, Any, ChatClientResponse]]
"""A request that is ready to run."""


class _Pending:
    """Something that runs when it is first asked, and warns when it never was."""

    def __init__(self, run: Run, runtime: Runtime) -> None:
        self._run = run
        self._runtime = runtime
        self._asked = False
        self._response: ChatClientResponse | None = None
        self._error: Exception | None = None

    def __del__(self, warn: Callable[..., None] = warnings.warn) -> None:
        # As with a coroutine that was never awaited: without this, a forgotten `.content()`
        # would silently send nothing.
        if not getattr(self, "_asked", True):
            name = type(self).__name__
            warn(f"{name} was never asked for its content: nothing was sent", RuntimeWarning, 2)


class CallResponse(_Pending):
    """The answer to a blocking call.

    The request runs once, when the first accessor is called; the others are free. When it fails,
    every accessor raises its error.
    """

    def __init__(self, run: Run, runtime: Runtime) -> None:
        super().__init__(run, runtime)
        self._lock = threading.Lock()

    @classmethod
    def of(cls, response: ChatClientResponse) -> Self:
        """Return the answer of a request that has run already."""
        answer = cls.__new__(cls)
        answer._asked = True
        answer._response = response
        return answer

    def content(self) -> str:
        """Return the text of the answer; empty when the model gave none."""
        return self.chat_client_response().chat_response.text

    def chat_response(self) -> ChatResponse:
        """Return what the model said, with usage and finish reason."""
        return self.chat_client_response().chat_response

    def chat_client_response(self) -> ChatClientResponse:
        """Return the chat response with the context that the advisors left."""
        if self._response is not None:
            return self._response
        with self._lock:
            if self._error is not None:
                raise self._error
            if self._response is None:
                self._asked = True
                try:
                    self._response = drive(self._run(self._runtime))
                except Exception as error:
                    self._error = error
                    raise
            return self._response

    def tool_executions(self) -> tuple[ToolExecution, ...]:
        """Return every tool call that was run for this answer, in order."""
        return executions_in(self.chat_client_response())

    def pending_turn(self) -> PendingTurn | None:
        """Return the turn that waits for approvals, to be continued with `client.resume`."""
        return pending_in(self.chat_client_response())


class AsyncCallResponse(_Pending):
    """The answer to an asynchronous call: `await` it, or one of its accessors.

    The request runs once, when first awaited; what is awaited later is free. When it fails, every
    accessor raises its error.
    """

    def __init__(self, run: Run, runtime: Runtime) -> None:
        super().__init__(run, runtime)
        self._lock = asyncio.Lock()

    def __await__(self) -> Generator[Any, None, CallResponse]:
        return self._answer().__await__()

    async def content(self) -> str:
        """Return the text of the answer; empty when the model gave none."""
        return (await self.chat_client_response()).chat_response.text

    async def chat_response(self) -> ChatResponse:
        """Return what the model said, with usage and finish reason."""
        return (await self.chat_client_response()).chat_response

    async def chat_client_response(self) -> ChatClientResponse:
        """Return the chat response with the context that the advisors left."""
        if self._response is not None:
            return self._response
        async with self._lock:
            if self._error is not None:
                raise self._error
            if self._response is None:
                self._asked = True
                try:
                    self._response = await self._run(self._runtime)
                except Exception as error:
                    self._error = error
                    raise
            return self._response

    async def tool_executions(self) -> tuple[ToolExecution, ...]:
        """Return every tool call that was run for this answer, in order."""
        return executions_in(await self.chat_client_response())

    async def pending_turn(self) -> PendingTurn | None:
        """Return the turn that waits for approvals, to be continued with `client.resume`."""
        return pending_in(await self.chat_client_response())

    async def _answer(self) -> CallResponse:
        return CallResponse.of(await self.chat_client_response())


def executions_in(response: ChatClientResponse) -> tuple[ToolExecution, ...]:
    """Return the tool executions that the loop left in a response's context."""
    executions: tuple[ToolExecution, ...] = response.context.get(TOOL_EXECUTIONS, ())
    return executions


def pending_in(response: ChatClientResponse) -> PendingTurn | None:
    """Return the suspended turn that the loop left in a response's context."""
    pending: PendingTurn | None = response.context.get(PENDING_TURN)
    return pending


# --- streams --------------------------------------------------------------------------------

Convert = Callable[[Any], T | None]
"""Makes what a consumer asked for out of an event; None when there is nothing of it in there."""


def _text_of(event: Any) -> str | None:
    return event.text if type(event) is TextDelta else None


def _chunk_of(event: Any) -> ChatResponse | None:
    match event:
        case TextDelta(text=text):
            return ChatResponse((Generation(AssistantMessage(text)),))
        case ReasoningDelta(text=text):
            return ChatResponse((Generation(AssistantMessage([Reasoning(text)])),))
        case Done(response=response):
            silent = tuple(replace(g, output=AssistantMessage()) for g in response.generations)
            return replace(response, generations=silent)
        case _:
            return None


def _event_of(event: Any) -> Any:
    return event


class _Stream(_Pending):
    """What both kinds of stream share."""

    @property
    def response(self) -> ChatClientResponse:
        """The whole response, once the stream has ended.

        Raises:
            UsageError: It has not ended yet.
        """
        if self._response is None:
            msg = "the stream has not ended; its response is known once it is exhausted"
            raise UsageError(msg)
        return self._response

    def tool_executions(self) -> tuple[ToolExecution, ...]:
        """Return every tool call that was run, once the stream has ended."""
        return executions_in(self.response)

    def pending_turn(self) -> PendingTurn | None:
        """Return the turn that waits for approvals, once the stream has ended."""
        return pending_in(self.response)

    def _begin(self) -> None:
        if self._asked:
            msg = "a stream is consumed once; call stream() again to ask the model again"
            raise UsageError(msg)
        self._asked = True

    def _last_events(self, response: ChatClientResponse, *, spoken: bool) -> list[Any]:
        """Return what closes the stream of a request that came to *response*."""
        self._response = response
        text = response.chat_response.text
        # An advisor may have answered in the model's place; then nothing was streamed.
        unsaid = [TextDelta(text)] if text and not spoken else []
        return [*unsaid, Done(response.chat_response)]

    def _client_chunk_of(self, event: Any) -> ChatClientResponse | None:
        chunk = _chunk_of(event)
        if chunk is None:
            return None
        context = self.response.context if isinstance(event, Done) else EMPTY
        return ChatClientResponse(chunk, context)


class StreamResponse(_Stream):
    """What happens on the way to the answer, one event at a time; iterating gives the text.

    Leaving the loop early ends the request: the connection is closed and every `finally` has run
    once the iterator is closed or dropped. The stream is what was said; `response` is what counts.
    """

    def __iter__(self) -> Iterator[str]:
        return self.content()

    def content(self) -> Generator[str, None, None]:
        """Return an iterator over the text of the answer, in pieces.

        Raises:
            UsageError: The stream has been consumed already.
        """
        return self._pieces(_text_of)

    def chat_response(self) -> Generator[ChatResponse, None, None]:
        """Return the text as chat responses; the last has usage and finish reason, and no text."""
        return self._pieces(_chunk_of)

    def chat_client_response(self) -> Generator[ChatClientResponse, None, None]:
        """Return the same as `chat_response`, the last with the context the advisors left."""
        return self._pieces(self._client_chunk_of)

    def events(self) -> Generator[Any, None, None]:
        """Return everything that happens: `StreamEvent`s and the application's own."""
        return self._pieces(_event_of)

    def _pieces(self, convert: "Convert[T]") -> Generator[T, None, None]:
        self._begin()
        return self._iterate(convert)

    def _iterate(self, convert: "Convert[T]") -> Generator[T, None, None]:
        spoken = False
        events = drive_stream(self._run, self._runtime)
        try:
            while True:
                event = next(events)
                spoken = spoken or type(event) is TextDelta
                if (piece := convert(event)) is not None:
                    yield piece
        except StopIteration as stop:
            last = self._last_events(stop.value, spoken=spoken)
        finally:
            events.close()
        for event in last:
            if (piece := convert(event)) is not None:
                yield piece


class AsyncStreamResponse(_Stream):
    """What happens on the way to the answer; see `StreamResponse`.

    To leave early, `aclose()` the iterator, or use it in `async with`; one that is dropped ends
    its request as soon as the loop gets to it.
    """

    def __aiter__(self) -> "AsyncPieces[str]":
        return self.content()

    def content(self) -> "AsyncPieces[str]":
        """Return an iterator over the text of the answer, in pieces.

        Raises:
            UsageError: The stream has been consumed already.
        """
        return self._pieces(_text_of)

    def chat_response(self) -> "AsyncPieces[ChatResponse]":
        """Return the text as chat responses; the last has usage and finish reason, and no text."""
        return self._pieces(_chunk_of)

    def chat_client_response(self) -> "AsyncPieces[ChatClientResponse]":
        """Return the same as `chat_response`, the last with the context the advisors left."""
        return self._pieces(self._client_chunk_of)

    def events(self) -> "AsyncPieces[Any]":
        """Return everything that happens: `StreamEvent`s and the application's own."""
        return self._pieces(_event_of)

    def _pieces(self, convert: "Convert[T]") -> "AsyncPieces[T]":
        self._begin()
        return AsyncPieces(AsyncEvents(self._run, self._runtime), convert, self._last_events)


class AsyncPieces(AsyncIterator[T]):
    """What a consumer asked for of a stream; `aclose()` it, or use `async with`, to leave early."""

    def __init__(
        self,
        events: AsyncEvents[ChatClientResponse],
        convert: "Convert[T]",
        last_events: Callable[..., list[Any]],
    ) -> None:
        self._events = events
        self._convert = convert
        self._last_events = last_events
        self._last: list[Any] | None = None
        self._spoken = False

    async def __anext__(self) -> T:
        while True:
            if (piece := self._convert(await self._next_event())) is not None:
                return piece

    async def aclose(self) -> None:
        """End the request, if it still runs, and wait until it has cleaned up."""
        self._last = []
        await self._events.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.aclose()

    async def _next_event(self) -> Any:
        if self._last is None:
            try:
                event = await self._events.__anext__()
            except StopAsyncIteration:
                response = self._events.result()
                self._last = self._last_events(response, spoken=self._spoken)
            else:
                self._spoken = self._spoken or type(event) is TextDelta
                return event
        if not self._last:
            raise StopAsyncIteration
        return self._last.pop(0)
