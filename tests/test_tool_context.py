"""What a tool is told behind the model's back, and how tools are described."""

from collections.abc import Mapping
from typing import Any, Protocol

import pytest

from chatclient.driving import drive
from chatclient.errors import UsageError
from chatclient.events import ToolProgress
from chatclient.messages import AssistantMessage, UserMessage
from chatclient.runtime import BLOCKING, ON_LOOP, Runtime
from chatclient.tool import (
    CONVERSATION_ID,
    ToolCallback,
    ToolCallbackProvider,
    ToolContext,
    ToolDefinition,
    ToolMetadata,
    ToolRequest,
    ToolResult,
)

VALUES = {"tenant": "acme", "limit": 5, "nothing": None}


def test_a_context_is_a_mapping_of_what_it_was_given() -> None:
    """It reads, iterates and compares like the values themselves."""
    context = ToolContext(VALUES)

    assert context["tenant"] == "acme"
    assert context.get("missing", "default") == "default"
    assert "limit" in context
    assert len(context) == 3
    assert dict(**context) == VALUES
    assert context == VALUES


@pytest.mark.parametrize(
    "change",
    [
        lambda context: context.__setitem__("tenant", "other"),
        lambda context: context.__delitem__("tenant"),
        lambda context: context.update(tenant="other"),
        lambda context: setattr(context, "tenant", "other"),
    ],
)
def test_a_context_is_read_only(change: Any) -> None:
    """No tool changes what the next one is told."""
    context = ToolContext(VALUES)

    with pytest.raises((TypeError, AttributeError)):
        change(context)

    assert context == VALUES


def test_a_context_of_nothing_is_empty() -> None:
    """A tool that is called by hand needs no context of its own."""
    context = ToolContext()

    assert not context
    assert context.conversation_id is None
    assert context.tool_call_id == ""
    assert context.tool_name == ""
    assert context.timeout is None
    assert context.attempt == 1
    assert context.runtime is BLOCKING


def test_a_context_knows_its_call() -> None:
    """What is known of the call stands beside the values, not among them."""
    context = ToolContext(
        VALUES, runtime=ON_LOOP, tool_call_id="1", tool_name="weather", timeout=2.0, attempt=3
    )

    assert (context.tool_call_id, context.tool_name) == ("1", "weather")
    assert (context.timeout, context.attempt) == (2.0, 3)
    assert context.runtime is ON_LOOP
    assert dict(context) == VALUES


@pytest.mark.parametrize(
    ("context", "key"),
    [
        (ToolContext(tool_call_id="1"), "1"),
        (ToolContext(tool_call_id="1", idempotency=lambda: "turn-1"), "turn-1"),
    ],
)
def test_the_idempotency_key_is_the_turns_or_the_calls(context: ToolContext, key: str) -> None:
    """Services that must not do a thing twice are given what stays the same."""
    assert context.idempotency_key == key


def test_the_conversation_is_known() -> None:
    """Tools find the conversation under the name that memory uses."""
    assert ToolContext({CONVERSATION_ID: "42"}).conversation_id == "42"


def test_a_context_prints_no_values() -> None:
    """Keys are enough to find a mistake; values may be secrets."""
    context = ToolContext({"token": "secret", "a": 1}, tool_call_id="1")

    keyed: dict[Any, Any] = {"token": "secret", 7: "x"}

    assert repr(context) == "ToolContext(['a', 'token'], tool_call_id='1')"
    assert repr(ToolContext(keyed)) == "ToolContext([7, 'token'], tool_call_id='')"


@pytest.mark.parametrize(
    ("key", "kind", "value"),
    [("tenant", str, "acme"), ("limit", int, 5), ("limit", object, 5), ("nothing", object, None)],
)
def test_required_values_are_given(key: str, kind: type[Any], value: Any) -> None:
    """A value that is there and of its type is the result, None included."""
    assert ToolContext(VALUES).require(key, kind) == value
    assert ToolContext(VALUES).require(key) == value


def test_a_missing_value_says_how_to_pass_it() -> None:
    """The application forgot something; the error is a line to copy."""
    with pytest.raises(UsageError) as caught:
        ToolContext(VALUES).require("user")

    assert str(caught.value) == (
        "the tool context has no 'user'; pass it with .tool_context({'user': ...})"
    )


@pytest.mark.parametrize(
    ("key", "kind", "told"),
    [
        ("limit", str, "tool context 'limit' must be of type str, not int"),
        ("nothing", str, "tool context 'nothing' must be of type str, not NoneType"),
        ("tenant", int | float, "tool context 'tenant' must be of type int | float, not str"),
        ("tenant", Mapping, "tool context 'tenant' must be of type Mapping, not str"),
    ],
)
def test_a_value_of_another_type_is_refused(key: str, kind: type[Any], told: str) -> None:
    """The error names both types and never the value."""
    with pytest.raises(UsageError) as caught:
        ToolContext(VALUES).require(key, kind)

    assert str(caught.value) == told


class Unchecked(Protocol):
    def find(self) -> str: ...


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (Unchecked, "cannot be known to be a Unchecked: .*@runtime_checkable"),
        (list[str], r"cannot be known to be a list\[str\]: .*generic"),
    ],
)
def test_a_type_that_no_value_can_be_checked_for_is_refused(kind: Any, told: str) -> None:
    """As a mistake of the application, with the mend."""
    with pytest.raises(UsageError, match=told):
        ToolContext({"repo": object()}).require("repo", kind)


def test_a_tool_knows_how_much_time_is_left() -> None:
    """Of the whole call's deadline; without one there is no end."""
    assert ToolContext().remaining_seconds == float("inf")
    assert 0 < ToolContext(runtime=BLOCKING.with_deadline(5)).remaining_seconds <= 5
    assert ToolContext(runtime=BLOCKING.with_deadline(-1)).remaining_seconds == 0


def test_a_tool_may_emit_events() -> None:
    """Whoever consumes the stream sees them; nobody does in a call."""
    events: list[Any] = []

    async def collect(event: Any) -> None:
        events.append(event)

    streamed = ToolContext(runtime=Runtime(blocking=True, streaming=True, emitter=collect))
    called = ToolContext(runtime=Runtime(blocking=True, emitter=collect))
    drive(streamed.emit("half done"))
    drive(called.emit("unheard"))

    assert events == ["half done"]


def test_a_tool_tells_how_it_gets_on() -> None:
    """Its progress says which call it is of, so that parallel calls are told apart."""
    events: list[Any] = []

    async def collect(event: Any) -> None:
        events.append(event)

    runtime = Runtime(blocking=True, streaming=True, emitter=collect)
    context = ToolContext(runtime=runtime, tool_call_id="1", tool_name="weather")
    drive(context.progress({"percent": 50}))

    assert events == [ToolProgress("1", "weather", {"percent": 50})]


# --- requests -------------------------------------------------------------------------------


def test_a_source_of_tools_sees_what_the_user_says() -> None:
    """The last user message is what tools are chosen by, even when tools have answered since."""
    asked, answer = UserMessage("Two"), AssistantMessage("Three")

    assert ToolRequest((UserMessage("One"), asked, answer)).user_message is asked
    assert ToolRequest((answer,)).user_message is None


# --- definitions ----------------------------------------------------------------------------

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = ToolDefinition("weather", "Tells the weather.", SCHEMA)


def test_definitions_are_compared_by_value() -> None:
    """The same description is the same definition, and can be a key although schemas cannot."""
    again = ToolDefinition("weather", "Tells the weather.", dict(SCHEMA))

    assert again == WEATHER
    assert hash(again) == hash(WEATHER)


@pytest.mark.parametrize(
    "other",
    [
        ToolDefinition("news", "Tells the weather.", SCHEMA),
        ToolDefinition("weather", "Tells the news.", SCHEMA),
        ToolDefinition("weather", "Tells the weather.", {"type": "object"}),
        ToolDefinition("weather", "Tells the weather.", SCHEMA, strict=True),
        "weather",
    ],
)
def test_definitions_differ_by_what_the_model_is_told(other: object) -> None:
    """Any of it counts; other things are no definitions."""
    assert other != WEATHER


def test_tools_are_recognised_by_shape() -> None:
    """An application's own class is a tool, or a source of tools, without inheriting anything."""

    class Ping:
        definition = ToolDefinition("ping", "Says pong.", {"type": "object"})
        metadata = ToolMetadata()

        async def invoke(self, arguments: str, context: ToolContext) -> ToolResult:
            return ToolResult("pong")

    class Source:
        def tool_callbacks(self) -> list[ToolCallback]:
            return [Ping()]

    [ping] = Source().tool_callbacks()
    assert isinstance(ping, ToolCallback)
    assert isinstance(Source(), ToolCallbackProvider)
    assert not isinstance(Source(), ToolCallback)
    assert drive(ping.invoke("{}", ToolContext())) == ToolResult("pong")


def test_a_tool_is_careful_by_default() -> None:
    """Nothing is assumed of a tool but that running it twice may do something twice."""
    metadata = ToolMetadata()

    assert metadata.effect == "write"
    assert not metadata.return_direct
    assert not metadata.exclusive
    assert metadata.timeout is None
