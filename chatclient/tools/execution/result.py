"""The outcome of a tool call, and the result of a round of them.

`ResultReader` reads what is not shown.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from chatclient._internal.frozen import EMPTY, freeze_fields, merged
from chatclient.chat.events import ToolCallFinished
from chatclient.chat.messages import AssistantMessage, Message, Part, ToolCall, ToolResponse
from chatclient.chat.parts import call_key, has_key, with_new_key
from chatclient.chat.pending_turn import PendingTurn
from chatclient.chat.response import Generation
from chatclient.chat.tool import (
    RETURN_DIRECT,
    ToolContext,
    ToolDefinition,
    ToolExecution,
    ToolMetadata,
    ToolResult,
    without_remark,
)
from chatclient.chat.turn import present_turn
from chatclient.errors import ToolError
from chatclient.memory.shortening import READ_RESULT, Shortening
from chatclient.tools.function.schema import ToolSignature, signature_of_model


@dataclass(slots=True, eq=False)
class SuspendedCall:
    """A call that waits for a decision.

    Attributes:
        turn: The suspended turn of an agent, if the call is one of an agent.
    """

    turn: PendingTurn | None


CallOutcome = ToolExecution | SuspendedCall


def execution_of(
    call: ToolCall,
    result: ToolResult,
    attempt: int,
    *,
    ran: tuple[float | None, float] = (None, 0.0),
    error: Exception | None = None,
) -> ToolExecution:
    """Return the execution of *call* with *result*.

    Args:
        call: The call.
        result: The result that goes to the model.
        attempt: The number of calls of this tool in the turn, including this one.
        ran: When the tool started and how long it took, if it was run.
        error: The error, if the call failed.
    """
    metadata = result.metadata
    if result.return_direct is not None:
        metadata = merged(metadata, {RETURN_DIRECT: result.return_direct})
    text, is_error, media = result.text, result.is_error, result.media
    response = ToolResponse(call.id, call.name, text, is_error, media, metadata)
    return ToolExecution(call, response, ran[1], attempt, error, result.value, ran[0])


def finished_event(execution: ToolExecution) -> ToolCallFinished:
    """Return the event of the end of a call."""
    return ToolCallFinished(
        execution.tool_call,
        execution.response,
        execution.seconds,
        execution.attempt,
        execution.error,
        execution.value,
    )


@dataclass(frozen=True, slots=True)
class ToolExecutionResult:
    """The outcome of all tool calls of one response.

    Attributes:
        conversation_history: The conversation, ending with the assistant's message and the tools'
            responses, ready to be sent.
        return_direct: Whether the responses are final and need not be sent to the model.
        executions: Each call, in the order of the request.
        breach: The limit that was reached, in words, or None.
        pending: Calls that wait for approval; the history has no responses to them yet.
        agents: The turns of agents whose own calls wait, by the ids of the calls to the agents.
        direct: The final responses, when the turn ends with them: in the order of the calls, or
            with the last call's first, if that one alone has ended the turn.
        pending_turn: The turn, when calls wait; see `ToolCallingManager.resume_tool_calls`.
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
        """The tools' responses, in the order of the calls."""
        return tuple(execution.response for execution in self.executions)

    def generations(self) -> tuple[Generation, ...]:
        """Return each final response as a generation, for a turn that ends with them."""
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
        """Return the generation that ends a turn at a limit: the reason, and the results so far."""
        partial = tuple(e.response for e in self.executions if not e.is_error)
        return Generation(
            AssistantMessage(self.breach),
            "tool_call_limit_exceeded",
            metadata={"partial_tool_responses": partial},
        )


def with_unused_keys(
    message: AssistantMessage, used: Callable[[], Container[object]]
) -> AssistantMessage:
    """Return *message* with new keys for its tool calls if it contains one of the *used* keys.

    A cache may return the same message again, whose calls are new calls all the same.
    """
    keys = [call_key(call) for call in message.tool_calls if has_key(call)]
    if not keys:  # the common case
        return message
    taken = used()
    if all(key not in taken for key in keys):
        return message
    parts = (with_new_key(part) if isinstance(part, ToolCall) else part for part in message.parts)
    return type(message)(list(parts), metadata=message.metadata)


def with_distinct_ids(message: AssistantMessage) -> AssistantMessage:
    """Return *message* with distinct ids for its tool calls.

    Some servers give every call the same id. No provider accepts such a message, and a decision
    about one of the calls would apply to all of them.
    """
    calls = message.tool_calls
    if len(calls) == 1 and calls[0].id:  # the common case
        return message
    taken = {call.id for call in calls}
    if len(taken) == len(calls) and "" not in taken:
        return message
    seen = {""}
    numbers: defaultdict[str, Iterator[int]] = defaultdict(lambda: itertools.count(2))

    def distinct(part: Part) -> Part:
        if not isinstance(part, ToolCall):
            return part
        if part.id not in seen:
            seen.add(part.id)
            return part
        ids = (f"{part.id or 'call'}_{number}" for number in numbers[part.id])
        id = next(id for id in ids if id not in taken)
        taken.add(id)
        return replace(part, id=id, _key=object())  # the message may contain one call twice

    return type(message)([distinct(part) for part in message.parts], metadata=message.metadata)


_DESCRIPTION = (
    "Reads or searches the results of earlier tool calls that are left out or cut in this "
    "conversation. Give the number of a result, or a query, or both."
)
_METADATA = ToolMetadata(effect="read", always_visible=True)


@cache
def _signature() -> ToolSignature:
    """Return the signature of the tool.

    It is created on first use, because the first model of pydantic in a process loads its plugins.
    """
    from pydantic import BaseModel, Field  # noqa: PLC0415

    class Read(BaseModel):
        result: int | None = Field(None, description="The number of the result.")
        start: int = Field(0, description="The character to read from.")
        query: str = Field("", description="A word or phrase to search for instead of reading.")

    return signature_of_model(Read, name=READ_RESULT)


@cache
def _definition() -> ToolDefinition:
    return ToolDefinition(READ_RESULT, _DESCRIPTION, _signature().input_schema)


class ResultReader:
    """Reads the results in the conversation of the present turn, whatever is shown of them."""

    metadata = _METADATA

    @property
    def definition(self) -> ToolDefinition:
        """The tool's description for the model."""
        return _definition()

    async def invoke(self, arguments: str, context: ToolContext) -> ToolResult:
        """Return a part of a result, or the places at which results contain the query.

        Raises:
            ToolError: There is no such result, or nothing to search for.
        """
        read: Any = next(iter(_signature().bind(arguments, context).values()))
        turn = present_turn()
        shortening: Shortening | None = None if turn is None else turn.state.get(READ_RESULT)
        if shortening is None:
            msg = "Nothing is left out at the moment."
            raise ToolError(msg)
        if query := read.query.strip():
            found: Any = await context.runtime.invoke(shortening.search, query, read.result)
            return ToolResult(found)
        if read.result is None:
            msg = "Give the number of a result, or a query."
            raise ToolError(msg)
        text = shortening.read(read.result, read.start)
        if text is None:
            msg = f"There is no result {read.result}."
            raise ToolError(msg)
        return ToolResult(text)


RESULT_READER = ResultReader()
"""The tool; it has no state."""
