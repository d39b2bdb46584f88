"""Events of durable turns as JSON values, for consumers in other processes."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from chatclient.chat.events import (
    ReasoningDelta,
    RoundEnded,
    StreamEvent,
    TextDelta,
    ToolCallFinished,
    ToolCallStarted,
    ToolRunStarted,
)
from chatclient.chat.messages import (
    AssistantMessage,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
)
from chatclient.chat.serialization import (
    message_from_dict,
    message_to_dict,
    response_from_dict,
    response_to_dict,
)


@dataclass(frozen=True, slots=True)
class RoundRestarted:
    """A model call begins again, after a crash or an error: its earlier events are void."""


DurableEvent: TypeAlias = StreamEvent | RoundRestarted
"""An event of a durable turn."""


def event_to_dict(event: StreamEvent | str) -> dict[str, Any] | None:
    """Return *event* as JSON values, or None if it is not published; a text is a step's name."""
    match event:
        case str():
            return {"type": "step", "name": event}
        case TextDelta(text=text):
            return {"type": "text", "text": text}
        case ReasoningDelta(text=text):
            return {"type": "reasoning", "text": text}
        case ToolCallStarted(id=id, name=name):
            return {"type": "tool_call", "id": id, "name": name}
        case ToolRunStarted(tool_call=call, attempt=attempt):
            return {"type": "tool_run", "call": call_to_dict(call), "attempt": attempt}
        case ToolCallFinished(tool_call=call, response=response, attempt=attempt):
            return {
                "type": "tool_finished",
                "call": call_to_dict(call),
                "response": tool_response_to_dict(response),
                "attempt": attempt,
            }
        case RoundEnded(response=response):
            return {"type": "round", "response": response_to_dict(response)}
    return None


def events_from_dicts(values: Iterable[Mapping[str, Any]]) -> Iterator[DurableEvent]:
    """Yield the events in *values*, results of `event_to_dict`."""
    begun: set[str] = set()
    for value in values:
        match value["type"]:
            case "step":
                if value["name"] in begun:
                    yield RoundRestarted()
                begun.add(value["name"])
            case "text":
                yield TextDelta(value["text"])
            case "reasoning":
                yield ReasoningDelta(value["text"])
            case "tool_call":
                yield ToolCallStarted(value["id"], value["name"])
            case "tool_run":
                yield ToolRunStarted(call_from_dict(value["call"]), value["attempt"])
            case "tool_finished":
                call, response = call_from_dict(value["call"]), value["response"]
                yield ToolCallFinished(
                    call, tool_response_from_dict(response), attempt=value["attempt"]
                )
            case "round":
                yield RoundEnded(response_from_dict(value["response"]))
            case _:
                pass  # of a newer version


def call_to_dict(call: ToolCall) -> dict[str, Any]:
    """Return *call* as JSON values."""
    (part,) = message_to_dict(AssistantMessage([call]))["content"]
    found: dict[str, Any] = part
    return found


def call_from_dict(data: Mapping[str, Any]) -> ToolCall:
    """Return the call in *data*, the result of `call_to_dict`."""
    message: Any = message_from_dict({"role": "assistant", "content": [data]})
    (call,) = message.tool_calls
    found: ToolCall = call
    return found


def tool_response_to_dict(response: ToolResponse) -> dict[str, Any]:
    """Return *response* as JSON values."""
    (data,) = message_to_dict(ToolResponseMessage((response,)))["responses"]
    found: dict[str, Any] = data
    return found


def tool_response_from_dict(data: Mapping[str, Any]) -> ToolResponse:
    """Return the response in *data*, the result of `tool_response_to_dict`."""
    message: Any = message_from_dict({"role": "tool", "responses": [data]})
    (response,) = message.responses
    found: ToolResponse = response
    return found
