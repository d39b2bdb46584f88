"""The request of the client, and the decisions, in the request of a frontend."""

from collections.abc import Sequence
from itertools import takewhile

from chatclient.chain.chain import is_memory
from chatclient.chat.messages import Message, UserMessage
from chatclient.chat.pending_turn import PendingTurn
from chatclient.chat.resumption import Decision
from chatclient.chat.ui_events import UI_STATE
from chatclient.client.request import ChatClientRequestSpec
from chatclient.memory.conversation import repair_conversation
from chatclient.services.web.incoming import Incoming, InvalidInputError


def begin_turn(request: ChatClientRequestSpec, incoming: Incoming) -> ChatClientRequestSpec:
    """Return *request* with the messages of a new turn.

    With a memory, only the new messages of the user are used: the memory knows the others, and what
    a browser says about them can be forged. Without one, the messages of the frontend are all that
    the model is told.

    Raises:
        InvalidInputError: The user says nothing.
    """
    messages: Sequence[Message] = incoming.messages
    if any(map(is_memory, request.settings.advisors)):
        last = takewhile(lambda message: isinstance(message, UserMessage), reversed(messages))
        messages = tuple(last)[::-1]
    else:
        messages = repair_conversation(messages)
    asked = messages[-1] if messages else None
    if not isinstance(asked, UserMessage) or not (asked.text.strip() or asked.media):
        msg = "the message of the user is blank"
        raise InvalidInputError(msg)
    return request.messages(messages)


def decisions_in(incoming: Incoming, turn: PendingTurn) -> dict[str, Decision]:
    """Return the decisions about all calls of *turn* that wait.

    The result of a call is accepted for the frontend's own tools only: for others, it would be a
    way to make up what a tool of the application has returned.

    Raises:
        InvalidInputError: A decision is missing.
    """
    external = turn.external_calls
    decisions = {
        id: found[id]
        for id in turn.to_decide()
        if id in (found := incoming.results if id in external else incoming.decisions)
    }
    if missing := [id for id in turn.to_decide() if id not in decisions]:
        msg = f"decide about all tool calls that wait; missing: {', '.join(missing)}"
        raise InvalidInputError(msg)
    return decisions


def with_frontend(request: ChatClientRequestSpec, incoming: Incoming) -> ChatClientRequestSpec:
    """Return *request* with the tools and the state of the frontend."""
    if incoming.state is not None:
        request = request.tool_context({UI_STATE: incoming.state})
    return request.tools(*incoming.tools, keep_defaults=True) if incoming.tools else request
