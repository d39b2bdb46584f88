"""Tools that begin while the model is still speaking: those that only read."""

from collections import Counter
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any

from chatclient.events import ToolCallDelta, ToolCallStarted
from chatclient.json import loads
from chatclient.messages import ToolCall
from chatclient.runtime import Runtime
from chatclient.tools.outcome import ToolExecution
from chatclient.tools.single import SingleCalls
from chatclient.tools.turn import key_of


@dataclass(slots=True)
class _Asked:
    """A tool call as far as it has been streamed."""

    id: str
    name: str
    pieces: list[str] = field(default_factory=list)

    def call(self) -> ToolCall:
        """Return the call, which may be cut short."""
        return ToolCall(self.id, self.name, "".join(self.pieces))


class EagerReads:
    """Watches what a model streams, and begins each reading tool once its arguments are complete.

    They are when the model goes on to the next call: the last one gains nothing. What is begun
    waits in the turn until the round of the calls takes it, if it ever comes to that: a stream may
    break off, an advisor may change its mind about the calls. So a tool that has an effect is never
    begun early, nor one that must not run beside others, nor any after a call that has to run
    alone.
    """

    def __init__(self, single: SingleCalls, runtime: Runtime) -> None:
        self._limits = single.runner.limits
        self._runtime = runtime
        self._turn = single.turn
        self._single = single
        self._asked: dict[tuple[str, int | None], _Asked] = {}
        self._last: _Asked | None = None
        self._earlier: list[ToolCall] = []  # those of them that the model has gone on from
        self._room = single.runner.concurrency(runtime)
        # That of the round, for what is begun is no part of the model's own step.
        self._context = copy_context()

    async def watch(self, event: Any) -> None:
        """Take one event of the model's, and hand it on."""
        match event:
            case ToolCallStarted(id=id, name=name, index=index):
                self._go_on()
                self._last = _Asked(id, name)
                self._asked[id, index] = self._last
            case ToolCallDelta(id=id, arguments=arguments, index=index):
                asked = self._asked.get((id, index))
                if asked is not None:  # an advisor may keep what it likes from us
                    asked.pieces.append(arguments)
            case _:
                pass
        await self._runtime.emit(event)

    def _go_on(self) -> None:
        """Begin the last call so far, if it may."""
        if self._last is None:
            return
        call = self._last.call()
        if self._may_begin(call):
            self._room -= 1
            self._begin(call)
        self._earlier.append(call)

    def _may_begin(self, call: ToolCall) -> bool:
        callback = self._single.tools.get(call.name)
        if callback is None:  # a resolver may know it as one that has to run alone
            self._room = 0
            return False
        metadata, limits = callback.metadata, self._limits
        if metadata.exclusive:
            self._room = 0
        beside = not metadata.sequential and metadata.concurrency_group is None
        calls = self._turn.calls + Counter(each.name for each in (*self._earlier, call))
        return (
            self._room > 0
            and metadata.effect == "read"
            and beside
            and self._has_own_id(call)
            and _is_complete(call)
            and limits.breach(call.name, calls) is None
            and (limits.max_repeats is None or self._turn.repeats(call) < limits.max_repeats)
        )

    def _has_own_id(self, call: ToolCall) -> bool:
        """Return whether the call keeps its id: some servers give all calls the same one."""
        return bool(call.id) and all(call.id != earlier.id for earlier in self._earlier)

    def _begin(self, call: ToolCall) -> None:
        attempt = self._turn.calls[call.name] + 1
        attempt += sum(earlier.name == call.name for earlier in self._earlier)
        same = (call.name, call.arguments)
        ordinal = self._turn.made(call) + 1
        ordinal += sum((earlier.name, earlier.arguments) == same for earlier in self._earlier)

        async def run(runtime: Runtime) -> ToolExecution:
            return await self._single.run(call, runtime, attempt=attempt, ordinal=ordinal)

        self._turn.begun[key_of(call)] = self._runtime.begin(run, self._context)


def _is_complete(call: ToolCall) -> bool:
    try:
        loads(call.arguments or "{}")
    except ValueError:
        return False
    return True
