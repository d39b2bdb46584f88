"""The advisor that runs the tool loop, how subclasses change the loop, and `Steering`."""

import copy
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Self, cast

from chatclient._internal.checks import check_callable, check_type, wants_both
from chatclient._internal.frozen import EMPTY
from chatclient.advisors.tool_loop.loop import Eligible, ResumedRound, ToolLoop
from chatclient.chain.chain import (
    HIGHEST_PRECEDENCE,
    LOWEST_PRECEDENCE,
    TOOL_CALLING_ORDER,
    ChatClientRequest,
    ChatClientResponse,
    Next,
)
from chatclient.chat.messages import Message, UserMessage, system_messages
from chatclient.chat.options import ChatOptions
from chatclient.chat.response import NO_USAGE, ChatResponse
from chatclient.chat.tool import ToolCallback
from chatclient.chat.turn import RefreshTools
from chatclient.errors import UsageError
from chatclient.tools.execution.manager import ToolCallingManager, check_manager
from chatclient.tools.execution.result import ToolExecutionResult

__all__ = [
    "EligibilityChecker",
    "ToolCallingAdvisor",
    "has_tool_calls",
]

EligibilityChecker = (
    Callable[[ChatResponse], Eligible] | Callable[[ChatOptions, ChatResponse], Eligible]
)
"""Returns whether the tool calls of a response should be executed. It may take the options as a
first argument, and may be asynchronous."""


def has_tool_calls(response: ChatResponse) -> bool:
    """Return whether *response* asks for tools; the default eligibility checker."""
    return response.has_tool_calls()


def _by_options_and_response(
    checker: EligibilityChecker,
) -> Callable[[ChatOptions, ChatResponse], Eligible] | None:
    """Return *checker* as a function of both arguments; None for the default one.

    Raises:
        WrongTypeError: It is not a function of a response, or of options and a response.
    """
    if checker is has_tool_calls:
        return None
    check_callable("eligibility", checker)
    both = wants_both(checker)
    check_callable("eligibility", checker, takes=("options", "response") if both else ("response",))
    if both:
        return cast("Callable[[ChatOptions, ChatResponse], Eligible]", checker)
    by_response = cast("Callable[[ChatResponse], Eligible]", checker)
    return lambda _, response: by_response(response)


class ToolCallingAdvisor:
    """Calls the model, runs the tools it calls, and calls it again until it answers.

    Advisors of lower order get one request and one final response; those of higher order are inside
    the loop and get every round. The context of their responses is merged into the context of the
    next round's request, and into that of the final response.

    A subclass changes the loop through its hooks: `initialize_loop` once before the first round,
    `before_call` and `after_call` in every round, `next_messages` after tools have run,
    `finalize_loop` once at the end. They are the same for all four modes of calling.

    Args:
        manager: Runs the tools; default: the client's.
        order: The position of the loop in the chain.
        conversation_history: Whether each round sends the messages of the previous rounds. If
            False, a memory advisor inside the loop sends them. Default: True unless there is such
            an advisor.
        eligibility: A function that decides whether a response's tool calls are run.
        reset_tool_choice: Whether a tool choice that forces a call holds for the first round only.
            If it held for all rounds, the model could never answer.
        stream_tool_call_responses: Whether the text of rounds that end with tool calls is streamed.
            If not, the text of each round is buffered until the round has ended.

    Raises:
        UsageError: *order* is not between the highest and the lowest precedence.
    """

    handles_tool_calls = True
    params: Collection[str] = ()

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
        check_type("the order of an advisor", order, int)
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
        """Return whether the tool calls of *response* to a request with *options* should be run.

        The result may be awaitable.
        """
        if self._is_eligible is None:
            return response.has_tool_calls()
        return self._is_eligible(options, response)

    def in_chain(self, manager: ToolCallingManager, *, memory_inside: bool) -> Self:
        """Return a copy of this advisor for the chain of a client.

        Args:
            manager: The manager of the client, used unless the advisor has one.
            memory_inside: Whether there is a memory advisor inside the loop.
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
        loop, turn, part = ToolLoop(self, request, call_next), request.turn, request.turn.part
        state = loop.state
        state.unoffered = self.unoffered_tools(request)
        # Advisors inside the loop have no use for it.
        resumption, part.resumption = part.resumption, None
        try:
            response = await loop.run(resumption)
        except BaseException:  # including cancellation
            # For failures of the model and of hooks: a round that fails has undone its calls, and
            # they are undone once. After the loop, the `UndoLog` of the request does it.
            await loop.undo()
            raise
        finally:
            part.resumption = resumption
            if state.early_calls:
                # Shielded: tools that were started early must have ended when the turn has.
                await request.runtime.shielded(state.cancel_early_calls())
        if resumption is not None:
            ResumedRound.of(
                resumption, turn
            ).usage = NO_USAGE  # an advisor that calls again adds up the usage itself
        if state.executions and turn.pending is None:  # a suspended turn may be stored already
            request.runtime.undo_on_failure(loop)
        return await self.finalize_loop(response)

    async def initialize_loop(self, request: ChatClientRequest) -> ChatClientRequest:
        """Return the request that the loop starts with."""
        return request

    def unoffered_tools(
        self,
        request: ChatClientRequest,  # noqa: ARG002 - for subclasses
    ) -> Mapping[str, ToolCallback]:
        """Return tools, by name, that are run if the model calls them though they were not sent.

        Args:
            request: The request that the loop starts with.
        """
        return EMPTY

    def refresh_tools(self, request: ChatClientRequest) -> RefreshTools | None:
        """Return the function that lists the tools again before each round, or None.

        Args:
            request: The request that the loop starts with.
        """
        return request.turn.part.refresh_tools

    async def before_call(self, request: ChatClientRequest) -> ChatClientRequest:
        """Return the request of this round; changed options also apply to later rounds."""
        return request

    async def after_call(self, response: ChatClientResponse) -> ChatClientResponse:
        """Return the response of this round, which the loop then processes."""
        return response

    async def next_messages(
        self,
        request: ChatClientRequest,
        response: ChatClientResponse,  # noqa: ARG002 - for subclasses
        result: ToolExecutionResult,
    ) -> tuple[Message, ...]:
        """Return the messages of the next round.

        Args:
            request: The request of this round.
            response: The response to it.
            result: The results of the tools, with the complete conversation.

        Returns:
            The messages of the next round. Added messages are sent in that round only, and not
            stored by memory; `chatclient.advisors.tool_loop.advisor` adds messages that are.
        """
        if self.conversation_history is not False:
            return result.conversation_history
        system = system_messages(request.prompt.messages)
        return (*system, result.conversation_history[-1])

    async def finalize_loop(self, response: ChatClientResponse) -> ChatClientResponse:
        """Return the final response of the loop."""
        return response


class Steering:
    """Adds user messages to a turn while its tools run; create one for each turn.

    Pass it to a request with `.advisors(steering)`, and call its `send` method from anywhere, such
    as the loop that reads the stream, or another thread. The model gets the messages with the next
    tool results, and memory stores them in the turn. If the turn has no further round, they stay
    in `unread`, for the next request.
    """

    order = TOOL_CALLING_ORDER - 10
    params: Collection[str] = ()

    def __init__(self) -> None:
        self._queue: deque[Message] = deque()

    def send(self, text: str | UserMessage) -> None:
        """Queue a user message for the turn.

        Raises:
            UsageError: The text is blank.
            WrongTypeError: It is neither a text nor a user message.
        """
        message = UserMessage(text) if isinstance(text, str) else text
        check_type("what the user says", message, UserMessage)
        if all(isinstance(part, str) and not part.strip() for part in message.parts):
            msg = "the text is blank, and no provider would accept it"
            raise UsageError(msg)
        self._queue.append(message)

    @property
    def unread(self) -> tuple[Message, ...]:
        """The messages that have not been sent."""
        return tuple(self._queue)

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        """Return the response to *request*, whose tool loop reads the queue."""
        request.turn.part.user_input = self._pop_all
        return await call_next(request)

    def _pop_all(self) -> tuple[Message, ...]:
        return tuple(self._queue.popleft() for _ in range(len(self._queue)))
