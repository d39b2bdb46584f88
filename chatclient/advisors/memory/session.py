"""Memory in sessions: `SessionMemoryAdvisor`, and `SessionLogAdvisor` for a running turn."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

from chatclient._internal.checks import check_type
from chatclient.advisors.memory.advisors import TurnMemoryAdvisor, conversation_id_of
from chatclient.chain.chain import (
    MEMORY_ORDER,
    TOOL_CALLING_ORDER,
    ChatClientRequest,
    ChatClientResponse,
    Next,
)
from chatclient.chain.params import EVENT_FILTER
from chatclient.chat.messages import AssistantMessage, Message
from chatclient.chat.serialization import message_to_dict
from chatclient.chat.stored_values import to_stored
from chatclient.chat.tool import USER_ID
from chatclient.chat.turn import Turn
from chatclient.errors import UsageError
from chatclient.memory.sessions.chat_memory import SessionChatMemory
from chatclient.memory.sessions.event import EventPayload
from chatclient.memory.sessions.log import EventFilter
from chatclient.memory.sessions.service import SessionService
from chatclient.runtime.runtime import Runtime

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


TURN_MESSAGE = "turn_message"
"""The type of the events of a `SessionLogAdvisor`. Their data has the id of the turn (`turn`), an
id of its run (`run`; a turn that is resumed runs again), and the `message` as a dict."""


@dataclass(slots=True, eq=False)
class _Progress:
    """What has been logged of a turn.

    Attributes:
        turn: The turn.
        memory: The memory of its session.
        conversation_id: The id of the session.
        run: Identifies this run of the turn.
        count: How many messages of the turn's record have been logged.
        answer: The model's last answer, which is logged before it is in the record.
    """

    turn: Turn
    memory: SessionChatMemory
    conversation_id: str
    run: str = field(default_factory=lambda: uuid4().hex)
    count: int = 0
    answer: AssistantMessage | None = None

    async def log(self, answer: AssistantMessage | None, runtime: Runtime) -> None:
        """Log the messages that are new before a model call, or the *answer* after it.

        Raises:
            ChatMemoryError: The log cannot be written.
        """
        messages = self._new_messages() if answer is None else (answer,)
        self.answer = answer
        payloads = [
            EventPayload(
                TURN_MESSAGE,
                to_stored(
                    {"turn": self.turn.id, "run": self.run, "message": message_to_dict(message)}
                ),
            )
            for message in messages
        ]
        if payloads:
            await self.memory.log(self.conversation_id, payloads, runtime)

    def _new_messages(self) -> tuple[Message, ...]:
        """Return the messages of the turn that have not been logged, which then count as logged.

        The last answer is logged already, unless the loop has changed its calls.
        """
        messages = self.turn.messages()
        new, self.count = messages[self.count :], len(messages)
        if new and self.answer is not None and _has_same_calls(new[0], self.answer):
            new = new[1:]
        return new


class SessionLogAdvisor:
    """Writes each message of a turn to its session when it occurs: what went wrong can be seen.

    A `SessionMemoryAdvisor` stores a turn as a unit, when it has ended; nothing remains of one
    whose process was killed. This advisor appends, before each model call, the messages that are
    new, such as tool results, and after it the answer. They are events of type `TURN_MESSAGE`,
    which no model sees and no compaction archives.

    It works without a memory or next to one, also after a handoff. The first message creates the
    session. The advisor params `USER_ID` and `EVENT_FILTER` have the meaning that they have for a
    `SessionMemoryAdvisor`.

    Args:
        memory: The memory, or the service, of the sessions.
        order: The order of the advisor, above `TOOL_CALLING_ORDER`.

    Raises:
        WrongTypeError: *memory* is neither of these.
    """

    params: Collection[str] = ()

    def __init__(
        self, memory: SessionChatMemory | SessionService, *, order: int = TOOL_CALLING_ORDER + 50
    ) -> None:
        self.order = order
        self.memory = check_session_memory(memory)

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        """Return the response, after its message and those before it have been logged.

        Raises:
            UsageError: The request has no conversation id, or the session belongs to another user.
            ChatMemoryError: The log cannot be written.
        """
        turn, key = request.turn, id(self.memory.service)
        if (
            key not in turn.round_writers
        ):  # the first round; or another client has the same sessions
            memory, conversation_id = memory_for(self.memory, request), conversation_id_of(request)
            turn.round_writers[key] = _Progress(turn, memory, conversation_id).log
        return await call_next(request)


def _has_same_calls(message: Message, answer: AssistantMessage) -> bool:
    return isinstance(message, AssistantMessage) and message.tool_calls == answer.tool_calls
