"""`Steering`: sends user input to a turn while it runs."""

from collections import deque
from collections.abc import Collection

from chatclient._internal.checks import check_type
from chatclient.chain.chain import TOOL_CALLING_ORDER, ChatClientRequest, ChatClientResponse, Next
from chatclient.chat.messages import Message, UserMessage
from chatclient.errors import UsageError


class Steering:
    """Adds user messages to a turn while its tools run; create one for each turn.

    Pass it to a request with `.advisors(steering)`, and call its `send` method from anywhere, such
    as the loop that reads the stream, or another thread. The model gets the messages with the next
    tool results, and memory stores them in the turn. If the turn has no further round, they stay
    in `unread`, for the next request.
    """

    order = TOOL_CALLING_ORDER - 10
    params: Collection[str] = ()

    def __init__(self) -> None:
        self._queue: deque[Message] = deque()

    def send(self, text: str | UserMessage) -> None:
        """Queue a user message for the turn.

        Raises:
            UsageError: The text is blank.
            WrongTypeError: It is neither a text nor a user message.
        """
        message = UserMessage(text) if isinstance(text, str) else text
        check_type("what the user says", message, UserMessage)
        if all(isinstance(part, str) and not part.strip() for part in message.parts):
            msg = "the text is blank, and no provider would accept it"
            raise UsageError(msg)
        self._queue.append(message)

    @property
    def unread(self) -> tuple[Message, ...]:
        """The messages that have not been sent."""
        return tuple(self._queue)

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        """Return the response to *request*, whose tool loop reads the queue."""
        request.turn.part.user_input = self._pop_all
        return await call_next(request)

    def _pop_all(self) -> tuple[Message, ...]:
        return tuple(self._queue.popleft() for _ in range(len(self._queue)))
