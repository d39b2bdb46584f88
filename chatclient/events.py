"""What a stream tells while a request runs."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from chatclient.messages import (
    Part,
    ProviderPart,
    Reasoning,
    ToolCall,
    ToolCallChunk,
    ToolResponse,
)
from chatclient.response import ChatResponse


@dataclass(frozen=True, slots=True)
class TextDelta:
    """The next piece of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """The next piece of what the model thinks."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningSigned:
    """The provider's signature of what was thought: not to be shown, but sent back with it."""

    proof: Reasoning


@dataclass(frozen=True, slots=True)
class ToolCallStarted:
    """The model has begun to ask for a tool; its arguments follow.

    Attributes:
        id: That of the call.
        name: The tool's name.
        index: Which of the model's calls this is, if the provider numbers them.
    """

    id: str
    name: str
    index: int | None = None


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """The next piece of a tool call's arguments; id and index are those of its start."""

    id: str
    arguments: str
    index: int | None = None


@dataclass(frozen=True, slots=True)
class ToolCallFinished:
    """A tool has run (or was refused): the model will see this response."""

    tool_call: ToolCall
    response: ToolResponse
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ToolProgress:
    """Progress of a running tool: what it reports, or what the agent that it asks does."""

    tool_call_id: str
    tool_name: str
    event: object


@dataclass(frozen=True, slots=True)
class RoundEnded:
    """The model has finished one response; after tool calls another round follows."""

    response: ChatResponse


@dataclass(frozen=True, slots=True)
class ApprovalNeeded:
    """The turn waits: its calls have to be decided about, and `client.resume` goes on with it.

    Attributes:
        turn: The turn, a `PendingTurn`.
    """

    turn: Any


@dataclass(frozen=True, slots=True)
class Done:
    """The request is over; nothing follows.

    Attributes:
        response: The answer.
        entity: The answer as a value, where the events are those of `events(entity=...)`; else, and
            in a turn that waits for approval, None.
    """

    response: ChatResponse
    entity: Any = None


StreamEvent: TypeAlias = (
    TextDelta
    | ReasoningDelta
    | ReasoningSigned
    | ToolCallStarted
    | ToolCallDelta
    | ToolProgress
    | ToolCallFinished
    | RoundEnded
    | ApprovalNeeded
    | Done
)
"""The events of this library; an application's own tools and advisors may emit others beside."""


def events_of(parts: Iterable[Part]) -> Iterator[StreamEvent]:
    """Yield the events that tell *parts*, those of a whole message or of a chunk."""
    for part in parts:
        match part:
            case ToolCall(id=id, name=name, arguments=arguments):
                yield from _tool_call_events(id, name, arguments, None)
            case ToolCallChunk(index=index, id=id, name=name, arguments=arguments):
                yield from _tool_call_events(id, name, arguments, index)
            case Reasoning(text=text):
                if text:
                    yield ReasoningDelta(text)
                if part.signature is not None or part.data is not None:
                    yield ReasoningSigned(replace(part, text=""))
            case str() | ProviderPart():
                if text := part if isinstance(part, str) else part.text:
                    yield TextDelta(text)
            case _:
                pass  # media are in the response, there is nothing to show


def _tool_call_events(
    id: str, name: str, arguments: str, index: int | None
) -> Iterator[StreamEvent]:
    if name:
        yield ToolCallStarted(id, name, index)
    if arguments:
        yield ToolCallDelta(id, arguments, index)
