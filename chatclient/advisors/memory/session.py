"""`SessionMemoryAdvisor`: memory in sessions, logs of events with archives and summaries."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from chatclient._internal.checks import check_type
from chatclient.advisors.memory.turns import TurnMemoryAdvisor
from chatclient.chain.chain import MEMORY_ORDER, ChatClientRequest
from chatclient.chain.params import EVENT_FILTER
from chatclient.chat.tool import USER_ID
from chatclient.errors import UsageError
from chatclient.memory.sessions.chat_memory import SessionChatMemory
from chatclient.memory.sessions.log import EventFilter
from chatclient.memory.sessions.service import SessionService

__all__ = ["EVENT_FILTER", "USER_ID", "SessionMemoryAdvisor"]


class SessionMemoryAdvisor(TurnMemoryAdvisor):
    """Sends the messages of a session's log before the request's own messages.

    The conversation id is the session's id. A session is created with its first turn. The events of
    a turn are appended as a unit; a turn that fails leaves none, and of one
    that was stopped they are what was shown. The advisor works
    outside of the tool loop, its default place, and inside it.

    In a request's advisor params, `USER_ID` is the user that the session must belong to (without
    it, any session is accepted, and a new one belongs to the memory's default user), `EVENT_FILTER`
    narrows what is sent to the model, and `TURN_KEY` identifies the turn so that it is stored once.

    Args:
        memory: The sessions, how they are filtered and when they are compacted; a service means
            a memory that sends everything and compacts nothing.
        order: The place of the advisor; above `TOOL_CALLING_ORDER` that is inside the tool loop.
        tool_messages: Whether tool calls and their results are stored.
    """

    memory: SessionChatMemory
    params: Collection[str] = (EVENT_FILTER,)

    def __init__(
        self,
        memory: SessionChatMemory | SessionService,
        *,
        order: int = MEMORY_ORDER,
        tool_messages: bool = True,
    ) -> None:
        super().__init__(check_session_memory(memory), order, tool_messages=tool_messages)

    def _memory_for(self, request: ChatClientRequest) -> SessionChatMemory:
        return memory_for(self.memory, request)


def check_session_memory(memory: SessionChatMemory | SessionService) -> SessionChatMemory:
    """Return *memory*; a service means a memory that sends everything.

    Raises:
        WrongTypeError: It is neither.
    """
    if isinstance(memory, SessionService):
        return SessionChatMemory(memory)
    hint = "put a repository into a SessionService(repository)"
    check_type("a session's memory", memory, SessionChatMemory, hint)
    return memory


def memory_for(memory: SessionChatMemory, request: ChatClientRequest) -> SessionChatMemory:
    """Return *memory* with the user and the filter of *request*.

    Raises:
        UsageError: One of the two is something else.
    """
    user_id: str | None = _param(request, USER_ID, str)
    event_filter: EventFilter | None = _param(request, EVENT_FILTER, EventFilter)
    started_at = memory.service.sessions.clock()
    return replace(memory.narrowed(user_id, event_filter), started_at=started_at)


def _param(request: ChatClientRequest, key: str, kind: type[Any]) -> Any:
    value = request.context.get(key)
    if value is not None and not isinstance(value, kind):
        given = type(value).__name__
        msg = f"the advisor param {key!r} must be of type {kind.__name__}, not {given}"
        raise UsageError(msg)
    return value
