"""A turn that waits for decisions about its calls, its JSON form, and how it continues."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal

from chatclient._internal.checks import check_choice
from chatclient._internal.frozen import EMPTY, freeze_fields, frozen
from chatclient._internal.json import dumps
from chatclient._internal.text import shortened
from chatclient.chat.messages import (
    AssistantMessage,
    Message,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
)
from chatclient.chat.parts import call_key
from chatclient.chat.response import NO_USAGE, Usage
from chatclient.chat.serialization import (
    message_from_dict,
    message_to_dict,
    tool_response_from_dict,
    tool_response_to_dict,
    usage_from_dict,
    usage_to_dict,
)
from chatclient.chat.stored_values import from_stored, to_stored
from chatclient.chat.tool import BACKGROUND, HANDOFF, ToolExecution, ToolResult
from chatclient.errors import ToolUsageError, UsageError

EXTERNAL_CALLS = "external_calls"
"""The note of a pending turn with the ids of its calls of external tools, if there are any."""

_VERSION = 1
_LONGEST_MESSAGE = 500  # characters; the text may be from outside


@dataclass(frozen=True, slots=True)
class PendingTurn:
    """A turn that waits for approvals; it can be stored as JSON.

    Attributes:
        messages: The conversation up to the model's message with the tool calls.
        message: That message.
        responses: The responses to the calls that have been run.
        pending: The calls that wait; `to_decide` returns the ids for decisions.
        calls: The number of calls of each tool in this turn.
        rounds: The number of model calls in this turn.
        conversation_id: The conversation, if there is one.
        agents: The pending turns of agents, by the ids of the calls to the agents.
        failures: The number of failures by tool and kind: names, kinds and numbers.
        repeats: The calls that were repeated with the same result: names, arguments, results and
            numbers.
        seconds: The duration of the turn so far.
        notes: Values that advisors outside the loop need when the turn continues.
        breach: The limit that was reached in this round, in words, or None.
        usage: The token usage of the turn so far.
        executions: The answered calls of the turn, without errors and values, which have no JSON
            form.
        held: The calls that need no decision, but have not been run because others wait; they run
            when the turn is resumed.
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
    usage: Usage = NO_USAGE
    executions: tuple[ToolExecution, ...] = ()
    held: tuple[ToolCall, ...] = ()

    def __post_init__(self) -> None:
        freeze_fields(self, "calls", "agents", "notes")

    @property
    def external_calls(self) -> tuple[str, ...]:
        """The ids for decisions of the calls that wait for an external result.

        Also those of agents, and of clients that the turn was handed to.
        """
        notes = self.notes
        while HANDOFF in notes:
            notes = notes[HANDOFF]["notes"]
        own = notes.get(EXTERNAL_CALLS, ())
        inside = {id: agent.external_calls for id, agent in self.agents.items()}
        return tuple(
            id
            for id, (call_id, id_inside) in places_in(self).items()
            if (call_id in own if id_inside is None else id_inside in inside[call_id])
        )

    def to_decide(self) -> dict[str, ToolCall]:
        """Return the calls that need a decision, by the ids for decisions.

        These are the ids of the calls. A call of an agent has the id of the call to the agent, a
        slash, and its own id; an apostrophe follows if another call has the same id.
        """
        calls = {call.id: call for call in self.pending}
        inside = {id: agent.to_decide() for id, agent in self.agents.items()}
        return {
            id: calls[call_id] if id_inside is None else inside[call_id][id_inside]
            for id, (call_id, id_inside) in places_in(self).items()
        }

    def to_json(self, *, signing_key: str | bytes | None = None) -> str:
        """Return this as JSON for `from_json`.

        A value in metadata without a JSON form is left out, named in the JSON, and logged.

        Args:
            signing_key: A secret; the JSON is signed with it, including the conversation's id, so
                that a client that stores the turn cannot change it.

        Raises:
            UsageError: *signing_key* is empty.
        """
        text = dumps(to_stored(_to_dict(self))).decode()
        if signing_key is None:
            return text
        from chatclient.chat.pending_turn_schema import sign  # noqa: PLC0415 - seldom needed

        return sign(text, signing_key)

    @classmethod
    def from_json(cls, text: str, *, signing_key: str | bytes | None = None) -> "PendingTurn":
        """Return the turn that `to_json` has written, after a check of all its parts.

        Args:
            text: The JSON.
            signing_key: The secret that `to_json` was called with.

        Raises:
            UsageError: *text* is not a pending turn, or it has no valid signature.
        """
        from chatclient.chat.pending_turn_schema import (  # noqa: PLC0415 - seldom needed
            load_turn_data,
            verified,
        )

        try:
            text = verified(text, signing_key)
            return _from_dict(from_stored(load_turn_data(text, _VERSION)))
        except UsageError:
            raise
        except KeyError as error:
            msg = f"not a pending turn: it has no {error}; give what PendingTurn.to_json() returned"
            raise UsageError(msg) from error
        except (ValueError, TypeError, AttributeError, IndexError) as error:
            msg = f"not a pending turn: {shortened(repr(error), _LONGEST_MESSAGE)}"
            raise UsageError(msg) from error


def places_in(turn: PendingTurn) -> dict[str, tuple[str, str | None]]:
    """Return for each id for decisions the id of a call of *turn*, and None.

    For a call of an agent these are the id of the call to the agent, and the id for decisions in
    the agent's turn.
    """
    taken = {call.id for call in turn.pending if call.id not in turn.agents}
    places: dict[str, tuple[str, str | None]] = {}
    for call in turn.pending:
        if call.id not in turn.agents:
            places[call.id] = call.id, None
            continue
        for inside in turn.agents[call.id].to_decide():
            id = f"{call.id}/{inside}"
            while id in taken:  # ids of calls may contain slashes
                id += "'"
            taken.add(id)
            places[id] = call.id, inside
    return places


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
        "failures": [[*each] for each in turn.failures],
        "repeats": [[*each] for each in turn.repeats],
        "seconds": turn.seconds,
        "notes": dict(turn.notes),
        "breach": turn.breach,
        "usage": usage_to_dict(turn.usage),
        "executions": list(_executions_to_dicts(turn)),
        **({"held": [call.id for call in turn.held]} if turn.held else {}),
    }


def _from_dict(data: Mapping[str, Any]) -> PendingTurn:
    messages = tuple(message_from_dict(each) for each in data["messages"])
    message: Any = message_from_dict(data["message"])
    answered: Any = message_from_dict({"role": "tool", "responses": data["responses"]})
    return PendingTurn(
        messages=messages,
        message=message,
        responses=answered.responses,
        pending=tuple(call for call in message.tool_calls if call.id in data["pending"]),
        calls=data["calls"],
        rounds=data["rounds"],
        conversation_id=data["conversation_id"],
        agents={id: _from_dict(each) for id, each in data["agents"].items()},
        failures=tuple((name, kind, count) for name, kind, count in data["failures"]),
        repeats=tuple((name, given, result, n) for name, given, result, n in data["repeats"]),
        seconds=data["seconds"],
        notes=frozen(data["notes"]),
        breach=data.get("breach"),
        usage=usage_from_dict(data.get("usage", {})),
        executions=tuple(_executions_from(data, (*messages, message, answered))),
        held=tuple(call for call in message.tool_calls if call.id in data.get("held", ())),
    )


def _executions_to_dicts(turn: PendingTurn) -> Iterator[dict[str, Any]]:
    """Yield the position, times and attempt of each execution; the messages contain the rest.

    But not the result of a call that ran in the background, whose response came before it.
    """
    messages = (*turn.messages, turn.message, ToolResponseMessage(turn.responses))
    answered = list(answered_in(messages))
    places = {call_key(call): place for place, (call, _) in enumerate(answered)}
    for execution in turn.executions:
        place = places[call_key(execution.tool_call)]
        later = BACKGROUND in answered[place][1].metadata
        yield {
            **({"response": tool_response_to_dict(execution.response)} if later else {}),
            "call": place,
            "seconds": execution.seconds,
            "attempt": execution.attempt,
            "started": execution.started,
        }


def _executions_from(
    data: Mapping[str, Any], messages: Sequence[Message]
) -> Iterator[ToolExecution]:
    answered = list(answered_in(messages))
    for each in data.get("executions", ()):
        call, response = answered[each["call"]]
        if "response" in each:
            response = tool_response_from_dict(each["response"])
        yield ToolExecution(
            call, response, each["seconds"], each["attempt"], started=each["started"]
        )


def answered_in(messages: Sequence[Message]) -> Iterator[tuple[ToolCall, ToolResponse]]:
    """Yield the tool calls of *messages* that have a response, each with its response."""
    for message, following in pairwise(messages):
        if isinstance(message, AssistantMessage) and isinstance(following, ToolResponseMessage):
            answers = {response.id: response for response in following.responses}
            for call in message.tool_calls:
                if call.id in answers:
                    yield call, answers[call.id]


class ApprovalRequired(Exception):  # noqa: N818 - not an error: it suspends the turn
    """Raised by an interceptor to suspend the turn until there is a decision about the call.

    The turn is suspended even if another interceptor catches this. To answer a call without
    suspending the turn, decide immediately: `ToolApproval(ask=...)`. When the turn is resumed, the
    tool context contains `DECISIONS`, and the interceptor must not raise this again.
    `ToolApproval` does all of this.

    Attributes:
        turn: The suspended turn of an agent, if the call is one of an agent.
    """

    def __init__(self, turn: PendingTurn | None = None) -> None:
        super().__init__()
        self.turn = turn


def refuse_to_suspend(tool_name: str, suspension: ApprovalRequired) -> None:
    """Check that a tool's function did not suspend the turn: it would not get the decision.

    Raises:
        ToolUsageError: The suspension is not that of an agent.
    """
    if suspension.turn is not None:
        return
    msg = (
        f"tool {tool_name!r} raised ApprovalRequired, and would again whenever the turn is"
        " resumed; have its calls approved before it runs: ToolApproval(needed=...)"
    )
    raise ToolUsageError(msg) from suspension


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision about a tool call.

    Attributes:
        approved: Whether the tool may be run.
        message: A text for the model: the reason for a denial, or a remark before the result.
        arguments: Arguments that replace those of the model, a JSON object as text, or None. They
            are reported to the model, before the result.
        result: The result, if the call was executed externally; the tool is not run then. See
            `answered`.
        by: Who or what has decided, for the trail and for `ToolExecution.decided_by`.

    Raises:
        ToolUsageError: *approved* is no bool, *arguments* are no text, or *result* is no
            `ToolResult`.
    """

    approved: bool
    message: str = ""
    arguments: str | None = None
    result: ToolResult | None = None
    by: str = ""

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
        """Return the decision for a call that was executed externally, with its *result*.

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
            is sent again; None before its start.
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
