"""Runs the tools that models ask for: the one place where that happens."""

import difflib
import time
from collections.abc import Coroutine, Sequence
from typing import Any

from chatclient.errors import (
    ToolArgumentError,
    ToolError,
    ToolTimeoutError,
    UnknownToolError,
    UsageError,
)
from chatclient.events import ToolCallFinished
from chatclient.logs import get_logger
from chatclient.messages import ToolCall, ToolResponse, ToolResponseMessage
from chatclient.options import ChatOptions
from chatclient.prompt import Prompt
from chatclient.response import ChatResponse
from chatclient.runtime import BLOCKING, ON_LOOP, Runtime, drive
from chatclient.tool import ToolCallback, ToolContext, ToolDefinition, ToolResult
from chatclient.tools.execution import ToolExecution, ToolExecutionResult, ToolTurn
from chatclient.tools.resolution import ToolCallbackResolver

log = get_logger(__name__)

Job = Any  # Callable[[Runtime], Coroutine[Any, Any, list[tuple[int, ToolExecution]]]]


class ToolCallingManager:
    """Finds and runs the tools that a response asks for.

    Every tool call gets exactly one answer, in the order of the calls, whatever happens: what
    goes wrong is told to the model, marked as an error.

    Args:
        resolver: Knows tools that were not offered with the request but may be run all the same
            when a model names them. None: only what was offered is run.
        max_concurrency: How many tools of one response run at once on an event loop.
        blocking_concurrency: The same for blocking calls. With 1 they run one after another on
            the caller's thread, so that thread-locals work; with more, in a pool of threads.
    """

    def __init__(
        self,
        *,
        resolver: ToolCallbackResolver | None = None,
        max_concurrency: int = 8,
        blocking_concurrency: int = 1,
    ) -> None:
        self._resolver = resolver
        self._limits = {False: max_concurrency, True: blocking_concurrency}
        # The last list of tools by name: it is the same one in all rounds of all requests.
        self._known: tuple[object, dict[str, ToolCallback]] = (None, {})

    def resolve_tool_definitions(self, options: ChatOptions) -> list[ToolDefinition]:
        """Return what a model is told about the tools in *options*."""
        return [callback.definition for callback in options.tool_callbacks or ()]

    def execute_tool_calls(self, prompt: Prompt, response: ChatResponse) -> ToolExecutionResult:
        """Run what *response* asks for, in a loop of the application's own.

        Args:
            prompt: What was sent; its options hold the tools and their context.
            response: What the model answered.
        """
        return drive(self.execute(prompt, response, BLOCKING, ToolTurn.of(prompt)))

    async def aexecute_tool_calls(
        self, prompt: Prompt, response: ChatResponse
    ) -> ToolExecutionResult:
        """Run what *response* asks for; see `execute_tool_calls`."""
        return await self.execute(prompt, response, ON_LOOP, ToolTurn.of(prompt))

    async def execute(
        self, prompt: Prompt, response: ChatResponse, runtime: Runtime, turn: ToolTurn
    ) -> ToolExecutionResult:
        """Run what *response* asks for, as one round of *turn*."""
        generation = next((g for g in response.generations if g.output.tool_calls), None)
        if generation is None:
            msg = "the response asks for no tool; check response.has_tool_calls() first"
            raise UsageError(msg)
        callbacks = self._by_name(prompt.options.tool_callbacks or ())
        calls = generation.output.tool_calls
        turn.calls.update(call.name for call in calls)
        executions = await self._run_all(calls, callbacks, runtime, turn)
        turn.executions.extend(executions)
        message = ToolResponseMessage(execution.response for execution in executions)
        return ToolExecutionResult(
            (*prompt.messages, generation.output, message),
            all(_returns_direct(execution, callbacks) for execution in executions),
            tuple(executions),
        )

    def _by_name(self, callbacks: Sequence[ToolCallback]) -> dict[str, ToolCallback]:
        known_list, by_name = self._known
        if known_list is not callbacks:
            by_name = {callback.definition.name: callback for callback in callbacks}
            self._known = (callbacks, by_name)
        return by_name

    async def _run_all(
        self,
        calls: Sequence[ToolCall],
        callbacks: dict[str, ToolCallback],
        runtime: Runtime,
        turn: ToolTurn,
    ) -> list[ToolExecution]:
        if len(calls) == 1:
            return [await self._run(calls[0], callbacks, runtime, turn)]
        executions: dict[int, ToolExecution] = {}

        def job(lane: list[int]) -> Job:
            async def run(runtime: Runtime) -> None:
                for at in lane:
                    executions[at] = await self._run(calls[at], callbacks, runtime, turn)

            return run

        limit = self._limits[runtime.blocking]
        for stage in _stages(calls, callbacks):
            await runtime.gather([job(lane) for lane in stage], limit=limit)
        return [executions[at] for at in range(len(calls))]

    async def _run(
        self,
        call: ToolCall,
        callbacks: dict[str, ToolCallback],
        runtime: Runtime,
        turn: ToolTurn,
    ) -> ToolExecution:
        started = time.perf_counter()
        error: Exception | None = None
        try:
            result = await self._invoke(call, callbacks, runtime, turn)
        except Exception as problem:  # noqa: BLE001 - a tool is the application's code
            error, result = problem, ToolResult(_told(problem, call), is_error=True)
        seconds = time.perf_counter() - started
        response = ToolResponse(call.id, call.name, result.text, result.is_error, result.media)
        log.debug("tool call", tool=call.name, seconds=seconds, error=error and repr(error))
        await runtime.emit(ToolCallFinished(call, response, seconds))
        return ToolExecution(call, response, seconds, error)

    def _invoke(
        self,
        call: ToolCall,
        callbacks: dict[str, ToolCallback],
        runtime: Runtime,
        turn: ToolTurn,
    ) -> Coroutine[Any, Any, ToolResult]:
        callback = callbacks.get(call.name)
        if callback is None and self._resolver is not None:
            callback = self._resolver.resolve(call.name)
        if callback is None:
            raise UnknownToolError(_unknown(call.name, list(callbacks)), tool_name=call.name)
        context = ToolContext(
            turn.context,
            runtime=runtime,
            tool_call_id=call.id,
            tool_name=call.name,
            timeout=callback.metadata.timeout,
        )
        return callback.invoke(call.arguments, context)


def _stages(calls: Sequence[ToolCall], callbacks: dict[str, ToolCallback]) -> list[list[list[int]]]:
    """Return stages that follow each other, of lanes that run side by side, of calls in a row."""
    stages: list[dict[object, list[int]]] = [{}]
    for at, call in enumerate(calls):
        callback = callbacks.get(call.name)
        metadata = callback.metadata if callback is not None else None
        if metadata is not None and metadata.exclusive:
            stages.extend(({at: [at]}, {}))
            continue
        lane: object = at
        if metadata is not None and metadata.concurrency_group is not None:
            lane = ("group", metadata.concurrency_group)
        elif metadata is not None and metadata.sequential:
            lane = ("tool", call.name)
        stages[-1].setdefault(lane, []).append(at)
    return [list(stage.values()) for stage in stages if stage]


def _returns_direct(execution: ToolExecution, callbacks: dict[str, ToolCallback]) -> bool:
    callback = callbacks.get(execution.tool_call.name)
    return callback is not None and callback.metadata.return_direct and not execution.is_error


def _unknown(name: str, offered: list[str]) -> str:
    nearest = difflib.get_close_matches(name, offered, n=3)
    if nearest:
        hint = f"did you mean {' or '.join(map(repr, nearest))}?"
    elif offered:
        hint = f"available: {', '.join(sorted(offered)[:20])}"
    else:
        hint = "no tools are available"
    return f"There is no tool {name!r}; {hint}"


def _told(problem: Exception, call: ToolCall) -> str:
    """Return what the model is told about *problem*: the tool's own words, never a cause."""
    if isinstance(problem, TimeoutError) and not isinstance(problem, ToolError | ToolTimeoutError):
        return f"The tool {call.name!r} did not answer in time."
    text = str(problem)
    if isinstance(problem, ToolArgumentError | ToolError | UnknownToolError) or text.strip():
        return text
    return f"Exception occurred in tool: {call.name} ({type(problem).__name__})"
