"""Holds back what is streamed until it is known whether it may be said."""

from dataclasses import replace
from typing import Any

from chatclient.events import RoundEnded, TextDelta
from chatclient.runtime import Runtime


class HeldBack:
    """Takes the events of a call and keeps them, from its first word on.

    What goes before the first word, such as reasoning, is passed on at once.
    """

    __slots__ = ("_events", "_runtime")

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._events: list[Any] = []

    @property
    def runtime(self) -> Runtime:
        """What to make the call with."""
        return self._runtime.with_emitter(self._keep)

    async def release(self, *, words: bool = True) -> None:
        """Emit what was kept; without *words*, everything else, ends of rounds without theirs."""
        events, self._events = self._events, []
        for event in events:
            if words:
                await self._runtime.emit(event)
            elif isinstance(event, RoundEnded):
                await self._runtime.emit(RoundEnded(replace(event.response, generations=())))
            elif not isinstance(event, TextDelta):
                await self._runtime.emit(event)

    async def _keep(self, event: Any) -> None:
        if self._events or isinstance(event, TextDelta):
            self._events.append(event)
        else:
            await self._runtime.emit(event)
