"""The tool calling manager: finds and runs the tools that models call.

A `ToolRound` decides which calls of an answer are run and in which order, by the limits. A
`ToolCallRunner` runs one of them: interceptors and approvals decide inside, and the failure policy
says what the model is told of an error.
"""

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from chatclient._internal.checks import (
    check_callable,
    check_choice,
    check_method,
    check_number,
    check_type,
)
from chatclient._internal.frozen import merged
from chatclient.chat.messages import AssistantMessage, ToolResponse
from chatclient.chat.options import ChatOptions
from chatclient.chat.pending_turn import (
    APPROVE,
    Decision,
    Decisions,
    PendingTurn,
    Resumption,
    decisions_for,
)
from chatclient.chat.prompt import Prompt
from chatclient.chat.response import ChatResponse
from chatclient.chat.tool import CONVERSATION_ID, ToolDefinition, ToolExecution, tool_inside
from chatclient.chat.withheld_tool import callable_tools
from chatclient.errors import ToolDefinitionError, UsageError
from chatclient.memory.shortening import READ_RESULT
from chatclient.observability.observers import all_observers
from chatclient.runtime.blocking import drive
from chatclient.runtime.runtime import BLOCKING, ON_LOOP, Runtime
from chatclient.tools.execution.approval import (
    AGENT_TURNS,
    DECISIONS,
    ToolApproval,
    ToolInterceptor,
    apply_decision,
    checked_interceptors,
    decision_context,
    interceptor_chain,
)
from chatclient.tools.execution.call import ToolCallRunner, invoke_tool
from chatclient.tools.execution.compensation import recorded_chain
from chatclient.tools.execution.failure import (
    ToolExecutionExceptionProcessor,
    ToolFailurePolicy,
    ToolLimits,
)
from chatclient.tools.execution.result import (
    RESULT_READER,
    ToolExecutionResult,
    with_distinct_ids,
    with_unused_keys,
)
from chatclient.tools.execution.round import EagerReads, ToolRound, check_decision
from chatclient.tools.execution.state import ToolState
from chatclient.tools.execution.toolset import (
    Callbacks,
    ToolCallbackResolver,
    Toolset,
    resolve_tool,
)

BackgroundPolicy = Literal["await", "cancel"]
"""What happens, when the model answers, with calls that still run in the background."""

# Frozen, so all managers share them; made once, because making one checks all values.
_LIMITS = ToolLimits()
_POLICY = ToolFailurePolicy()


class ToolCallingManager:
    """Finds and runs the tools that a response calls.

    Every tool call gets exactly one response, in the order of the calls.

    Args:
        resolver: Finds tools that were not offered with the request, but may be run when a model
            calls them. None: only offered tools are run.
        max_concurrency: How many tools of one response run in parallel on an event loop.
        blocking_concurrency: The same for blocking calls. With 1 they run one after another on
            the caller's thread, so that thread-locals work; with more, in a pool of threads.
        wait_together: Whether no call of a response runs while one of them waits for approval;
            those that need none then run when the turn is resumed. By default they run immediately.
            It excludes *eager_reads*. What an agent's own tools or a function `ask` decide is not
            known before.
        background_calls: What happens, when the model answers, with calls that still run in the
            background: `"await"` waits for them, and lets the model answer again with their
            results; `"cancel"` cancels them.
        eager_reads: Whether, in a stream, tools with `effect="read"` start while the model is still
            streaming further calls, if tools run concurrently at all.
        limits: The limits of a turn.
        exception_processor: Decides what happens when a call fails; default: the model gets the
            error.
        interceptors: Code around every tool call, the first one outermost.

    Raises:
        UsageError: An argument is of the wrong kind, or a number is too small.
    """

    def __init__(
        self,
        *,
        resolver: ToolCallbackResolver | None = None,
        max_concurrency: int = 8,
        blocking_concurrency: int = 1,
        wait_together: bool = False,
        eager_reads: bool = False,
        background_calls: BackgroundPolicy = "await",
        limits: ToolLimits | None = None,
        exception_processor: ToolExecutionExceptionProcessor | None = None,
        interceptors: Sequence[ToolInterceptor] = (),
    ) -> None:
        if limits is not None:
            check_type("limits", limits, ToolLimits)
        if resolver is not None:
            check_method("resolver", resolver, "resolve")
        if exception_processor is None:
            exception_processor = _POLICY
        else:
            check_callable("exception_processor", exception_processor, takes=("failure",))
        check_choice("background_calls", background_calls, BackgroundPolicy)
        check_number("max_concurrency", max_concurrency, least=1)
        check_number("blocking_concurrency", blocking_concurrency, least=1)
        if wait_together and eager_reads:
            msg = (
                "with eager_reads=True, tools run before it is known which calls wait; leave out "
                "that or wait_together=True"
            )
            raise UsageError(msg)
        self.limits = limits or _LIMITS
        self.background_calls: BackgroundPolicy = background_calls
        self._resolver = resolver
        self._interceptors = checked_interceptors(interceptors)
        self._chain = interceptor_chain(self._interceptors, invoke_tool)
        decided = (*self._interceptors, apply_decision)
        self._resumed_chain = interceptor_chain(decided, invoke_tool)
        self._exception_processor = exception_processor
        self._max_concurrency = max_concurrency
        self._blocking_concurrency = blocking_concurrency
        self._eager_reads = eager_reads
        self._approvals: tuple[ToolApproval, ...] | None = None
        if wait_together:
            self._approvals = tuple(
                each for each in self._interceptors if isinstance(each, ToolApproval)
            )
        # The last list of tools, by name: usually all rounds of all requests have the same list.
        self._offered_cache: tuple[object, Callbacks] = (None, {})

    def resolve_tool_definitions(self, options: ChatOptions) -> list[ToolDefinition]:
        """Return the definitions of the tools in *options*.

        Raises:
            ToolDefinitionError: The resolver does not find a tool that *options* name.
        """
        found = {each.definition.name: each.definition for each in options.tool_callbacks or ()}
        for name in options.tool_names or ():
            if name not in found:
                callback = drive(resolve_tool(self._resolver, name, BLOCKING))
                if callback is None:
                    resolver = self._resolver or "there is none"
                    msg = f"no tool {name!r} is known to the manager's resolver ({resolver})"
                    raise ToolDefinitionError(msg)
                found[name] = callback.definition
        return list(found.values())

    def execute_tool_calls(self, prompt: Prompt, response: ChatResponse) -> ToolExecutionResult:
        """Run the tool calls of *response*, for applications with a loop of their own.

        Args:
            prompt: The prompt that was sent; its options contain the tools and their context.
            response: The model's response.

        Raises:
            UsageError: The response contains no tool calls.
            ToolExecutionError: A call failed, and the exception processor decided to raise.
        """
        _check_response(response)
        return drive(self.execute(prompt, response, *_standalone(prompt, BLOCKING)))

    async def aexecute_tool_calls(
        self, prompt: Prompt, response: ChatResponse
    ) -> ToolExecutionResult:
        """Run the tool calls of *response*; see `execute_tool_calls`."""
        _check_response(response)
        return await self.execute(prompt, response, *_standalone(prompt, ON_LOOP))

    def resume_tool_calls(
        self, turn: PendingTurn, decisions: Decisions, options: ChatOptions
    ) -> ToolExecutionResult:
        """Continue a round that waits for approvals, for applications with a loop of their own.

        Args:
            turn: The `pending_turn` of the result of the round.
            decisions: By tool call id whether it may be run (a bool or a `Decision`), or
                `"approve"` or `"deny"` for all; `PendingTurn.to_decide` returns the ids.
            options: Those of the prompt, which contain the tools and their context.

        Raises:
            UsageError: A decision is missing, or the tool of a call is not offered.
            ToolExecutionError: A call failed, and the exception processor decided to raise.
        """
        return drive(self._resume_round(turn, decisions, options, BLOCKING))

    async def aresume_tool_calls(
        self, turn: PendingTurn, decisions: Decisions, options: ChatOptions
    ) -> ToolExecutionResult:
        """Continue a round that waits for approvals; see `resume_tool_calls`."""
        return await self._resume_round(turn, decisions, options, ON_LOOP)

    async def _resume_round(
        self, pending: PendingTurn, decisions: Decisions, options: ChatOptions, runtime: Runtime
    ) -> ToolExecutionResult:
        each = decisions_for(pending, decisions)
        runtime, state = _standalone(Prompt.of((), options), runtime)
        return await self.resume(pending, each, options, runtime, state)

    async def resume(
        self,
        pending: PendingTurn,
        decisions: Mapping[str, Decision],
        options: ChatOptions,
        runtime: Runtime,
        state: ToolState,
    ) -> ToolExecutionResult:
        """Run the calls that waited, as one round; see `resume_tool_calls`."""
        # Allowed when made, whatever `tool_choice` says now.
        prompt = Prompt.of(pending.messages, options.mutate(tool_choice=None))
        decided = decision_context(pending, decisions)
        try:
            await self.check_decisions(pending, decisions, options, runtime, state)
        except BaseException:
            state.undo_closed = True  # still pending: nothing that it has done is undone
            raise
        context = state.context
        state.context = merged(context, decided)
        state.resume(pending)
        runner = self._runner(prompt, state)
        result = await self._round(
            runner, prompt, pending.message, runtime, answered=pending.responses
        ).run()
        # The decisions apply to these calls only; models may use an id again in a later round.
        state.context = context
        # A limit that was reached before the suspension still ends the turn.
        breach, waiting = result.breach or pending.breach, result.pending_turn
        if waiting is not None:
            waiting = replace(waiting, breach=breach)
        return replace(result, breach=breach, pending_turn=waiting)

    async def check_decisions(
        self,
        pending: PendingTurn,
        decisions: Mapping[str, Decision],
        options: ChatOptions,
        runtime: Runtime,
        state: ToolState | None = None,
    ) -> None:
        """Check that *decisions* can be applied to *pending*, without running anything.

        Raises:
            ToolUsageError: A tool is missing, or cannot be run with the arguments of a decision.
        """
        toolset = self._toolset(options, state or ToolState())
        decided = decision_context(pending, decisions)
        for call in (*pending.pending, *pending.held):
            decision = decided[DECISIONS].get(call.id, APPROVE)
            await check_decision(call, decision, toolset, runtime)
            agent = tool_inside(toolset.get(call.name)) if call.id in pending.agents else None
            check: Callable[..., Awaitable[None]] | None = getattr(agent, "check_decisions", None)
            if check is not None:
                resumption = Resumption(*decided[AGENT_TURNS][call.id])
                await check(resumption, options.tool_context, runtime)

    def execute(
        self, prompt: Prompt, response: ChatResponse, runtime: Runtime, state: ToolState
    ) -> Coroutine[Any, Any, ToolExecutionResult]:
        """Run the calls of *response* as one round; see `execute_tool_calls`.

        An override may be a coroutine function.

        Returns:
            A coroutine for the result of the round.
        """
        for generation in response.generations:
            if generation.output.tool_calls:
                break
        else:
            msg = "the response asks for no tool; check response.has_tool_calls() first"
            raise UsageError(msg)
        runner = self._runner(prompt, state)
        # A model may use the id of an earlier call again, whose record has to stay.
        message = with_unused_keys(generation.output, state.compensation.tracked_calls)
        message = runner.toolset.named_in(message)
        truncated = generation.finish_reason in _TRUNCATED
        return self._round(runner, prompt, message, runtime, truncated=truncated).run()

    def _round(
        self,
        runner: ToolCallRunner,
        prompt: Prompt,
        message: AssistantMessage,
        runtime: Runtime,
        *,
        answered: Sequence[ToolResponse] = (),
        truncated: bool = False,
    ) -> ToolRound:
        """Return the round of the calls of *message*, without those that are *answered* already.

        If the message was *truncated*, its last call may be incomplete.
        """
        message = with_distinct_ids(message)
        if truncated:
            runner = replace(runner, truncated=message.tool_calls[-1].id)
        return ToolRound(
            runner,
            prompt.messages,
            message,
            runtime,
            self.limits,
            self.concurrency(runtime),
            runner.state.answered(message, answered) if answered else {},
        )

    async def undo_if_failed(
        self,
        executions: Sequence[ToolExecution],
        prompt: Prompt,
        runtime: Runtime,
        state: ToolState,
    ) -> None:
        """Undo the calls of a turn, if one of *executions* has failed in a way that requires it.

        Args:
            executions: Calls that ran in the background.
            prompt: The conversation so far, and the tools.
            runtime: How the request runs.
            state: The state of its tools.
        """
        toolset = self._toolset(prompt.options, state)
        failed = state.compensation.failed_call(executions, toolset)
        if failed is not None:
            await state.undo(f"'{failed.tool_call.name}' failed", toolset, runtime)

    async def abandon(self, prompt: Prompt, runtime: Runtime, state: ToolState) -> None:
        """Undo the calls of a turn, because it ends with an error; only once.

        Args:
            prompt: The conversation so far, and the tools.
            runtime: How the request runs.
            state: The state of its tools.
        """
        await state.abandon(self._toolset(prompt.options, state), runtime)

    def _runner(self, prompt: Prompt, state: ToolState) -> ToolCallRunner:
        chain = self._resumed_chain if DECISIONS in state.context else self._chain
        # Outside of the interceptors, which are a part of the recorded step.
        if state.recorder is not None:
            chain = recorded_chain(chain, state.recorder)
        return ToolCallRunner(
            state,
            self._toolset(prompt.options, state),
            chain,
            self._exception_processor,
            prompt.messages,
            forbidden=prompt.options.tool_choice == "none",
            approvals=self._approvals,
        )

    def _toolset(self, options: ChatOptions, state: ToolState) -> Toolset:
        callbacks = options.tool_callbacks or ()
        cached, by_name = self._offered_cache
        if cached is not callbacks:
            by_name = {each.definition.name: each for each in callable_tools(callbacks)}
            # One assignment of both, because threads share the manager.
            self._offered_cache = (callbacks, by_name)
        unoffered = {READ_RESULT: RESULT_READER, **state.unoffered} if state.unoffered else _READER
        return Toolset(by_name, unoffered, self._resolver)

    def watched(self, prompt: Prompt, runtime: Runtime, state: ToolState) -> Runtime:
        """Return *runtime* for a model call that continues *prompt*, with eager reads if enabled.

        Started calls belong to *state*; the caller must await `state.cancel_early_calls()` at the
        end. With a recorder none is started early: the round before it may not be recorded yet.
        """
        forbidden = prompt.options.tool_choice == "none"
        eager = self._eager_reads and runtime.streaming and state.recorder is None
        if forbidden or not eager:
            return runtime
        concurrency = self.concurrency(runtime)
        if concurrency == 1:
            return runtime
        reads = EagerReads(self._runner(prompt, state), runtime, self.limits, concurrency)
        return runtime.with_emitter(reads.observe)

    def concurrency(self, runtime: Runtime) -> int:
        """Return how many tools of one response run in parallel."""
        return self._blocking_concurrency if runtime.blocking else self._max_concurrency


def check_manager(manager: object) -> None:
    """Check that *manager* can run the tools of a turn, and that its overrides take effect.

    Raises:
        WrongTypeError: It is no `ToolCallingManager`.
        UsageError: It overrides methods that no turn calls.
    """
    check_type("a tool calling manager", manager, ToolCallingManager)
    kind: type[Any] = type(manager)
    overridden = [
        name for name in _STANDALONE if getattr(kind, name) is not getattr(ToolCallingManager, name)
    ]
    if overridden and kind.execute is ToolCallingManager.execute:
        msg = (
            f"{kind.__name__} overrides {overridden[0]}(), which only loops of your own call; what"
            " stands around tools is an interceptor, and what says which there are a"
            " ToolCallbackProvider"
        )
        raise UsageError(msg)


# Finish reasons of messages that may end anywhere, also within a call.
_TRUNCATED = frozenset({"length", "content_filter", "error"})

_READER: Callbacks = {READ_RESULT: RESULT_READER}  # may be run whenever a model was offered it

_STANDALONE = ("resolve_tool_definitions", "execute_tool_calls", "aexecute_tool_calls")


def _check_response(response: ChatResponse) -> None:
    hint = "a ChatClientResponse has it as chat_response"
    check_type("the response", response, ChatResponse, hint)


def _standalone(prompt: Prompt, runtime: Runtime) -> tuple[Runtime, ToolState]:
    """Return the runtime and the state of a round in a loop of the application's own."""
    hint = "make one of the messages and the options: Prompt(messages, options)"
    check_type("the prompt", prompt, Prompt, hint)
    state = ToolState.of(prompt)
    observers = all_observers(conversation_id=state.context.get(CONVERSATION_ID))
    return runtime.for_request(None, observers), state
