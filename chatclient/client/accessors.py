"""Reads text, entity, documents, tool executions and pending turn from a response."""

from asyncio import CancelledError
from typing import TypeVar

from chatclient._internal.logging import get_logger
from chatclient.chain.chain import ChatClientResponse
from chatclient.chat.document import Document, documents_among
from chatclient.chat.message_merging import (
    append_messages,
    complete_answer,
    has_content,
    last_turn_start,
    with_turn_ended,
)
from chatclient.chat.messages import Message
from chatclient.chat.pending_turn import PendingTurn
from chatclient.chat.response import ChatResponse
from chatclient.chat.tool import ToolExecution
from chatclient.chat.turn import Outcome, Turn
from chatclient.errors import EntityError, ToolUsageError, TurnCancelledError
from chatclient.observability.trail import Trail
from chatclient.structured.converters import StructuredOutputConverter
from chatclient.structured.output import entity_in

T = TypeVar("T")

log = get_logger(__name__)


def executions_in(response: ChatClientResponse) -> tuple[ToolExecution, ...]:
    """Return the tool executions of the turn of *response*."""
    return tuple(response.turn.executions)


def documents_in(response: ChatClientResponse) -> tuple[Document, ...]:
    """Return the documents among the sources of the turn of *response*."""
    sources = response.turn.sources
    return documents_among(sources) if sources else ()


def trail_of(response: ChatClientResponse) -> Trail:
    """Return the trail of a response, or an empty one."""
    return response.trail or Trail()


def messages_in(response: ChatClientResponse) -> tuple[Message, ...]:
    """Return the messages of the request, those of the tool rounds, and the answer."""
    turn = response.turn
    answer = complete_answer(response.chat_response)
    # A paused answer is sent again as it is, even if it is empty.
    if answer is None or not (has_content(answer) or response.chat_response.paused):
        return with_turn_ended(_turn_messages(turn))
    *_, identified = turn.messages(answer)
    return append_messages(_turn_messages(turn), (identified,))


def new_messages_in(response: ChatClientResponse) -> tuple[Message, ...]:
    """Return those of the messages that belong to the last turn: from the user's question on."""
    begin = last_turn_start(response.turn.request_messages)
    return messages_in(response)[begin:]


def round_responses_in(response: ChatClientResponse) -> tuple[ChatResponse, ...]:
    """Return what the model answered in each round, the last one among them."""
    return tuple(response.turn.responses)


def _turn_messages(turn: Turn) -> tuple[Message, ...]:
    """Return the messages of *turn*; an answer that the request starts is one message."""
    messages = turn.messages()
    count = len(turn.request_messages)
    return append_messages(messages[:count], messages[count:])


def pending_in(response: ChatClientResponse) -> PendingTurn | None:
    """Return the turn of *response* as a value if it waits for decisions, or None."""
    return response.turn.pending


def outcome_of(error: BaseException | None) -> Outcome:
    """Return how a turn ended that raised *error*, or None."""
    match error:
        case None:
            return "answered"
        case EntityError() if error.pending_turn is not None:
            return "waiting"
        case TurnCancelledError() | CancelledError():
            return "cancelled"
        case _:
            return "failed"


def entity_of(response: ChatClientResponse, converter: StructuredOutputConverter[T]) -> T:
    """Return the entity in *response*.

    Raises:
        EntityError: The turn waits for approval, or the answer cannot be converted.
    """
    require_answer(response)
    return entity_in(response, converter)


def text_of(response: ChatClientResponse) -> str:
    """Return the text of the answer; see `CallResponse.content`."""
    require_not_nested(response)
    return response.chat_response.text


def require_answer(response: ChatClientResponse) -> None:
    """Check that the turn does not wait for approval, which means that there is no answer.

    Raises:
        EntityError: It waits for approval.
        ToolUsageError: It waits for approval inside another turn; see `require_not_nested`.
    """
    require_not_nested(response)
    pending = pending_in(response)
    if pending is not None:
        error = waiting_error(response.chat_response, pending)
        error.trail = response.trail
        raise error


def waiting_error(response: ChatResponse, pending: PendingTurn) -> EntityError:
    """Return the error that there is no answer, because the turn waits for approval."""
    names = ", ".join(dict.fromkeys(call.name for call in pending.to_decide().values()))
    hint = "see its pending_turn, and go on with client.resume(turn, decisions)"
    msg = f"there is no answer yet, the turn waits for approval of {names}; {hint}"
    return EntityError(msg, text=response.text, response=response, pending_turn=pending)


def warn_waiting(pending: PendingTurn) -> None:
    """Log that the text of a turn that waits for approval was taken for its answer."""
    calls = [call.name for call in pending.to_decide().values()]
    log.warning("the turn waits for approval, see pending_turn(); its text is no answer", of=calls)


def require_not_nested(response: ChatClientResponse) -> None:
    """Check that a turn does not wait for approval inside another turn, which cannot resume it.

    Raises:
        ToolUsageError: It waits, and its request was made by a tool or advisor of another turn.
    """
    if response.turn.pending is None or not response.turn.is_nested:
        return
    msg = (
        "a client that was asked within another turn waits for approval, and nobody would resume"
        " it; offer it as client.as_tool(...), so that the other turn waits, too, or handle its"
        " pending_turn()"
    )
    raise ToolUsageError(msg)
