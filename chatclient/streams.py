"""What a request gives that is streamed: what happens on the way to its answer."""

import functools
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from chatclient.accessors import (
    documents_in,
    entity_of,
    executions_in,
    pending_in,
    refuse_forgotten,
)
from chatclient.answers import PendingRequest, Run
from chatclient.chain import ChatClientResponse
from chatclient.errors import UsageError
from chatclient.event_streams import AsyncEvents, drive_stream
from chatclient.events import ApprovalNeeded, Done, StreamEvent, TextDelta
from chatclient.exchange import messages_in, new_messages_in, round_responses_in
from chatclient.messages import Message
from chatclient.pieces import (
    BEFORE_TOOLS,
    NEVER,
    SPOKEN,
    AsyncPieces,
    Convert,
    chunk_of,
    event_of,
    spoken_after,
)
from chatclient.response import ChatResponse
from chatclient.runtime import Runtime
from chatclient.structured import NOTHING, StructuredOutput, StructuredOutputConverter
from chatclient.structured.output import Native, PartialEntities, entity_in
from chatclient.tools import PendingTurn, ToolExecution
from chatclient.trail import Trail
from chatclient.values import EMPTY

if TYPE_CHECKING:
    from typing_extensions import TypeForm

    from chatclient.vector_store import Document  # loaded by who retrieves

T = TypeVar("T")


class _Stream(PendingRequest):
    """What both kinds of stream share."""

    _way = "stream.response.chat_response"

    def __init__(self, run: Run, runtime: Runtime) -> None:
        self._trail = Trail()
        self._consumed = False
        self._entered = False
        # What is consumed inside of `with`; elsewhere, dropping it is what ends the request.
        self._held: Any = None
        super().__init__(run, runtime.watched_by(self._trail.steps, runtime.observers))

    @property
    def response(self) -> ChatClientResponse:
        """The whole response, once the stream has ended.

        Raises:
            Exception: What the stream failed with.
            UsageError: It has not ended yet, or was left.
        """
        if self._response is not None:
            return self._response
        if self._error is not None:
            raise self._error
        msg = "the stream has not ended; its response is known once it is exhausted"
        raise UsageError(msg)

    def tool_executions(self) -> tuple[ToolExecution, ...]:
        """Return every tool call that was run; before the stream has ended, those so far."""
        if self._response is not None:
            return executions_in(self._response)
        return self._trail.executions

    def documents(self) -> "tuple[Document, ...]":
        """Return the documents that retrieval found, once the stream has ended.

        See `CallResponse.documents`.
        """
        return documents_in(self.response)

    def messages(self) -> tuple[Message, ...]:
        """Return the messages of the conversation, once the stream has ended.

        See `CallResponse.messages`.
        """
        return messages_in(self.response)

    def new_messages(self) -> tuple[Message, ...]:
        """Return those of the messages that are this turn's, once the stream has ended."""
        return new_messages_in(self.response)

    def round_responses(self) -> tuple[ChatResponse, ...]:
        """Return what the model answered, round by round, once the stream has ended."""
        return round_responses_in(self.response)

    def trail(self) -> Trail:
        """Return what happened in the turn; until now, or until the stream was left.

        What was said until a stream was left is the text of the last round.
        """
        return self._trail

    def pending_turn(self) -> PendingTurn | None:
        """Return the turn that waits for approvals, once the stream has ended."""
        return pending_in(self.response)

    def _begin(self) -> None:
        if self._consumed:
            msg = "a stream is consumed once; call stream() again to ask the model again"
            raise UsageError(msg)
        self._asked = self._consumed = True

    def _enter(self) -> None:
        if self._consumed:
            msg = "a stream that is being consumed cannot be entered; `with` comes before that"
            raise UsageError(msg)
        self._entered = True

    def _hold(self, iterator: Any) -> None:
        if self._entered:
            self._held = iterator

    def _leave(self) -> Any:
        """Return what was held, which is to be closed; from now on, nothing is."""
        held, self._held, self._entered = self._held, None, False
        return held

    def _last_events(self, response: ChatClientResponse, spoken: int) -> list[Any]:
        """Return what closes the stream of a request that came to *response*."""
        self._response = response
        text = response.chat_response.text
        # An advisor may have answered in the model's place; then nothing was streamed. The words
        # of an answer that itself calls tools (the turn waits, or runs none) were.
        turn = pending_in(response)
        said = spoken > BEFORE_TOOLS or (spoken and response.chat_response.has_tool_calls())
        unsaid = [TextDelta(text)] if text and not said else []
        waiting = [] if turn is None else [ApprovalNeeded(turn)]
        return [*unsaid, *waiting, Done(response.chat_response)]

    def _text_of(self, event: Any) -> str:
        if type(event) is TextDelta:
            return event.text
        if type(event) is Done:
            refuse_forgotten(self.response)
        return NOTHING  # type: ignore[no-any-return]

    def _with_entity(
        self, entity: Any, native: Native | None, *, validate: bool
    ) -> tuple[Convert[Any], StructuredOutput[Any] | None]:
        """Return what converts events, the last one with its value if any, and what is asked for.

        Raises:
            UsageError: The type has no JSON Schema, or there is none for the other arguments.
        """
        if entity is not None:
            output = self._output_of(entity, native, validate=validate)
            return self._event_with(output.converter), output
        if native is not None or validate:
            self._asked = True  # nothing was forgotten
            msg = "native and validate are about a value; say which: events(entity=...)"
            raise UsageError(msg)
        return event_of, None

    def _event_with(self, converter: StructuredOutputConverter[Any]) -> Convert[Any]:
        def take(event: Any) -> Any:
            if type(event) is Done and pending_in(self.response) is None:
                return replace(event, entity=entity_in(self.response, converter))
            return event

        return take

    def _entity_of(self, converter: StructuredOutputConverter[T]) -> Convert[T]:
        entities = PartialEntities(converter)

        def take(event: Any) -> T:
            if type(event) is Done:
                return entities.new(entity_of(self.response, converter))
            return entities.take(event)

        return take

    def _client_chunk_of(self, event: Any) -> ChatClientResponse:
        chunk: Any = chunk_of(event)
        if chunk is NOTHING:
            return NOTHING  # type: ignore[no-any-return]
        context = self.response.context if isinstance(event, Done) else EMPTY
        return ChatClientResponse(chunk, context)


class StreamResponse(_Stream):
    """What happens on the way to the answer, one event at a time; iterating gives the text.

    Leaving the loop early ends the request: once the iterator is closed or dropped, the connection
    is closed and every `finally` has run; in a `with`, that is at its end. After the end,
    `response` is the whole response. A stream that was left has none, but its `trail()` says what
    had happened until then.
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
        """Return an iterator over the text of the answer, in pieces.

        Raises:
            UsageError: The stream has been consumed already.
        """
        return self._pieces(self._text_of)

    def chat_response(self) -> Generator[ChatResponse, None, None]:
        """Return the answer as chat responses, which a `MessageAggregator` joins.

        All but the last are pieces of text and of thoughts. The last has everything else: tool
        calls and media, usage and finish reason.
        """
        return self._pieces(chunk_of)

    def chat_client_response(self) -> Generator[ChatClientResponse, None, None]:
        """Return the same as `chat_response`, the last with the context the advisors left."""
        return self._pieces(self._client_chunk_of)

    def events(
        self, *, entity: Any = None, native: Native | None = None, validate: bool = False
    ) -> Generator[StreamEvent | object, None, None]:
        """Return everything that happens: `StreamEvent`s and the application's own.

        Args:
            entity: The type of the answer, or whatever else `CallResponse.entity` takes. The value
                is in the last event, as `Done.entity`. A turn that waits for approval has none; an
                `ApprovalNeeded` comes before the end.
            native: See `CallResponse.entity`.
            validate: See `CallResponse.entity`; text is held back until it fits.

        Raises:
            UsageError: The stream has been consumed already, the type has no JSON Schema, or there
                is none for the other arguments.
            EntityError: (at the end) the answer is not what was asked for.
        """
        return self._pieces(*self._with_entity(entity, native, validate=validate))

    @overload
    def entity(
        self,
        kind: type[T] | StructuredOutputConverter[T],
        *,
        native: Native | None = None,
        validate: bool = False,
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
        """Return an iterator over ever more complete values of a type; see `CallResponse.entity`.

        A field that has not arrived has its default, or None. The last value is complete and
        validated. With `validate`, the values start again with each attempt.

        Raises:
            UsageError: The stream has been consumed already, or the type has no JSON Schema.
            EntityError: (at the end) the answer is not what was asked for.
        """
        output = self._output_of(kind, native, validate=validate, streamed=True)
        return self._pieces(self._entity_of(output.converter), output)

    def _pieces(
        self, convert: Convert[T], output: StructuredOutput[Any] | None = None
    ) -> Generator[T, None, None]:
        self._begin()
        iterator = self._iterate(convert, output)
        self._hold(iterator)
        return iterator

    def _iterate(
        self, convert: Convert[T], output: StructuredOutput[Any] | None
    ) -> Generator[T, None, None]:
        spoken, only_text = NEVER, convert == self._text_of
        events = drive_stream(functools.partial(self._run, output=output), self._runtime)
        try:
            while True:
                event = next(events)
                if type(event) is TextDelta:  # as nearly all events are
                    spoken = SPOKEN
                    if only_text:
                        yield event.text  # type: ignore[misc]  # T is str
                        continue
                else:
                    spoken = spoken_after(event, spoken)
                if (piece := convert(event)) is not NOTHING:
                    yield piece
        except StopIteration as stop:
            last = self._last_events(stop.value, spoken)
        except Exception as error:
            self._error = error
            raise
        finally:
            events.close()
        for event in last:
            if (piece := convert(event)) is not NOTHING:
                yield piece


class AsyncStreamResponse(_Stream):
    """What happens on the way to the answer; see `StreamResponse`.

    To leave early, use it in `async with`, or `aclose()` the iterator; one that is dropped ends its
    request as soon as the loop gets to it.
    """

    async def __aenter__(self) -> Self:
        self._enter()
        return self

    async def __aexit__(self, *_error: object) -> None:
        iterator = self._leave()
        if iterator is not None:
            await iterator.aclose()

    def __aiter__(self) -> AsyncPieces[str]:
        return self.content()

    def content(self) -> AsyncPieces[str]:
        """Return an iterator over the text of the answer, in pieces.

        Raises:
            UsageError: The stream has been consumed already.
        """
        return self._pieces(self._text_of)

    def chat_response(self) -> AsyncPieces[ChatResponse]:
        """Return the answer as chat responses; see `StreamResponse.chat_response`."""
        return self._pieces(chunk_of)

    def chat_client_response(self) -> AsyncPieces[ChatClientResponse]:
        """Return the same as `chat_response`, the last with the context the advisors left."""
        return self._pieces(self._client_chunk_of)

    def events(
        self, *, entity: Any = None, native: Native | None = None, validate: bool = False
    ) -> AsyncPieces[StreamEvent | object]:
        """Return everything that happens, the value last; see `StreamResponse.events`."""
        return self._pieces(*self._with_entity(entity, native, validate=validate))

    @overload
    def entity(
        self,
        kind: type[T] | StructuredOutputConverter[T],
        *,
        native: Native | None = None,
        validate: bool = False,
    ) -> AsyncPieces[T]: ...

    @overload
    def entity(
        self, kind: Mapping[str, Any], *, native: Native | None = None, validate: bool = False
    ) -> AsyncPieces[Any]: ...

    @overload
    def entity(
        self, kind: "TypeForm[T]", *, native: Native | None = None, validate: bool = False
    ) -> AsyncPieces[T]: ...

    def entity(
        self, kind: Any, *, native: Native | None = None, validate: bool = False
    ) -> AsyncPieces[Any]:
        """Return an iterator over partial values of a type; see `StreamResponse.entity`."""
        output = self._output_of(kind, native, validate=validate, streamed=True)
        return self._pieces(self._entity_of(output.converter), output)

    def _pieces(
        self, convert: Convert[T], output: StructuredOutput[Any] | None = None
    ) -> AsyncPieces[T]:
        self._begin()
        run = functools.partial(self._noting_error, output=output)
        iterator = AsyncPieces(AsyncEvents(run, self._runtime), convert, self._last_events)
        self._hold(iterator)
        return iterator

    async def _noting_error(
        self, runtime: Runtime, output: StructuredOutput[Any] | None
    ) -> ChatClientResponse:
        try:
            return await self._run(runtime, output)
        except Exception as error:
            self._error = error
            raise
