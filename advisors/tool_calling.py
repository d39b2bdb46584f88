"""The tool loop."""

import copy
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Self

from chatclient.chain import (
    HIGHEST_PRECEDENCE,
    LOWEST_PRECEDENCE,
    TOOL_CALLING_ORDER,
    ChatClientRequest,
    ChatClientResponse,
    Next,
)
from chatclient.errors import DeadlineExceededError, ToolLoopError, UsageError
from chatclient.events import ReasoningDelta, TextDelta
from chatclient.messages import AssistantMessage, Message, SystemMessage
from chatclient.prompt import Prompt
from chatclient.response import NO_USAGE, ChatResponse, Generation
from chatclient.tool import CONVERSATION_ID
from chatclient.tools import Decision, PendingTurn, ToolCallingManager, ToolExecutionResult
from chatclient.tools.approval import DECISIONS
from chatclient.tools.execution import ToolTurn
from chatclient.values import merged

PENDING_TURN = "pending_turn"
"""The key in a response's context of a turn that waits for approvals, a `PendingTurn`."""

RESUME = "resumed_turn"
"""The key in a request's context of a turn that goes on, with the decisions made."""

TOOL_EXECUTIONS = "tool_executions"
"""The key in a response's context of everything the loop executed, a tuple of `ToolExecution`."""

EligibilityChecker = Callable[[ChatResponse], bool]
"""Says whether a response's tool calls are to be executed."""


def has_tool_calls(response: ChatResponse) -> bool:
    """Return whether *response* asks for tools; the default eligibility checker."""
    return response.has_tool_calls()


class ToolCallingAdvisor:
    """Calls the model, runs the tools it asks for, and calls it again until it answers.

    Advisors of lower order see one request and one final response; those of higher order stand
    inside the loop and see every round.

    A subclass changes the loop through its hooks: `initialize_loop` once before the first round,
    `before_call` and `after_call` in every round, `next_messages` after tools have run,
    `finalize_loop` once at the end. They are the same for all four ways of calling.

    Args:
        manager: Runs the tools.
        order: Where the loop stands in the chain.
        conversation_history: Whether each round is sent everything the rounds before it said.
            False leaves that to a memory advisor inside the loop. Default: True unless there is
            such an advisor.
        eligibility: Says whether a response's tool calls are to be executed.
        reset_tool_choice: Whether a tool choice that forces a call holds for the first round only;
            otherwise a model can never come to an answer.
        stream_tool_call_responses: Whether what the model says in rounds that end with tool calls
            is streamed. Without, each round's text is held back until its end is known.

    Raises:
        UsageError: *order* is that of no place in the chain.
    """

    handles_tool_calls = True

    def __init__(
        self,
        manager: ToolCallingManager | None = None,
        *,
        order: int = TOOL_CALLING_ORDER,
        conversation_history: bool | None = None,
        eligibility: EligibilityChecker = has_tool_calls,
        reset_tool_choice: bool = True,
        stream_tool_call_responses: bool = True,
    ) -> None:
        if not HIGHEST_PRECEDENCE < order < LOWEST_PRECEDENCE:
            msg = "the order of a tool calling advisor lies between the highest and the lowest"
            raise UsageError(msg)
        self.manager = manager or ToolCallingManager()
        self.order = order
        self.conversation_history = conversation_history
        self.eligibility = eligibility
        self.reset_tool_choice = reset_tool_choice
        self.stream_tool_call_responses = stream_tool_call_responses

    def in_chain(self, *, memory_inside: bool) -> Self:
        """Return this advisor as it works in a chain with or without memory inside the loop."""
        if self.conversation_history is not None:
            return self
        adapted = copy.copy(self)
        adapted.conversation_history = not memory_inside
        return adapted

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        """Return the final response of the loop."""
        if request.prompt.options.internal_tool_execution_enabled is False:
            return await call_next(request)
        request = await self.initialize_loop(request)
        turn = ToolTurn(_tool_context(request))
        loop = _Loop(self, request, call_next, turn)
        response = await loop.run(request.context.get(RESUME))
        if turn.executions:
            response = response.mutate(context={TOOL_EXECUTIONS: tuple(turn.executions)})
        return await self.finalize_loop(response)

    async def initialize_loop(self, request: ChatClientRequest) -> ChatClientRequest:
        """Return the request that the loop starts with."""
        return request

    async def before_call(self, request: ChatClientRequest) -> ChatClientRequest:
        """Return what is sent in this round; changed options stay for the rounds after it."""
        return request

    async def after_call(self, response: ChatClientResponse) -> ChatClientResponse:
        """Return what the loop is to make of this round's response."""
        return response

    async def next_messages(
        self,
        request: ChatClientRequest,
        response: ChatClientResponse,  # noqa: ARG002 - for subclasses
        result: ToolExecutionResult,
    ) -> tuple[Message, ...]:
        """Return the messages of the next round.

        Args:
            request: What was sent in this round.
            response: What the model answered to it.
            result: What the tools answered, with the whole conversation.
        """
        if self.conversation_history is not False:
            return result.conversation_history
        system = [m for m in request.prompt.messages if isinstance(m, SystemMessage)]
        return (*system, result.conversation_history[-1])

    async def finalize_loop(self, response: ChatClientResponse) -> ChatClientResponse:
        """Return what leaves the loop."""
        return response


def _tool_context(request: ChatClientRequest) -> Mapping[str, Any]:
    context = request.prompt.options.tool_context
    if DECISIONS in context:  # an agent's own calls are not those that were decided about
        context = {key: value for key, value in context.items() if key != DECISIONS}
    conversation_id = request.context.get(CONVERSATION_ID)
    return (
        context if conversation_id is None else merged(context, {CONVERSATION_ID: conversation_id})
    )


class _Loop:
    """One turn: what has been said so far, and how it goes on."""

    def __init__(
        self,
        advisor: ToolCallingAdvisor,
        request: ChatClientRequest,
        call_next: Next,
        turn: ToolTurn,
    ) -> None:
        self.advisor = advisor
        self.request = request
        self.call_next = call_next
        self.turn = turn
        self.history = self.messages = request.prompt.messages
        self.options = request.prompt.options
        self.usage = NO_USAGE

    async def run(self, resumed: "Resumed | None") -> ChatClientResponse:
        """Return the response that ends the turn."""
        if resumed is not None:
            ended = await self._resume(resumed)
            if ended is not None:
                return ended
        while True:
            sent, response = await self._round()
            answer = response.chat_response
            if not self.advisor.eligibility(answer):
                return response.mutate(chat_response=answer.with_usage(self.usage))
            result = await self.advisor.manager.execute(
                Prompt.of(self.history, self.options), answer, self.request.runtime, self.turn
            )
            ended = await self._ended(response, result)
            if ended is not None:
                return ended
            self.history = result.conversation_history
            self.messages = await self.advisor.next_messages(sent, response, result)

    async def _round(self) -> tuple[ChatClientRequest, ChatClientResponse]:
        """Call the model once."""
        advisor, request = self.advisor, self.request
        sent = await advisor.before_call(
            request.mutate(prompt=Prompt.of(self.messages, self.options))
        )
        self.options = sent.prompt.options
        if not sent.runtime.remaining():
            msg = "the deadline passed before the model could be asked again"
            raise DeadlineExceededError(msg)
        if advisor.stream_tool_call_responses or not request.runtime.streaming:
            response = await self.call_next(sent)
        else:
            response = await self._held_back(sent)
        response = await advisor.after_call(response)
        self.turn.rounds += 1
        self.usage += response.chat_response.usage
        if advisor.reset_tool_choice and self.options.tool_choice not in (None, "auto", "none"):
            self.options = self.options.mutate(tool_choice="auto")
        return sent, response

    async def _held_back(self, sent: ChatClientRequest) -> ChatClientResponse:
        """Call the model, streaming its words only if they are the answer."""
        held: list[Any] = []

        async def hold(event: Any) -> None:
            held.append(event)

        response = await self.call_next(sent.mutate(runtime=sent.runtime.with_emitter(hold)))
        wordless = self.advisor.eligibility(response.chat_response)
        for event in held:
            if not (wordless and isinstance(event, TextDelta | ReasoningDelta)):
                await sent.runtime.emit(event)
        return response

    async def _ended(
        self, response: ChatClientResponse, result: ToolExecutionResult
    ) -> ChatClientResponse | None:
        """Return the turn's response if this round was its last, else None."""
        if result.pending:
            return self._suspended(response, result)
        if result.return_direct:
            return await self._spoken(response, result.generations())
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
            raise ToolLoopError(breach, result=result)
        if limits.on_exceeded == "partial":
            return await self._spoken(response, (result.breach_generation(),))
        return await self._final_answer(response, result)

    async def _final_answer(
        self, response: ChatClientResponse, result: ToolExecutionResult
    ) -> ChatClientResponse:
        """Ask the model to answer from what it has, without tools."""
        self.messages = await self.advisor.next_messages(self.request, response, result)
        self.options = self.options.mutate(tool_choice="none")
        _, response = await self._round()
        answer = response.chat_response
        if self.advisor.eligibility(answer):  # it would not listen
            return await self._spoken(response, (result.breach_generation(),))
        flagged = tuple(
            replace(generation, finish_reason="tool_call_limit_exceeded")
            for generation in answer.generations
        )
        answer = ChatResponse(flagged, answer.metadata).with_usage(self.usage)
        return response.mutate(chat_response=answer)

    async def _spoken(
        self, response: ChatClientResponse, generations: tuple[Generation, ...]
    ) -> ChatClientResponse:
        """Return *generations*, which no model streamed, as the turn's response."""
        answer = ChatResponse(generations, response.chat_response.metadata).with_usage(self.usage)
        if answer.text:
            await self.request.runtime.emit(TextDelta(answer.text))
        return response.mutate(chat_response=answer)

    def _suspended(
        self, response: ChatClientResponse, result: ToolExecutionResult
    ) -> ChatClientResponse:
        answer = response.chat_response
        message = next(g.output for g in answer.generations if g.output.tool_calls)
        pending = PendingTurn(
            self.history,
            message,
            result.responses,
            result.pending,
            dict(self.turn.calls),
            self.turn.rounds,
            self.request.context.get(CONVERSATION_ID),
        )
        answer = answer.with_usage(self.usage)
        return response.mutate(chat_response=answer, context={PENDING_TURN: pending})

    async def _resume(self, resumed: "Resumed") -> ChatClientResponse | None:
        """Run what had to wait, and go on from there."""
        pending, decisions = resumed
        turn = self.turn
        context = turn.context
        turn.context = merged(context, {DECISIONS: decisions})
        # The waiting calls were counted when they were made, and are counted when they are run.
        turn.calls.update(pending.calls)
        turn.calls.subtract(call.name for call in pending.pending)
        turn.rounds = pending.rounds
        turn.recall((*pending.messages, _answered(pending)))
        self.history = self.messages = pending.messages
        result = await self.advisor.manager.execute_message(
            Prompt.of(self.history, self.options),
            pending.message,
            pending.responses,
            self.request.runtime,
            turn,
        )
        # Models may use an id again in a later round; the decisions are about these calls only.
        turn.context = context
        response = ChatClientResponse(
            ChatResponse((Generation(pending.message, "tool_call"),)), self.request.context
        )
        ended = await self._ended(response, result)
        if ended is None:
            self.history = self.messages = result.conversation_history
        return ended


def _answered(pending: PendingTurn) -> AssistantMessage:
    """Return the message that a turn waits at, with those calls only that have been run."""
    waiting = {call.id for call in pending.pending}
    return AssistantMessage(
        tool_calls=[call for call in pending.message.tool_calls if call.id not in waiting]
    )


Resumed = tuple[PendingTurn, dict[str, Decision]]
