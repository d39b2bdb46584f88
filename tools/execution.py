"""What running a model's tool calls comes to."""

import itertools
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace

from chatclient.messages import AssistantMessage, Message, Part, ToolCall, ToolResponse
from chatclient.response import Generation
from chatclient.tools.outcome import ToolExecution, without_remark
from chatclient.tools.pending import PendingTurn
from chatclient.values import EMPTY, freeze_fields


@dataclass(frozen=True, slots=True)
class ToolExecutionResult:
    """The outcome of all tool calls of one response.

    Attributes:
        conversation_history: The conversation with the assistant's message and the tools'
            answers at its end, ready to be sent.
        return_direct: Whether the answers are final and need not be shown to the model.
        executions: Each call, in the order of the request.
        breach: The limit that was reached, in words, or None.
        pending: Calls that wait for somebody's approval; the history has no answers to them yet.
        agents: The turns of agents whose own calls wait, by the ids of the calls that asked them.
        direct: The answers that are final, when the turn ends with them: in the order of the
            calls, or with the last call's first, if that one alone has ended the turn.
        pending_turn: The turn, when calls wait: `ToolCallingManager.resume_tool_calls` goes on.
    """

    conversation_history: tuple[Message, ...]
    return_direct: bool
    executions: tuple[ToolExecution, ...]
    breach: str | None = None
    pending: tuple[ToolCall, ...] = ()
    agents: Mapping[str, PendingTurn] = EMPTY
    pending_turn: PendingTurn | None = None
    direct: tuple[ToolResponse, ...] = ()

    def __post_init__(self) -> None:
        if self.agents is not EMPTY:
            freeze_fields(self, "agents")

    @property
    def responses(self) -> tuple[ToolResponse, ...]:
        """The tools' answers, in the order of the calls."""
        return tuple(execution.response for execution in self.executions)

    def generations(self) -> tuple[Generation, ...]:
        """Return each final answer as a generation, for a turn that ends with them."""
        return tuple(
            Generation(
                AssistantMessage(without_remark(response).data, media=response.media),
                "return_direct",
                index=index,
                metadata={"tool_id": response.id, "tool_name": response.name},
            )
            for index, response in enumerate(self.direct)
        )

    def breach_generation(self) -> Generation:
        """Return the generation that ends a turn at a limit: why, and the results so far."""
        partial = tuple(e.response for e in self.executions if not e.is_error)
        return Generation(
            AssistantMessage(self.breach),
            "tool_call_limit_exceeded",
            metadata={"partial_tool_responses": partial},
        )


def with_calls_of_its_own(message: AssistantMessage, known: Container[int]) -> AssistantMessage:
    """Return *message* with tool calls whose identity is none of those *known*.

    What becomes of a call is noted by its identity, and a cache may hand out the same ones again.
    """
    if all(id(call) not in known for call in message.tool_calls):
        return message
    parts = (replace(part) if isinstance(part, ToolCall) else part for part in message.parts)
    return type(message)(list(parts), metadata=message.metadata)


def with_distinct_ids(message: AssistantMessage) -> AssistantMessage:
    """Return *message* with an id of its own for each of its tool calls.

    Some servers give every call the same id. No provider takes such a message back, and no decision
    about one of the calls would be about that one only.
    """
    calls = message.tool_calls
    taken = {call.id for call in calls}
    if len(taken) == len(calls) and "" not in taken:
        return message
    seen = {""}

    def distinct(part: Part) -> Part:
        if not isinstance(part, ToolCall):
            return part
        if part.id not in seen:
            seen.add(part.id)
            return part
        ids = (f"{part.id or 'call'}_{number}" for number in itertools.count(2))
        id = next(id for id in ids if id not in taken)
        taken.add(id)
        return replace(part, id=id)

    return type(message)([distinct(part) for part in message.parts], metadata=message.metadata)
