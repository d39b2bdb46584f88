"""The advisor that runs the tool loop, and how subclasses change the loop."""

import copy
from collections.abc import Callable, Mapping
from typing import Self, cast

from chatclient.advisors.resumed import Resumed
from chatclient.advisors.tool_loop import (
    EARLIER_MESSAGES,
    MEANWHILE,
    PENDING_TURN,
    REFRESH_TOOLS,
    REMEMBERED,
    RESUME,
    TOOL_EXECUTIONS,
    TOOL_MESSAGES,
    UNDONE,
    Eligible,
    RefreshTools,
    ToolLoop,
    turn_of,
)
from chatclient.chain import (
    HIGHEST_PRECEDENCE,
    LOWEST_PRECEDENCE,
    TOOL_CALLING_ORDER,
    ChatClientRequest,
    ChatClientResponse,
    Next,
)
from chatclient.checks import check_callable, check_kind, wants_both
from chatclient.errors import UsageError
from chatclient.messages import Message, system_messages
from chatclient.options import ChatOptions
from chatclient.response import ChatResponse
from chatclient.tool import ToolCallback
from chatclient.tools import ToolCallingManager, ToolExecutionResult
from chatclient.tools.manager import check_manager
from chatclient.values import EMPTY

__all__ = [
    "EARLIER_MESSAGES",
    "MEANWHILE",
    "PENDING_TURN",
    "REFRESH_TOOLS",
    "REMEMBERED",
    "RESUME",
    "TOOL_EXECUTIONS",
    "TOOL_MESSAGES",
    "UNDONE",
    "EligibilityChecker",
    "RefreshTools",
    "ToolCallingAdvisor",
    "has_tool_calls",
]

EligibilityChecker = (
    Callable[[ChatResponse], Eligible] | Callable[[ChatOptions, ChatResponse], Eligible]
)
"""Says whether a response's tool calls are to be executed; it may ask for the options as well, and
may be asynchronous."""


def has_tool_calls(response: ChatResponse) -> bool:
    """Return whether *response* asks for tools; the default eligibility checker."""
    return response.has_tool_calls()


def _by_options_and_response(
    checker: EligibilityChecker,
) -> Callable[[ChatOptions, ChatResponse], Eligible]:
    # For each request with advisors of its own a loop is made, as a rule with the default.
    if checker is not has_tool_calls and wants_both(checker):
        return cast("Callable[[ChatOptions, ChatResponse], Eligible]", checker)
    by_response = cast("Callable[[ChatResponse], Eligible]", checker)
    return lambda _, response: by_response(response)


class ToolCallingAdvisor:
    """Calls the model, runs the tools it asks for, and calls it again until it answers.

    Advisors of lower order see one request and one final response; those of higher order are inside
    the loop and see every round. What they leave in a response's context is merged into the context
    of the next round's request, and is in that of the final response.

    A subclass changes the loop through its hooks: `initialize_loop` once before the first round,
    `before_call` and `after_call` in every round, `next_messages` after tools have run,
    `finalize_loop` once at the end. They are the same for all four ways of calling.

    Args:
        manager: Runs the tools; default: the client's.
        order: Where the loop stands in the chain.
        conversation_history: Whether each round is sent everything the rounds before it said.
            False leaves that to a memory advisor inside the loop. Default: True unless there is
            such an advisor.
        eligibility: A function that decides whether a response's tool calls are run.
        reset_tool_choice: Whether a tool choice that forces a call holds for the first round only.
            If it held for all rounds, the model could never answer.
        stream_tool_call_responses: Whether what the model says in rounds that end with tool calls
            is streamed. If not, each round's text is held back until its end is known.

    Raises:
        UsageError: *order* is not between the highest and the lowest precedence.
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
        check_kind("the order of an advisor", order, int)
        check_callable("what decides whether tool calls are run", eligibility)
        if not HIGHEST_PRECEDENCE < order < LOWEST_PRECEDENCE:
            msg = "the order of a tool calling advisor must lie between the highest and the lowest"
            raise UsageError(msg)
        if manager is not None:
            check_manager(manager)
        self.manager = manager or ToolCallingManager()
        self._own_manager = manager is not None
        self.order = order
        self.conversation_history = conversation_history
        self._is_eligible = _by_options_and_response(eligibility)
        self.reset_tool_choice = reset_tool_choice
        self.stream_tool_call_responses = stream_tool_call_responses

    def is_eligible(self, options: ChatOptions, response: ChatResponse) -> Eligible:
        """Return whether the tool calls of *response*, asked for with *options*, are to be run.

        The answer may have to be awaited.
        """
        return self._is_eligible(options, response)

    def in_chain(self, manager: ToolCallingManager, *, memory_inside: bool) -> Self:
        """Return this advisor as it works in the chain of a client.

        Args:
            manager: The client's, for an advisor that was given none.
            memory_inside: Whether a memory advisor stands inside the loop.
        """
        adapted = copy.copy(self)
        if self.conversation_history is None:
            adapted.conversation_history = not memory_inside
        if not self._own_manager:
            adapted.manager = manager
        return adapted

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        """Return the final response of the loop."""
        if request.prompt.options.internal_tool_execution_enabled is False:
            return await call_next(request)
        request = await self.initialize_loop(request)
        turn = turn_of(request)
        turn.unoffered = self.unoffered_tools(request)
        loop = ToolLoop(self, request, call_next, turn)
        resumed: Resumed | None = request.context.get(RESUME)
        if resumed is None:
            turn.recall(request.prompt.messages)  # of a turn that failed, and is gone on with
        try:
            response = await loop.run(resumed)
        except BaseException:  # however the turn is cut short
            loop.note()
            await loop.undo()
            raise
        finally:
            if turn.begun:
                await request.runtime.shielded(turn.forget_begun())
        return await self.finalize_loop(loop.told(response, resumed))

    async def initialize_loop(self, request: ChatClientRequest) -> ChatClientRequest:
        """Return the request that the loop starts with."""
        return request

    def unoffered_tools(
        self,
        request: ChatClientRequest,  # noqa: ARG002 - for subclasses
    ) -> Mapping[str, ToolCallback]:
        """Return tools, by name, that are run if the model names them without being offered them.

        Args:
            request: What the loop starts with.
        """
        return EMPTY

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

        Returns:
            What is sent in the next round. What is added to the conversation is sent this once, and
            not remembered; see `chatclient.advisors.steering` for saying something that stays.
        """
        if self.conversation_history is not False:
            return result.conversation_history
        system = system_messages(request.prompt.messages)
        return (*system, result.conversation_history[-1])

    async def finalize_loop(self, response: ChatClientResponse) -> ChatClientResponse:
        """Return what leaves the loop."""
        return response
