"""`ToolLoop`: calls the model and runs its tool calls, those of a resumed round first."""

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, Self

from chatclient._internal.frozen import merged, without
from chatclient.chain.chain import ChatClientRequest, ChatClientResponse, Next
from chatclient.chat.events import HandedOver, ReasoningDelta, ReasoningSigned, TextDelta
from chatclient.chat.message_merging import has_content
from chatclient.chat.messages import Message, SystemMessage, without_system
from chatclient.chat.options import ChatOptions
from chatclient.chat.parts import call_key
from chatclient.chat.pending_notes import TURN_NOTE, save_turn
from chatclient.chat.pending_turn import Resumption
from chatclient.chat.prompt import Prompt
from chatclient.chat.recorder import Recorder
from chatclient.chat.response import NO_USAGE, ChatResponse, Generation, Usage
from chatclient.chat.tool import BACKGROUND, CONVERSATION_ID, HANDOFF, USER_ID, ToolCallback
from chatclient.chat.turn import ClientPart, RefreshTools, Turn, count_default_messages
from chatclient.errors import ToolLoopError
from chatclient.memory.summary import SUMMARY
from chatclient.runtime.runtime import Runtime
from chatclient.tools.execution.approval import AGENT_TURNS, DECISIONS
from chatclient.tools.execution.background import results_message
from chatclient.tools.execution.compensation import (
    UndoneCalls,
    rewritten,
    with_undone,
    with_undone_executions,
)
from chatclient.tools.execution.manager import ToolCallingManager
from chatclient.tools.execution.result import ToolExecutionResult
from chatclient.tools.execution.state import ToolState
from chatclient.tools.handoff import HANDOFFS, Handoff, handoff_before, handoff_in


class ResumedRound:
    """The round in which a turn was suspended; its calls run once.

    An advisor outside of the loop may send its request again, for a better answer or because the
    model was busy. The approved calls have been run then, and their results are used again.

    Args:
        resumption: The suspended turn and the decisions.
        recorder: The recorder of the turn, or None.

    Attributes:
        recorder: The recorder of the turn, or None.
        usage: The usage of the turn before it waited, until a response has reported it.
        result: What the calls returned, once they were run.
    """

    def __init__(self, resumption: Resumption, recorder: Recorder | None) -> None:
        self.pending = resumption.pending
        self.usage = resumption.pending.usage
        self.result: ToolExecutionResult | None = None
        self._decisions = resumption.decisions
        self.recorder = recorder
        self._sent = 0
        self._state: ToolState | None = None

    @classmethod
    def of(cls, resumption: Resumption, turn: Turn) -> Self:
        """Return the round of *resumption*, the same one each time.

        Another execution of a recorded *turn* has its own: the record says which calls were run.
        """
        found: Self | None = resumption.round
        if found is None or found.recorder is not turn.recorder:
            found = resumption.round = cls(resumption, turn.recorder)
        return found

    @property
    def started(self) -> bool:
        """Whether the calls were started."""
        return self._state is not None

    async def run(
        self, prompt: Prompt, manager: ToolCallingManager, runtime: Runtime, state: ToolState
    ) -> ToolExecutionResult:
        """Return the result of the suspended round.

        Args:
            prompt: The prompt that the loop was called with.
            manager: Runs the calls.
            runtime: The request's runtime.
            state: The state of the tools, still empty.

        Raises:
            UsageError: The decisions cannot be carried out; nothing was run.
            ToolLoopError: The calls were started before, and their outcome is unknown.
        """
        if self._state is not None:
            return self._reuse_result(self._state, state)
        self._state, self._sent = state, len(prompt.messages)
        try:
            self.result = await manager.resume(
                self.pending, self._decisions, prompt.options, runtime, state
            )
        finally:
            if not state.resumed:  # still suspended, and may be resumed again
                self._state = None
        return self.result

    def added_since(self, prompt: Prompt, turn: Turn) -> Sequence[Message]:
        """Return what an advisor has added to *prompt* since the calls were run.

        The round of these calls itself is left out; the result has it.
        """
        result = self.result
        known = {m.id for m in result.conversation_history if m.id} if result else set[str]()
        return [m for m in turn.updated(prompt.messages[self._sent :]) if m.id not in known]

    def _reuse_result(self, first: ToolState, state: ToolState) -> ToolExecutionResult:
        """Return the result again, with the calls that have been undone since."""
        result = self.result
        if result is None:
            state.undo_closed = True  # what could be undone has been undone
            msg = (
                "the calls of the resumed turn were started but did not finish; they are not run "
                "again unless somebody resumes the turn again"
            )
            raise ToolLoopError(msg)
        state.resume(self.pending)
        state.compensation.repeat(first.compensation)
        result = with_undone(result, first.compensation.undone)
        answered = {response.id for response in self.pending.responses}
        known, first_known = state.compensation.by_key(), first.compensation.by_key()
        for execution in result.executions:
            if BACKGROUND in execution.metadata:
                if state.background is not None:
                    state.background.arrived.append(first_known[call_key(execution.tool_call)])
                continue
            if execution.tool_call.id not in answered:
                state.remember([execution])
                if call_key(execution.tool_call) not in known:
                    state.executions.append(execution)
        state.end_round()
        state.calls.update(call.name for call in (*self.pending.pending, *self.pending.held))
        for call in self.pending.message.tool_calls:
            state.keys.count(call)
        return result


async def hand_over(
    handoff: Handoff, request: ChatClientRequest, resumption: Resumption | None, used: Usage
) -> ChatClientResponse:
    """Return the response of the client that *handoff* hands the conversation to.

    Args:
        handoff: The tool.
        request: The conversation so far, and how it runs.
        resumption: What the client continues, if it was handed the turn before that waited.
        used: The usage of the turn so far, which is added to that of the client.
    """
    turn, part = request.turn, request.turn.part
    await request.runtime.emit(HandedOver(handoff.agent))
    if resumption is None:
        prompt = Prompt.of(_passed_on(request), request.prompt.options)
        request = request.mutate(prompt=prompt)
    turn.handoffs = (*turn.handoffs, handoff.agent)
    turn.part = ClientPart(output=part.output, resumption=resumption)
    try:
        response = await handoff.take_over(request)
    finally:
        # Advisors of this client may call the loop again.
        turn.part = part
    answer = response.chat_response
    if turn.pending is not None:
        # Inside one note, because each client has its own.
        pending = turn.pending
        nested = {"tool": handoff.definition.name, "notes": dict(pending.notes)}
        own = {key: note for key, note in pending.notes.items() if key == TURN_NOTE}
        turn.pending = replace(pending, usage=used + pending.usage, notes={**own, HANDOFF: nested})
    return response.mutate(
        chat_response=answer.with_usage(used + answer.usage),
        context={**request.context, **response.context},
    )


def _passed_on(request: ChatClientRequest) -> tuple[Message, ...]:
    """Return the conversation without system texts and default messages; summaries are kept."""
    messages = request.prompt.messages
    systems = [m for m in messages if isinstance(m, SystemMessage)]
    spoken = tuple(m for m in messages if not isinstance(m, SystemMessage))
    summaries = (m for m in systems if SUMMARY in m.metadata)
    return (*summaries, *spoken[count_default_messages(spoken, request.turn) :])


class LoopMessages:
    """The conversation of a running tool loop, and what of it the next round sends.

    Args:
        messages: The prompt that the loop was called with.

    Attributes:
        history: The complete conversation.
        to_send: The messages that the next round sends; a hook may have changed them.
    """

    def __init__(self, messages: tuple[Message, ...]) -> None:
        self.history = self.to_send = messages

    @property
    def earlier(self) -> tuple[Message, ...]:
        """The messages of the history that precede those to send."""
        if self.to_send is self.history:
            return ()
        spoken = without_system(self.history)
        sent = without_system(self.to_send)
        places = (i for first in sent for i, message in enumerate(spoken) if message is first)
        return spoken[: next(places, max(0, len(spoken) - len(sent)))]

    def append(self, messages: tuple[Message, ...]) -> None:
        """Append *messages* to the history and to what is sent."""
        self.history = (*self.history, *messages)
        self.to_send = (*self.to_send, *messages)

    def rewrite(self, undone: UndoneCalls) -> None:
        """Mark the *undone* calls in the history and in what is sent."""
        self.history = rewritten(self.history, undone)
        self.to_send = rewritten(self.to_send, undone)

    def restart(self, history: tuple[Message, ...]) -> None:
        """Continue from *history*, and send all of it."""
        self.history = self.to_send = history


Eligible = bool | Awaitable[bool]


class LoopHooks(Protocol):
    """The settings and hooks of the advisor that runs the loop; see `ToolCallingAdvisor`."""

    manager: ToolCallingManager
    conversation_history: bool | None
    reset_tool_choice: bool
    stream_tool_call_responses: bool

    def refresh_tools(self, request: ChatClientRequest) -> RefreshTools | None:
        """Return the function that lists the tools before each round, or None."""
        ...

    def is_eligible(self, options: ChatOptions, response: ChatResponse) -> Eligible:
        """Return whether the tool calls of *response* should be run."""
        ...

    async def before_call(self, request: ChatClientRequest) -> ChatClientRequest:
        """Return the request of this round."""
        ...

    async def after_call(self, response: ChatClientResponse) -> ChatClientResponse:
        """Return the response of this round as the loop should see it."""
        ...

    async def next_messages(
        self, request: ChatClientRequest, response: ChatClientResponse, result: ToolExecutionResult
    ) -> tuple[Message, ...]:
        """Return the messages of the next round."""
        ...


class ToolLoop:
    """One run of the tool loop.

    Args:
        advisor: The advisor that runs it.
        request: The request that it was called with.
        call_next: The rest of the chain, down to the model.
    """

    def __init__(self, advisor: LoopHooks, request: ChatClientRequest, call_next: Next) -> None:
        self.advisor = advisor
        self.request = request
        self.call_next = call_next
        self.turn = turn = request.turn
        self.state = ToolState.for_turn(turn, _tool_context(request, request.prompt.options))
        self.background = self.state.with_background()
        undo_log = request.runtime.undo_log
        if undo_log is not None and (undo_log.effects or turn.executions):
            # What another client has run, it undoes itself.
            loops = [each for each in undo_log.effects if isinstance(each, ToolLoop)]
            self.state.compensation.continue_from([loop.state.compensation for loop in loops])
        self.messages = LoopMessages(request.prompt.messages)
        self.options = request.prompt.options
        self.context = request.context
        self.refresh = advisor.refresh_tools(request)
        self.user_input = turn.part.user_input
        self.listed_tools: Sequence[ToolCallback] = self.options.tool_callbacks or ()
        self.usage = NO_USAGE

    async def run(self, resumption: Resumption | None) -> ChatClientResponse:
        """Return the response that ends the turn, or the run of it until it waits."""
        self.turn.offered_tools = None  # those of another client, if the turn was handed over
        self.turn.pending = None
        if resumption is not None or self.turn.contains_round(self.messages.history):
            self._reset_tool_choice()  # the first round of the turn is over
        if resumption is None:
            self.state.recall(self.messages.history)  # if it continues a turn that failed
        else:
            handoff = handoff_before(resumption.pending, self._tools)
            if handoff is not None:
                return await self._hand_over(handoff, resumption.inside_handoff())
            ended = await self._resume(resumption)
            if ended is not None:
                return ended
            await self._append_arrived()
        while True:
            sent, response = await self._round()
            answer = response.chat_response
            if await self._is_eligible(sent, answer):
                result = await self.advisor.manager.execute(
                    self._offered_prompt(), answer, self.request.runtime, self.state
                )
            elif self._is_preliminary(answer):
                result = self._preliminary(answer)
            else:
                await self._stop_background()
                return response.mutate(chat_response=answer.with_usage(self.usage))
            # Before the turn may end, so that memories store its last round, too.
            result = self._record_round(result, len(self.messages.history))
            self.messages.history = result.conversation_history
            ended = await self._response_if_ended(sent, response, result)
            if ended is not None:
                return ended
            await self._prepare_next_round(sent, response, result)

    def _record_round(self, result: ToolExecutionResult, before: int) -> ToolExecutionResult:
        """Append the messages of a round to the record, and return *result* with their ids.

        Args:
            result: The result of the round.
            before: The number of messages in its conversation before the round.
        """
        history = result.conversation_history
        added = self.turn.append(history[before:])
        self._rewrite_undone_calls()
        return replace(result, conversation_history=(*history[:before], *added))

    def _rewrite_undone_calls(self) -> None:
        """Mark the undone calls in the record of the turn."""
        turn, undone = self.turn, self.state.compensation.undone
        if undone:
            turn.rounds = rewritten(turn.rounds, undone)
            turn.request_messages = rewritten(turn.request_messages, undone)

    async def _prepare_next_round(
        self, sent: ChatClientRequest, response: ChatClientResponse, result: ToolExecutionResult
    ) -> None:
        """Set the messages of the next round."""
        self.messages.to_send = await self.advisor.next_messages(sent, response, result)
        await self._append_arrived()

    async def _append_arrived(self) -> None:
        """Append what has arrived since the last round: results, and user input."""
        await self.background.collect(self.request.runtime)
        await self._append_results()
        messages = () if self.user_input is None else self.user_input()
        if messages:
            self.messages.append(self.turn.append(messages))

    async def _append_results(self) -> None:
        """Append the results of calls in the background that the model has not got."""
        undone = self.state.compensation.undone
        executions = with_undone_executions(self.background.take(), undone)
        if not executions:
            return
        self.messages.append(self.turn.append([results_message(executions)]))
        before = len(undone)
        await self.advisor.manager.undo_if_failed(
            executions, self.prompt, self.request.runtime, self.state
        )
        if len(undone) > before:
            self._rewrite_undone_calls()
            self.messages.rewrite(undone)

    def _is_preliminary(self, answer: ChatResponse | None = None) -> bool:
        """Return whether the turn goes on after an *answer*, or results that are one.

        It does if the model has not got the results of all calls in the background.
        """
        if not self.background or self.advisor.manager.background_calls == "cancel":
            return False
        if answer is not None and (answer.has_tool_calls() or answer.paused):
            return False  # the application goes on
        limits = self.advisor.manager.limits
        return limits.breach_between_rounds(self.state.rounds, self.state.seconds()) is None

    async def _stop_background(self) -> None:
        """Stop the calls in the background, if there are any."""
        if self.background:
            runtime = self.request.runtime
            await runtime.shielded(self.background.stop(runtime))

    def _preliminary(self, answer: ChatResponse) -> ToolExecutionResult:
        """Return a preliminary *answer* as a round without calls."""
        output, history = answer.output, self.messages.history
        if output is not None and has_content(output):
            history = (*history, output)
        return ToolExecutionResult(history, return_direct=False, executions=())

    @property
    def prompt(self) -> Prompt:
        """The conversation so far, with the tools of the turn."""
        return Prompt.of(self.messages.history, self.options)

    def _offered_prompt(self) -> Prompt:
        """Return `prompt` with the tools of the last model call, which an advisor may change."""
        offered, options = self.turn.offered_tools, self.options
        if offered is not None and offered != (options.tool_callbacks or ()):
            options = options.mutate(tool_callbacks=offered)
        return Prompt.of(self.messages.history, options)

    def _tools(self) -> Sequence[ToolCallback]:
        """Return the tools that may be run."""
        offered = self._offered_prompt().options.tool_callbacks or ()
        return (*offered, *self.state.unoffered.values())

    async def _hand_over(
        self, handoff: Handoff, resumption: Resumption | None = None
    ) -> ChatClientResponse:
        """Return the response of another client, which continues the turn."""
        request = ChatClientRequest(self.prompt, self.context, self.request.runtime, self.turn)
        return await hand_over(handoff, request, resumption, self.usage)

    async def undo(self) -> None:
        """Undo the calls of this run, because it or its request fails, and record that."""
        try:
            await self.advisor.manager.abandon(self.prompt, self.request.runtime, self.state)
        finally:  # a cancellation is raised after the calls have been undone
            self._rewrite_undone_calls()
            if self.background.arrived:  # a memory may store a turn that was stopped
                self.turn.append([results_message(self.background.take())])

    async def _round(self) -> tuple[ChatClientRequest, ChatClientResponse]:
        """Call the model once."""
        advisor, runtime = self.advisor, self.request.runtime
        if self.refresh is not None:  # in the first round as well: memory adds to the conversation
            await self._refresh_tools(self.refresh)
        prompt = Prompt.of(self.messages.to_send, self.options)
        earlier = self.messages.earlier if advisor.conversation_history is False else ()
        in_system_text = self.request.in_system_text
        request = ChatClientRequest(
            prompt, self.context, runtime, self.turn, earlier, in_system_text
        )
        sent = await advisor.before_call(request)
        options = sent.prompt.options
        if options.tool_context is not self.options.tool_context:
            self.state.context = _tool_context(self.request, options)
        self.options = options
        self.turn.offered_tools = None  # an advisor may answer without the model
        if not runtime.streaming:
            response = await self.call_next(sent)
        elif advisor.stream_tool_call_responses:
            response = await self.call_next(await self._with_early_tools(sent))
        else:
            response = await self._call_with_held_text(sent)
        response = await advisor.after_call(response)
        if response.context is not self.context:  # an advisor changed the context
            self.context = merged(self.context, response.context)
            response = ChatClientResponse(response.chat_response, self.context, None, self.turn)
        self.state.rounds += 1
        self.usage += response.chat_response.usage
        self._reset_tool_choice()
        return sent, response

    def _reset_tool_choice(self) -> None:
        """Let the model answer: a tool choice that forces a call is for the first round only."""
        forced = self.options.tool_choice not in (None, "auto", "none")
        if forced and self.advisor.reset_tool_choice:
            self.options = self.options.mutate(tool_choice="auto")

    async def _with_early_tools(self, sent: ChatClientRequest) -> ChatClientRequest:
        """Return *sent* so that tools that only read may start while the model is streaming.

        It does not call the model itself: each event of a stream passes every coroutine around it.
        """
        await self.state.cancel_early_calls()  # started in the round before, and not used
        # An advisor may change the prompt that is sent; the tools are those of the turn.
        watched = self.advisor.manager.watched(self.prompt, sent.runtime, self.state)
        return sent if watched is sent.runtime else sent.mutate(runtime=watched)

    async def _refresh_tools(self, refresh: RefreshTools) -> None:
        """Add new tools of providers and drop those that are gone; keep the changes of hooks."""
        before, present = self.listed_tools, self.options.tool_callbacks or ()
        self.listed_tools = listed = await refresh(self.messages.history, self.request.runtime)
        if list(listed) == list(before):
            return
        callbacks = listed
        if list(present) != list(before):  # a hook changed the tools
            kept = [tool for tool in present if tool not in before or tool in listed]
            callbacks = (*kept, *(tool for tool in listed if tool not in before))
        self.options = self.options.mutate(tool_callbacks=callbacks)

    async def _call_with_held_text(self, sent: ChatClientRequest) -> ChatClientResponse:
        """Call the model, and emit its text only if it is the answer."""
        held: list[Any] = []
        holding = True

        async def hold(event: Any) -> None:
            if holding:
                held.append(event)
            else:  # of a tool that was started early, and still runs
                await sent.runtime.emit(event)

        response = await self.call_next(
            await self._with_early_tools(sent.mutate(runtime=sent.runtime.with_emitter(hold)))
        )
        answer = response.chat_response
        is_answer = not (await self._is_eligible(sent, answer) or self._is_preliminary(answer))
        for event in held:
            if is_answer or not isinstance(event, TextDelta | ReasoningDelta | ReasoningSigned):
                await sent.runtime.emit(event)
        # Only now, so that events of running tools come after those that were held.
        holding = False
        return response

    async def _is_eligible(self, sent: ChatClientRequest, answer: ChatResponse) -> bool:
        """Return whether the tool calls of *answer* should be run."""
        eligible = self.advisor.is_eligible(sent.prompt.options, answer)
        if isinstance(eligible, bool):
            return eligible
        return bool(await self.request.runtime.awaited(eligible))

    async def _response_if_ended(
        self, sent: ChatClientRequest, response: ChatClientResponse, result: ToolExecutionResult
    ) -> ChatClientResponse | None:
        """Return the turn's response if this round was its last, else None."""
        # In this order: a suspended round has no results yet, and a limit does not discard an
        # answer.
        if result.pending_turn is not None:
            self.turn.pending = save_turn(replace(result.pending_turn, usage=self.usage), self.turn)
            return response.mutate(chat_response=response.chat_response.with_usage(self.usage))
        handoff = handoff_in(result.executions, self._tools)
        is_answer = result.return_direct and not self._is_preliminary()
        if is_answer:
            await self._stop_background()
        elif handoff is not None or result.return_direct or not result.executions:
            await self.background.finish(self.request.runtime)
        if handoff is not None:
            await self._append_results()
            return await self._hand_over(handoff)
        if is_answer:
            return await self._answer_with(response, result.generations())
        limits = self.advisor.manager.limits
        between = limits.breach_between_rounds(self.state.rounds, self.state.seconds())
        # The model was told about a limit of calls; limits of rounds and time end the turn anyway.
        breach = result.breach if limits.on_exceeded != "tell_model" else None
        breach = breach or between
        if breach is None:
            return None
        await self._stop_background()
        result = replace(result, breach=breach)
        if limits.on_exceeded == "raise":
            await self.undo()  # before the result is built, so that it reports it
            raise ToolLoopError(breach, result=with_undone(result, self.state.compensation.undone))
        if limits.on_exceeded == "partial":
            return await self._answer_with(response, (result.breach_generation(),))
        # An answer from the results so far: after the limit, no tool may run.
        await self._prepare_next_round(sent, response, result)
        self.options = self.options.mutate(tool_choice="none")
        sent, response = await self._round()
        answer = response.chat_response
        if await self._is_eligible(sent, answer):  # it called tools despite tool_choice="none"
            return await self._answer_with(response, (result.breach_generation(),))
        flagged = tuple(
            replace(generation, finish_reason="tool_call_limit_exceeded")
            for generation in answer.generations
        )
        answer = ChatResponse(flagged, answer.metadata).with_usage(self.usage)
        return response.mutate(chat_response=answer)

    async def _answer_with(
        self, response: ChatClientResponse, generations: tuple[Generation, ...]
    ) -> ChatClientResponse:
        """Return *generations*, which no model streamed, as the turn's response."""
        answer = ChatResponse(generations, response.chat_response.metadata).with_usage(self.usage)
        if answer.text:
            await self.request.runtime.emit(TextDelta(answer.text))
        return response.mutate(chat_response=answer)

    async def _resume(self, resumption: Resumption) -> ChatClientResponse | None:
        """Finish the suspended round, and return the turn's response if it ends there."""
        resumed = ResumedRound.of(resumption, self.turn)
        sent, pending, again = self.request.prompt, resumption.pending, resumed.started
        self.messages.history = pending.messages
        self.usage = resumed.usage
        result = await resumed.run(sent, self.advisor.manager, self.request.runtime, self.state)
        # A request that is sent again has recorded the round before.
        if not again:
            result = resumed.result = self._record_round(result, len(pending.messages))
        response = ChatClientResponse(
            ChatResponse((Generation(pending.message, "tool_call"),)),
            self.request.context,
            turn=self.turn,
        )
        added = resumed.added_since(sent, self.turn)
        self.messages.restart((*result.conversation_history, *added))
        return await self._response_if_ended(self.request, response, result)


def _tool_context(request: ChatClientRequest, options: ChatOptions) -> Mapping[str, Any]:
    context = options.tool_context
    if DECISIONS in context:  # an agent's own calls are not those of the decisions
        context = without(context, DECISIONS, AGENT_TURNS)
    # As text, even if an advisor set another type: a suspended turn is stored as JSON.
    ids: dict[str, Any] = {
        key: str(request.context[key])
        for key in (CONVERSATION_ID, USER_ID)
        if request.context.get(key) is not None
    }
    if request.turn.handoffs:
        ids[HANDOFFS] = request.turn.handoffs
    return merged(context, ids) if ids else context
