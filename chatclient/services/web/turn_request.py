"""The request of the client, and the decisions, in the request of a frontend."""

from collections.abc import Sequence
from itertools import takewhile

from chatclient.chain.chain import is_memory
from chatclient.chat.messages import Message, UserMessage
from chatclient.chat.tool import CONVERSATION_ID, USER_ID
from chatclient.chat.ui_events import UI_STATE
from chatclient.client.request import ChatClientRequestSpec
from chatclient.memory.chat_memory import ChatMemory
from chatclient.memory.conversation import repair_conversation
from chatclient.memory.sessions.chat_memory import SessionChatMemory
from chatclient.services.web.incoming import Incoming, InvalidInputError
from chatclient.tools.execution.approval import Decision
from chatclient.tools.pending_turn import PendingTurn


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


async def rewind(request: ChatClientRequestSpec, messages: Sequence[Message]) -> None:
    """Remove what the *messages* of the user take the place of from the memories of *request*.

    The earliest of them that is stored is removed, with all that followed: a message was edited, or
    is to be answered again.
    """
    params = request.settings.advisor_params
    for advisor in request.settings.advisors:
        memory: object = getattr(advisor, "memory", None)
        if isinstance(memory, SessionChatMemory):
            memory = memory.narrowed(params.get(USER_ID), None)
        # A memory of the application may lack it.
        if isinstance(memory, ChatMemory) and type(memory).cut is not ChatMemory.cut:
            await _rewind(memory, params[CONVERSATION_ID], messages)


async def _rewind(memory: ChatMemory, conversation_id: str, messages: Sequence[Message]) -> None:
    for message in messages:
        if message.id is not None and await memory.arewind(conversation_id, message.id):
            return


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
