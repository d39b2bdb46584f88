"""Tool executions: what the application receives of every tool call."""

import asyncio
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from chatclient import Media, tool
from chatclient.chat.serialization import message_from_dict, message_to_dict
from chatclient.errors import ToolResultError
from chatclient.testing import Ask, ScriptedModel, call
from chatclient.tools import NextTool, ToolInvocation, ToolLimits, ToolResult
from tests.modes.test_tool_calling import client_of, results


@dataclass
class Flight:
    """A flight."""

    number: str


FOUND = [Flight("LX 1"), Flight("LX 2")]


@tool
def flights() -> list[Flight]:
    """Find flights."""
    return FOUND


@tool
async def greet() -> str:
    """Greet."""
    return "hello"


@tool(result_converter=lambda flight: f"flight {flight.number}")
def converted() -> Flight:
    """Find one flight."""
    return FOUND[0]


@tool
def described() -> ToolResult:
    """Return a result with text, metadata and a value."""
    return ToolResult("two found", metadata={"found": ["LX 1", "LX 2"]}, value=FOUND)


@tool
def fails() -> None:
    """Fail."""
    raise LookupError("nothing found")


NAMES = ["flights", "greet", "converted", "described", "fails"]


def executed(ask: Ask, **manager: Any) -> dict[str, Any]:
    model = ScriptedModel([call(name) for name in NAMES], "done")
    client = client_of(model, flights, greet, converted, described, fails, **manager)
    return {each.tool_call.name: each for each in ask(client.prompt("x")).executions}


@pytest.mark.feature(
    "result-tool-returned-beside-text",
    "lc4j-tool-lazy-result-text",
    "lc4j-tool-immediate-return-wrong-type",
    "lc4j-tool-execution-result-attributes",
)
def test_the_application_gets_what_the_tool_returned(ask: Ask) -> None:
    """The execution has the returned object, and the response its text."""
    made = executed(ask)

    assert made["flights"].value is FOUND
    assert made["flights"].response.data == '[{"number":"LX 1"},{"number":"LX 2"}]'
    assert made["greet"].value == "hello"
    assert (made["converted"].value, made["converted"].response.data) == (FOUND[0], "flight LX 1")
    assert made["described"].value is FOUND
    assert made["fails"].value is None


def test_media_are_values_too(ask: Ask) -> None:
    """A returned object with media is the value of the execution."""
    picture = Media("image/png", b"png")

    @tool
    def paint(alone: bool = False) -> Any:
        return picture if alone else ["a", picture]

    calls = [call("paint", id="a"), call("paint", '{"alone": true}', id="b")]
    result = ask(client_of(ScriptedModel(calls, "done"), paint).prompt("x"))

    assert [each.value for each in result.executions] == [["a", picture], picture]


@pytest.mark.feature("lc4j-tool-execution-result-attributes")
def test_metadata_of_a_result_stays_in_the_conversation(ask: Ask) -> None:
    """It is part of the stored tool message, and is not sent to the model."""
    model = ScriptedModel(call("described"), "done")
    [execution] = ask(client_of(model, described).prompt("x")).executions
    message = model.prompts[1].messages[-1]

    assert execution.metadata == {"found": ["LX 1", "LX 2"]}
    assert results(model.prompts[1]) == ["two found"]
    assert message_from_dict(message_to_dict(message)) == message
    assert message_to_dict(message)["responses"][0]["metadata"] == {"found": ["LX 1", "LX 2"]}


@pytest.mark.parametrize("text", [{"city": "Rome"}, None, 5])
def test_the_text_of_a_result_is_a_text(ask: Ask, text: Any) -> None:
    """Any other type raises an error to the application, and is not sent."""

    @tool(effect="read")
    def find() -> ToolResult:
        return ToolResult(text)

    model = ScriptedModel(call("find"), "never")
    with pytest.raises(ToolResultError, match="the text of a ToolResult must be a str, not"):
        ask(client_of(model, find).prompt("x"))

    assert model.unused == 1


def test_an_interceptor_may_add_metadata(ask: Ask) -> None:
    """The execution has the result that the interceptor returns, with the value or without."""

    async def stamp(invocation: ToolInvocation, call_next: NextTool) -> ToolResult:
        result = await call_next(invocation)
        return ToolResult(result.text, metadata={"by": invocation.tool_call.name})

    made = executed(ask, interceptors=[stamp])

    assert made["greet"].metadata == {"by": "greet"}
    assert made["flights"].value is None


@pytest.mark.feature("lc4j-tool-execution-request-result")
def test_executions_know_when_they_were(ask: Ask) -> None:
    """Start and end are in UTC, and differ by the duration."""

    @tool
    async def nap() -> None:
        await asyncio.sleep(0.02)

    before = datetime.now(UTC)
    model = ScriptedModel([call("nap", id="a"), call("fails", id="b")], "done")
    first, failed = ask(client_of(model, nap, fails).prompt("x")).executions
    after = datetime.now(UTC)

    assert first.started_at is not None
    assert first.finished_at is not None
    assert before <= first.started_at <= first.finished_at <= after + timedelta(milliseconds=5)
    assert first.finished_at - first.started_at == timedelta(seconds=first.seconds)
    assert first.seconds >= 0.019
    assert failed.started_at is not None


@pytest.mark.feature("lc4j-tool-execution-request-result")
def test_durations_survive_a_clock_that_is_set(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Durations are not negative if the system's clock is set back."""
    hours = iter(range(1000, 0, -1))
    monkeypatch.setattr(time, "time", lambda: next(hours) * 3600.0)
    [execution] = ask(client_of(ScriptedModel(call("greet"), "done"), greet).prompt("x")).executions

    assert 0 <= execution.seconds < 10


def test_what_was_not_run_has_no_times(ask: Ask) -> None:
    """A refused call has neither a value nor times."""
    limits = ToolLimits(max_calls_per_tool=1, on_exceeded="tell_model")
    model = ScriptedModel([call("greet", id="a"), call("greet", id="b")], "done")
    refused = ask(client_of(model, greet, limits=limits).prompt("x")).executions[1]

    assert (refused.started_at, refused.finished_at, refused.seconds) == (None, None, 0.0)
    assert refused.is_error
