"""`StreamResponse` and `AsyncStreamResponse`: the response to a streamed request."""

import functools
from collections.abc import Coroutine, Generator, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar, overload

from chatclient._internal.checks import only_asynchronous
from chatclient._internal.logging import get_logger
from chatclient.chain.chain import ChatClientResponse
from chatclient.chain.params import Native
from chatclient.chat.document import Document
from chatclient.chat.events import Done, StreamEvent, TextDelta
from chatclient.chat.messages import Message
from chatclient.chat.pending_turn import PendingTurn
from chatclient.chat.response import ChatResponse, Usage
from chatclient.chat.tool import ToolExecution
from chatclient.client.accessors import (
    documents_in,
    executions_in,
    messages_in,
    new_messages_in,
    round_responses_in,
)
from chatclient.client.call_response import EntityType, LazyResponse, Run
from chatclient.client.stream_items import (
    AsyncItems,
    Convert,
    ItemConverter,
    StreamedText,
    chunk_of,
    closing_events,
    entities_of,
    event_of,
    events_with_entity,
)
from chatclient.errors import UsageError
from chatclient.observability.trail import Trail
from chatclient.runtime.event_stream import AsyncEvents, drive_stream
from chatclient.runtime.runtime import Runtime
from chatclient.structured.answer_cleaning import NOTHING
from chatclient.structured.output import StructuredOutput

if TYPE_CHECKING:
    from typing_extensions import TypeForm


log = get_logger(__name__)

T = TypeVar("T")
IteratorT = TypeVar("IteratorT")


class _Stream(LazyResponse):
    """The common part of blocking and async streams."""

    _path = "stream.response.chat_response"

    def __init__(self, run: Run, runtime: Runtime) -> None:
        self._trail = Trail()
        self._consumed = False
        self._entered = False
        # The iterator, referenced only inside `with`; otherwise dropping it ends the request.
        self._iterator: Any = None
        super().__init__(run, replace(runtime, steps=self._trail.steps))

    @property
    def response(self) -> ChatClientResponse:
        """The complete response, once the stream has ended.

        Raises:
            Exception: The error that ended the stream.
            UsageError: The stream has not ended, or was left early.
        """
        if self._response is not None:
            return self._response
        if self._error is not None:
            raise self._error
        msg = "the stream has not ended; its response is known once it is exhausted"
        raise UsageError(msg)

    def tool_executions(self) -> tuple[ToolExecution, ...]:
        """Return the executed tool calls; before the end of the stream, those so far."""
        if self._response is not None:
            return executions_in(self._response)
        return self._trail.executions

    def documents(self) -> tuple[Document, ...]:
        """Return the retrieved documents, once the stream has ended.

        See `CallResponse.documents`.
        """
        return documents_in(self.response)

    def messages(self) -> tuple[Message, ...]:
        """Return the messages of the turn and its request, once the stream has ended.

        See `CallResponse.messages`.
        """
        return messages_in(self.response)

    def new_messages(self) -> tuple[Message, ...]:
        """Return the messages of this turn, once the stream has ended."""
        return new_messages_in(self.response)

    def round_responses(self) -> tuple[ChatResponse, ...]:
        """Return the response of the model in each round, once the stream has ended."""
        return round_responses_in(self.response)

    def usage(self) -> Usage:
        """Return the tokens of all model calls of the turn, of those that have ended so far."""
        return self.trail().usage

    def trail(self) -> Trail:
        """Return the trail of the turn so far, or until the stream was left.

        The text of the last round of a stream that was left is the text until then.
        """
        return self._trail

    def pending_turn(self) -> PendingTurn | None:
        """Return the turn if it waits for approval, once the stream has ended."""
        return self._pending_in(self.response)

    def _consume(
        self, convert: Convert[T], output: StructuredOutput[Any] | None = None
    ) -> ItemConverter[T]:
        """Mark the stream as consumed, and return the converter for its events.

        Raises:
            UsageError: It has been consumed before.
        """
        if self._consumed:
            msg = "a stream is consumed once; call stream() again to ask the model again"
            raise UsageError(msg)
        self._used, self._consumed = False, True
        return ItemConverter(
            convert,
            self._closing_events,
            is_text=convert == self._text_of,
            separate=output is None,
        )

    def _enter(self) -> None:
        if self._consumed:
            msg = "a stream that is being consumed cannot be entered; `with` comes before that"
            raise UsageError(msg)
        self._entered = True

    def _keep(self, iterator: IteratorT) -> IteratorT:
        if self._entered:
            self._iterator = iterator
        return iterator

    def _leave(self) -> Any:
        """Return the iterator to be closed, or None, and drop the reference to it."""
        iterator, self._iterator, self._entered = self._iterator, None, False
        return iterator

    def _closing_events(self, response: ChatClientResponse, streamed: StreamedText) -> list[Any]:
        """Store *response*, and return the events that end the stream."""
        self._response = response
        return closing_events(response, streamed, self._trail)

    def _text_of(self, event: Any) -> str:
        if type(event) is TextDelta:
            return event.text
        if type(event) is Done:
            self._text_of_answer(self.response)
        return NOTHING  # type: ignore[no-any-return]

    def _client_chunk_of(self, event: Any) -> ChatClientResponse:
        chunk: Any = chunk_of(event)
        if chunk is NOTHING:
            return NOTHING  # type: ignore[no-any-return]
        if isinstance(event, Done):
            return self.response.mutate(chat_response=chunk)
        return ChatClientResponse(chunk)

    def _for_events(
        self, entity: Any, native: Native | None, *, validate: bool
    ) -> tuple[Convert[Any], StructuredOutput[Any] | None]:
        """Return the conversion for `events`, and the requested type if there is one.

        Raises:
            UsageError: The type has no JSON Schema, or *native* or *validate* has no type.
        """
        if entity is not None:
            output = self._output_of(entity, native, validate=validate)
            return events_with_entity(output.converter, lambda: self.response), output
        if native is not None or validate:
            self._used = True  # the caller did not forget the stream
            msg = "native and validate are about a value; say which: events(entity=...)"
            raise UsageError(msg)
        return event_of, None

    def _for_entity(
        self, kind: Any, native: Native | None, *, validate: bool
    ) -> tuple[Convert[Any], StructuredOutput[Any]]:
        """Return the conversion for `entity`, and the requested type.

        Raises:
            UsageError: The type has no JSON Schema.
        """
        output = self._output_of(kind, native, validate=validate, streamed=True)
        return entities_of(output.converter, lambda: self.response), output


class StreamResponse(_Stream):
    """The stream of a request; iterating over it yields the text of the answer.

    Leaving the loop early ends the request: when the iterator is closed or garbage-collected, or
    a `with` block ends, the connection is closed and all `finally` blocks have run. At the end,
    `response` is the complete response. A stream that was left early has none, but its `trail()`
    contains the operations until then.
    """

    def __enter__(self) -> Self:
        self._enter()
        return self

    def __exit__(self, *_error: object) -> None:
        iterator = self._leave()
        if iterator is not None:
            iterator.close()

    def __iter__(self) -> Iterator[str]:
        return self.content()

    def content(self) -> Generator[str, None, None]:
        """Return an iterator over the text of the answer, as it arrives.

        Raises:
            UsageError: The stream was consumed before.
        """
        return self._items(self._text_of)

    def chat_response(self) -> Generator[ChatResponse, None, None]:
        """Return an iterator over chunks of the answer, which a `MessageAggregator` joins.

        The last chunk has tool calls, media, usage and finish reason; the others have text and
        reasoning.
        """
        return self._items(chunk_of)

    def chat_client_response(self) -> Generator[ChatClientResponse, None, None]:
        """Return the chunks of `chat_response`, the last one with the context of the advisors."""
        return self._items(self._client_chunk_of)

    def events(
        self, *, entity: Any = None, native: Native | None = None, validate: bool = False
    ) -> Generator[StreamEvent | object, None, None]:
        """Return an iterator over all events: `StreamEvent`s and events of the application.

        Args:
            entity: The type of the answer, as for `CallResponse.entity`. The value is `entity` of
                the last event, `Done`. A turn that waits for approval has no value; its stream
                ends with `ApprovalNeeded` and `Done`.
            native: See `CallResponse.entity`.
            validate: See `CallResponse.entity`; text is withheld until it is valid.

        Raises:
            UsageError: The stream was consumed before, the type has no JSON Schema, or *native*
                or *validate* is given without *entity*.
            EntityError: The answer cannot be converted (raised at the end).
        """
        return self._items(*self._for_events(entity, native, validate=validate))

    @overload
    def entity(
        self, kind: EntityType[T], *, native: Native | None = None, validate: bool = False
    ) -> Generator[T, None, None]: ...

    @overload
    def entity(
        self, kind: Mapping[str, Any], *, native: Native | None = None, validate: bool = False
    ) -> Generator[Any, None, None]: ...

    @overload
    def entity(
        self, kind: "TypeForm[T]", *, native: Native | None = None, validate: bool = False
    ) -> Generator[T, None, None]: ...

    def entity(
        self, kind: Any, *, native: Native | None = None, validate: bool = False
    ) -> Generator[Any, None, None]:
        """Return an iterator over increasingly complete values; see `CallResponse.entity`.

        A field that has not arrived has its default value, or None. The last value is complete
        and validated. With `validate`, the values start again with each attempt.

        Raises:
            UsageError: The stream was consumed before, or the type has no JSON Schema.
            EntityError: The answer cannot be converted (raised at the end).
        """
        return self._items(*self._for_entity(kind, native, validate=validate))

    def _items(
        self, convert: Convert[T], output: StructuredOutput[Any] | None = None
    ) -> Generator[T, None, None]:
        return self._keep(self._iterate(self._consume(convert, output), output))

    def _iterate(
        self, convert: ItemConverter[T], output: StructuredOutput[Any] | None
    ) -> Generator[T, None, None]:
        self._used = True  # not before: an iterator that is dropped, or printed, sends nothing
        events = drive_stream(functools.partial(self._run, output=output), self._runtime)
        try:
            with self._storing_error():
                while True:
                    try:
                        event = next(events)
                    except StopIteration as stop:
                        closing_items = convert.closing_items(stop.value)
                        break
                    if (item := convert(event)) is not NOTHING:
                        yield item
        finally:
            events.close()
        yield from closing_items


class AsyncStreamResponse(_Stream):
    """The async stream of a request; see `StreamResponse`.

    To leave early, use `async with`, or `aclose()` the iterator. The request of an iterator that
    is garbage-collected ends soon after.
    """

    async def __aenter__(self) -> Self:
        self._enter()
        return self

    async def __aexit__(self, *_error: object) -> None:
        iterator = self._leave()
        if iterator is not None:
            await iterator.aclose()

    def __aiter__(self) -> AsyncItems[str]:
        return self.content()

    if not TYPE_CHECKING:  # type checkers know that it is none

        def __iter__(self) -> NoReturn:
            self._used = True  # the error refers to it
            only_asynchronous(self)

    def content(self) -> AsyncItems[str]:
        """Return an iterator over the text of the answer, as it arrives.

        Raises:
            UsageError: The stream was consumed before.
        """
        return self._items(self._text_of)

    def chat_response(self) -> AsyncItems[ChatResponse]:
        """Return an iterator over chunks of the answer; see `StreamResponse.chat_response`."""
        return self._items(chunk_of)

    def chat_client_response(self) -> AsyncItems[ChatClientResponse]:
        """Return the chunks of `chat_response`, the last one with the context of the advisors."""
        return self._items(self._client_chunk_of)

    def events(
        self, *, entity: Any = None, native: Native | None = None, validate: bool = False
    ) -> AsyncItems[StreamEvent | object]:
        """Return an iterator over all events; see `StreamResponse.events`."""
        return self._items(*self._for_events(entity, native, validate=validate))

    @overload
    def entity(
        self, kind: EntityType[T], *, native: Native | None = None, validate: bool = False
    ) -> AsyncItems[T]: ...

    @overload
    def entity(
        self, kind: Mapping[str, Any], *, native: Native | None = None, validate: bool = False
    ) -> AsyncItems[Any]: ...

    @overload
    def entity(
        self, kind: "TypeForm[T]", *, native: Native | None = None, validate: bool = False
    ) -> AsyncItems[T]: ...

    def entity(
        self, kind: Any, *, native: Native | None = None, validate: bool = False
    ) -> AsyncItems[Any]:
        """Return an iterator over increasingly complete values; see `StreamResponse.entity`."""
        return self._items(*self._for_entity(kind, native, validate=validate))

    def _items(
        self, convert: Convert[T], output: StructuredOutput[Any] | None = None
    ) -> AsyncItems[T]:
        async def run(runtime: Runtime) -> ChatClientResponse:
            with self._storing_error():
                return await self._run(runtime, output)

        def start(runtime: Runtime) -> Coroutine[Any, Any, ChatClientResponse]:
            self._used = True  # also if there is no loop, or the task is cancelled before it runs
            return run(runtime)

        convert_item = self._consume(convert, output)
        return self._keep(AsyncItems(AsyncEvents(start, self._runtime), convert_item))
