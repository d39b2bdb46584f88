"""`Ask`: sends requests in one of the four modes, so that one test covers them all."""

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from chatclient.chain.chain import ChatClientResponse
from chatclient.chat.events import TextDelta
from chatclient.chat.pending_turn import PendingTurn
from chatclient.chat.tool import ToolExecution

if TYPE_CHECKING:  # of a layer above
    from chatclient.client.request import ChatClientRequestSpec

Mode: TypeAlias = Literal["call", "acall", "stream", "astream"]
"""The name of the method that sends a request."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request has led to, in the same form for each mode.

    Attributes:
        text: The text of the answer; of a stream, its pieces joined.
        response: The response, with the context of the advisors.
        executions: The tool calls that were run.
        events: The events of a stream; empty without one.
        answer: What `.call()` or `.stream()` has returned, or its asynchronous form.
    """

    text: str
    response: ChatClientResponse
    executions: tuple[ToolExecution, ...]
    events: list[Any] = field(default_factory=list)
    answer: Any = None

    @property
    def waiting(self) -> PendingTurn:
        """The turn, which waits for decisions.

        Raises:
            AssertionError: It does not wait.
        """
        turn = self.response.turn.pending
        if turn is None:
            raise AssertionError("the turn waits for nothing")
        return turn


@dataclass(frozen=True, slots=True)
class Ask:
    """Sends requests in one mode; called with a request, it returns what came.

    It is called outside of an event loop, and runs one for the asynchronous modes.

    Attributes:
        mode: How requests are sent.
    """

    mode: Mode

    def __call__(self, request: "ChatClientRequestSpec") -> Asked:
        """Send *request* and return its result; its errors are raised."""
        match self.mode:
            case "call":
                return _asked(request.call())
            case "acall":
                return asyncio.run(self._await(request))
            case "stream":
                stream = request.stream()
                return _streamed(list(stream.events()), stream)
            case "astream":
                return asyncio.run(self._consume(request))

    @property
    def streaming(self) -> bool:
        """Whether answers are streamed."""
        return self.mode in ("stream", "astream")

    @property
    def blocking(self) -> bool:
        """Whether requests are sent without an event loop."""
        return self.mode in ("call", "stream")

    async def _await(self, request: "ChatClientRequestSpec") -> Asked:
        return _asked(await request.acall())

    async def _consume(self, request: "ChatClientRequestSpec") -> Asked:
        stream = request.astream()
        return _streamed([event async for event in stream.events()], stream)


def _asked(answer: Any) -> Asked:
    response, executions = answer.chat_client_response(), answer.tool_executions()
    return Asked(answer.content(), response, executions, answer=answer)


def _streamed(events: list[Any], stream: Any) -> Asked:
    text = "".join(event.text for event in events if isinstance(event, TextDelta))
    return Asked(text, stream.response, stream.tool_executions(), events, stream)
