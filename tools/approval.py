"""Tool calls that somebody has to approve: at once, or later and elsewhere."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from chatclient.errors import ToolDeniedError, UsageError
from chatclient.messages import (
    AssistantMessage,
    Message,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
)
from chatclient.serialization import message_from_dict, message_to_dict
from chatclient.tool import ToolResult
from chatclient.tools.invocation import NextTool, ToolInvocation


@dataclass(frozen=True, slots=True)
class Decision:
    """What somebody decided about a tool call.

    Attributes:
        approved: Whether it may be run.
        message: Why not, for the model.
        arguments: Other arguments to run it with, a JSON object, or None to leave them.
    """

    approved: bool
    message: str = "The user did not allow this call."
    arguments: str | None = None


APPROVE = Decision(approved=True)
DENY = Decision(approved=False)

DECISIONS = "tool_approval_decisions"
"""The key in a request's context of decisions by tool call id, once they have been made."""

_VERSION = 1


class ApprovalRequired(Exception):  # noqa: N818 - no error: it suspends the turn
    """Raised by an interceptor to suspend the turn until somebody has decided about the call."""


def decision_of(decision: object) -> Decision:
    """Return *decision*, which may be a bool, as a `Decision`.

    Raises:
        UsageError: It is neither.
    """
    if isinstance(decision, bool):
        return APPROVE if decision else DENY
    if not isinstance(decision, Decision):
        msg = f"an approval is a bool or a Decision, not {decision!r}"
        raise UsageError(msg)
    return decision


def _writes(invocation: ToolInvocation) -> bool:
    return invocation.metadata.effect == "write"


@dataclass(frozen=True)
class ToolApproval:
    """An interceptor that has tool calls approved.

    Attributes:
        needed: Which calls need approval; default: those of tools that write.
        ask: Decides at once: a function, plain or asynchronous, from the invocation to a
            `Decision` or a bool. Without it the turn is suspended: its response carries a
            `PendingTurn`, which `client.resume` continues.
    """

    needed: Callable[[ToolInvocation], bool] = _writes
    ask: Callable[[ToolInvocation], Any] | None = None

    async def __call__(self, invocation: ToolInvocation, call_next: NextTool, /) -> ToolResult:
        """Run the tool if that is allowed.

        Raises:
            ToolDeniedError: It is not.
            ApprovalRequired: Nobody has decided yet.
        """
        if not self.needed(invocation):
            return await call_next(invocation)
        decision = await self._decision(invocation)
        if not decision.approved:
            raise ToolDeniedError(decision.message, tool_name=invocation.tool_call.name)
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
        pending: The calls that wait, to be decided by their ids.
        calls: How often each tool was called in this turn.
        rounds: How often the model was called in this turn.
        conversation_id: The conversation, if there is one.
    """

    messages: tuple[Message, ...]
    message: AssistantMessage
    responses: tuple[ToolResponse, ...]
    pending: tuple[ToolCall, ...]
    calls: Mapping[str, int] = field(default_factory=dict)
    rounds: int = 1
    conversation_id: str | None = None

    def to_json(self) -> str:
        """Return this as JSON, from which `from_json` makes an equal one."""
        answered = ToolResponseMessage(self.responses)
        return json.dumps(
            {
                "version": _VERSION,
                "messages": [message_to_dict(message) for message in self.messages],
                "message": message_to_dict(self.message),
                "responses": message_to_dict(answered)["responses"],
                "pending": [call.id for call in self.pending],
                "calls": dict(self.calls),
                "rounds": self.rounds,
                "conversation_id": self.conversation_id,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> "PendingTurn":
        """Return what `to_json` wrote.

        Raises:
            UsageError: *text* is no pending turn.
        """
        try:
            data = json.loads(text)
            _check_version(data["version"])
            message: Any = message_from_dict(data["message"])
            answered: Any = message_from_dict({"role": "tool", "responses": data["responses"]})
            return cls(
                tuple(message_from_dict(each) for each in data["messages"]),
                message,
                answered.responses,
                tuple(call for call in message.tool_calls if call.id in data["pending"]),
                data["calls"],
                data["rounds"],
                data["conversation_id"],
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            msg = f"no pending turn: {error!r}"
            raise UsageError(msg) from error


def _check_version(version: object) -> None:
    if version != _VERSION:
        msg = f"version {version!r} is not known"
        raise ValueError(msg)


Decisions = Mapping[str, Decision | bool] | Literal["approve", "deny"]
"""By tool call id, or the same for all."""


def decisions_for(turn: PendingTurn, decisions: Decisions) -> dict[str, Decision]:
    """Return a decision for every pending call of *turn*.

    Raises:
        UsageError: A call is left undecided, or an id is that of no pending call.
    """
    ids = [call.id for call in turn.pending]
    if isinstance(decisions, str):
        return dict.fromkeys(ids, APPROVE if decisions == "approve" else DENY)
    unknown, missing = set(decisions) - set(ids), set(ids) - set(decisions)
    if unknown or missing:
        left, strange = sorted(missing), sorted(unknown)
        msg = f"decide about the calls {ids}: not decided {left}, unknown {strange}"
        raise UsageError(msg)
    return {id: decision_of(decision) for id, decision in decisions.items()}
