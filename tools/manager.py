"""Runs the tools that models ask for: the one place where that happens."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from chatclient.checks import check_callable, check_kind, check_method, check_number
from chatclient.driving import drive
from chatclient.errors import ToolDefinitionError, ToolUsageError, UnknownToolError, UsageError
from chatclient.messages import (
    AssistantMessage,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
)
from chatclient.observers import all_observers
from chatclient.options import ChatOptions
from chatclient.prompt import Prompt
from chatclient.response import ChatResponse
from chatclient.runtime import BLOCKING, ON_LOOP, Runtime
from chatclient.tool import CONVERSATION_ID, ToolContext, ToolDefinition
from chatclient.tools.approval import (
    DECISIONS,
    Decision,
    Decisions,
    carry_out,
    check_edit,
    decision_context,
    decisions_for,
)
from chatclient.tools.compensation import executed_in, retold, rewritten
from chatclient.tools.data import is_external
from chatclient.tools.eager import EagerReads
from chatclient.tools.execution import (
    ToolExecutionResult,
    with_calls_of_its_own,
    with_distinct_ids,
)
from chatclient.tools.failure import ToolExecutionExceptionProcessor, ToolFailurePolicy
from chatclient.tools.invocation import ToolInterceptor, ToolInvocation, chain_of
from chatclient.tools.limits import ToolLimits
from chatclient.tools.outcome import ToolExecution
from chatclient.tools.pending import PendingTurn
from chatclient.tools.resolution import ToolCallbackResolver, resolve_tool
from chatclient.tools.round import RoundRunner, direct_answers
from chatclient.tools.runnable import Callbacks, RunnableTools
from chatclient.tools.runner import ToolRunner
from chatclient.tools.single import SingleCalls
from chatclient.tools.turn import ToolTurn
from chatclient.values import merged


class ToolCallingManager:
    """Finds and runs the tools that a response asks for.

    Every tool call gets exactly one answer, in the order of the calls, whatever happens.

    Args:
        resolver: Knows tools that were not offered with the request but may be run all the same
            when a model names them. None: only what was offered is run.
        max_concurrency: How many tools of one response run at once on an event loop.
        blocking_concurrency: The same for blocking calls. With 1 they run one after another on
            the caller's thread, so that thread-locals work; with more, in a pool of threads.
        eager_reads: Whether, in a stream, tools with `effect="read"` start while the model is still
            writing further calls, if tools run side by side at all.
        limits: How long a turn may go on.
        exception_processor: Decides what happens when a call fails; default: the model is told.
        interceptors: Code around every tool call, the first one outermost.

    Raises:
        UsageError: One of them is of the wrong kind, or nothing could run at once.
    """

    def __init__(
        self,
        *,
        resolver: ToolCallbackResolver | None = None,
        max_concurrency: int = 8,
        blocking_concurrency: int = 1,
        eager_reads: bool = False,
        limits: ToolLimits | None = None,
        exception_processor: ToolExecutionExceptionProcessor | None = None,
        interceptors: Sequence[ToolInterceptor] = (),
    ) -> None:
        if limits is not None:
            check_kind("limits", limits, ToolLimits)
        if resolver is not None:
            check_method("resolver", resolver, "resolve")
        if exception_processor is not None:
            check_callable("exception_processor", exception_processor, takes=("failure",))
        check_number("max_concurrency", max_concurrency, least=1)
        check_number("blocking_concurrency", blocking_concurrency, least=1)
        self.limits = limits or ToolLimits()
        self._resolver = resolver
        around = _checked(interceptors)
        self._runner = ToolRunner(
            self.limits,
            {False: max_concurrency, True: blocking_concurrency},
            chain_of(around),
            chain_of((*around, carry_out)),
            exception_processor or ToolFailurePolicy(),
        )
        self._eager_reads = eager_reads
        # The last list of tools by name: it is the same one in all rounds of all requests.
        self._known: tuple[object, Callbacks] = (None, {})

    def resolve_tool_definitions(self, options: ChatOptions) -> list[ToolDefinition]:
        """Return what a model is told about the tools in *options*.

        Raises:
            ToolDefinitionError: The resolver does not know one that *options* name.
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
        """Run what *response* asks for, in a loop of the application's own.

        Args:
            prompt: What was sent; its options hold the tools and their context.
            response: What the model answered.

        Raises:
            UsageError: The response asks for nothing.
            ToolExecutionError: A call failed and the policy in force says to raise.
        """
        return drive(self.execute(prompt, response, *_alone(prompt, BLOCKING)))

    async def aexecute_tool_calls(
        self, prompt: Prompt, response: ChatResponse
    ) -> ToolExecutionResult:
        """Run what *response* asks for; see `execute_tool_calls`."""
        return await self.execute(prompt, response, *_alone(prompt, ON_LOOP))

    def resume_tool_calls(
        self, turn: PendingTurn, decisions: Decisions, options: ChatOptions
    ) -> ToolExecutionResult:
        """Go on with a round that waited for approvals, in a loop of the application's own.

        Args:
            turn: What the result of the round holds as its `pending_turn`.
            decisions: By tool call id whether it may be run (a bool or a `Decision`), or
                `"approve"` or `"deny"` for all; `PendingTurn.to_decide` tells the ids.
            options: Those of the prompt, which hold the tools and their context.

        Raises:
            UsageError: A call is left undecided, or its tool is not among those offered.
            ToolExecutionError: A call failed and the policy in force says to raise.
        """
        return drive(self._resume_round(turn, decisions, options, BLOCKING))

    async def aresume_tool_calls(
        self, turn: PendingTurn, decisions: Decisions, options: ChatOptions
    ) -> ToolExecutionResult:
        """Go on with a round that waited for approvals; see `resume_tool_calls`."""
        return await self._resume_round(turn, decisions, options, ON_LOOP)

    async def _resume_round(
        self, pending: PendingTurn, decisions: Decisions, options: ChatOptions, runtime: Runtime
    ) -> ToolExecutionResult:
        each = decisions_for(pending, decisions)
        runtime, turn = _alone(Prompt.of((), options), runtime)
        return await self.resume(pending, each, options, runtime, turn)

    async def resume(
        self,
        pending: PendingTurn,
        decisions: Mapping[str, Decision],
        options: ChatOptions,
        runtime: Runtime,
        turn: ToolTurn,
    ) -> ToolExecutionResult:
        """Run what had to wait, as one round of *turn*; see `resume_tool_calls`."""
        # These calls were made while they might be, whatever the model may call from here on.
        prompt = Prompt.of(pending.messages, options.mutate(tool_choice=None))
        tools = self._runnable(prompt, turn)
        decided = decision_context(pending, decisions)
        try:
            for call in pending.pending:
                decision = decided[DECISIONS][call.id]
                await _check_resumed(call, decision, tools, runtime)
        except BaseException:
            turn.abandoned = True  # it still waits, and nothing that it has done is undone
            raise
        context = turn.context
        turn.context = merged(context, decided)
        turn.resume(pending)
        result = await self.execute_message(
            prompt, pending.message, pending.responses, runtime, turn
        )
        # Models may use an id again in a later round; the decisions are about these calls only.
        turn.context = context
        # A limit that was reached before the round came to wait still ends the turn.
        breach, waiting = result.breach or pending.breach, result.pending_turn
        if waiting is not None:
            waiting = replace(waiting, breach=breach)
        return replace(result, breach=breach, pending_turn=waiting)

    async def execute(
        self, prompt: Prompt, response: ChatResponse, runtime: Runtime, turn: ToolTurn
    ) -> ToolExecutionResult:
        """Run what *response* asks for, as one round of *turn*; see `execute_tool_calls`."""
        hint = "a ChatClientResponse has it as chat_response"
        check_kind("the response", response, ChatResponse, hint)
        generation = next((g for g in response.generations if g.output.tool_calls), None)
        if generation is None:
            msg = "the response asks for no tool; check response.has_tool_calls() first"
            raise UsageError(msg)
        cut_off = generation.finish_reason in _CUT_OFF
        message = with_calls_of_its_own(generation.output, turn.known_calls())
        message = self._runnable(prompt, turn).named_in(message)
        return await self.execute_message(prompt, message, (), runtime, turn, cut_off=cut_off)

    async def execute_message(
        self,
        prompt: Prompt,
        message: AssistantMessage,
        answered: Sequence[ToolResponse],
        runtime: Runtime,
        turn: ToolTurn,
        *,
        cut_off: bool = False,
    ) -> ToolExecutionResult:
        """Run those calls of *message* that are not among *answered*, as one round of *turn*.

        If the message was *cut_off*, its last call may be half a one, whose JSON is not repaired.
        """
        message = with_distinct_ids(message)
        done = turn.answered(message, answered) if answered else {}
        single = self._single_calls(prompt, turn)
        if cut_off:
            single = replace(single, cut_off=message.tool_calls[-1].id)
        round_ = RoundRunner(single, message, runtime)
        try:
            executions = await round_.run(done)
        except BaseException:  # however the turn is cut short
            await self.abandon(prompt, runtime, turn, round_.executed)
            raise
        messages = prompt.messages
        if round_.pending:
            return round_.waiting(messages)
        if await round_.undo_if_failed(executions):
            messages = rewritten(messages, turn.undone)
            executions = retold(executions, turn.undone)
            turn.executions[:] = retold(turn.executions, turn.undone)
        answers = ToolResponseMessage(execution.response for execution in executions)
        direct = direct_answers(executions, round_.tools)
        return ToolExecutionResult(
            (*messages, message, answers),
            bool(direct),
            tuple(executions),
            round_.breach,
            direct=direct,
        )

    async def abandon(
        self,
        prompt: Prompt,
        runtime: Runtime,
        turn: ToolTurn,
        executed: Iterable[ToolExecution] = (),
    ) -> None:
        """Undo what *turn* has done, because it ends with an error; once only.

        Args:
            prompt: The conversation so far, and the tools.
            runtime: How the request runs.
            turn: The turn.
            executed: What has been run since the last message of the conversation.
        """
        if turn.abandoned:
            return
        turn.abandoned = True
        single = self._single_calls(prompt, turn)
        earlier = executed_in(prompt.messages, turn)
        await single.undo((*earlier, *executed), "the turn failed", runtime)

    def _single_calls(self, prompt: Prompt, turn: ToolTurn) -> SingleCalls:
        """Return what runs tool calls of *turn* that go on from *prompt*."""
        return SingleCalls(
            self._runner,
            turn,
            self._runnable(prompt, turn),
            prompt.messages,
            forbidden=prompt.options.tool_choice == "none",
        )

    def _runnable(self, prompt: Prompt, turn: ToolTurn) -> RunnableTools:
        """Return the tools that may be run in *turn*."""
        return RunnableTools(self._offered(prompt.options), turn.unoffered, self._resolver)

    def _offered(self, options: ChatOptions) -> Callbacks:
        """Return the tools in *options* by name."""
        callbacks = options.tool_callbacks or ()
        known_list, by_name = self._known
        if known_list is not callbacks:
            by_name = {callback.definition.name: callback for callback in callbacks}
            self._known = (callbacks, by_name)
        return by_name

    def watched(self, prompt: Prompt, runtime: Runtime, turn: ToolTurn) -> Runtime:
        """Return *runtime* for a model that goes on from *prompt*, with reading tools begun early.

        They belong to *turn*, whose `forget_begun()` the caller must await in the end.
        """
        forbidden = prompt.options.tool_choice == "none"
        if forbidden or not (self._eager_reads and runtime.streaming):
            return runtime
        if self.concurrency(runtime) == 1:
            return runtime
        return runtime.with_emitter(EagerReads(self._single_calls(prompt, turn), runtime).watch)

    def concurrency(self, runtime: Runtime) -> int:
        """Return how many tools of one response run at once."""
        return self._runner.concurrency(runtime)


def check_manager(manager: object) -> None:
    """Make sure that *manager* can run the tools of a turn, and that its overrides take effect.

    Raises:
        WrongTypeError: It is no `ToolCallingManager`.
        UsageError: It overrides what no turn calls.
    """
    around = callable(manager) and not isinstance(manager, type)
    hint = "it stands around tool calls: ToolCallingManager(interceptors=[...])"
    check_kind("a tool calling manager", manager, ToolCallingManager, hint if around else None)
    kind: type[Any] = type(manager)
    own = [name for name in _FACE if getattr(kind, name) is not getattr(ToolCallingManager, name)]
    if own and kind.execute is ToolCallingManager.execute:
        msg = (
            f"{kind.__name__} overrides {own[0]}(), which only loops of your own call; what stands"
            " around tools is an interceptor, and what says which there are a ToolCallbackProvider"
        )
        raise UsageError(msg)


_CUT_OFF = frozenset({"length", "content_filter", "error"})  # anywhere, also within a call

_FACE = ("resolve_tool_definitions", "execute_tool_calls", "aexecute_tool_calls")


def _alone(prompt: Prompt, runtime: Runtime) -> tuple[Runtime, ToolTurn]:
    """Return how a loop of the application's own runs a round, and the turn that it belongs to."""
    hint = "make one of the messages and the options: Prompt(messages, options)"
    check_kind("the prompt", prompt, Prompt, hint)
    turn = ToolTurn.of(prompt)
    observers = all_observers(conversation_id=turn.context.get(CONVERSATION_ID))
    return runtime.watched_by(None, observers), turn


async def _check_resumed(
    call: ToolCall, decision: Decision, tools: RunnableTools, runtime: Runtime
) -> None:
    """Make sure that *decision* can be carried out, before anything is run.

    Raises:
        ToolUsageError: It cannot. When the turn is an agent's, no model is told either.
    """
    if not decision.approved:
        return
    try:
        callback = await tools.find(call.name, runtime)
    except UnknownToolError as error:
        msg = (
            f"the turn waits to run the tool {call.name!r}, which is not offered; give the"
            " resumed request the tools that the first one had"
        )
        raise ToolUsageError(msg) from error
    if is_external(callback) and decision.result is None:
        msg = f"{call.name!r} is not run here: decide with Decision.answered(...), or deny it"
        raise ToolUsageError(msg)
    if decision.arguments is not None and decision.result is None:
        context = ToolContext(runtime=runtime, tool_call_id=call.id, tool_name=call.name)
        invocation = ToolInvocation(call, callback, context)
        check_edit(invocation.with_arguments(decision.arguments))


def _checked(interceptors: Iterable[ToolInterceptor]) -> tuple[ToolInterceptor, ...]:
    check_kind("interceptors", interceptors, Iterable, "put a single one into a list")
    several = tuple(interceptors)
    for interceptor in several:
        check_callable("an interceptor", interceptor, takes=("invocation", "call_next"))
    return several
