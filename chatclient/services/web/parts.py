"""The parts that frontends show, which `PartReader` makes of the events of a stream."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from chatclient.chat.messages import Media, ToolCall, ToolResponse
from chatclient.chat.pending_turn import PendingTurn
from chatclient.chat.response import ChatResponse
from chatclient.chat.resumption import Decision
from chatclient.chat.ui_events import UiData, UiState
from chatclient.observability.trail import Trail

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
class CallPiece:
    """The next piece of a tool call's arguments."""

    id: str
    arguments: str


@dataclass(frozen=True, slots=True)
class CallComplete:
    """A tool call is complete."""

    call: ToolCall


@dataclass(frozen=True, slots=True)
class CallProgress:
    """A running tool reports progress.

    Attributes:
        id: The id of the call.
        value: What it reports, which has a JSON form.
    """

    id: str
    value: object


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


@dataclass(frozen=True, slots=True)
class TextRevised:
    """The text of the last message is another one than that which was streamed."""

    text: str
    message_id: str


@dataclass(frozen=True, slots=True)
class TurnWaits:
    """The turn waits for decisions or results of the frontend."""

    turn: PendingTurn


@dataclass(frozen=True, slots=True)
class CallsDecided:
    """The turn goes on, with decisions about its calls; a frontend that was away is told."""

    decisions: Mapping[str, Decision]


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """The request has ended; this is the last part.

    Attributes:
        response: The response.
        trail: The trail of the turn, if it ran in this process.
    """

    response: ChatResponse
    trail: Trail | None


Part: TypeAlias = (
    RoundBegun
    | BlockBegun
    | BlockPiece
    | BlockEnded
    | CallBegun
    | CallPiece
    | CallComplete
    | CallProgress
    | CallFinished
    | FileMade
    | TextRevised
    | UiState
    | UiData
    | TurnWaits
    | CallsDecided
    | TurnEnded
)
