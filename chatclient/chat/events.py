"""The events of a stream, those of the application for frontends, and what a consumer has seen."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from chatclient._internal.json import has_json_form
from chatclient.chat.message_merging import INTERRUPTED
from chatclient.chat.messages import (
    AssistantMessage,
    Message,
    Part,
    ProviderPart,
    Reasoning,
    ToolCall,
    ToolCallChunk,
    ToolResponse,
    ToolResponseMessage,
)
from chatclient.chat.pending_turn import Decision, PendingTurn, Resumption
from chatclient.chat.response import ChatResponse
from chatclient.chat.tool import ToolProgress
from chatclient.errors import UsageError
from chatclient.runtime.threads import Emitter


@dataclass(frozen=True, slots=True)
class TextDelta:
    """The next piece of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """The next piece of the model's reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningSigned:
    """The provider's signature of the preceding reasoning, to be sent back with it."""

    proof: Reasoning


@dataclass(frozen=True, slots=True)
class ToolCallStarted:
    """The model begins a tool call; its arguments follow.

    Attributes:
        id: The id of the call.
        name: The tool's name.
        index: The number of the call in its message, if the provider sends one.
    """

    id: str
    name: str
    index: int | None = None


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """The next piece of a tool call's arguments, with the id and index of its start."""

    id: str
    arguments: str
    index: int | None = None


@dataclass(frozen=True, slots=True)
class ToolRunStarted:
    """A tool begins to run; a call that is denied or waits for approval has no such event.

    Attributes:
        tool_call: The call, with the arguments that the tool gets.
        attempt: The number of calls of this tool in the turn, including this one.
    """

    tool_call: ToolCall
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class ToolCallFinished:
    """A tool has run or was denied.

    Attributes:
        tool_call: The call.
        response: The response to the model.
        seconds: How long the tool took; 0.0 if it was not run.
        attempt: The number of calls of this tool in the turn, including this one.
        error: The complete error, or None. The model got only `response.data`.
        value: The value that the tool returned; None if it was not run.
    """

    tool_call: ToolCall
    response: ToolResponse
    seconds: float = 0.0
    attempt: int = 1
    error: Exception | None = field(default=None, compare=False)
    value: object = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ToolCallUndone:
    """A tool call was undone by its compensation, because the turn or another call failed.

    Attributes:
        tool_call: The call.
        response: The response that the model gets instead of the result.
    """

    tool_call: ToolCall
    response: ToolResponse


@dataclass(frozen=True, slots=True)
class HandedOver:
    """Another client continues the conversation; the events that follow are those of its rounds.

    Attributes:
        agent: The name of the client.
    """

    agent: str


@dataclass(frozen=True, slots=True)
class RoundEnded:
    """The model has finished one response; after tool calls another round follows."""

    response: ChatResponse


@dataclass(frozen=True, slots=True)
class TextReplaced:
    """The final text of the answer, if an advisor changed it after it was streamed."""

    text: str


@dataclass(frozen=True, slots=True)
class ApprovalNeeded:
    """The turn is suspended until its calls are approved or denied with `client.resume`.

    Attributes:
        turn: The turn.
    """

    turn: PendingTurn


@dataclass(frozen=True, slots=True)
class Done:
    """The request has ended; this is the last event.

    Attributes:
        response: The response.
        entity: The answer as a value, with `events(entity=...)`; None otherwise, and in a turn that
            waits for approval.
        executions: Each `ToolExecution` of the turn.
        documents: The retrieved documents.
        trail: The `Trail` of the turn.
    """

    response: ChatResponse
    entity: Any = None
    executions: tuple[Any, ...] = field(default=(), compare=False)
    documents: tuple[Any, ...] = field(default=(), compare=False)
    trail: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class RoundRestarted:
    """A model call of a durable turn begins again, after a crash: its earlier events are void."""


@dataclass(frozen=True, slots=True)
class TurnDecided:
    """A durable turn that waited continues, with decisions.

    Attributes:
        turn: The turn that waited.
        decisions: The decisions about its calls.
    """

    turn: PendingTurn
    decisions: Mapping[str, Decision]


StreamEvent: TypeAlias = (
    TextDelta
    | ReasoningDelta
    | ReasoningSigned
    | ToolCallStarted
    | ToolCallDelta
    | ToolRunStarted
    | ToolProgress
    | ToolCallFinished
    | ToolCallUndone
    | HandedOver
    | RoundEnded
    | TextReplaced
    | ApprovalNeeded
    | Done
)
"""The events of this library; tools and advisors of the application may emit others."""


def events_of(parts: Iterable[Part]) -> Iterator[StreamEvent]:
    """Yield the events for *parts* of a message or of a chunk."""
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
                pass  # media are only in the response


def _tool_call_events(
    id: str, name: str, arguments: str, index: int | None
) -> Iterator[StreamEvent]:
    if name:
        yield ToolCallStarted(id, name, index)
    if arguments:
        yield ToolCallDelta(id, arguments, index)


UI_STATE = "ui_state"
"""The key in a tool context of the state that the frontend sent."""


@dataclass(frozen=True, slots=True)
class UiState:
    """The state that the frontend shares with the application, to be replaced there.

    A tool emits it with `context.emit(...)`, an advisor with `request.runtime.emit(...)`.

    Attributes:
        value: The complete state, which has a JSON form.

    Raises:
        UsageError: It has none.
    """

    value: Any

    def __post_init__(self) -> None:
        _check("a state", self.value)


@dataclass(frozen=True, slots=True)
class UiData:
    """Data for a component of the frontend, such as a chart or a progress bar.

    It is a data part of the AI SDK, and a custom event of AG-UI.

    Attributes:
        name: What the frontend knows it by, such as `chart`.
        value: The data, which has a JSON form.
        id: Identifies the data in its message: data with the same name and id replaces it.
        transient: Whether it is not part of the message; the frontend's `onData` gets it.

    Raises:
        UsageError: The data has no JSON form.
    """

    name: str
    value: Any
    id: str | None = None
    transient: bool = False

    def __post_init__(self) -> None:
        _check(f"the data {self.name!r}", self.value)


def _check(what: str, value: Any) -> None:
    if not has_json_form(value):
        msg = f"{what} for a frontend needs a JSON form, and {type(value).__name__} has none"
        raise UsageError(msg)


class ShownAnswer:
    """What a consumer has seen of the round of a turn that is not complete.

    It is next to the consumer, because advisors may withhold or change what the model says.

    Args:
        emitter: Receives the events.
        count: Returns the number of messages of the complete rounds of the turn. Asked rather than
            told, so that an interruption does not leave a round both complete and shown.
        resumption: What the request continues, whose round was shown before; or None.

    Attributes:
        anything: Whether the consumer was sent anything at all.
    """

    def __init__(
        self, emitter: Emitter, count: Callable[[], int], resumption: Resumption | None
    ) -> None:
        self.anything = False
        self._emitter, self._count = emitter, count
        self._texts: list[str] = []
        self._ended: AssistantMessage | None = None  # the message of the model, at its end
        self._complete = count()  # the number of messages of complete rounds, at that time
        self._results: dict[str, ToolResponse] = {}
        if resumption is not None:
            pending = resumption.pending
            self._ended = pending.message
            self._results = {each.id: each for each in pending.responses}

    async def emit(self, event: Any) -> None:
        """Note *event*, and pass it on."""
        self.anything = True
        match event:
            case TextDelta(text=text):
                if self._ended is not None:  # another round, or another attempt
                    self._ended = None
                    self._texts.clear()
                self._texts.append(text)
            case RoundEnded(response=response):
                self._ended, self._complete = response.output, self._count()
                self._results.clear()
            case ToolCallFinished(tool_call=call, response=result):
                self._results[call.id] = result
            case ToolCallUndone(tool_call=call, response=result):
                self._results[call.id] = result
            case _:
                pass
        await self._emitter(event)

    def messages(self) -> tuple[Message, ...]:
        """Return the messages of the round: the text so far, or the calls and their results."""
        ended = self._ended
        if ended is not None and self._count() > self._complete:
            return ()  # the round is complete, and the next one has no text yet
        if ended is None or not ended.tool_calls:
            text = "".join(self._texts)
            return (AssistantMessage(text),) if text.strip() else ()
        results = [
            self._results.get(call.id)
            or ToolResponse(call.id, call.name, INTERRUPTED, is_error=True)
            for call in ended.tool_calls
        ]
        return ended, ToolResponseMessage(results)
