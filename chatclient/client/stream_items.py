"""Converts the events of a stream to the items that the consumer requested."""

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from chatclient._internal.checks import only_asynchronous
from chatclient._internal.logging import get_logger
from chatclient.chain.chain import ChatClientResponse
from chatclient.chat.events import (
    ApprovalNeeded,
    Done,
    ReasoningDelta,
    ReasoningSigned,
    RoundEnded,
    TextDelta,
    TextReplaced,
    ToolCallFinished,
)
from chatclient.chat.messages import AssistantMessage, Media, ProviderPart, Reasoning, ToolCall
from chatclient.chat.response import ChatResponse, Generation
from chatclient.client.accessors import documents_in, entity_of, executions_in, pending_in
from chatclient.observability.operations import AdvisorPass
from chatclient.observability.trail import Trail
from chatclient.runtime.event_stream import AsyncEvents
from chatclient.structured.answer_cleaning import NOTHING
from chatclient.structured.converters import StructuredOutputConverter
from chatclient.structured.output import PartialEntities, entity_in

T = TypeVar("T")

log = get_logger(__name__)

Convert = Callable[[Any], T]
"""Returns the item for an event, or `NOTHING` if the event has none."""

_SEPARATOR = "\n\n"  # between the texts of two rounds


@dataclass(slots=True, eq=False)
class StreamedText:
    """The text that was streamed.

    Attributes:
        any_text: Whether text was streamed at all.
        last_round: The text after the last tool call.
    """

    any_text: bool
    last_round: str


ClosingEvents = Callable[[ChatClientResponse, StreamedText], list[Any]]
"""Returns the events that end the stream of a request with this response."""


class ItemConverter(Generic[T]):
    """Converts the events of one request in order, and creates the items that end the stream.

    Texts of different rounds are separated by a blank line. The text of the last round is recorded,
    because a final text that was not streamed has to be emitted.

    Args:
        convert: Returns the item for an event.
        closing_events: Returns the events that end the stream.
        is_text: Whether *convert* returns the text of a `TextDelta`; saves a call for each one.
        separate: Whether texts are separated; not for values, which are in one round.
    """

    __slots__ = (
        *("_any_text", "_closing_events", "_convert", "_is_text", "_last_round"),
        *("_new_round", "_separate"),
    )

    def __init__(
        self,
        convert: Convert[T],
        closing_events: ClosingEvents,
        *,
        is_text: bool,
        separate: bool = True,
    ) -> None:
        self._convert = convert
        self._closing_events = closing_events
        self._is_text = is_text
        self._separate = separate
        self._last_round: list[str] = []
        self._any_text = self._new_round = False

    def __call__(self, event: Any) -> T:
        """Return the item for *event*, or `NOTHING`."""
        kind = type(event)
        if kind is TextDelta:
            self._last_round.append(event.text)
            if self._new_round:
                event = self._separated(event)
            if self._is_text:
                return event.text  # type: ignore[no-any-return]
        elif kind is ToolCallFinished or (kind is RoundEnded and event.response.has_tool_calls()):
            self._any_text = self._new_round = self._any_text or bool(self._last_round)
            self._last_round.clear()
        return self._convert(event)

    def _separated(self, event: TextDelta) -> TextDelta:
        """Return the first text of a round, after a blank line."""
        self._new_round = False
        text = event.text
        return TextDelta(_SEPARATOR + text) if self._separate and text[:2] != _SEPARATOR else event

    def closing_items(self, response: ChatClientResponse) -> Iterator[T]:
        """Yield the items that end the stream."""
        last_round = "".join(self._last_round)
        streamed = StreamedText(self._any_text or bool(self._last_round), last_round)
        for event in self._closing_events(response, streamed):
            begins_round = type(event) is TextDelta and self._new_round
            item = self._convert(self._separated(event) if begins_round else event)
            if item is not NOTHING:
                yield item


class AsyncItems(AsyncIterator[T]):
    """The items of an async stream; to leave early, `aclose()` it or use `async with`."""

    def __init__(
        self, events: AsyncEvents[Any, ChatClientResponse], convert: ItemConverter[T]
    ) -> None:
        self._events = events
        self._pending = events.pending
        self._convert = convert
        self._closing_items: Iterator[T] | None = None
        self._closed = False

    if not TYPE_CHECKING:  # type checkers know that it is none
        __iter__ = only_asynchronous

    async def __anext__(self) -> T:
        if self._closing_items is None:
            events, pending, convert = self._events, self._pending, self._convert
            try:
                while True:
                    # Without `await` if possible: a burst of text consists of many events.
                    event = events.take() if pending else await events.__anext__()
                    if (item := convert(event)) is not NOTHING:
                        return item
            except StopAsyncIteration:
                if self._closed:
                    raise
                self._closing_items = self._convert.closing_items(self._events.result())
        for item in self._closing_items:
            return item
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Cancel the request if it is running, and wait until it has cleaned up.

        A task that is waiting for the next item receives the end of the stream.
        """
        self._closed, self._closing_items = True, iter(())
        await self._events.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.aclose()


def event_of(event: Any) -> Any:
    """Return *event* itself."""
    return event


def chunk_of(event: Any) -> ChatResponse:
    """Return the part of the answer in *event*, as a response for a `MessageAggregator`."""
    match event:
        case TextDelta(text=text):
            return ChatResponse((Generation(AssistantMessage(text)),))
        case ReasoningDelta(text=text):
            return ChatResponse((Generation(AssistantMessage([Reasoning(text)])),))
        case ReasoningSigned(proof=proof):
            return ChatResponse((Generation(AssistantMessage([proof])),))
        case Done(response=response):
            generations = tuple(map(_without_streamed_parts, response.generations))
            return replace(response, generations=generations)
        case _:
            return NOTHING  # type: ignore[no-any-return]


def _without_streamed_parts(generation: Generation) -> Generation:
    """Return *generation* without text and reasoning, which are streamed for the first one."""
    if generation.index:
        return generation
    message = generation.output
    parts = [
        part
        for part in message.parts
        if isinstance(part, ToolCall | Media) or (isinstance(part, ProviderPart) and not part.text)
    ]
    return replace(generation, output=AssistantMessage(parts, metadata=message.metadata))


def events_with_entity(
    converter: StructuredOutputConverter[Any], response_of: Callable[[], ChatClientResponse]
) -> Convert[Any]:
    """Return a conversion that adds the entity to the `Done` event.

    Args:
        converter: Reads the entity.
        response_of: Returns the response, once the stream has ended.
    """

    def convert(event: Any) -> Any:
        if type(event) is Done and pending_in(response := response_of()) is None:
            return replace(event, entity=entity_in(response, converter))
        return event

    return convert


def entities_of(
    converter: StructuredOutputConverter[T], response_of: Callable[[], ChatClientResponse]
) -> Convert[T]:
    """Return a conversion to partial entities and, at the end, the complete one.

    Args:
        converter: Reads the entities.
        response_of: Returns the response, once the stream has ended.
    """
    entities = PartialEntities(converter)

    def convert(event: Any) -> T:
        if type(event) is Done:
            return entities.new(entity_of(response_of(), converter))
        return entities.take(event)

    return convert


def closing_events(response: ChatClientResponse, streamed: StreamedText, trail: Trail) -> list[Any]:
    """Return the events that end the stream of a request with *response*.

    The final text is included if it was not streamed, because an advisor replaced the answer. The
    text of an answer that calls tools (the turn is pending, or no tools are run) was streamed
    before its tool calls.
    """
    chat, turn = response.chat_response, pending_in(response)
    events: list[Any] = []
    if not streamed.last_round:
        if chat.text and not (streamed.any_text and chat.has_tool_calls()):
            events.append(TextDelta(chat.text))
    elif streamed.last_round != chat.text and not chat.has_tool_calls():
        _log_replaced_text(trail, chat.text)
        events.append(TextReplaced(chat.text))
    if turn is not None:
        events.append(ApprovalNeeded(turn))
    executions, documents = executions_in(response), documents_in(response)
    return [*events, Done(chat, None, executions, documents, response.trail)]


def _log_replaced_text(trail: Trail, text: str) -> None:
    """Log which advisor replaced the streamed text by *text*: the innermost that returned it."""
    for step in reversed(trail.steps):
        operation, result = step.operation, step.result
        if isinstance(operation, AdvisorPass) and result and result.chat_response.text == text:
            log.warning("text was changed after it was streamed", advisor=operation.advisor)
            return
