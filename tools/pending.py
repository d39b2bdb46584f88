"""A turn that waits for somebody's decisions, and how it is stored meanwhile."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from chatclient.errors import UsageError
from chatclient.json import dumps, loads
from chatclient.messages import (
    AssistantMessage,
    Message,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
)
from chatclient.response import NO_USAGE, Usage
from chatclient.serialization import (
    message_from_dict,
    message_to_dict,
    usage_from_dict,
    usage_to_dict,
)
from chatclient.tools.outcome import ToolExecution
from chatclient.values import EMPTY, freeze_fields, frozen

_VERSION = 1


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
        usage: What the model's answers have cost so far.
        executions: Every call of the turn that has been answered so far, without errors and
            values, which have no JSON form.
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

    def __post_init__(self) -> None:
        freeze_fields(self, "calls", "agents", "notes")

    def to_decide(self) -> dict[str, ToolCall]:
        """Return the calls that somebody has to decide about, by the ids to decide by.

        These are the calls' own ids. A call inside an agent goes by the id of the call that asked
        the agent, a slash, and its own id; an apostrophe follows if another call has that name.
        """
        calls = {call.id: call for call in self.pending}
        inside = {id: agent.to_decide() for id, agent in self.agents.items()}
        return {
            id: calls[own] if id_inside is None else inside[own][id_inside]
            for id, (own, id_inside) in places_in(self).items()
        }

    def to_json(self) -> str:
        """Return this as JSON, from which `from_json` makes an equal one.

        Of metadata with dates and the like, it makes what memory makes of them: texts.

        Raises:
            TypeError: Something in the metadata has no JSON form.
        """
        return dumps(_to_dict(self)).decode()

    @classmethod
    def from_json(cls, text: str) -> "PendingTurn":
        """Return what `to_json` wrote.

        Raises:
            UsageError: *text* is not a pending turn.
        """
        try:
            return _from_dict(loads(text))
        except KeyError as error:
            msg = f"not a pending turn: it has no {error}; give what PendingTurn.to_json() returned"
            raise UsageError(msg) from error
        except (ValueError, TypeError, AttributeError, IndexError) as error:
            msg = f"not a pending turn: {error!r}"
            raise UsageError(msg) from error


def places_in(turn: PendingTurn) -> dict[str, tuple[str, str | None]]:
    """Return what each id to decide by stands for: the id of a call of *turn*, and None.

    For a call inside an agent it is the id of the call that asked the agent, and the id to decide
    by in the agent's own turn.
    """
    taken = {call.id for call in turn.pending if call.id not in turn.agents}
    places: dict[str, tuple[str, str | None]] = {}
    for call in turn.pending:
        if call.id not in turn.agents:
            places[call.id] = call.id, None
            continue
        for inside in turn.agents[call.id].to_decide():
            id = f"{call.id}/{inside}"
            while id in taken:  # calls may have ids with slashes of their own
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
        "failures": turn.failures,
        "repeats": turn.repeats,
        "seconds": turn.seconds,
        "notes": dict(turn.notes),
        "breach": turn.breach,
        "usage": usage_to_dict(turn.usage),
        "executions": list(_executions_to_dicts(turn)),
    }


def _from_dict(data: Mapping[str, Any]) -> PendingTurn:
    if data["version"] != _VERSION:
        msg = f"version {data['version']!r} is not known"
        raise ValueError(msg)
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
    )


def _executions_to_dicts(turn: PendingTurn) -> Iterator[dict[str, Any]]:
    """Yield when and how each call was run; what was asked and told is in the messages already."""
    said = (*turn.messages, turn.message, ToolResponseMessage(turn.responses))
    places = {id(call): place for place, (call, _) in enumerate(answered_in(said))}
    for execution in turn.executions:
        yield {
            "call": places[id(execution.tool_call)],
            "seconds": execution.seconds,
            "attempt": execution.attempt,
            "started": execution.started,
        }


def _executions_from(data: Mapping[str, Any], said: Sequence[Message]) -> Iterator[ToolExecution]:
    answered = list(answered_in(said))
    for each in data.get("executions", ()):
        call, response = answered[each["call"]]
        yield ToolExecution(
            call, response, each["seconds"], each["attempt"], started=each["started"]
        )


def answered_in(messages: Sequence[Message]) -> Iterator[tuple[ToolCall, ToolResponse]]:
    """Yield the tool calls of *messages* that have been answered, each with its answer."""
    for message, following in pairwise(messages):
        if isinstance(message, AssistantMessage) and isinstance(following, ToolResponseMessage):
            answers = {response.id: response for response in following.responses}
            for call in message.tool_calls:
                if call.id in answers:
                    yield call, answers[call.id]
