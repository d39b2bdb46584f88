"""Tool calls that somebody has to approve: at once, or later and elsewhere."""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from chatclient.checks import check_word
from chatclient.errors import ToolDeniedError, ToolUsageError, UsageError
from chatclient.messages import (
    AssistantMessage,
    Message,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
)
from chatclient.serialization import message_from_dict, message_to_dict
from chatclient.tool import ToolResult
from chatclient.tools.awaiting import awaited
from chatclient.tools.invocation import NextTool, ToolInvocation
from chatclient.values import EMPTY, frozen, own


@dataclass(frozen=True, slots=True)
class Decision:
    """What somebody decided about a tool call.

    Attributes:
        approved: Whether it may be run.
        message: Why not, for the model.
        arguments: Other arguments to run it with, a JSON object, or None to leave them.
        result: What came of it, done by somebody else; the tool is not run then. See `answered`.
    """

    approved: bool
    message: str = "The user did not allow this call."
    arguments: str | None = None
    result: ToolResult | None = None

    @classmethod
    def answered(cls, result: ToolResult | str) -> "Decision":
        """Return the decision that the tool is not run: the call has its *result* from elsewhere.

        Raises:
            UsageError: *result* is neither a text nor a `ToolResult`.
        """
        given: object = ToolResult(result) if isinstance(result, str) else result
        if not isinstance(given, ToolResult):
            msg = f"the answer to a tool call is a text or a ToolResult, not {result!r}"
            raise UsageError(msg)
        return cls(approved=True, result=given)


APPROVE = Decision(approved=True)
DENY = Decision(approved=False)

DECISIONS = "tool_approval_decisions"
"""The key in a tool context of decisions by tool call id, once they have been made."""

AGENT_TURNS = "agent_turns"
"""The key in a tool context of turns of agents that go on, with the decisions made, by the id of
the call that asked the agent."""

_VERSION = 1


class ApprovalRequired(Exception):  # noqa: N818 - no error: it suspends the turn
    """Raised by an interceptor to suspend the turn until somebody has decided about the call.

    Attributes:
        turn: The turn of an agent whose own calls wait, when the call asked an agent.
    """

    def __init__(self, turn: "PendingTurn | None" = None) -> None:
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
        msg = f"an approval is a bool or a Decision, not {decision!r}"
        raise ToolUsageError(msg)
    return decision


Ask = Callable[[ToolInvocation], Decision | bool | Awaitable[Decision | bool | None] | None]
"""Decides about a call at once, or with None that somebody is to decide later."""


def _writes(invocation: ToolInvocation) -> bool:
    return invocation.metadata.effect == "write"


@dataclass(frozen=True)
class ToolApproval:
    """An interceptor that has tool calls approved.

    Attributes:
        needed: Which calls need approval, plain or asynchronous; default: those of tools that
            write.
        ask: Decides at once: a function, plain or asynchronous, from the invocation to a
            `Decision` or a bool. Without it the turn is suspended: its response carries a
            `PendingTurn`, which `client.resume` continues.
    """

    needed: Callable[[ToolInvocation], bool | Awaitable[bool]] = _writes
    ask: Ask | None = None

    async def __call__(self, invocation: ToolInvocation, call_next: NextTool, /) -> ToolResult:
        """Run the tool if that is allowed.

        Raises:
            ToolDeniedError: It is not.
            ApprovalRequired: Nobody has decided yet.
        """
        if not await awaited(invocation.context.runtime, self.needed(invocation)):
            return await call_next(invocation)
        decision = await self._decision(invocation)
        if not decision.approved:
            raise ToolDeniedError(decision.message, tool_name=invocation.tool_call.name)
        if decision.result is not None:
            return decision.result
        if decision.arguments is not None:
            invocation = invocation.with_arguments(decision.arguments)
        return await call_next(invocation)

    async def _decision(self, invocation: ToolInvocation) -> Decision:
        made: Mapping[str, Decision] = invocation.context.get(DECISIONS, {})
        decision: Any = made.get(invocation.tool_call.id)
        if decision is None and self.ask is not None:
            decision = await invocation.context.runtime.invoke(self.ask, invocation)
        if decision is None:
            raise ApprovalRequired
        return decision_of(decision)


@dataclass(frozen=True, slots=True)
class PendingTurn:
    """A turn that waits for approvals; JSON both ways, so that it can wait anywhere.

    Attributes:
        messages: The conversation up to the model's message with the tool calls.
        message: That message.
        responses: The answers of the calls that have been run.
        pending: The calls that wait; see `to_decide` for the ids to decide by.
        calls: How often each tool was called in this turn.
        rounds: How often the model was called in this turn.
        conversation_id: The conversation, if there is one.
        agents: The turns of agents that wait themselves, by the ids of the calls that asked them.
        failures: How often each tool failed in each way: names, kinds and numbers.
        repeats: Which calls were made how often in a row with which result: names, arguments,
            results and numbers.
        seconds: How long the turn has taken so far.
        notes: What advisors outside the loop want to find again when the turn goes on; JSON.
        breach: The limit that was reached in this round, in words, or None.
    """

    messages: tuple[Message, ...]
    message: AssistantMessage
    responses: tuple[ToolResponse, ...]
    pending: tuple[ToolCall, ...]
    calls: Mapping[str, int] = field(default_factory=dict)
    rounds: int = 1
    conversation_id: str | None = None
    agents: Mapping[str, "PendingTurn"] = field(default_factory=dict)
    failures: tuple[tuple[str, str, int], ...] = ()
    repeats: tuple[tuple[str, str, str, int], ...] = ()
    seconds: float = field(default=0.0, compare=False)
    notes: Mapping[str, Any] = EMPTY
    breach: str | None = None

    def __post_init__(self) -> None:
        own(self, "calls", "agents", "notes")

    def to_decide(self) -> dict[str, ToolCall]:
        """Return the calls that somebody has to decide about, by the ids to decide by.

        These are the calls' own ids. A call inside an agent goes by the id of the call that asked
        the agent, a slash, and its own.
        """
        calls: dict[str, ToolCall] = {}
        for call in self.pending:
            if call.id in self.agents:
                inside = self.agents[call.id].to_decide()
                calls |= {f"{call.id}/{id}": each for id, each in inside.items()}
            else:
                calls[call.id] = call
        return calls

    def to_json(self) -> str:
        """Return this as JSON, from which `from_json` makes an equal one."""
        return json.dumps(_to_dict(self))

    @classmethod
    def from_json(cls, text: str) -> "PendingTurn":
        """Return what `to_json` wrote.

        Raises:
            UsageError: *text* is no pending turn.
        """
        try:
            return _from_dict(json.loads(text))
        except KeyError as error:
            msg = f"no pending turn: it has no {error}; give what PendingTurn.to_json() returned"
            raise UsageError(msg) from error
        except (ValueError, TypeError, AttributeError) as error:
            msg = f"no pending turn: {error!r}"
            raise UsageError(msg) from error


def _to_dict(turn: PendingTurn) -> dict[str, Any]:
    return {
        "version": _VERSION,
        "messages": [message_to_dict(message) for message in turn.messages],
        "message": message_to_dict(turn.message),
        "responses": message_to_dict(ToolResponseMessage(turn.responses))["responses"],
        "pending": [call.id for call in turn.pending],
        "calls": dict(turn.calls),
        "rounds": turn.rounds,
        "conversation_id": turn.conversation_id,
        "agents": {id: _to_dict(each) for id, each in turn.agents.items()},
        "failures": turn.failures,
        "repeats": turn.repeats,
        "seconds": turn.seconds,
        "notes": dict(turn.notes),
        "breach": turn.breach,
    }


def _from_dict(data: Mapping[str, Any]) -> PendingTurn:
    if data["version"] != _VERSION:
        msg = f"version {data['version']!r} is not known"
        raise ValueError(msg)
    message: Any = message_from_dict(data["message"])
    answered: Any = message_from_dict({"role": "tool", "responses": data["responses"]})
    return PendingTurn(
        tuple(message_from_dict(each) for each in data["messages"]),
        message,
        answered.responses,
        tuple(call for call in message.tool_calls if call.id in data["pending"]),
        data["calls"],
        data["rounds"],
        data["conversation_id"],
        {id: _from_dict(each) for id, each in data["agents"].items()},
        tuple((name, kind, count) for name, kind, count in data["failures"]),
        tuple((name, given, result, n) for name, given, result, n in data["repeats"]),
        data["seconds"],
        frozen(data["notes"]),
        data.get("breach"),
    )


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
        msg = f"what goes on is a PendingTurn or its JSON, not {turn!r}"
        raise UsageError(msg)
    ids, given = list(turn.to_decide()), decisions
    if isinstance(decisions, str):
        check_word("a decision about all calls", decisions, ForAll)
        return dict.fromkeys(ids, APPROVE if decisions == "approve" else DENY)
    if not isinstance(given, Mapping):
        msg = (
            f"decisions are a mapping of the ids {ids} to bools or Decisions, or one of 'approve'"
            f" and 'deny' for all of them, not {decisions!r}"
        )
        raise UsageError(msg)
    unknown, missing = set(decisions) - set(ids), set(ids) - set(decisions)
    if unknown or missing:
        left, strange = sorted(missing), sorted(unknown)
        msg = f"decide about the calls {ids}: not decided {left}, unknown {strange}"
        raise UsageError(msg)
    return {id: decision_of(decision) for id, decision in decisions.items()}


def decided(turn: PendingTurn, decisions: Mapping[str, Decision]) -> dict[str, Any]:
    """Return what the tools of *turn* have to know of *decisions*, for their context.

    An agent that waits has been let run before; what is decided is about its own calls.
    """
    own = {call.id: decisions[call.id] for call in turn.pending if call.id not in turn.agents}
    agents: dict[str, tuple[PendingTurn, dict[str, Decision]]] = {}
    for id, agent in turn.agents.items():
        inside = {key: decisions[f"{id}/{key}"] for key in agent.to_decide()}
        agents[id] = agent, inside
    return {DECISIONS: own | dict.fromkeys(agents, APPROVE), AGENT_TURNS: agents}
