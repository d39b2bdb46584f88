"""What processes read of the durable turns of others: segments, attributes, and events as JSON."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from chatclient.chat.events import (
    ReasoningDelta,
    RoundEnded,
    RoundRestarted,
    StreamEvent,
    TextDelta,
    ToolCallFinished,
    ToolCallStarted,
    ToolRunStarted,
    TurnDecided,
    UiData,
    UiState,
)
from chatclient.chat.serialization import (
    call_from_dict,
    call_to_dict,
    error_from_dict,
    error_to_dict,
    response_from_dict,
    response_to_dict,
    tool_response_from_dict,
    tool_response_to_dict,
)
from chatclient.chat.stored_values import equal_form
from chatclient.chat.tool import ToolProgress
from chatclient.extend import from_stored, to_stored

FORMAT = "chatclient_json"
"""The name of the format of values in the database.

It is the same in all releases, because DBOS ends a workflow whose input has another one.
"""

FORMAT_VERSION = 1
"""The version of the records of turns: inputs, steps and results have it as `format`.

A release reads each version up to its own.
"""


def unread_reason(record: object) -> str | None:
    """Return why this release does not read *record*, a stored value of a turn; None if it does."""
    if not isinstance(record, Mapping):  # what DBOS cannot read, it returns as text
        return "it is stored in a form that is not read here"
    version = record.get("format", 1)
    if isinstance(version, int) and version <= FORMAT_VERSION:
        return None
    return (
        f"it is stored in format {version}, and this release of chatclient reads formats up to"
        f" {FORMAT_VERSION}: run a newer one"
    )


DurableEvent: TypeAlias = StreamEvent | RoundRestarted | TurnDecided | UiState | UiData
"""An event of a durable turn."""


def turn_id(client: str, key: str) -> str:
    """Return the id of the turn of *client* with *key*."""
    return f"{client}/{key.replace('#', '##')}"


def segment_id(turn_id: str, number: int) -> str:
    """Return the id of a segment of a turn, which is the id of no other turn."""
    return turn_id if number == 1 else f"{turn_id}#{number}"


_SUFFIX = re.compile(r"(#+)(\d+)$")


def segments_until(id: str) -> list[str]:
    """Return the ids of all segments of a turn, from that of the last one."""
    found = _SUFFIX.search(id)
    if found is None or len(found[1]) % 2 == 0:  # in a key, each # is doubled
        return [id]
    turn = id[: found.end(1) - 1]
    return [segment_id(turn, number + 1) for number in range(int(found[2]))]


def event_to_dict(event: object) -> dict[str, Any] | None:
    """Return *event* as JSON values, or None if it is not published; a text is a step's name."""
    found = _event_to_dict(event)
    return None if found is None else to_stored(found)


def _event_to_dict(event: object) -> dict[str, Any] | None:
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
        case RoundEnded(response=response):
            return {"type": "round", "response": response_to_dict(response)}
        case _:
            return _tool_event_to_dict(event)


def _tool_event_to_dict(event: object) -> dict[str, Any] | None:
    match event:
        case ToolCallFinished(tool_call=call, response=response, error=error):
            return {
                "type": "tool_finished",
                "call": call_to_dict(call),
                "response": tool_response_to_dict(response),
                "seconds": event.seconds,
                "attempt": event.attempt,
                "error": None if error is None else error_to_dict(error),
            }
        case ToolProgress(tool_call_id=id, tool_name=name, event=inner):
            if not isinstance(inner, str) and (made := _event_to_dict(inner)) is not None:
                made = {"event": made}
            else:
                value = equal_form(inner)
                made = None if value is None else {"value": value}
            return None if made is None else {"type": "progress", "id": id, "name": name, **made}
        case UiState(value=value):
            return {"type": "ui_state", "value": value}
        case UiData(name=name, value=value, id=id, transient=transient):
            data = {"name": name, "value": value, "id": id, "transient": transient}
            return {"type": "ui_data", **data}
    return None


class EventReader:
    """Reads the events of a segment from JSON values."""

    def __init__(self) -> None:
        self._begun: set[str] = set()

    def events(self, values: Iterable[Mapping[str, Any]]) -> Iterator[DurableEvent]:
        """Yield the events in *values*, the next results of `event_to_dict`."""
        for value in map(from_stored, values):
            if value["type"] != "step":
                yield from _event(value)
                continue
            if value["name"] in self._begun:
                yield RoundRestarted()
            self._begun.add(value["name"])


def _event(value: Mapping[str, Any]) -> Iterator[DurableEvent]:
    match value["type"]:
        case "text":
            yield TextDelta(value["text"])
        case "reasoning":
            yield ReasoningDelta(value["text"])
        case "tool_call":
            yield ToolCallStarted(value["id"], value["name"])
        case "tool_run":
            yield ToolRunStarted(call_from_dict(value["call"]), value["attempt"])
        case "round":
            yield RoundEnded(response_from_dict(value["response"]))
        case _:
            yield from _tool_event(value)


def _tool_event(value: Mapping[str, Any]) -> Iterator[DurableEvent]:
    match value["type"]:
        case "tool_finished":
            call, response = call_from_dict(value["call"]), value["response"]
            error = None if value["error"] is None else error_from_dict(value["error"])
            numbers = value["seconds"], value["attempt"]
            yield ToolCallFinished(call, tool_response_from_dict(response), *numbers, error)
        case "progress":
            inner = _event(value["event"]) if "event" in value else (from_stored(value["value"]),)
            for event in inner:
                yield ToolProgress(value["id"], value["name"], event)
        case "ui_state":
            yield UiState(value["value"])
        case "ui_data":
            yield UiData(value["name"], value["value"], value["id"], value["transient"])
        case _:
            pass  # of a newer version
