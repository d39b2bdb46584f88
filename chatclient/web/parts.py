"""The parts of an answer as frontends show them, and their reader from the events of a turn."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from chatclient._internal.json import has_json_form
from chatclient.chat.events import (
    ApprovalNeeded,
    Done,
    ReasoningDelta,
    RoundEnded,
    RoundRestarted,
    TextDelta,
    TextReplaced,
    ToolCallDelta,
    ToolCallFinished,
    ToolCallStarted,
    ToolCallUndone,
    ToolRunStarted,
    TurnDecided,
    UiData,
    UiState,
)
from chatclient.chat.messages import AssistantMessage, Media, Message, ToolCall, ToolResponse
from chatclient.chat.pending_notes import load_turn
from chatclient.chat.pending_turn import PendingTurn
from chatclient.chat.response import ChatResponse
from chatclient.chat.tool import ToolProgress
from chatclient.chat.turn import Turn
from chatclient.errors import McpServerError, ToolDeniedError, ToolError, ToolExecutionError


class MessageIds:
    """Counts the messages of a turn, from which their ids are derived; see `Turn`.

    The record of the turn itself may be ahead of the events: they wait for the consumer.

    Args:
        record: Returns the record of the turn.
        resumed: The turn that the request resumes, or None.
    """

    def __init__(self, record: Callable[[], Turn], resumed: PendingTurn | None) -> None:
        self._record = record
        self._resumed = resumed
        self._turn_id = ""
        self._position = 0
        self._first: str | None = None
        self._has_results = False  # whether calls of the last message have results
        self._has_skipped = False  # whether a message was not streamed since
        self._used: list[str] = []

    @property
    def first(self) -> str:
        """The id of the first message of the model."""
        self._look()
        return self._first or ""

    @property
    def last(self) -> str:
        """The id of the last message."""
        return self._used[-1] if self._used else self._next(0)

    @property
    def is_rejected(self) -> bool:
        """Whether the last message was an answer that was rejected, if another one begins."""
        return bool(self._used) and not self._has_results

    def begin(self, *, late: bool) -> str:
        """Return the id of the message that begins.

        An answer that an advisor rejects is not in the record of the turn, so that the next one
        has its id; a frontend shows both.

        Args:
            late: Whether it has only calls, of the last message, that were not streamed.
        """
        if late and self._used and not self._has_skipped:
            return self.last
        self.skip()
        self._has_skipped = False
        id = self._next(0)
        id = f"{id}.{len(self._used)}" if id in self._used else id
        self._used.append(id)
        return id

    def take_back(self) -> None:
        """Forget the last message, which begins again."""
        self._used.pop()

    def skip(self) -> None:
        """Count the messages of the last round, if its tool calls have results."""
        if self._has_results:
            self._position += 2  # the message of the model, and the one with the results
            self._has_results, self._has_skipped = False, True

    def results(self) -> str:
        """Return the id of the message with the results of the tool calls of this round."""
        self._has_results = True
        return self._next(1)

    def _next(self, after: int) -> str:
        self._look()
        return f"{self._turn_id}-{self._position + after}"

    def _look(self) -> None:
        """Read the id of the turn, and how many messages it had when it began."""
        if self._turn_id:
            return
        if self._resumed is not None:
            turn = load_turn(self._resumed, {})
            earlier = turn.rounds
        else:
            turn, earlier = self._record(), ()
        self._turn_id, self._position = turn.id, len(turn.request_messages) + len(earlier)
        answers = (each.id for each in earlier if isinstance(each, AssistantMessage))
        self._first = next(answers, None) or self._next(0)


BlockKind = Literal["text", "reasoning"]


@dataclass(frozen=True, slots=True)
class RoundBegun:
    """The model begins a message.

    Attributes:
        message_id: The id of the message, under which memories store it.
        replaces: Whether it replaces the one before it, an answer that an advisor rejected.
    """

    message_id: str
    replaces: bool = False


@dataclass(frozen=True, slots=True)
class BlockBegun:
    """A block of text or of reasoning begins."""

    kind: BlockKind
    id: str
    message_id: str


@dataclass(frozen=True, slots=True)
class BlockPiece:
    """The next piece of the open block."""

    kind: BlockKind
    id: str
    message_id: str
    text: str


@dataclass(frozen=True, slots=True)
class BlockEnded:
    """The open block ends."""

    kind: BlockKind
    id: str
    message_id: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A tool call begins."""

    id: str
    name: str
    message_id: str


@dataclass(frozen=True, slots=True)
class CallComplete:
    """A tool call is complete."""

    call: ToolCall


@dataclass(frozen=True, slots=True)
class CallFinished:
    """A tool call has a result.

    Attributes:
        id: The id of the call; of a call inside an agent, its id for decisions.
        response: The result.
        message_id: The id of the message with the results.
        denied: Whether the user did not allow the call.
        undone: Whether the call was undone after it had finished.
    """

    id: str
    response: ToolResponse
    message_id: str
    denied: bool = False
    undone: bool = False


@dataclass(frozen=True, slots=True)
class FileMade:
    """The model has made an image or another file."""

    media: Media


Part: TypeAlias = (
    RoundBegun
    | BlockBegun
    | BlockPiece
    | BlockEnded
    | CallBegun
    | ToolCallDelta
    | CallComplete
    | ToolProgress
    | CallFinished
    | FileMade
    | TextReplaced
    | UiState
    | UiData
    | ApprovalNeeded
    | TurnDecided
    | Done
)
"""What a frontend is told: events of the stream, and parts with the ids that it needs.

The value of a `ToolProgress` has a JSON form; the id of one inside an agent is a path.
"""


_FAILED = "The tool failed."
_SEPARATOR = "\n\n"  # what a stream puts between the texts of two rounds; here they are parts


class PartReader:
    """Reads the events of one request in order.

    Attributes:
        results: The results of the tool calls that have finished, as they are shown.

    Args:
        record: Returns the record of the turn, which knows the ids of its messages.
        resumed: The turn that the request resumes, or None. The frontend knows its calls.
    """

    def __init__(self, record: Callable[[], Turn], resumed: PendingTurn | None = None) -> None:
        self._ids = MessageIds(record, resumed)
        self._record = record
        self._waited = set(() if resumed is None else resumed.to_decide())
        self._begun: set[str] = set()
        if resumed is not None:
            self._begun = {*self._waited, *(call.id for call in resumed.message.tool_calls)}
        self._complete = set(self._begun)
        self._has_arguments: set[str] = set()
        self._is_restarted = False  # whether the next round takes the place of the last one
        self._round: str | None = None
        self._is_late = False  # whether the round started with a call that was not streamed
        self._block: tuple[BlockKind, str] | None = None
        self._blocks = self._rounds = 0
        self._files: list[Media] = []
        answered = () if resumed is None else resumed.responses
        self.results: dict[str, ToolResponse] = {each.id: each for each in answered}

    @property
    def first_message_id(self) -> str:
        """The id of the first message of the model in the turn, also of one that was resumed."""
        return self._ids.first

    @property
    def last_message_id(self) -> str:
        """The id of the last message of the model so far."""
        return self._ids.last

    @property
    def round_messages(self) -> tuple[Message, ...]:
        """The messages of the completed rounds of the turn; all of them at the end."""
        record = self._record()
        return record.messages()[len(record.request_messages) :]

    def parts(self, event: Any) -> Iterator[Part]:
        """Yield the parts of *event*."""
        match event:
            case TextDelta(text=text):
                yield from self._piece("text", text)
            case ReasoningDelta(text=text):
                yield from self._piece("reasoning", text)
            case ToolCallStarted(id=id, name=name):
                yield from self._begin_call(id, name)
            case ToolCallDelta(id=id):
                self._has_arguments.add(id)
                yield event
            case RoundEnded(response=response):
                yield from self._end_round(response)
            case RoundRestarted():
                if self._ids.is_rejected:
                    yield from self._end_block()
                    self._ids.take_back()
                    self._round, self._is_restarted = None, True
                    yield from self._begin_round()
            case TextReplaced():
                yield event
            case Done(response=response):
                yield from self._end_round(response)
                yield event
            case _:
                yield from self._tool_parts(event)

    def _tool_parts(self, event: Any) -> Iterator[Part]:
        """Yield the parts of an event about a running tool, or of the application."""
        match event:
            case ToolRunStarted(tool_call=call):
                yield from self._complete_call(call)
            case ToolCallFinished(tool_call=call):
                yield from self._complete_call(call)
                if call.id not in self.results:
                    yield self._finished(call.id, event)
            case ApprovalNeeded(turn=turn):
                yield from self._wait(turn)
            case TurnDecided(turn=turn):
                yield from self._wait(turn)
                self._waited.update(turn.to_decide())
                yield event
            case ToolCallUndone(tool_call=call, response=response):
                yield CallFinished(call.id, response, self._ids.results(), undone=True)
            case ToolProgress():
                yield from self._progress(event.tool_call_id, event)
            case UiState() | UiData():
                yield event
            case _:
                pass  # another event of the application

    def _progress(self, id: str, progress: ToolProgress) -> Iterator[Part]:
        """Yield the parts of an event of a tool or, if the tool is an agent, of its request."""
        match event := progress.event:
            case ToolProgress(tool_call_id=inner_id):
                yield from self._progress(f"{id}/{inner_id}", event)
            case ToolCallFinished(tool_call=call):
                if (path := f"{id}/{call.id}") in self._waited:
                    yield self._finished(path, event)
            case UiState() | UiData():
                yield event
            case TextDelta(text=text):
                yield ToolProgress(id, progress.tool_name, text)
            case str() | int() | float() | bool() | dict() | list():
                if has_json_form(event):
                    yield ToolProgress(id, progress.tool_name, event)
            case _:
                pass  # objects of the application and of the library are not for frontends

    def _finished(self, id: str, event: ToolCallFinished) -> CallFinished:
        response, error = event.response, event.error
        denied = id in self._waited and isinstance(error, ToolDeniedError)
        # The exceptions of a tool's own code may have internals, which only the model receives.
        told = isinstance(error, ToolError | ToolExecutionError)
        if isinstance(error, McpServerError) or not (error is None or told):
            response = replace(response, data=_FAILED)
        self.results[id] = response
        return CallFinished(id, response, self._ids.results(), denied)

    def _begin_round(self, *, late: bool = False) -> Iterator[Part]:
        if self._round is None or (self._is_late and not late):
            replaces = (self._ids.is_rejected or self._is_restarted) and not late
            self._is_restarted = False
            self._round, self._is_late = self._ids.begin(late=late), late
            yield RoundBegun(self._round, replaces)

    def _piece(self, kind: BlockKind, text: str) -> Iterator[Part]:
        yield from self._begin_round()
        message_id = self._round or ""
        if self._block is None or self._block[0] != kind:
            yield from self._end_block()
            self._blocks += 1
            self._block = kind, f"{message_id}/{kind}-{self._blocks}"
            yield BlockBegun(*self._block, message_id)
            text = text.removeprefix(_SEPARATOR) if self._rounds else text
        if text:
            yield BlockPiece(*self._block, message_id, text)

    def _end_block(self) -> Iterator[Part]:
        if self._block is not None:
            block, self._block = self._block, None
            yield BlockEnded(*block, self._round or "")

    def _begin_call(self, id: str, name: str, *, late: bool = False) -> Iterator[Part]:
        yield from self._begin_round(late=late)
        yield from self._end_block()
        self._begun.add(id)
        self._complete.discard(id)
        self._has_arguments.discard(id)
        self.results.pop(id, None)  # a model may use an id again
        yield CallBegun(id, name, self._round or "")

    def _complete_call(self, call: ToolCall) -> Iterator[Part]:
        """Yield what is missing of *call*: its stream may have been withheld."""
        if call.id not in self._begun:
            yield from self._begin_call(call.id, call.name, late=True)
        if call.id not in self._complete:
            self._complete.add(call.id)
            if call.arguments and call.id not in self._has_arguments:
                yield ToolCallDelta(call.id, call.arguments)
            yield CallComplete(call)

    def _end_round(self, response: ChatResponse) -> Iterator[Part]:
        yield from self._end_block()
        message = response.output or AssistantMessage()
        for media in message.media:
            if media not in self._files:
                self._files.append(media)
                yield from self._begin_round()
                yield FileMade(media)
        for call in message.tool_calls:
            if call.id in self._begun:
                yield from self._complete_call(call)
        if self._round is None:
            self._ids.skip()
        else:
            self._rounds += 1
        self._round = None

    def _wait(self, turn: PendingTurn) -> Iterator[Part]:
        for id, call in turn.to_decide().items():
            yield from self._complete_call(ToolCall(id, call.name, call.arguments))
        yield ApprovalNeeded(turn)
