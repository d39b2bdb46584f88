"""Tool context, tool requests and tool definitions."""

from collections.abc import Mapping
from typing import Any, Protocol

import pytest

from chatclient.chat.messages import AssistantMessage, UserMessage
from chatclient.chat.tool import (
    CONVERSATION_ID,
    ToolCallback,
    ToolCallbackProvider,
    ToolContext,
    ToolDefinition,
    ToolMetadata,
    ToolProgress,
    ToolRequest,
    ToolResult,
)
from chatclient.errors import UsageError
from chatclient.runtime.blocking import drive
from chatclient.runtime.runtime import BLOCKING, ON_LOOP, Runtime

VALUES = {"tenant": "acme", "limit": 5, "nothing": None}


@pytest.mark.feature("tool-options-tool-context-read-map")
def test_context_is_a_mapping() -> None:
    """A context reads, iterates and compares like its values."""
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
def test_context_is_read_only(change: Any) -> None:
    """Tools cannot change the context."""
    context = ToolContext(VALUES)

    with pytest.raises((TypeError, AttributeError)):
        change(context)

    assert context == VALUES


@pytest.mark.feature("function-tool-context-parameter-empty")
def test_empty_context() -> None:
    """A tool called directly needs no context."""
    context = ToolContext()

    assert not context
    assert context.conversation_id is None
    assert context.tool_call_id == ""
    assert context.tool_name == ""
    assert context.timeout is None
    assert context.attempt == 1
    assert context.runtime is BLOCKING


@pytest.mark.feature("tool-options-call-itself")
def test_context_attributes() -> None:
    """Attributes of the call are separate from the values."""
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
def test_idempotency_key(context: ToolContext, key: str) -> None:
    """The key is the stable one of the turn or of the call."""
    assert context.idempotency_key == key


@pytest.mark.feature("tool-options-call-itself")
def test_conversation_id() -> None:
    """The conversation id is read from the key that memory uses."""
    assert ToolContext({CONVERSATION_ID: "42"}).conversation_id == "42"


@pytest.mark.feature("tool-options-never-sent-model")
def test_context_repr_has_no_values() -> None:
    """The repr has keys only, as values may be secrets."""
    context = ToolContext({"token": "secret", "a": 1}, tool_call_id="1")

    keyed: dict[Any, Any] = {"token": "secret", 7: "x"}

    assert repr(context) == "ToolContext(['a', 'token'], tool_call_id='1')"
    assert repr(ToolContext(keyed)) == "ToolContext([7, 'token'], tool_call_id='')"


@pytest.mark.parametrize(
    ("key", "kind", "value"),
    [("tenant", str, "acme"), ("limit", int, 5), ("limit", object, 5), ("nothing", object, None)],
)
def test_require_returns_the_value(key: str, kind: type[Any], value: Any) -> None:
    """A value of the required type is returned, None included."""
    assert ToolContext(VALUES).require(key, kind) == value
    assert ToolContext(VALUES).require(key) == value


@pytest.mark.feature("tool-options-typed-access")
def test_require_missing_value() -> None:
    """The error contains the code that passes the value."""
    with pytest.raises(UsageError) as caught:
        ToolContext(VALUES).require("user")

    assert str(caught.value) == (
        "the tool context has no 'user'; pass it with .tool_context({'user': ...})"
    )


@pytest.mark.feature("tool-options-typed-access")
@pytest.mark.parametrize(
    ("key", "kind", "message"),
    [
        ("limit", str, "tool context 'limit' must be of type str, not int"),
        ("nothing", str, "tool context 'nothing' must be of type str, not NoneType"),
        ("tenant", int | float, "tool context 'tenant' must be of type int | float, not str"),
        ("tenant", Mapping, "tool context 'tenant' must be of type Mapping, not str"),
    ],
)
def test_require_value_of_wrong_type(key: str, kind: type[Any], message: str) -> None:
    """The error names both types but not the value."""
    with pytest.raises(UsageError) as caught:
        ToolContext(VALUES).require(key, kind)

    assert str(caught.value) == message


class Unchecked(Protocol):
    def find(self) -> str: ...


@pytest.mark.feature("tool-options-typed-access")
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Unchecked, "cannot be checked to be a Unchecked: .*@runtime_checkable"),
        (list[str], r"cannot be checked to be a list\[str\]: .*generic"),
    ],
)
def test_require_unsupported_type(kind: Any, message: str) -> None:
    """A type that cannot be checked is a usage error with a fix."""
    with pytest.raises(UsageError, match=message):
        ToolContext({"repo": object()}).require("repo", kind)


def test_remaining_seconds() -> None:
    """The time left until the deadline, infinite without one."""
    assert ToolContext().remaining_seconds == float("inf")
    assert 0 < ToolContext(runtime=BLOCKING.with_deadline(5)).remaining_seconds <= 5
    assert ToolContext(runtime=BLOCKING.with_deadline(-1)).remaining_seconds == 0


def test_emit() -> None:
    """Emitted events reach the stream; without a stream they are dropped."""
    events: list[Any] = []

    async def collect(event: Any) -> None:
        events.append(event)

    streamed = ToolContext(runtime=Runtime(blocking=True, streaming=True, emitter=collect))
    called = ToolContext(runtime=Runtime(blocking=True, emitter=collect))
    drive(streamed.emit("half done"))
    drive(called.emit("unread"))

    assert events == ["half done"]


@pytest.mark.feature("lc4j-tool-before-tool-execution-executed")
def test_progress() -> None:
    """Progress events have the id of their call."""
    events: list[Any] = []

    async def collect(event: Any) -> None:
        events.append(event)

    runtime = Runtime(blocking=True, streaming=True, emitter=collect)
    context = ToolContext(runtime=runtime, tool_call_id="1", tool_name="weather")
    drive(context.progress({"percent": 50}))

    assert events == [ToolProgress("1", "weather", {"percent": 50})]


# --- requests -------------------------------------------------------------------------------


def test_tool_request_user_message() -> None:
    """The last user message is found, also before tool results."""
    question, answer = UserMessage("Two"), AssistantMessage("Three")

    assert ToolRequest((UserMessage("One"), question, answer)).user_message is question
    assert ToolRequest((answer,)).user_message is None


# --- definitions ----------------------------------------------------------------------------

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = ToolDefinition("weather", "Tells the weather.", SCHEMA)


@pytest.mark.feature("tool-definition", "lc4j-tool-specification-name-description")
def test_definitions_are_hashable_values() -> None:
    """Equal definitions are equal and hashable, with unhashable schemas."""
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
def test_definition_inequality(other: object) -> None:
    """Every field that the model sees counts."""
    assert other != WEATHER


@pytest.mark.feature("source-tool-callback", "tool-callback-call")
def test_tool_protocols() -> None:
    """Custom classes are tools and providers without inheritance."""

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


@pytest.mark.feature("tool-metadata-return-direct")
def test_default_metadata() -> None:
    """By default a tool is not assumed to be idempotent or read-only."""
    metadata = ToolMetadata()

    assert metadata.effect == "write"
    assert not metadata.return_direct
    assert not metadata.exclusive
    assert metadata.timeout is None
