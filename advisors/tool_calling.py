"""The tool loop."""

import copy
from collections.abc import Callable, Mapping
from typing import Any, Self

from chatclient.chain import (
    HIGHEST_PRECEDENCE,
    LOWEST_PRECEDENCE,
    TOOL_CALLING_ORDER,
    ChatClientRequest,
    ChatClientResponse,
    Next,
)
from chatclient.errors import UsageError
from chatclient.events import TextDelta
from chatclient.messages import Message, SystemMessage
from chatclient.prompt import Prompt
from chatclient.response import NO_USAGE, ChatResponse
from chatclient.tool import CONVERSATION_ID
from chatclient.tools import ToolCallingManager, ToolExecutionResult
from chatclient.tools.execution import ToolTurn
from chatclient.values import merged

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
    ) -> None:
        if not HIGHEST_PRECEDENCE < order < LOWEST_PRECEDENCE:
            msg = "the order of a tool calling advisor lies between the highest and the lowest"
            raise UsageError(msg)
        self.manager = manager or ToolCallingManager()
        self.order = order
        self.conversation_history = conversation_history
        self.eligibility = eligibility

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
        response = await self._loop(request, call_next, turn)
        if turn.executions:
            response = response.mutate(context={TOOL_EXECUTIONS: tuple(turn.executions)})
        return await self.finalize_loop(response)

    async def _loop(
        self, request: ChatClientRequest, call_next: Next, turn: ToolTurn
    ) -> ChatClientResponse:
        usage = NO_USAGE
        history = messages = request.prompt.messages
        options = request.prompt.options
        while True:
            sent = await self.before_call(
                request.mutate(prompt=Prompt.of(messages, options), context=request.context)
            )
            options = sent.prompt.options
            response = await self.after_call(await call_next(sent))
            answer = response.chat_response
            usage += answer.usage
            if not self.eligibility(answer):
                return response.mutate(chat_response=answer.with_usage(usage))
            result = await self.manager.execute(
                Prompt.of(history, options), answer, request.runtime, turn
            )
            history = result.conversation_history
            if result.return_direct:
                final = ChatResponse(result.generations(), answer.metadata).with_usage(usage)
                await request.runtime.emit(TextDelta(final.text))
                return response.mutate(chat_response=final)
            messages = await self.next_messages(sent, response, result)

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
    conversation_id = request.context.get(CONVERSATION_ID)
    return (
        context if conversation_id is None else merged(context, {CONVERSATION_ID: conversation_id})
    )
