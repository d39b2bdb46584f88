"""`SessionLogAdvisor`: writes the messages of a running turn to the log of its session."""

from collections.abc import Collection
from dataclasses import dataclass, field
from uuid import uuid4

from chatclient.advisors.memory.session import check_session_memory, memory_for
from chatclient.advisors.memory.turns import conversation_id_of
from chatclient.chain.chain import (
    TOOL_CALLING_ORDER,
    ChatClientRequest,
    ChatClientResponse,
    Next,
)
from chatclient.chat.messages import AssistantMessage, Message
from chatclient.chat.serialization import message_to_dict
from chatclient.chat.stored_values import to_stored
from chatclient.chat.turn import Turn
from chatclient.memory.sessions.chat_memory import SessionChatMemory
from chatclient.memory.sessions.event import EventPayload
from chatclient.memory.sessions.service import SessionService
from chatclient.runtime.runtime import Runtime

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
        if key not in turn.logs:  # the first round; or another client has the same sessions
            memory, conversation_id = memory_for(self.memory, request), conversation_id_of(request)
            turn.logs[key] = _Progress(turn, memory, conversation_id).log
        return await call_next(request)


def _has_same_calls(message: Message, answer: AssistantMessage) -> bool:
    return isinstance(message, AssistantMessage) and message.tool_calls == answer.tool_calls
