"""Decisions about the calls of a turn that waits, and `Resumption`: it continues with them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from chatclient._internal.checks import check_choice
from chatclient.chat.pending_turn import PendingTurn
from chatclient.chat.tool import HANDOFF, ToolResult
from chatclient.errors import ToolUsageError, UsageError


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision about a tool call.

    Attributes:
        approved: Whether the tool may be run.
        message: A text for the model: the reason for a denial, or a remark before the result.
        arguments: Arguments that replace those of the model, a JSON object as text, or None. They
            are reported to the model, before the result.
        result: The result, if the call was executed elsewhere; the tool is not run then. See
            `answered`.

    Raises:
        ToolUsageError: *approved* is no bool, *arguments* are no text, or *result* is no
            `ToolResult`.
    """

    approved: bool
    message: str = ""
    arguments: str | None = None
    result: ToolResult | None = None

    def __post_init__(self) -> None:
        approved: object = self.approved
        if not isinstance(approved, bool):  # the text "no" would be true
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
        """Return the decision for a call that was executed elsewhere, with its *result*.

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


def decision_of(decision: object) -> Decision:
    """Return *decision*, which may be a bool, as a `Decision`.

    Raises:
        ToolUsageError: It is neither.
    """
    if isinstance(decision, bool):
        return APPROVE if decision else DENY
    if not isinstance(decision, Decision):
        msg = f"an approval must be a bool or a Decision, not {decision!r}"
        raise ToolUsageError(msg)
    return decision


ForAll = Literal["approve", "deny"]
Decisions = Mapping[str, Decision | bool] | Decision | ForAll
"""Decisions by the ids of `PendingTurn.to_decide`, or the same for all."""


def decisions_for(turn: PendingTurn, decisions: Decisions) -> dict[str, Decision]:
    """Return a decision for every pending call of *turn*.

    Raises:
        UsageError: A decision is missing, an id is unknown, a word for all calls is unknown, or an
            argument is of the wrong type.
    """
    given: object = turn
    if not isinstance(given, PendingTurn):
        msg = f"resume takes a PendingTurn or its JSON, not {turn!r}"
        raise UsageError(msg)
    ids, given = list(turn.to_decide()), decisions
    if isinstance(decisions, str):
        check_choice("a decision about all calls", decisions, ForAll)
        return dict.fromkeys(ids, APPROVE if decisions == "approve" else DENY)
    if isinstance(decisions, Decision):
        return dict.fromkeys(ids, decisions)
    if not isinstance(given, Mapping):
        msg = (
            f"decisions must be a mapping from the ids {ids} to bools or Decisions, or a Decision,"
            f" 'approve' or 'deny' for all of them, not {decisions!r}"
        )
        raise UsageError(msg)
    unknown, missing = set(decisions) - set(ids), set(ids) - set(decisions)
    if unknown or missing:
        left, strange = sorted(missing), sorted(unknown, key=repr)
        msg = f"decide about the calls {ids}: not decided {left}, unknown {strange}"
        raise UsageError(msg)
    return {id: decision_of(decision) for id, decision in decisions.items()}


class Resumption:
    """A turn that waited, and continues with decisions about its calls.

    Attributes:
        pending: The turn.
        decisions: The decisions, by the ids of `PendingTurn.to_decide`.
        round: What the tool loop keeps of the calls that waited, which run once even if the request
            is sent again; None before it has begun.
    """

    def __init__(self, pending: PendingTurn, decisions: Mapping[str, Decision]) -> None:
        self.pending = pending
        self.decisions = decisions
        self.round: Any = None
        self._handed_over: Resumption | None = None

    def inside_handoff(self) -> "Resumption":
        """Return the same for the client that the turn was handed to before it waited."""
        if self._handed_over is None:
            notes = self.pending.notes[HANDOFF]["notes"]
            self._handed_over = Resumption(replace(self.pending, notes=notes), self.decisions)
        return self._handed_over
