"""Interceptors of tool calls; one of them, `ToolApproval`, lets calls wait for a decision."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self

from chatclient._internal.checks import check_callable, check_type
from chatclient._internal.json import loads_comparable
from chatclient.chat.messages import Message, ToolCall
from chatclient.chat.origins import PromptPart, prompt_parts
from chatclient.chat.pending_turn import (
    APPROVE,
    ApprovalRequired,
    Decision,
    PendingTurn,
    decision_of,
    places_in,
)
from chatclient.chat.tool import ToolCallback, ToolContext, ToolDefinition, ToolMetadata, ToolResult
from chatclient.chat.turn import Turn
from chatclient.errors import ToolArgumentError, ToolDeniedError, ToolResultError, ToolUsageError
from chatclient.runtime.threads import is_awaitable
from chatclient.tools.function.signature import read_arguments


@dataclass(frozen=True, slots=True)
class ToolInvocation:
    """A call of a tool that is about to run.

    Attributes:
        tool_call: The call as the model made it.
        callback: The tool.
        context: The tool context.
        messages: The conversation before the model's message with the call.
        turn: The turn, or None in a loop of the application's own.
    """

    tool_call: ToolCall
    callback: ToolCallback
    context: ToolContext
    messages: tuple[Message, ...] = field(default=(), repr=False, compare=False)
    turn: Turn | None = field(default=None, repr=False, compare=False)

    @property
    def definition(self) -> ToolDefinition:
        """The tool's name, description and schema."""
        return self.callback.definition

    @property
    def metadata(self) -> ToolMetadata:
        """How the tool is run."""
        return self.callback.metadata

    def arguments(self) -> Mapping[str, Any]:
        """Return the arguments by name, repaired, validated and converted.

        They are plain JSON if the tool has no `read_arguments`.

        Raises:
            ToolArgumentError: The tool cannot be run with them. Uncaught, it goes to the model.
        """
        return read_arguments(self.callback, self.tool_call.arguments)

    def parts(self) -> tuple[PromptPart, ...]:
        """Return the texts that the model has seen before it made the call, with their origins."""
        conversation = self.messages if self.turn is None else self.turn.conversation
        return prompt_parts(conversation or self.messages, self.turn)

    def with_arguments(self, arguments: str) -> Self:
        """Return this with other arguments, a JSON object."""
        return replace(self, tool_call=replace(self.tool_call, arguments=arguments))


NextTool = Callable[[ToolInvocation], Awaitable[ToolResult]]
"""The rest of the interceptors, and then the tool."""


class ToolInterceptor(Protocol):
    """Runs around every tool call; any coroutine function with this signature is one.

    It may observe the call, change the arguments (`invocation.with_arguments`) or the result,
    return a result without running the tool, or raise `ToolDeniedError`, whose message goes to the
    model.
    """

    def __call__(self, invocation: ToolInvocation, call_next: NextTool, /) -> Awaitable[ToolResult]:
        """Return the result of the call, from *call_next* or another one."""
        ...


def interceptor_chain(interceptors: Sequence[ToolInterceptor], innermost: NextTool) -> NextTool:
    """Return a function that calls *interceptors*, the first one outermost, around *innermost*."""
    for interceptor in reversed(interceptors):
        innermost = _around(interceptor, innermost)
    return innermost


def _around(interceptor: ToolInterceptor, call_next: NextTool) -> NextTool:
    name = getattr(interceptor, "__qualname__", type(interceptor).__qualname__)

    async def checked_next(invocation: ToolInvocation) -> ToolResult:
        passed: object = invocation
        if not isinstance(passed, ToolInvocation):
            msg = (
                f"tool interceptor {name} called call_next with {passed!r}; it takes the"
                " invocation, or a changed copy: call_next(invocation.with_arguments(...))"
            )
            raise ToolUsageError(msg)
        return await call_next(invocation)

    async def call(invocation: ToolInvocation) -> ToolResult:
        try:
            given: object = interceptor(invocation, checked_next)
            result = await given if is_awaitable(given) else given
        except ApprovalRequired as suspension:
            invocation.context.suspended = ApprovalRequired(suspension.turn)
            raise
        return check_result(result, "tool interceptor {}", name)

    return call


def check_result(result: object, origin: str, name: str) -> ToolResult:
    """Return *result*, which *origin* has returned, with braces in place of its *name*.

    Raises:
        ToolResultError: It is no `ToolResult`.
    """
    if not isinstance(result, ToolResult):
        msg = f"{origin.format(name)} returned {result!r}; it must return a ToolResult"
        raise ToolResultError(msg)
    return result


def checked_interceptors(
    interceptors: Iterable[ToolInterceptor],
) -> tuple[ToolInterceptor, ...]:
    """Return *interceptors* after a check of their types."""
    check_type("interceptors", interceptors, Iterable, "put a single one into a list")
    several = tuple(interceptors)
    for interceptor in several:
        check_callable("an interceptor", interceptor, takes=("invocation", "call_next"))
    return several


DECISIONS = "tool_approval_decisions"
"""The key in a tool context of the decisions by tool call id, in a resumed turn."""

AGENT_TURNS = "agent_turns"
"""The key in a tool context of resumed turns of agents, with their decisions, by the id of the call
to the agent."""


Ask = Callable[[ToolInvocation], Decision | bool | Awaitable[Decision | bool | None] | None]
"""Returns a decision about a call, or None to suspend the turn until there is one."""


def check_edit(invocation: ToolInvocation) -> None:
    """Check that the tool can be run with the arguments of a decision.

    Raises:
        ToolUsageError: It cannot.
    """
    try:
        invocation.arguments()
    except ToolArgumentError as error:
        msg = f"the tool cannot run with the decision about {invocation.tool_call.id!r}: {error}"
        raise ToolUsageError(msg) from error


_MESSAGE_PREFIX = "The user says: "


def remark_on(decision: Decision, given: str) -> str | None:
    """Return the text for the model before the result of an approved call, or None.

    Args:
        decision: The decision.
        given: The arguments that the decision is about.
    """
    message, arguments = decision.message, decision.arguments
    if decision.result is not None or arguments is None or _same(arguments, given):
        return f"{_MESSAGE_PREFIX}{message}" if message else None
    changed = f"The user changed the arguments to {arguments}"
    return f"{changed}: {message}" if message else f"{changed}."


def _same(arguments: str, given: str) -> bool:
    """Return whether two texts are equal JSON: a user interface may reformat arguments."""
    try:
        return arguments == given or bool(_value(arguments) == _value(given))
    except ValueError:
        return False


def _value(text: str) -> Any:
    return loads_comparable(text)


def _add_remark(context: ToolContext, remark: str | None) -> None:
    """Add *remark* to those of other approvers of the call."""
    earlier = context.remark
    if remark is None or earlier is None:
        context.remark = earlier or remark
    elif not earlier.endswith(
        f": {remark.removeprefix(_MESSAGE_PREFIX)}"
    ):  # one decision for several approvers
        context.remark = f"{earlier}\n{remark}"


def _writes(invocation: ToolInvocation) -> bool:
    return invocation.metadata.effect == "write"


def check_confirmed(invocation: ToolInvocation) -> None:
    """Check that a call of a tool with `confirm` may be run, which nobody has approved so far.

    Raises:
        ToolArgumentError: It cannot be run with its arguments.
        ApprovalRequired: There is no decision yet.
    """
    if earlier_decision(invocation) is None:
        invocation.arguments()
        suspension = ApprovalRequired()
        invocation.context.suspended = suspension  # even if an interceptor catches the exception
        raise suspension


@dataclass(frozen=True)
class ToolApproval:
    """An interceptor that runs tools only after approval.

    Invalid arguments need no decision: the model gets the error immediately.

    Attributes:
        needed: A function, plain or asynchronous, that returns whether a call needs approval, in
            addition to those of tools with `confirm`; default: calls of tools that write.
            `invocation.arguments()` are the arguments by name.
        ask: A function, plain or asynchronous, that returns a `Decision` or a bool immediately,
            or several, of which the first decides that does not return None. Without a decision
            the turn is suspended: its response contains a `PendingTurn`, which `client.resume`
            continues.

    Raises:
        UsageError: One of them is not a function.
    """

    needed: Callable[[ToolInvocation], bool | Awaitable[bool]] = _writes
    ask: Ask | Sequence[Ask] | None = None
    _asked: tuple[Ask, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_callable("needed", self.needed, takes=("invocation",))
        ask = () if self.ask is None else self.ask
        asked = tuple(ask) if isinstance(ask, Sequence) else (ask,)
        for each in asked:
            check_callable("ask", each, takes=("invocation",))
        object.__setattr__(self, "_asked", asked)

    async def __call__(self, invocation: ToolInvocation, call_next: NextTool, /) -> ToolResult:
        """Run the tool if that is allowed.

        Raises:
            ToolArgumentError: It cannot be run with its arguments.
            ToolDeniedError: It is not allowed.
            ApprovalRequired: There is no decision yet.
            ToolUsageError: The decision is invalid, or cannot be applied.
        """
        # First, because invalid arguments are reported to the model without a decision.
        invocation.arguments()
        decision = await self._decision(invocation)
        if decision is None:
            return await call_next(invocation)
        # Before the next interceptor, because `apply_decision` and `invoke_tool` read it.
        invocation.context.decided = True
        return await _as_decided(decision, invocation, call_next)

    async def waits(self, invocation: ToolInvocation) -> bool:
        """Return whether the call has to wait for a decision; one by `ask` is not known before."""
        return not self._asked and await self._is_needed(invocation)

    async def _is_needed(self, invocation: ToolInvocation) -> bool:
        if invocation.metadata.confirm:
            return True
        return bool(await invocation.context.runtime.call(self.needed, invocation))

    async def _decision(self, invocation: ToolInvocation) -> Decision | None:
        """Return the decision about the call, or None if none is needed."""
        context = invocation.context
        decision: object = earlier_decision(invocation)
        if decision is None:
            if not await self._is_needed(invocation):
                return None
            for ask in self._asked:
                decision = await context.runtime.invoke(ask, invocation)
                if decision is not None:
                    break
        if decision is None:
            raise ApprovalRequired
        return decision_of(decision)


def earlier_decision(invocation: ToolInvocation) -> Decision | None:
    """Return the decision of a resumed turn; valid even if `needed` returns something else now."""
    decisions: Mapping[str, Decision] = invocation.context.get(DECISIONS, {})
    return decisions.get(invocation.tool_call.id)


async def apply_decision(invocation: ToolInvocation, call_next: NextTool, /) -> ToolResult:
    """Apply the decision about a call, if no other interceptor has done so.

    It is the innermost interceptor of a resumed turn, because the client that resumes it may differ
    from the one that asked for approval, and have no `ToolApproval`.
    """
    decision = earlier_decision(invocation)
    if decision is None or invocation.context.decided:
        return await call_next(invocation)
    return await _as_decided(decision, invocation, call_next)


async def _as_decided(
    decision: Decision, invocation: ToolInvocation, call_next: NextTool
) -> ToolResult:
    """Run the tool according to *decision*.

    Raises:
        ToolDeniedError: It is not allowed.
        ToolUsageError: It cannot be run with the arguments of the decision.
    """
    if decision.by:
        invocation.context.decided_by = decision.by
    if not decision.approved:
        raise ToolDeniedError(decision.message, tool_name=invocation.tool_call.name)
    _add_remark(invocation.context, remark_on(decision, invocation.tool_call.arguments))
    if decision.result is not None:
        return decision.result
    if decision.arguments is not None:
        invocation = invocation.with_arguments(decision.arguments)
        check_edit(invocation)
    return await call_next(invocation)


def is_approved(context: ToolContext) -> bool:
    """Return whether the call that runs with *context* was approved."""
    return context.decided or context.tool_call_id in context.get(DECISIONS, {})


def decision_context(turn: PendingTurn, decisions: Mapping[str, Decision]) -> dict[str, Any]:
    """Return the values of *decisions* for the tool context of *turn*.

    Calls to suspended agents are approved; the decisions are about the agents' own calls.
    """
    own: dict[str, Decision] = dict.fromkeys(turn.agents, APPROVE)
    inside: dict[str, dict[str, Decision]] = {id: {} for id in turn.agents}
    for id, (call_id, id_inside) in places_in(turn).items():
        if id_inside is None:
            own[call_id] = decisions[id]
        else:
            inside[call_id][id_inside] = decisions[id]
    agents = {id: (agent, inside[id]) for id, agent in turn.agents.items()}
    return {DECISIONS: own, AGENT_TURNS: agents}
