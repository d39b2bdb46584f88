"""`ShownAnswer`: what the consumer of a stream has seen of a round that is not complete."""

from collections.abc import Callable
from typing import Any

from chatclient.chat.events import RoundEnded, TextDelta, ToolCallFinished, ToolCallUndone
from chatclient.chat.message_merging import INTERRUPTED
from chatclient.chat.messages import AssistantMessage, Message, ToolResponse, ToolResponseMessage
from chatclient.chat.pending_turn import Resumption
from chatclient.runtime.threads import Emitter


class ShownAnswer:
    """What a consumer has seen of the round of a turn that is not complete.

    It is next to the consumer, because advisors may withhold or change what the model says.

    Args:
        emitter: Receives the events.
        count: Returns the number of messages of the complete rounds of the turn. Asked rather than
            told, so that an interruption does not leave a round both complete and shown.
        resumption: What the request continues, whose round was shown before; or None.

    Attributes:
        anything: Whether the consumer was sent anything at all.
    """

    def __init__(
        self, emitter: Emitter, count: Callable[[], int], resumption: Resumption | None
    ) -> None:
        self.anything = False
        self._emitter, self._count = emitter, count
        self._texts: list[str] = []
        self._ended: AssistantMessage | None = None  # the message of the model, at its end
        self._complete = count()  # the number of messages of complete rounds, at that time
        self._results: dict[str, ToolResponse] = {}
        if resumption is not None:
            pending = resumption.pending
            self._ended = pending.message
            self._results = {each.id: each for each in pending.responses}

    async def emit(self, event: Any) -> None:
        """Note *event*, and pass it on."""
        self.anything = True
        match event:
            case TextDelta(text=text):
                if self._ended is not None:  # another round, or another attempt
                    self._ended = None
                    self._texts.clear()
                self._texts.append(text)
            case RoundEnded(response=response):
                self._ended, self._complete = response.output, self._count()
                self._results.clear()
            case ToolCallFinished(tool_call=call, response=result):
                self._results[call.id] = result
            case ToolCallUndone(tool_call=call, response=result):
                self._results[call.id] = result
            case _:
                pass
        await self._emitter(event)

    def messages(self) -> tuple[Message, ...]:
        """Return the messages of the round: the text so far, or the calls and their results."""
        ended = self._ended
        if ended is None or not ended.tool_calls:
            text = "".join(self._texts)
            return (AssistantMessage(text),) if text.strip() else ()
        if self._count() > self._complete:
            return ()  # the round is complete, and the next one has no text yet
        results = [
            self._results.get(call.id)
            or ToolResponse(call.id, call.name, INTERRUPTED, is_error=True)
            for call in ended.tool_calls
        ]
        return ended, ToolResponseMessage(results)
