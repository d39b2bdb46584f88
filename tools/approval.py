"""Tool calls that somebody has to approve: at once, or later and elsewhere."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from chatclient.checks import check_callable, check_word
from chatclient.errors import ToolArgumentError, ToolDeniedError, ToolUsageError, UsageError
from chatclient.json import loads
from chatclient.tool import ToolContext, ToolResult
from chatclient.tools.awaiting import awaited
from chatclient.tools.invocation import NextTool, ToolInvocation
from chatclient.tools.pending import PendingTurn, places_in


@dataclass(frozen=True, slots=True)
class Decision:
    """What somebody decided about a tool call.

    Attributes:
        approved: Whether it may be run.
        message: What the model is told: why not, or a remark beside the result.
        arguments: Other arguments to run it with, a JSON object as text, or None to leave them.
            The model is told of them, before the result.
        result: The result, if somebody else has carried out the call; the tool is not run then.
            See `answered`.

    Raises:
        ToolUsageError: *approved* is not a bool, *arguments* are not a text, or *result* is no
            `ToolResult`.
    """

    approved: bool
    message: str = ""
    arguments: str | None = None
    result: ToolResult | None = None

    def __post_init__(self) -> None:
        approved: object = self.approved
        if not isinstance(approved, bool):  # "no" would be a yes
            msg = f"approved must be True or False, not {approved!r}"
            raise ToolUsageError(msg)
        arguments: object = self.arguments
        if not isinstance(arguments, str | None):
            msg = f"a decision's arguments must be JSON as text, json.dumps(...), not {arguments!r}"
            raise ToolUsageError(msg)
        result: object = self.result
        if not isinstance(result, ToolResult | None):
            msg = (
                f"a decision's result must be a ToolResult, as of Decision.answered, not {result!r}"
            )
            raise ToolUsageError(msg)
        if not approved and not self.message:
            object.__setattr__(self, "message", "The user did not allow this call.")

    @classmethod
    def answered(cls, result: ToolResult | str) -> "Decision":
        """Return the decision that the tool is not run: the call has its *result* from elsewhere.

        Raises:
            UsageError: *result* is neither a text nor a `ToolResult`.
        """
        given: object = ToolResult(result) if isinstance(result, str) else result
        if not isinstance(given, ToolResult):
            msg = f"the answer to a tool call must be a text or a ToolResult, not {result!r}"
            raise UsageError(msg)
        return cls(approved=True, result=given)


APPROVE = Decision(approved=True)
DENY = Decision(approved=False)

DECISIONS = "tool_approval_decisions"
"""The key in a tool context of decisions by tool call id, once they have been made."""

AGENT_TURNS = "agent_turns"
"""The key in a tool context of turns of agents that go on, with the decisions made, by the id of
the call that asked the agent."""


class ApprovalRequired(Exception):  # noqa: N818 - no error: it suspends the turn
    """Raised by an interceptor to suspend the turn until somebody has decided about the call.

    When the turn goes on, the interceptor finds `DECISIONS` in the tool context, and lets the call
    pass: what was decided is carried out behind it. `ToolApproval` does all of this.

    Attributes:
        turn: The turn of an agent whose own calls wait, when the call asked an agent.
    """

    def __init__(self, turn: PendingTurn | None = None) -> None:
        super().__init__()
        self.turn = turn


def decision_of(decision: object) -> Decision:
    """Return *decision*, which may be a bool, as a `Decision`.

    Raises:
        ToolUsageError: It is neither; no model could mend that.
    """
    if isinstance(decision, bool):
        return APPROVE if decision else DENY
    if not isinstance(decision, Decision):
        msg = f"an approval must be a bool or a Decision, not {decision!r}"
        raise ToolUsageError(msg)
    return decision


Ask = Callable[[ToolInvocation], Decision | bool | Awaitable[Decision | bool | None] | None]
"""Decides about a call at once, or with None that somebody is to decide later."""


def refuse_to_suspend(tool_name: str, waiting: ApprovalRequired) -> None:
    """Refuse to suspend the turn from within a function: nobody would tell it what was decided.

    Raises:
        ToolUsageError: It is not the turn of an agent that waits, which would be told.
    """
    if waiting.turn is not None:
        return
    msg = (
        f"tool {tool_name!r} raised ApprovalRequired, and would again whenever the turn is"
        " resumed; have its calls approved before it runs: ToolApproval(needed=...)"
    )
    raise ToolUsageError(msg) from waiting


def check_edit(invocation: ToolInvocation) -> None:
    """Make sure that the tool can be run with the arguments that somebody wrote.

    Raises:
        ToolUsageError: It cannot; no model could mend that.
    """
    try:
        invocation.arguments()
    except ToolArgumentError as error:
        msg = f"the tool cannot run with the decision about {invocation.tool_call.id!r}: {error}"
        raise ToolUsageError(msg) from error


_SAYS = "The user says: "


def remark_on(decision: Decision, given: str) -> str | None:
    """Return what the model is told before the result of a call that was approved.

    Args:
        decision: What was decided.
        given: The arguments that were decided about.
    """
    message, arguments = decision.message, decision.arguments
    if decision.result is not None or arguments is None or _same(arguments, given):
        return f"{_SAYS}{message}" if message else None
    changed = f"The user changed the arguments to {arguments}"
    return f"{changed}: {message}" if message else f"{changed}."


def _same(arguments: str, given: str) -> bool:
    """Return whether two texts are the same JSON; who shows arguments may write them anew."""
    try:
        return arguments == given or bool(loads(arguments) == loads(given))
    except ValueError:
        return False


def _remark(context: ToolContext, remark: str | None) -> None:
    """Add *remark* to those of others who approved the call, for the model to be told."""
    told = context.remark
    if remark is None or told is None:
        context.remark = told or remark
    elif not told.endswith(f": {remark.removeprefix(_SAYS)}"):  # one decision, several approvers
        context.remark = f"{told}\n{remark}"


def _writes(invocation: ToolInvocation) -> bool:
    return invocation.metadata.effect == "write"


@dataclass(frozen=True)
class ToolApproval:
    """An interceptor that lets tools run only if somebody approves of the call.

    Nobody is asked about arguments that do not fit: the model is told at once.

    Attributes:
        needed: Which calls need approval, plain or asynchronous; default: those of tools that
            write. `invocation.arguments()` are the arguments by name.
        ask: Decides at once: a function, plain or asynchronous, from the invocation to a
            `Decision` or a bool. Without it the turn is suspended: its response carries a
            `PendingTurn`, which `client.resume` continues.

    Raises:
        UsageError: One of them is not a function.
    """

    needed: Callable[[ToolInvocation], bool | Awaitable[bool]] = _writes
    ask: Ask | None = None

    def __post_init__(self) -> None:
        check_callable("needed", self.needed, takes=("invocation",))
        if self.ask is not None:
            check_callable("ask", self.ask, takes=("invocation",))

    async def __call__(self, invocation: ToolInvocation, call_next: NextTool, /) -> ToolResult:
        """Run the tool if that is allowed.

        Raises:
            ToolArgumentError: It cannot be run with its arguments.
            ToolDeniedError: It is not allowed.
            ApprovalRequired: Nobody has decided yet.
            ToolUsageError: What was decided is not a decision, or cannot be carried out.
        """
        invocation.arguments()
        decision = await self._decision(invocation)
        if decision is None:
            return await call_next(invocation)
        invocation.context.decided = True
        return await _as_decided(decision, invocation, call_next)

    async def _decision(self, invocation: ToolInvocation) -> Decision | None:
        """Return what is decided about the call, or None where nothing needs to be."""
        context, decision = invocation.context, None
        if DECISIONS in context:  # and stands, whatever is needed by now
            decision = context[DECISIONS].get(invocation.tool_call.id)
        if decision is None:
            if not await awaited(context.runtime, self.needed(invocation)):
                return None
            if self.ask is not None:
                decision = await context.runtime.invoke(self.ask, invocation)
        if decision is None:
            raise ApprovalRequired
        return decision_of(decision)


async def carry_out(invocation: ToolInvocation, call_next: NextTool, /) -> ToolResult:
    """Carry out what was decided about a call, if no interceptor has done so.

    The innermost of the interceptors of a turn that goes on: whoever resumes a turn may be another
    client than the one that asked for approval, with no `ToolApproval` of its own.
    """
    context = invocation.context
    decision: Decision | None = context[DECISIONS].get(context.tool_call_id)
    if decision is None or context.decided:
        return await call_next(invocation)
    return await _as_decided(decision, invocation, call_next)


async def _as_decided(
    decision: Decision, invocation: ToolInvocation, call_next: NextTool
) -> ToolResult:
    """Run the tool as somebody has decided, if at all.

    Raises:
        ToolDeniedError: It is not allowed.
        ToolUsageError: It cannot be run with the arguments that were decided on.
    """
    if not decision.approved:
        raise ToolDeniedError(decision.message, tool_name=invocation.tool_call.name)
    _remark(invocation.context, remark_on(decision, invocation.tool_call.arguments))
    if decision.result is not None:
        return decision.result
    if decision.arguments is not None:
        invocation = invocation.with_arguments(decision.arguments)
        check_edit(invocation)
    return await call_next(invocation)


ForAll = Literal["approve", "deny"]
Decisions = Mapping[str, Decision | bool] | ForAll
"""By the ids of `PendingTurn.to_decide`, or the same for all."""


def decisions_for(turn: PendingTurn, decisions: Decisions) -> dict[str, Decision]:
    """Return a decision for every call of *turn* that waits for one.

    Raises:
        UsageError: A call is left undecided, or an id is that of no pending call; or a single word
            is not a known one; or this is neither a turn nor decisions.
    """
    given: object = turn
    if not isinstance(given, PendingTurn):
        msg = f"resume takes a PendingTurn or its JSON, not {turn!r}"
        raise UsageError(msg)
    ids, given = list(turn.to_decide()), decisions
    if isinstance(decisions, str):
        check_word("a decision about all calls", decisions, ForAll)
        return dict.fromkeys(ids, APPROVE if decisions == "approve" else DENY)
    if not isinstance(given, Mapping):
        msg = (
            f"decisions must be a mapping from the ids {ids} to bools or Decisions, or 'approve'"
            f" or 'deny' for all of them, not {decisions!r}"
        )
        raise UsageError(msg)
    unknown, missing = set(decisions) - set(ids), set(ids) - set(decisions)
    if unknown or missing:
        left, strange = sorted(missing), sorted(unknown, key=repr)
        msg = f"decide about the calls {ids}: not decided {left}, unknown {strange}"
        raise UsageError(msg)
    return {id: decision_of(decision) for id, decision in decisions.items()}


def decision_context(turn: PendingTurn, decisions: Mapping[str, Decision]) -> dict[str, Any]:
    """Return what the tools of *turn* have to know of *decisions*, for their context.

    An agent that waits has been let run before; what is decided is about its own calls.
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
