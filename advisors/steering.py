"""Says something to a turn while it runs."""

from collections import deque

from chatclient.advisors.tool_calling import MEANWHILE
from chatclient.chain import TOOL_CALLING_ORDER, ChatClientRequest, ChatClientResponse, Next
from chatclient.checks import check_kind
from chatclient.errors import UsageError
from chatclient.messages import Message, UserMessage


class Steering:
    """Passes on what the user says while the model works with tools; make one for each turn.

    Given to a request, as `.advisors(steering)`; `say` may then be called from anywhere, such as
    the loop that reads the stream or another thread. What is said goes to the model with the next
    answers of its tools, and is remembered as a part of the turn. If the model has already come to
    its answer, the text stays in `unheard`, for the next request.
    """

    order = TOOL_CALLING_ORDER - 10

    def __init__(self) -> None:
        self._said: deque[Message] = deque()

    def say(self, text: str | UserMessage) -> None:
        """Say something to the turn.

        Raises:
            UsageError: The text is blank.
            WrongTypeError: It is neither a text nor a user's message.
        """
        message = UserMessage(text) if isinstance(text, str) else text
        check_kind("what the user says", message, UserMessage)
        if all(isinstance(part, str) and not part.strip() for part in message.parts):
            msg = "the text is blank, and no provider would accept it"
            raise UsageError(msg)
        self._said.append(message)

    @property
    def unheard(self) -> tuple[Message, ...]:
        """What was said and has not been sent."""
        return tuple(self._said)

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        """Return the response of a turn that hears what is said."""
        return await call_next(request.mutate(context={MEANWHILE: self._take}))

    def _take(self) -> tuple[Message, ...]:
        return tuple(self._said.popleft() for _ in range(len(self._said)))
