"""Starts tools that only read while the model is still streaming further calls."""

from collections import Counter
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any

from chatclient._internal.json import loads
from chatclient.chat.events import ToolCallDelta, ToolCallStarted
from chatclient.chat.messages import ToolCall
from chatclient.chat.tool_execution import ToolExecution
from chatclient.runtime.runtime import Runtime
from chatclient.tools.execution.call import SuspendedCall, ToolCallRunner
from chatclient.tools.execution.limits import ToolLimits
from chatclient.tools.execution.state import streamed_call


@dataclass(slots=True, eq=False)
class _PartialCall:
    """A tool call as far as it has been streamed."""

    id: str
    name: str
    arguments: list[str] = field(default_factory=list)

    def call(self) -> ToolCall:
        """Return the call so far, which may be incomplete."""
        return ToolCall(self.id, self.name, "".join(self.arguments))


class EagerReads:
    """Observes a stream and starts each reading tool as soon as its arguments are complete.

    They are complete when the next call begins, so the last call of a message is never started
    early. Started calls stay in the turn until the round takes them over. It may never do so: the
    stream may fail, or an advisor may change the calls. Therefore no tool with an effect is started
    early, nor one that must not run concurrently, nor any after a call that has to run alone.

    Args:
        runner: Runs the calls.
        runtime: How the request runs.
        limits: The limits of the turn.
        concurrency: How many calls run at once.
    """

    def __init__(
        self, runner: ToolCallRunner, runtime: Runtime, limits: ToolLimits, concurrency: int
    ) -> None:
        self._runner = runner
        self._runtime = runtime
        self._limits = limits
        self._state = runner.state
        self._partial: dict[tuple[str, int | None], _PartialCall] = {}
        self._last: _PartialCall | None = None
        # The complete calls so far: by name, by name and arguments, and their ids.
        self._names: Counter[str] = Counter()
        self._equal: Counter[tuple[str, str]] = Counter()
        self._ids: set[str] = set()
        self._available = concurrency
        # The context of the round: started calls are no part of the model call.
        self._context = copy_context()

    async def observe(self, event: Any) -> None:
        """Process one event of the model and pass it on."""
        match event:
            case ToolCallStarted(id=id, name=name, index=index):
                self._complete_last()
                self._last = _PartialCall(id, name)
                self._partial[id, index] = self._last
            case ToolCallDelta(id=id, arguments=arguments, index=index):
                partial = self._partial.get((id, index))
                if partial is not None:  # an advisor may have dropped the first event
                    partial.arguments.append(arguments)
            case _:
                pass
        await self._runtime.emit(event)

    def _complete_last(self) -> None:
        """Start the last call so far, if possible."""
        if self._last is None:
            return
        call = self._last.call()
        if self._can_start(call):
            self._available -= 1
            self._start(call)
        self._names[call.name] += 1
        self._equal[call.name, call.arguments] += 1
        self._ids.add(call.id)

    def _can_start(self, call: ToolCall) -> bool:
        callback = self._runner.toolset.get(call.name)
        if callback is None:  # a resolver may return a tool that has to run alone
            self._available = 0
            return False
        metadata, limits = callback.metadata, self._limits
        if metadata.exclusive:
            self._available = 0
        concurrent = not metadata.sequential and metadata.concurrency_group is None
        return (
            self._available > 0
            and metadata.effect == "read"
            and concurrent
            and self._has_distinct_id(call)
            and _is_json(call.arguments)
            and limits.breach(call.name, "read", self._calls_with(call)) is None
            and (limits.max_repeats is None or self._state.repeats(call) < limits.max_repeats)
        )

    def _has_distinct_id(self, call: ToolCall) -> bool:
        """Return whether the call keeps its id: some servers give all calls the same one."""
        return bool(call.id) and call.id not in self._ids

    def _calls_with(self, call: ToolCall) -> Counter[str]:
        """Return the number of calls of each tool in the turn, including *call*."""
        return self._state.calls + self._names + Counter([call.name])

    def _start(self, call: ToolCall) -> None:
        attempt = self._state.calls[call.name] + self._names[call.name] + 1
        equal = self._equal[call.name, call.arguments]
        ordinal = self._state.keys.call_count(call) + equal + 1

        async def run(runtime: Runtime) -> ToolExecution | SuspendedCall:
            return await self._runner.run(call, runtime, attempt=attempt, ordinal=ordinal)

        self._state.early_calls[streamed_call(call)] = self._runtime.begin(run, self._context)


def _is_json(arguments: str) -> bool:
    try:
        loads(arguments or "{}")
    except ValueError:
        return False
    return True
