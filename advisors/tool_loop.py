"""The rounds of a turn: the model is asked, its tools are run, until it answers."""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from chatclient.advisors.resumed import Resumed
from chatclient.advisors.turn_messages import TurnMessages
from chatclient.chain import ChatClientRequest, ChatClientResponse, Next
from chatclient.errors import ToolLoopError
from chatclient.events import ReasoningDelta, ReasoningSigned, TextDelta
from chatclient.messages import Message
from chatclient.operations import ClientCall
from chatclient.options import ChatOptions
from chatclient.prompt import Prompt
from chatclient.response import NO_USAGE, ChatResponse, Generation
from chatclient.runtime import Runtime
from chatclient.tool import CONVERSATION_ID, TURN_KEY, USER_ID, ToolCallback
from chatclient.tools import PendingTurn, ToolCallingManager, ToolExecutionResult
from chatclient.tools.approval import AGENT_TURNS, DECISIONS
from chatclient.tools.awaiting import awaited
from chatclient.tools.compensation import rewritten, with_undone
from chatclient.tools.outcome import ToolExecution
from chatclient.tools.turn import ToolTurn
from chatclient.values import merged, without

PENDING_TURN = "pending_turn"
"""The key in a response's context of a turn that waits for approvals, a `PendingTurn`."""

RESUME = "resumed_turn"
"""The key in a request's context of a turn that goes on with the decisions made, a `Resumed`."""

REFRESH_TOOLS = "refresh_tools"
"""The key in a request's context of a `RefreshTools`, where tools are to be had from providers that
want to be asked in every round."""

TOOL_EXECUTIONS = "tool_executions"
"""The key in a response's context of everything the loop executed, a tuple of `ToolExecution`."""

TOOL_MESSAGES = "tool_messages"
"""The key in a response's context of what was said on the way to the answer, in order: messages
with tool calls, those with the tools' answers, and what a user said meanwhile, a tuple.

An advisor that asks again from there puts those messages into the prompt, and both tuples into the
context of its request: the loop then goes on with them."""

UNDONE = "undone_calls"
"""The key in a response's context of the calls that were undone, if any were: a mapping by the
identity of the call, as `rewritten` takes it. In a turn that goes on after it has waited, the calls
made before are among them."""

MEANWHILE = "said_meanwhile"
"""The key in a request's context of a function that returns, and forgets, the messages that have
arrived since it was last asked. The loop asks it each time tools have run. See `Steering`."""

EARLIER_MESSAGES = "earlier_messages"
"""The key in a request's context, inside a loop that sends no history, of what the turn has said
before the messages of the round, a tuple without system messages. A memory inside sends it."""

TURN_IDENTITY = "turn_identity"
"""The key in a request's context of what tells its turn from all others: a text, or what was said
in the conversation before it. A memory knows that, whatever of it is sent."""

RefreshTools = Callable[[Sequence[Message], Runtime], Awaitable[Sequence[ToolCallback]]]
"""Returns all tools of a request again, given the conversation so far."""

Eligible = bool | Awaitable[bool]


class LoopHooks(Protocol):
    """What a loop asks of the advisor that runs it; see `ToolCallingAdvisor`."""

    manager: ToolCallingManager
    conversation_history: bool | None
    reset_tool_choice: bool
    stream_tool_call_responses: bool

    def is_eligible(self, options: ChatOptions, response: ChatResponse) -> Eligible:
        """Return whether the tool calls of *response* are to be run."""
        ...

    async def before_call(self, request: ChatClientRequest) -> ChatClientRequest:
        """Return what is sent in this round."""
        ...

    async def after_call(self, response: ChatClientResponse) -> ChatClientResponse:
        """Return what the loop is to make of this round's response."""
        ...

    async def next_messages(
        self, request: ChatClientRequest, response: ChatClientResponse, result: ToolExecutionResult
    ) -> tuple[Message, ...]:
        """Return the messages of the next round."""
        ...


class ToolLoop:
    """One turn: what has been said so far, and how it goes on."""

    def __init__(
        self,
        advisor: LoopHooks,
        request: ChatClientRequest,
        call_next: Next,
        turn: ToolTurn,
    ) -> None:
        self.advisor = advisor
        self.request = request
        self.call_next = call_next
        self.turn = turn
        before = request.context.get(TOOL_MESSAGES, ())
        self.messages = TurnMessages(request.prompt.messages, before)
        self.options = request.prompt.options
        self.context = request.context
        self.refresh: RefreshTools | None = request.context.get(REFRESH_TOOLS)
        self.meanwhile: Callable[[], tuple[Message, ...]] | None = request.context.get(MEANWHILE)
        if self.refresh is not None or self.meanwhile is not None or RESUME in self.context:
            # What is no business of advisors inside the loop.
            self.context = without(self.context, REFRESH_TOOLS, MEANWHILE, RESUME)
        self.found: Sequence[ToolCallback] = self.options.tool_callbacks or ()
        self.usage = NO_USAGE

    async def run(self, resumed: Resumed | None) -> ChatClientResponse:
        """Return the response that ends the turn."""
        if self.messages.before or resumed is not None:  # this is not its first round
            self._release()
        if resumed is not None:
            ended = await self._resume(resumed)
            if ended is not None:
                return ended
            self._say(self._said_meanwhile())
        while True:
            sent, response = await self._round()
            answer = response.chat_response
            if not await self._is_eligible(sent, answer):
                return response.mutate(chat_response=answer.with_usage(self.usage))
            result = await self.advisor.manager.execute(
                self.prompt, answer, self.request.runtime, self.turn
            )
            self.messages.history = result.conversation_history
            self.note()
            ended = await self._response_if_ended(sent, response, result)
            if ended is not None:
                return ended
            await self._go_on(sent, response, result)

    async def _go_on(
        self, sent: ChatClientRequest, response: ChatClientResponse, result: ToolExecutionResult
    ) -> None:
        """Put together what the next round is sent."""
        self.messages.to_send = await self.advisor.next_messages(sent, response, result)
        self._say(self._said_meanwhile())

    def _said_meanwhile(self) -> tuple[Message, ...]:
        return () if self.meanwhile is None else self.meanwhile()

    def _say(self, messages: tuple[Message, ...]) -> None:
        """Make *messages* a part of the turn."""
        if messages:
            self.messages.say(messages)
            self.note()

    @property
    def prompt(self) -> Prompt:
        """The conversation so far, with the tools of the turn."""
        return Prompt.of(self.messages.history, self.options)

    def told(self, response: ChatClientResponse, resumed: Resumed | None) -> ChatClientResponse:
        """Return *response* with what has happened on the way to it, for advisors further out.

        What tools have done is undone if the request fails from here on.
        """
        turn, said = self.turn, self.messages.said
        context: dict[str, Any] = {}
        if resumed is not None:
            resumed.usage = NO_USAGE  # whoever asks again adds up what each answer has cost
            context[RESUME] = resumed
        if turn.executions or said:
            context |= {TOOL_EXECUTIONS: tuple(turn.executions), TOOL_MESSAGES: said}
            if turn.undone:
                context[UNDONE] = dict(turn.undone)
            if PENDING_TURN not in response.context:  # somebody may have stored a turn that waits
                self.request.runtime.undo_on_failure(self)
        return response.mutate(context=context) if context else response

    def note(self) -> None:
        """Let the trail know what has been said in whole rounds, for whoever has to go on."""
        steps, said = self.request.runtime.steps, self.messages.said
        if said and steps and isinstance(call := steps[0].operation, ClientCall):
            call.said = rewritten(said, self.turn.undone)

    async def undo(self) -> None:
        """Undo what the turn has done, because it or its request fails, and let the trail know."""
        await self.advisor.manager.abandon(self.prompt, self.request.runtime, self.turn)
        steps, undone = self.request.runtime.steps, self.turn.undone
        if undone and steps and isinstance(call := steps[0].operation, ClientCall):
            call.said = rewritten(call.said, undone)
            call.asked = rewritten(call.asked, undone)

    async def _round(self) -> tuple[ChatClientRequest, ChatClientResponse]:
        """Call the model once."""
        advisor, runtime = self.advisor, self.request.runtime
        if self.refresh is not None:  # in the first round, too: memory knows more than the request
            await self._refresh_tools(self.refresh)
        prompt = Prompt.of(self.messages.to_send, self.options)
        if advisor.conversation_history is False:
            self.context = merged(self.context, {EARLIER_MESSAGES: self.messages.earlier})
        sent = await advisor.before_call(ChatClientRequest(prompt, self.context, runtime))
        self._take_over(sent.prompt.options)
        if advisor.stream_tool_call_responses or not runtime.streaming:
            response = await self.call_next(await self._watched(sent))
        else:
            response = await self._call_holding_back(sent)
        response = await advisor.after_call(response)
        if response.context is not self.context:  # somebody left word for the rounds to come
            self.context = merged(self.context, response.context)
            response = ChatClientResponse(response.chat_response, self.context)
        self.turn.rounds += 1
        self.usage += response.chat_response.usage
        self._release()
        return sent, response

    def _release(self) -> None:
        """Let the model answer: a choice that forces a call holds for the turn's first round."""
        forced = self.options.tool_choice not in (None, "auto", "none")
        if forced and self.advisor.reset_tool_choice:
            self.options = self.options.mutate(tool_choice="auto")

    async def _watched(self, sent: ChatClientRequest) -> ChatClientRequest:
        """Return what is sent so that tools may begin while the model speaks.

        It does not call the model itself: each event of a stream passes every coroutine around it.
        """
        await self.turn.forget_begun()  # by the round before, and not taken
        # What is sent may have more in it, or less, than the turn that the tools belong to.
        watched = self.advisor.manager.watched(self.prompt, sent.runtime, self.turn)
        return sent if watched is sent.runtime else sent.mutate(runtime=watched)

    async def _refresh_tools(self, refresh: RefreshTools) -> None:
        """Add tools that providers offer now, drop those they took back, keep what hooks did."""
        before, present = self.found, self.options.tool_callbacks or ()
        self.found = found = await refresh(self.messages.history, self.request.runtime)
        if list(found) == list(before):
            return
        callbacks = found
        if list(present) != list(before):
            kept = [each for each in present if each not in before or each in found]
            callbacks = (*kept, *(each for each in found if each not in before))
        self.options = self.options.mutate(tool_callbacks=callbacks)

    def _take_over(self, options: ChatOptions) -> None:
        """Make *options* those of this round's tools and of the rounds to come."""
        if options.tool_context is not self.options.tool_context:
            self.turn.context = _tool_context(self.request, options)
        self.options = options

    async def _call_holding_back(self, sent: ChatClientRequest) -> ChatClientResponse:
        """Call the model, streaming its words only if they are the answer."""
        held: list[Any] = []
        holding = True

        async def hold(event: Any) -> None:
            if holding:
                held.append(event)
            else:  # of a tool that was begun early, and still runs
                await sent.runtime.emit(event)

        response = await self.call_next(
            await self._watched(sent.mutate(runtime=sent.runtime.with_emitter(hold)))
        )
        wordless = await self._is_eligible(sent, response.chat_response)
        for event in held:
            if not (wordless and isinstance(event, TextDelta | ReasoningDelta | ReasoningSigned)):
                await sent.runtime.emit(event)
        holding = False
        return response

    async def _is_eligible(self, sent: ChatClientRequest, answer: ChatResponse) -> bool:
        """Return whether the tool calls of *answer* are to be run."""
        eligible = self.advisor.is_eligible(sent.prompt.options, answer)
        return bool(await awaited(self.request.runtime, eligible))

    async def _response_if_ended(
        self, sent: ChatClientRequest, response: ChatClientResponse, result: ToolExecutionResult
    ) -> ChatClientResponse | None:
        """Return the turn's response if this round was its last, else None."""
        if result.pending_turn is not None:
            return self._suspended(response, result.pending_turn)
        if result.return_direct:
            return await self._answer_with(response, result.generations())
        limits = self.advisor.manager.limits
        between = limits.breach_between_rounds(
            self.turn.rounds, time.monotonic() - self.turn.started
        )
        breach = result.breach if limits.on_exceeded != "tell_model" else None
        breach = breach or between
        if breach is None:
            return None
        result = replace(result, breach=breach)
        if limits.on_exceeded == "raise":
            await self.undo()  # as for any error; the result is to tell of it
            raise ToolLoopError(breach, result=with_undone(result, self.turn.undone))
        if limits.on_exceeded == "partial":
            return await self._answer_with(response, (result.breach_generation(),))
        return await self._final_answer(sent, response, result)

    async def _final_answer(
        self, sent: ChatClientRequest, response: ChatClientResponse, result: ToolExecutionResult
    ) -> ChatClientResponse:
        """Ask the model to answer from what it has, without tools."""
        await self._go_on(sent, response, result)
        self.options = self.options.mutate(tool_choice="none")
        sent, response = await self._round()
        answer = response.chat_response
        if await self._is_eligible(sent, answer):  # it would not listen
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

    def _suspended(self, response: ChatClientResponse, pending: PendingTurn) -> ChatClientResponse:
        answer = response.chat_response.with_usage(self.usage)
        pending = replace(pending, usage=self.usage)
        return response.mutate(chat_response=answer, context={PENDING_TURN: pending})

    async def _resume(self, resumed: Resumed) -> ChatClientResponse | None:
        """Run what had to wait, unless it has been run, and go on from there."""
        sent, pending = self.request.prompt, resumed.pending
        self.messages.go_back_to(pending.messages)
        self.usage = resumed.usage
        result = await resumed.run(sent, self.advisor.manager, self.request.runtime, self.turn)
        response = ChatClientResponse(
            ChatResponse((Generation(pending.message, "tool_call"),)), self.request.context
        )
        self.messages.go_on(result.conversation_history, resumed.said_since(sent))
        self.note()
        return await self._response_if_ended(self.request, response, result)


def turn_of(request: ChatClientRequest) -> ToolTurn:
    """Return the turn of the tools that *request* begins, with what was run on the way to it."""
    turn = ToolTurn(_tool_context(request, request.prompt.options))
    key = request.context.get(TURN_KEY)
    turn.identity = request.context.get(TURN_IDENTITY, None if key is None else str(key))
    _follow(turn, request)
    turn.executions.extend(request.context.get(TOOL_EXECUTIONS, ()))
    return turn


def _follow(turn: ToolTurn, request: ChatClientRequest) -> None:
    """Let *turn* know what earlier turns of the same *request* have done, where it is asked again.

    Nothing is undone twice, although an advisor may show the model what they did. Calls that the
    request goes on from, and that its failure would not undo, are settled.
    """
    unsettled = request.runtime.unsettled
    if unsettled is None:
        return
    turns = [each.turn for each in unsettled if isinstance(each, ToolLoop)]
    if turns:
        turn.undone = turns[0].undone
        turn.earlier = frozenset().union(*(t.by_identity().keys() - t.settled for t in turns))
    known: Sequence[ToolExecution] = request.context.get(TOOL_EXECUTIONS, ())
    turn.settled = frozenset(id(execution.tool_call) for execution in known) - turn.earlier


def _tool_context(request: ChatClientRequest, options: ChatOptions) -> Mapping[str, Any]:
    context = options.tool_context
    if DECISIONS in context:  # an agent's own calls are not those that were decided about
        context = without(context, DECISIONS, AGENT_TURNS)
    # An advisor may have set one to something else: a turn that waits is kept as JSON.
    whose = {
        key: str(request.context[key])
        for key in (CONVERSATION_ID, USER_ID)
        if request.context.get(key) is not None
    }
    return merged(context, whose) if whose else context
