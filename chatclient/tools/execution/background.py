"""Calls that run in the background: `@tool(background=True)`.

The model gets an answer at once, which says that the call has started. It goes on, and gets the
result in a later message of the user's role, like user input that arrives while a turn runs. The
call itself is one like any other: with interceptors, approval, limits, events, spans, and a step of
a recorded turn. Approval, and the check of the arguments, take place before the answer.

No call outlives its turn: an answer of the model waits for the calls, and a turn that fails or is
cancelled stops them.
"""

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any, TypeVar

from chatclient._internal.frozen import EMPTY
from chatclient.chat.message_merging import ARRIVED, STARTED
from chatclient.chat.messages import Media, ToolCall, UserMessage
from chatclient.chat.parts import call_key
from chatclient.chat.recorder import Recorder, TurnStep
from chatclient.chat.tool import BACKGROUND, FAILURE, ToolContext, ToolExecution, ToolResult
from chatclient.runtime.concurrency import BEGAN, BackgroundJob
from chatclient.runtime.runtime import Runtime
from chatclient.tools.execution.result import (
    CallOutcome,
    SuspendedCall,
    execution_of,
    finished_event,
)

T = TypeVar("T")

_STARTED = (
    f"'{{name}}' was started {STARTED} Its result follows in a later"
    " message. Go on with what does not need it; do not call the tool again for the same purpose."
)
_RESULTS = "Results of tools in the background, not a message of the user."
_RESULT = f"Result of '{{name}}', {ARRIVED}:\n{{text}}"
_ERROR = f"'{{name}}', {ARRIVED}, has failed:\n{{text}}"
_CANCELLED = "The call was cancelled before it had a result."
_WAITS = (
    "It was not finished: it needs a decision about what it has to do, for which a call in the"
    " background cannot wait. It is not known how much was done."
)


@dataclass(slots=True, eq=False)
class _RunningCall:
    """A call that was started, and may have ended."""

    call: ToolCall
    context: ToolContext
    job: BackgroundJob[CallOutcome]
    completed: Callable[[], ToolExecution | None]

    async def execution(self, runtime: Runtime) -> ToolExecution:
        """Wait for the end of the call, and return its execution."""
        outcome = await self.job.result(runtime.emit)
        if isinstance(outcome, SuspendedCall):
            return await self._failed(_WAITS, runtime, {FAILURE: "denied"})
        return outcome

    async def stopped(self, runtime: Runtime) -> ToolExecution:
        """Return the execution of the call, whose job was stopped."""
        outcome = self.job.outcome()
        if isinstance(outcome, ToolExecution):
            return outcome
        return self.completed() or await self._failed(_CANCELLED, runtime)

    async def _failed(
        self, text: str, runtime: Runtime, metadata: Mapping[str, Any] = EMPTY
    ) -> ToolExecution:
        result = ToolResult(text, is_error=True, metadata=metadata)
        execution = execution_of(self.call, result, self.context.attempt)
        if runtime.streaming:
            await runtime.emit(finished_event(execution))
        return execution


@dataclass(slots=True, eq=False)
class BackgroundCalls:
    """The calls of a turn that run in the background, and results that the model has not got.

    Attributes:
        settled: The lists of a turn to which the execution of each call that has ended is added.
        recorder: Records which calls were started, and which had ended before each round; or None.
        arrived: The executions that the model has not been told of.
    """

    settled: Sequence[list[ToolExecution]]
    recorder: Recorder | None = None
    arrived: list[ToolExecution] = field(default_factory=list)
    _running: dict[str, _RunningCall] = field(default_factory=dict)  # by idempotency key

    def __bool__(self) -> bool:
        """Whether there are calls whose results the model has not got."""
        return bool(self._running or self.arrived)

    async def begin(
        self,
        call: ToolCall,
        context: ToolContext,
        run: Callable[[], Awaitable[CallOutcome]],
        completed: Callable[[], ToolExecution | None],
    ) -> CallOutcome:
        """Start a call, and return what the model is told of it at once.

        That is its outcome, if it ends before its tool begins: it waits for approval, was denied,
        or has wrong arguments.

        Args:
            call: The call.
            context: Its context.
            run: Runs it in this context.
            completed: Returns the execution of a call that was stopped, if its tool has finished
                all the same.
        """
        runtime, key = context.runtime, context.idempotency_key

        async def job_of(buffered: Runtime) -> CallOutcome:
            context.begin = lambda: buffered.emitter(BEGAN)
            # A blocking request passes events on while it waits, others do so at once.
            context.runtime = buffered if runtime.blocking else runtime
            return await run()

        job = runtime.begin(job_of, copy_context())

        async def begins(runtime: Runtime) -> bool:
            began = await job.began(runtime.emit)
            if not began:
                await job.result(runtime.emit)  # if it raises, nothing is recorded
            return began

        try:
            begun = await self._recorded(
                f"start {call.name} {key}", begins, runtime, default=False, call=call
            )
        except BaseException:
            await job.stop()
            raise
        if not begun:
            return await job.result(runtime.emit)
        self._running[key] = _RunningCall(call, context, job, completed)
        text = _STARTED.format(name=call.name, id=call.id)
        return execution_of(call, ToolResult(text, metadata={BACKGROUND: True}), context.attempt)

    async def collect(self, runtime: Runtime) -> None:
        """Take over the results of those calls that have ended."""
        if not self._running:
            return

        async def ended(runtime: Runtime) -> list[str]:
            running = [*self._running.items()]
            return [key for key, each in running if await each.job.pass_events(runtime.emit)]

        none: list[str] = []
        found = await self._recorded("background results", ended, runtime, default=none)
        for key, each in [*self._running.items()]:
            # A replayed turn knows the ids of calls only.
            if key in found or each.call.id in found:
                self._arrive(key, await each.execution(runtime))

    async def finish(self, runtime: Runtime) -> None:
        """Wait for all calls, and take over their results."""
        running = [*self._running.items()]
        jobs: list[Callable[[Runtime], Coroutine[Any, Any, ToolExecution]]]
        jobs = [each.execution for _, each in running]
        limit = 1 if runtime.blocking else len(jobs)  # one thread emits the events of all jobs
        executions = await runtime.gather(jobs, limit=limit)
        for (key, _), execution in zip(running, executions, strict=True):
            self._arrive(key, execution)

    async def stop(self, runtime: Runtime) -> None:
        """Stop all calls, wait for their end, and take over what has become of them."""
        running = [*self._running.items()]

        def stopping(each: _RunningCall) -> Callable[[Runtime], Coroutine[Any, Any, None]]:
            return lambda _: each.job.stop()

        await runtime.gather([stopping(each) for _, each in running], limit=max(1, len(running)))
        for key, each in running:
            self._arrive(key, await each.stopped(runtime))

    def take(self) -> tuple[ToolExecution, ...]:
        """Return the executions that the model has not been told of, and forget them."""
        taken = tuple(self.arrived)
        self.arrived.clear()
        return taken

    def in_place_of(self, executions: Iterable[ToolExecution]) -> list[ToolExecution]:
        """Return *executions*, with the results in place of the answers that calls have started.

        For a round that the model has not been told of.
        """
        arrived = {call_key(each.tool_call): each for each in self.arrived}
        replaced = [
            arrived.pop(call_key(each.tool_call), each) if BACKGROUND in each.metadata else each
            for each in executions
        ]
        self.arrived[:] = arrived.values()
        return replaced

    def _arrive(self, key: str, execution: ToolExecution) -> None:
        del self._running[key]
        self.arrived.append(execution)
        for executions in self.settled:
            executions.append(execution)

    async def _recorded(
        self,
        name: str,
        run: Callable[[Runtime], Awaitable[T]],
        runtime: Runtime,
        *,
        default: T,
        call: ToolCall | None = None,
    ) -> T:
        """Return what *run* returns, or has returned in an earlier execution of the turn."""
        if self.recorder is None:
            return await run(runtime)

        def dump(outcome: T | Exception) -> dict[str, Any]:
            return {"value": default if isinstance(outcome, Exception) else outcome}

        async def load(recorded: dict[str, Any]) -> T:
            value: T = recorded["value"]
            return value

        step = TurnStep("background", name, run, dump, load, tool_call=call)
        return await self.recorder.step(step, runtime)


def results_message(executions: Sequence[ToolExecution]) -> UserMessage:
    """Return the message with which the model gets the results of calls in the background."""
    parts: list[str | Media] = [_RESULTS]
    for each in executions:
        call, response = each.tool_call, each.response
        text = _ERROR if response.is_error else _RESULT
        parts.append("\n\n" + text.format(name=call.name, id=call.id, text=response.data))
        parts += response.media
    calls = [[each.tool_call.id, each.tool_call.name] for each in executions]
    return UserMessage(parts, metadata={BACKGROUND: calls})
