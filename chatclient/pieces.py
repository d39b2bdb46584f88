"""What a consumer asked for of a stream, piece by piece: made of events, and handed over."""

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any, Self, TypeVar

from chatclient.chain import ChatClientResponse
from chatclient.event_streams import AsyncEvents
from chatclient.events import (
    Done,
    ReasoningDelta,
    ReasoningSigned,
    RoundEnded,
    TextDelta,
    ToolCallFinished,
)
from chatclient.messages import AssistantMessage, Media, ProviderPart, Reasoning, ToolCall
from chatclient.response import ChatResponse, Generation
from chatclient.structured import NOTHING

T = TypeVar("T")

Convert = Callable[[Any], T]
"""Makes what a consumer asked for out of an event; `NOTHING` when there is none of it in there."""


def chunk_of(event: Any) -> ChatResponse:
    """Return what *event* adds to the answer, as a response that a `MessageAggregator` takes."""
    match event:
        case TextDelta(text=text):
            return ChatResponse((Generation(AssistantMessage(text)),))
        case ReasoningDelta(text=text):
            return ChatResponse((Generation(AssistantMessage([Reasoning(text)])),))
        case ReasoningSigned(proof=proof):
            return ChatResponse((Generation(AssistantMessage([proof])),))
        case Done(response=response):
            return replace(response, generations=tuple(map(_unstreamed, response.generations)))
        case _:
            return NOTHING  # type: ignore[no-any-return]


def _unstreamed(generation: Generation) -> Generation:
    """Return *generation* without what was streamed: the words and thoughts of the first."""
    if generation.index:
        return generation
    message = generation.output
    parts = [
        part
        for part in message.parts
        if isinstance(part, ToolCall | Media) or (isinstance(part, ProviderPart) and not part.text)
    ]
    return replace(generation, output=AssistantMessage(parts, metadata=message.metadata))


def event_of(event: Any) -> Any:
    """Return *event* as it is."""
    return event


# Whether anything was said, and if so, whether since tools were last called.
NEVER, BEFORE_TOOLS, SPOKEN = range(3)


def spoken_after(event: Any, spoken: int) -> int:
    """Return what was said after *event*, which is not a text."""
    tools = type(event) is ToolCallFinished or (
        type(event) is RoundEnded and event.response.has_tool_calls()
    )
    return BEFORE_TOOLS if tools and spoken else spoken


class AsyncPieces(AsyncIterator[T]):
    """What a consumer asked for of a stream; `aclose()` it, or use `async with`, to leave early."""

    def __init__(
        self,
        events: AsyncEvents[Any, ChatClientResponse],
        convert: Convert[T],
        last_events: Callable[..., list[Any]],
    ) -> None:
        self._events = events
        self._convert = convert
        self._last_events = last_events
        self._last: list[Any] | None = None
        self._closed = False
        self._spoken = NEVER

    async def __anext__(self) -> T:
        while True:
            if (piece := self._convert(await self._next_event())) is not NOTHING:
                return piece

    async def aclose(self) -> None:
        """End the request, if it still runs, and wait until it has cleaned up.

        A task that waits for the next piece meanwhile finds the stream at its end.
        """
        self._closed, self._last = True, []
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
                if self._closed:
                    raise
                self._last = self._last_events(self._events.result(), self._spoken)
            else:
                if type(event) is TextDelta:
                    self._spoken = SPOKEN
                else:
                    self._spoken = spoken_after(event, self._spoken)
                return event
        if not self._last:
            raise StopAsyncIteration
        return self._last.pop(0)
