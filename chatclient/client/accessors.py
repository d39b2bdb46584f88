"""Reads text, entity, documents, tool executions and pending turn from a response."""

from typing import TYPE_CHECKING, TypeVar

from chatclient.chain.chain import DOCUMENTS, ChatClientResponse
from chatclient.chat.message_merging import (
    append_messages,
    complete_answer,
    has_content,
    last_turn_start,
    with_turn_ended,
)
from chatclient.chat.messages import Message
from chatclient.chat.response import ChatResponse
from chatclient.chat.turn import Turn
from chatclient.errors import EntityError, ToolUsageError
from chatclient.observability.operations import ClientCall, ModelCall
from chatclient.observability.trail import Trail
from chatclient.runtime.observation import Step
from chatclient.structured.converters import StructuredOutputConverter
from chatclient.structured.output import entity_in
from chatclient.tools.pending_turn import PENDING_TURN, PendingTurn
from chatclient.tools.tool_execution import TOOL_EXECUTIONS, ToolExecution

if TYPE_CHECKING:
    from chatclient.retrieval.vector_store.store import Document  # only loaded with retrieval

T = TypeVar("T")


def executions_in(response: ChatClientResponse) -> tuple[ToolExecution, ...]:
    """Return the tool executions in the context of a response."""
    executions: tuple[ToolExecution, ...] = response.context.get(TOOL_EXECUTIONS, ())
    return executions


def documents_in(response: ChatClientResponse) -> "tuple[Document, ...]":
    """Return the retrieved documents in the context of a response."""
    sources = response.context.get(DOCUMENTS)
    if not sources:
        return ()
    from chatclient.retrieval.vector_store.store import documents_among  # noqa: PLC0415 - optional

    return documents_among(sources)


def trail_of(response: ChatClientResponse) -> Trail:
    """Return the trail of a response, or an empty one."""
    return response.trail or Trail()


def messages_in(response: ChatClientResponse) -> tuple[Message, ...]:
    """Return the messages of the request, those of the tool rounds, and the answer."""
    turn = _turn_in(response)
    answer = complete_answer(response.chat_response)
    # A paused answer is sent again as it is, even if it is empty.
    if answer is None or not (has_content(answer) or response.chat_response.paused):
        return with_turn_ended(_turn_messages(turn))
    *_, identified = turn.messages(answer)
    return append_messages(_turn_messages(turn), (identified,))


def new_messages_in(response: ChatClientResponse) -> tuple[Message, ...]:
    """Return those of the messages that belong to the last turn: from the user's question on."""
    begin = last_turn_start(_turn_in(response).request_messages)
    return messages_in(response)[begin:]


def round_responses_in(response: ChatClientResponse) -> tuple[ChatResponse, ...]:
    """Return what the model answered in each round, the last one among them."""
    steps = () if response.trail is None else response.trail.steps
    return tuple(step.result for step in steps if _is_complete_round(step))


def _is_complete_round(step: Step) -> bool:
    call = step.operation
    whole = step.result is not None and step.error is None
    return isinstance(call, ModelCall) and not call.auxiliary and whole


def _turn_messages(turn: Turn) -> tuple[Message, ...]:
    """Return the messages of *turn*; an answer that the request has begun is one message."""
    messages = turn.messages()
    count = len(turn.request_messages)
    return append_messages(messages[:count], messages[count:])


def _turn_in(response: ChatClientResponse) -> Turn:
    """Return the record of the turn that led to *response*."""
    steps = trail_of(response).steps
    call = steps[0].operation if steps else None
    return call.turn if isinstance(call, ClientCall) else Turn()


def pending_in(response: ChatClientResponse) -> PendingTurn | None:
    """Return the suspended turn in the context of a response, or None."""
    pending: PendingTurn | None = response.context.get(PENDING_TURN)
    return pending


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
        names = ", ".join(dict.fromkeys(call.name for call in pending.to_decide().values()))
        hint = "see its pending_turn, and go on with client.resume(turn, decisions)"
        msg = f"there is no answer yet, the turn waits for approval of {names}; {hint}"
        chat = response.chat_response
        error = EntityError(msg, text=chat.text, response=chat, pending_turn=pending)
        error.trail = response.trail
        raise error


def require_not_nested(response: ChatClientResponse) -> None:
    """Check that a turn does not wait for approval inside another turn, which cannot resume it.

    Raises:
        ToolUsageError: It waits, and its request was made by a tool or advisor of another turn.
    """
    if pending_in(response) is None or trail_of(response).parent is None:
        return
    msg = (
        "a client that was asked within another turn waits for approval, and nobody would resume"
        " it; offer it as client.as_tool(...), so that the other turn waits, too, or handle its"
        " pending_turn()"
    )
    raise ToolUsageError(msg)
