"""What the accessors of answers and streams read from a response."""

from typing import TYPE_CHECKING, TypeVar

from chatclient.advisors.tool_calling import PENDING_TURN, TOOL_EXECUTIONS
from chatclient.chain import SOURCES, ChatClientResponse
from chatclient.errors import EntityError, ToolUsageError
from chatclient.structured import StructuredOutputConverter
from chatclient.structured.output import entity_in
from chatclient.tools import PendingTurn, ToolExecution
from chatclient.trail import Trail

if TYPE_CHECKING:
    from chatclient.vector_store import Document  # loaded by who retrieves

T = TypeVar("T")


def executions_in(response: ChatClientResponse) -> tuple[ToolExecution, ...]:
    """Return the tool executions that the loop left in a response's context."""
    executions: tuple[ToolExecution, ...] = response.context.get(TOOL_EXECUTIONS, ())
    return executions


def documents_in(response: ChatClientResponse) -> "tuple[Document, ...]":
    """Return the documents among what a response rests on."""
    sources = response.context.get(SOURCES)
    if not sources:
        return ()
    from chatclient.vector_store.store import documents_among  # noqa: PLC0415 - not by all

    return documents_among(sources)


def trail_of(response: ChatClientResponse) -> Trail:
    """Return the trail that a client leaves at a response."""
    return response.trail or Trail()


def pending_in(response: ChatClientResponse) -> PendingTurn | None:
    """Return the suspended turn that the loop left in a response's context."""
    pending: PendingTurn | None = response.context.get(PENDING_TURN)
    return pending


def entity_of(response: ChatClientResponse, converter: StructuredOutputConverter[T]) -> T:
    """Return the value in *response*.

    Raises:
        EntityError: The turn waits for approvals, or its answer is not what was asked for.
    """
    refuse_waiting(response)
    return entity_in(response, converter)


def text_of(response: ChatClientResponse) -> str:
    """Return the text of the answer; see `CallResponse.content`."""
    refuse_forgotten(response)
    return response.chat_response.text


def refuse_waiting(response: ChatClientResponse) -> None:
    """Refuse to read a value from a turn that waits for approvals.

    Raises:
        EntityError: It does.
        ToolUsageError: It does, and was asked for by a tool or advisor of another one.
    """
    refuse_forgotten(response)
    pending = pending_in(response)
    if pending is not None:
        names = ", ".join(dict.fromkeys(call.name for call in pending.to_decide().values()))
        hint = "see its pending_turn, and go on with client.resume(turn, decisions)"
        msg = f"there is no answer yet, the turn waits for approval of {names}; {hint}"
        chat = response.chat_response
        error = EntityError(msg, text=chat.text, response=chat, pending_turn=pending)
        error.trail = response.trail
        raise error


def refuse_forgotten(response: ChatClientResponse) -> None:
    """Refuse to take what little a turn has said that waits where nobody would go on with it.

    Raises:
        ToolUsageError: It waits, and was asked for by a tool or advisor of another turn.
    """
    if pending_in(response) is None or trail_of(response).parent is None:
        return
    msg = (
        "a client that was asked within another turn waits for approval, and nobody would resume"
        " it; offer it as client.as_tool(...), so that the other turn waits, too, or handle its"
        " pending_turn()"
    )
    raise ToolUsageError(msg)
