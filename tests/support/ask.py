"""Send a request in one of the four modes and collect its result."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, Literal

from chatclient import ChatClientResponse
from chatclient.chat.events import TextDelta
from chatclient.client.call_response import CallResponse
from chatclient.client.request import ChatClientRequestSpec
from chatclient.tools import PendingTurn, ToolExecution

Mode = Literal["call", "acall", "stream", "astream"]


@dataclass
class Asked:
    """The result of a request in any mode."""

    text: str
    response: ChatClientResponse
    executions: tuple[ToolExecution, ...]
    events: list[Any] = field(default_factory=list)
    answer: Any = None

    @property
    def waiting(self) -> PendingTurn:
        """The turn, which waits for decisions."""
        turn = self.response.turn.pending
        assert turn is not None

        return turn


@dataclass(frozen=True)
class Ask:
    """Sends a request in one of the four modes."""

    mode: Mode

    def __call__(self, request: ChatClientRequestSpec) -> Asked:
        match self.mode:
            case "call":
                answer = request.call()
                return self._asked(answer)
            case "acall":
                return asyncio.run(self._await(request))
            case "stream":
                stream = request.stream()
                events = list(stream.events())
                return self._streamed(events, stream)
            case "astream":
                return asyncio.run(self._consume(request))

    @property
    def streaming(self) -> bool:
        return self.mode in ("stream", "astream")

    @property
    def blocking(self) -> bool:
        return self.mode in ("call", "stream")

    async def _await(self, request: ChatClientRequestSpec) -> Asked:
        return self._asked(await request.acall())

    async def _consume(self, request: ChatClientRequestSpec) -> Asked:
        stream = request.astream()
        events = [event async for event in stream.events()]
        return self._streamed(events, stream)

    def _asked(self, answer: CallResponse) -> Asked:
        response, executions = answer.chat_client_response(), answer.tool_executions()
        return Asked(answer.content(), response, executions, answer=answer)

    def _streamed(self, events: list[Any], stream: Any) -> Asked:
        text = "".join(event.text for event in events if isinstance(event, TextDelta))
        return Asked(text, stream.response, stream.tool_executions(), events, stream)
