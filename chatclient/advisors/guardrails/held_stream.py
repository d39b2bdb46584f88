"""`HeldStream`: buffers the events of a call until its answer is accepted."""

from dataclasses import replace
from typing import Any

from chatclient.chat.events import RoundEnded, TextDelta
from chatclient.runtime.runtime import Runtime


class HeldStream:
    """Buffers the events of a call from the first text delta on.

    Events before it, such as reasoning, are emitted immediately.
    """

    __slots__ = ("_events", "_runtime")

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._events: list[Any] = []

    @property
    def runtime(self) -> Runtime:
        """The runtime to make the call with."""
        return self._runtime.with_emitter(self._buffer)

    async def release(self, *, text: bool = True) -> None:
        """Emit the buffered events; without *text*, drop text deltas and the answers of rounds."""
        events, self._events = self._events, []
        for event in events:
            if text:
                await self._runtime.emit(event)
            elif isinstance(event, RoundEnded):
                await self._runtime.emit(RoundEnded(replace(event.response, generations=())))
            elif not isinstance(event, TextDelta):
                await self._runtime.emit(event)

    async def _buffer(self, event: Any) -> None:
        if self._events or isinstance(event, TextDelta):
            self._events.append(event)
        else:
            await self._runtime.emit(event)
