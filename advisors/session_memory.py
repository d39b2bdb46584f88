"""Memory that is a session: a log of events with archive, summaries and branches."""

from dataclasses import replace
from typing import Any

from chatclient.advisors.turns import Turns, WholeTurns, shown_as_messages
from chatclient.chain import (
    MEMORY_ORDER,
    Advisor,
    ChatClientRequest,
    ChatClientResponse,
    Next,
    name_of,
)
from chatclient.checks import check_kind
from chatclient.errors import UsageError
from chatclient.memory.sessions import EventFilter, SessionChatMemory, SessionService
from chatclient.tool import USER_ID

__all__ = ["EVENT_FILTER", "USER_ID", "SessionMemoryAdvisor"]

EVENT_FILTER = "chat_memory_event_filter"
"""The key in a request's context of an `EventFilter` on top of the advisor's."""


class SessionMemoryAdvisor:
    """Sends what a session's log has of the conversation before the request's own messages.

    The conversation id is the session's id. A session is created with its first turn, and each
    turn becomes events in its log, as a unit: one that fails or is cut short leaves nothing.
    The advisor works outside of the tool loop, where it stands by default, and inside it.

    In a request's advisor params, `USER_ID` says whose the session has to be (without, it is taken
    as it is, and a new one belongs to the memory's default user), `EVENT_FILTER` narrows what the
    model is shown, and `TURN_KEY` (of `chatclient.advisors.turns`) names the turn so that it is
    remembered once.

    Args:
        memory: The sessions, how they are filtered and when they are compacted; a service stands
            for a memory that shows everything and compacts nothing.
        order: Where the advisor stands; above `TOOL_CALLING_ORDER` that is inside the tool loop.
        tool_messages: Whether tool calls and their answers are remembered too.
    """

    is_memory = True

    def __init__(
        self,
        memory: SessionChatMemory | SessionService,
        *,
        order: int = MEMORY_ORDER,
        tool_messages: bool = True,
    ) -> None:
        if isinstance(memory, SessionService):
            memory = SessionChatMemory(memory)
        hint = "put a repository into a SessionService(repository)"
        check_kind("a session's memory", memory, SessionChatMemory, hint)
        self.order = order
        self.memory = memory
        self._tool_messages = tool_messages
        # Where the two halves meet, and no other advisor; requests have a `Turns` of their own.
        self._slot = f"session_memory_turn_{id(self):x}"

    def around_loop(self, order: int) -> Advisor:
        """Return the half that begins and ends turns, to stand outside of the tool loop."""
        return _AroundLoop(self, order)

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        """Return the response to the conversation that *request* continues.

        Raises:
            UsageError: The request has no conversation id, or the session belongs to another user.
            ChatMemoryError: The memory failed; the model may have answered.
        """
        return await self.turns_of(request).run(request, call_next, shown_as_messages)

    def turns_of(self, request: ChatClientRequest) -> Turns:
        """Return what begins and ends the turn of *request*, with its user and its filter.

        Raises:
            UsageError: One of the two is something else.
        """
        user_id: str | None = _param(request, USER_ID, str)
        event_filter: EventFilter | None = _param(request, EVENT_FILTER, EventFilter)
        begun = self.memory.service.sessions.clock()
        memory = replace(self.memory.narrowed(user_id, event_filter), begun=begun)
        turns = Turns(memory, tool_messages=self._tool_messages)
        turns.slot = self._slot
        return turns


class _AroundLoop:
    """The outer half of an advisor inside the loop."""

    def __init__(self, advisor: SessionMemoryAdvisor, order: int) -> None:
        self.order = order
        self._advisor = advisor
        self.name = f"{name_of(advisor)}, whole turns"

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        turns = self._advisor.turns_of(request)
        return await WholeTurns(turns, self.order, self.name)(request, call_next)


def _param(request: ChatClientRequest, key: str, kind: type[Any]) -> Any:
    value = request.context.get(key)
    if value is not None and not isinstance(value, kind):
        found = type(value).__name__
        msg = f"the advisor param {key!r} must be of type {kind.__name__}, not {found}"
        raise UsageError(msg)
    return value
