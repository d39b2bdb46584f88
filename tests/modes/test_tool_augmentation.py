"""Tools with additional arguments for the application."""

import asyncio
import copy
import logging
from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Annotated, Any, NotRequired

import pytest
from pydantic import BaseModel, ConfigDict, Field, create_model
from typing_extensions import TypedDict

from chatclient import ToolContext, ToolParam, tool
from chatclient.errors import ToolDefinitionError, ToolError, WrongTypeError
from chatclient.testing import Ask, ScriptedModel, call
from chatclient.tools import (
    AugmentedArguments,
    AugmentedToolCallback,
    DataToolCallback,
    FunctionToolCallback,
    ToolApproval,
    ToolCallback,
    ToolDefinition,
    ToolInvocation,
    ToolMetadata,
    ToolRequest,
    augment,
    tool_callbacks,
)
from tests.modes.test_tool_calling import assert_paired, client_of, results

log: list[str] = []


class Mood(Enum):
    CALM = "calm"
    EAGER = "eager"


class Source(BaseModel):
    title: str


class Thinking(BaseModel):
    """Additional arguments with the model's reasons."""

    reason: str = Field(description="Why this tool.")
    confidence: float = 0.5
    mood: Mood = Mood.CALM
    sources: list[Source] = []


class Place(BaseModel):
    city: str


@tool(effect="read", timeout=9.0)
def weather(place: Place, days: int = 1) -> str:
    """Return a forecast."""
    log.append(f"tool {place.city}")
    return f"{days} sunny days in {place.city}"


@pytest.fixture(autouse=True)
def _nothing_happened() -> None:
    log.clear()


def consume(event: AugmentedArguments[Thinking]) -> None:
    log.append(f"{event.definition.name}: {event.extra.reason} ({event.extra.confidence})")


async def consume_later(event: AugmentedArguments[Thinking]) -> None:
    await asyncio.sleep(0)
    consume(event)


ARGUMENTS = '{"place": {"city": "Bern"}, "reason": "asked", "sources": [{"title": "t"}]}'


@pytest.mark.feature("augmentation-fields-added-properties-required")
def test_additional_arguments_are_in_the_schema() -> None:
    """They follow the tool's arguments, with descriptions, definitions and requirements."""
    own = tool_callbacks(weather)[0].definition
    definition = augment(weather, arguments=Thinking)[0].definition
    schema = definition.input_schema

    assert (definition.name, definition.description) == (own.name, own.description)
    assert list(schema["properties"]) == [
        *own.input_schema["properties"],
        "reason",
        "confidence",
        "mood",
        "sources",
    ]
    assert schema["required"] == ["place", "reason"]
    assert set(schema["$defs"]) == {"Place", "Mood", "Source"}
    assert schema["properties"]["reason"] == {"description": "Why this tool.", "type": "string"}
    assert schema["properties"]["place"] == own.input_schema["properties"]["place"]


@pytest.mark.feature(
    "augmentation-augmented-tool-callback",
    "augmentation-provider-builder-delegate-tool",
    "augmentation-consumer-gets-event-before",
)
@pytest.mark.parametrize("kind", ["plain", "async"])
def test_the_consumer_gets_them_before_the_tool_runs(ask: Ask, kind: str) -> None:
    """They are validated, with defaults, and the tool does not get them."""
    consumer = consume if kind == "plain" else consume_later
    model = ScriptedModel(call("weather", ARGUMENTS), "done")
    ask(client_of(model, augment(weather, arguments=Thinking, consumer=consumer)).prompt("x"))

    assert log == ["weather: asked (0.5)", "tool Bern"]
    assert results(model.prompts[1]) == ["1 sunny days in Bern"]


@pytest.mark.feature("augmentation-consumer-gets-event-before")
def test_the_consumer_gets_all_there_is_to_know(ask: Ask) -> None:
    """It receives the definition, the raw call and the parsed arguments."""
    events: list[AugmentedArguments[Thinking]] = []
    augmented = augment(weather, arguments=Thinking, consumer=events.append)
    ask(client_of(ScriptedModel(call("weather", ARGUMENTS), "done"), augmented).prompt("x"))

    [event] = events
    assert event.definition is augmented[0].definition
    assert event.arguments == ARGUMENTS
    assert event.extra == Thinking(reason="asked", sources=[Source(title="t")])


@pytest.mark.feature(
    "augmentation-augmented-tool-callback", "augmentation-arguments-removed-before-tool"
)
def test_they_can_be_kept_for_the_tool(ask: Ask) -> None:
    """A tool with variable arguments receives them on request."""
    seen: list[list[str]] = []

    def anything(**arguments: Any) -> None:
        seen.append(sorted(arguments))

    from chatclient.tools import FunctionToolCallback

    callback = FunctionToolCallback(anything, input_schema={"properties": {"x": {}}})
    made = call("anything", '{"x": 1, "reason": "r"}')
    for keep in (True, False):
        augmented = AugmentedToolCallback(callback, Thinking, keep=keep)
        ask(client_of(ScriptedModel(made, "done"), augmented).prompt("x"))

    assert seen == [["reason", "x"], ["x"]]


def test_without_a_consumer_they_are_dropped(ask: Ask) -> None:
    """The consumer is optional."""
    model = ScriptedModel(call("weather", ARGUMENTS), "done")
    ask(client_of(model, augment(weather, arguments=Thinking)).prompt("x"))

    assert log == ["tool Bern"]


@pytest.mark.feature("augmentation-return-direct-wrapped-tool")
def test_metadata_survives(ask: Ask) -> None:
    """The tool's metadata are kept, and a direct result is the answer."""

    @tool(return_direct=True)
    def direct() -> str:
        return "straight"

    direct_one, slow_one = augment(direct, weather, arguments=Thinking, consumer=consume)
    model = ScriptedModel(call("direct", '{"reason": "r"}'), "never")

    assert ask(client_of(model, direct_one).prompt("x")).text == "straight"
    assert slow_one.metadata == ToolMetadata(effect="read", timeout=9.0)


@pytest.mark.feature("augmentation-wrong-additional-arguments")
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ('{"place": {"city": "Bern"}}', "- reason: missing, but required"),
        ('{"place": {"city": "Bern"}, "reason": "r", "mood": "wild"}', "- mood: should be "),
        (
            '{"place": {"city": "Bern"}, "reason": "r", "sources": [{}]}',
            "- sources[0].title: missing, but required",
        ),
        ("no JSON", "not valid JSON"),
        ("[1]", "should be a JSON object"),
        ('{"reason": "r"}', "place: missing, but required"),
    ],
)
def test_invalid_additional_arguments_are_an_error_result(
    ask: Ask, arguments: str, told: str
) -> None:
    """The model receives an error result, and the tool does not run."""
    model = ScriptedModel(call("weather", arguments), "done")
    result = ask(client_of(model, augment(weather, arguments=Thinking)).prompt("x"))

    assert told in results(model.prompts[1])[0]
    assert type(result.executions[0].error).__name__ == "ToolArgumentError"
    assert log == []
    assert_paired(model.prompts[1].messages)


def test_a_strict_model_reads_json(ask: Ask) -> None:
    """With a strict model, JSON texts and lists are converted to the schema's types."""

    class Strict(BaseModel):
        model_config = ConfigDict(strict=True)
        tags: set[str]
        day: date

    seen: list[AugmentedArguments[Strict]] = []
    arguments = '{"place": {"city": "Bern"}, "tags": ["a"], "day": "2026-01-02"}'
    augmented = augment(weather, arguments=Strict, consumer=seen.append)
    ask(client_of(ScriptedModel(call("weather", arguments), "done"), augmented).prompt("x"))

    assert seen[0].extra == Strict(tags={"a"}, day=date(2026, 1, 2))


@pytest.mark.parametrize(
    "arguments",
    ['```json\n{"reason": "r"}\n```', '{"reason": "r",}', '"{\\"reason\\": \\"r\\"}"'],
)
def test_damaged_json_is_repaired(ask: Ask, arguments: str) -> None:
    """JSON is repaired as for other tools, and a blank text means no arguments."""

    class Optional(BaseModel):
        note: str = ""

    @tool
    def ping() -> str:
        return "pong"

    model = ScriptedModel(call("ping", arguments), call("ping", " "), "done")
    [with_reason] = augment(ping, arguments=Thinking, consumer=consume)
    ask(client_of(model, with_reason).prompt("x"))
    assert results(model.prompts[1]) == ["pong"]
    assert log == ["ping: r (0.5)"]

    model = ScriptedModel(call("ping", " "), "done")
    ask(client_of(model, augment(ping, arguments=Optional)).prompt("x"))
    assert results(model.prompts[1]) == ["pong"]


@pytest.mark.feature("augmentation-wrong-additional-arguments")
def test_a_consumer_can_refuse(ask: Ask) -> None:
    """Its error is a failure of the call, and the tool does not run."""

    def refuse(event: AugmentedArguments[Thinking]) -> None:
        raise ToolError("Think again.")

    model = ScriptedModel(call("weather", ARGUMENTS), "done")
    ask(client_of(model, augment(weather, arguments=Thinking, consumer=refuse)).prompt("x"))

    assert results(model.prompts[1]) == ["Think again."]
    assert log == []


def test_the_context_reaches_the_tool(ask: Ask) -> None:
    """The tool receives its `ToolContext`."""

    @tool
    async def who(context: ToolContext) -> str:
        return f"{context['name']} {context.tool_call_id}"

    model = ScriptedModel(call("who", '{"reason": "r"}', id="w1"), "done")
    request = client_of(model, augment(who, arguments=Thinking)).prompt("x")
    ask(request.tool_context(name="Ann"))

    assert results(model.prompts[1]) == ["Ann w1"]


@dataclass(frozen=True)
class Thought:
    inner: Annotated[str, ToolParam("Why this tool.", required=True)]
    confidence: Annotated[str | None, ToolParam("low or high", required=False)]


class ThoughtModel(BaseModel):
    inner: Annotated[str, ToolParam("Why this tool.", required=True)]
    confidence: Annotated[str | None, ToolParam("low or high", required=False)]


class ThoughtKeys(TypedDict):
    inner: Annotated[str, ToolParam("Why this tool.", required=True)]
    confidence: NotRequired[Annotated[str | None, ToolParam("low or high")]]


@pytest.mark.feature("augmentation-augmented-tool-callback")
@pytest.mark.parametrize(
    ("kind", "extra"),
    [
        (Thought, Thought("asked", None)),
        (ThoughtModel, ThoughtModel(inner="asked", confidence=None)),
        (ThoughtKeys, {"inner": "asked"}),
    ],
)
def test_records_of_every_kind(ask: Ask, kind: Any, extra: Any) -> None:
    """Models, dataclasses and typed dicts are supported; `ToolParam` makes a field required."""
    seen: list[Any] = []
    [augmented] = augment(weather, arguments=kind, consumer=seen.append)
    model = ScriptedModel(call("weather", '{"place": {"city": "Bern"}, "inner": "asked"}'), "done")

    def approve(invocation: ToolInvocation) -> bool:
        seen.append(invocation.arguments())
        return True

    approval = ToolApproval(ask=approve, needed=lambda invocation: True)
    ask(client_of(model, augmented, interceptors=[approval]).prompt("x"))

    assert augmented.definition.input_schema["required"] == ["place", "inner"]
    assert seen[0]["inner"] == "asked"
    assert seen[0]["place"] == Place(city="Bern")
    assert seen[1].extra == extra
    assert results(model.prompts[1]) == ["1 sunny days in Bern"]


class Mute:
    """A class without fields."""


@pytest.mark.feature("augmentation-type-without-fields-name")
@pytest.mark.parametrize("arguments", [Thinking(reason="r"), {"reason": str}, "reason", Mute])
def test_what_describes_no_arguments_is_refused(arguments: Any) -> None:
    """The error lists the supported kinds when the tool is created."""
    with pytest.raises(ToolDefinitionError, match="must be a pydantic model, a dataclass or"):
        augment(weather, arguments=arguments)


def test_a_consumer_that_cannot_be_called_is_refused() -> None:
    """The error is raised when the tool is created, not in each call."""
    with pytest.raises(WrongTypeError, match="consumer of additional arguments must be a function"):
        augment(weather, arguments=Thinking, consumer="log")  # type: ignore[call-overload]


@pytest.mark.feature("augmentation-type-without-fields-name")
def test_a_clash_of_names_is_refused() -> None:
    """An additional argument with the name of one of the tool's arguments is an error."""

    class Clash(BaseModel):
        days: int
        place: str

    with pytest.raises(ToolDefinitionError, match=r"'weather' has arguments \['days', 'place'\]"):
        augment(weather, arguments=Clash)


@pytest.mark.feature("augmentation-type-without-fields-name")
def test_a_model_without_fields_is_refused() -> None:
    """It has no arguments to add."""
    with pytest.raises(ToolDefinitionError, match="Nothing has no fields"):
        augment(weather, arguments=create_model("Nothing"))


@pytest.mark.feature("augmentation-fields-added-properties-required")
def test_definitions_of_one_name_are_kept_apart(ask: Ask) -> None:
    """Different types of one name get separate definitions in the schema."""
    other_place = create_model("Place", lat=(float, ...), inner=(list[Source], []))
    located = create_model("Located", here=(other_place, ...), there=(Any, None))
    [augmented] = augment(weather, arguments=located)
    schema = augmented.definition.input_schema

    assert schema["properties"]["place"] == {"$ref": "#/$defs/Place"}
    assert schema["properties"]["here"] == {"$ref": "#/$defs/Place_2"}
    assert list(schema["$defs"]["Place"]["properties"]) == ["city"]
    assert list(schema["$defs"]["Place_2"]["properties"]) == ["lat", "inner"]
    made = call("weather", '{"place": {"city": "Bern"}, "here": {"lat": 47.0}}')
    model = ScriptedModel(made, "done")
    ask(client_of(model, augmented).prompt("x"))
    assert results(model.prompts[1]) == ["1 sunny days in Bern"]


def test_equal_definitions_are_shared() -> None:
    """One type on both sides is defined once."""
    seen = create_model("Seen", mood=(Mood, ...))

    @tool
    def feel(how: Mood) -> None: ...

    [augmented] = augment(feel, arguments=create_model("Felt", before=(Mood, ...)))
    assert set(augmented.definition.input_schema["$defs"]) == {"Mood"}
    [twice] = augment(augmented, arguments=seen)
    assert twice.definition.input_schema["required"] == ["how", "before", "mood"]


@pytest.mark.feature("augmentation-fields-added-properties-required")
def test_arguments_with_an_alias_go_by_it(ask: Ask) -> None:
    """The schema has the alias, and arguments are parsed by it."""

    class Noted(BaseModel):
        note: str = Field(alias="theNote")

    notes: list[str] = []

    def take(event: AugmentedArguments[Noted]) -> None:
        notes.append(event.extra.note)

    model = ScriptedModel(call("weather", '{"place": {"city": "Bern"}, "theNote": "n"}'), "done")
    ask(client_of(model, augment(weather, arguments=Noted, consumer=take)).prompt("x"))

    assert (notes, log) == (["n"], ["tool Bern"])


@pytest.mark.feature(
    "augmentation-provider-builder-delegate-tool", "session-inner-thought-argument"
)
def test_every_source_can_be_augmented() -> None:
    """Objects, collections and callbacks can be passed together; the originals are unchanged."""

    class Desk:
        @tool
        def one(self) -> None: ...

        @tool
        def two(self) -> None: ...

    before = tool_callbacks(weather)[0].definition.input_schema
    augmented = augment(Desk(), [weather], arguments=Thinking)

    assert [each.definition.name for each in augmented] == ["one", "two", "weather"]
    assert "reason" not in before["properties"]
    assert all("reason" in each.definition.input_schema["properties"] for each in augmented)


class Optional(BaseModel):
    reason: str
    confidence: float | None = None
    mood: Mood = Mood.CALM


@pytest.mark.feature("augmentation-fields-added-properties-required")
@pytest.mark.parametrize("strict", [True, None])
def test_what_is_optional_may_be_null(ask: Ask, strict: bool | None) -> None:
    """Null means the default, because a strict schema requires every field."""
    extra: list[Optional] = []
    plain = FunctionToolCallback(weather, strict=strict)
    tools = augment(plain, arguments=Optional, consumer=lambda event: extra.append(event.extra))
    given = (
        '{"place": {"city": "Rome"}, "days": null, "reason": "x", "confidence": null, "mood": null}'
    )
    model = ScriptedModel(call("weather", given), "done")
    ask(client_of(model, tools).prompt("x"))

    assert results(model.prompts[1]) == ["1 sunny days in Rome"]
    assert extra == [Optional(reason="x")]


@pytest.mark.feature("augmentation-fields-added-properties-required")
def test_a_strict_tool_stays_one() -> None:
    """The complete schema has the strict form, or the error names what has none."""
    (callback,) = augment(FunctionToolCallback(weather, strict=True), arguments=Optional)
    schema = callback.definition.input_schema

    assert callback.definition.strict
    assert schema["required"] == ["place", "days", "reason", "confidence", "mood"]
    assert schema["additionalProperties"] is False

    class Anything(BaseModel):
        notes: dict[str, Any]

    with pytest.raises(ToolDefinitionError, match="Anything has fields that no provider can enf"):
        augment(FunctionToolCallback(weather, strict=True), arguments=Anything)


@pytest.mark.feature("augmentation-return-direct-wrapped-tool")
def test_what_the_application_knows_of_a_tool_stays() -> None:
    """The metadata of the definition are kept."""
    definition = ToolDefinition("bill", "Bill.", {}, metadata={"team": "billing"})
    plain = DataToolCallback(definition, lambda tool_call, context: "")
    (callback,) = augment(plain, arguments=Optional)

    assert callback.definition.metadata == {"team": "billing"}


def test_failed_consumer(ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    """The tool runs although the consumer has a bug, which is logged."""

    def fail(event: AugmentedArguments[Thinking]) -> None:
        raise ConnectionError("the log server is gone")

    model = ScriptedModel(call("weather", ARGUMENTS), "done")
    caplog.set_level(logging.WARNING, "chatclient")
    ask(client_of(model, augment(weather, arguments=Thinking, consumer=fail)).prompt("x"))

    assert log == ["tool Bern"]
    assert "consumer of additional arguments failed" in caplog.text


class Provider:
    """A provider whose tools differ between requests."""

    def __init__(self) -> None:
        self.requests: list[ToolRequest] = []
        self.offered = tool_callbacks(weather)

    def tool_callbacks(self, request: ToolRequest) -> list[ToolCallback]:
        """Return the tools of a request."""
        self.requests.append(request)
        return self.offered

    def hidden_tools(self) -> list[str]:
        """Return the name of a tool to remove."""
        return ["other"]


class AsyncProvider(Provider):
    async def tool_callbacks(  # type: ignore[override]
        self, request: ToolRequest
    ) -> list[ToolCallback]:
        """Return the tools of a request."""
        return super().tool_callbacks(request)


@pytest.mark.parametrize("kind", [Provider, AsyncProvider])
def test_augmented_provider(ask: Ask, kind: type[Provider]) -> None:
    """The result is a provider that is called in each request."""

    @tool
    def other() -> None: ...

    events: list[AugmentedArguments[Thinking]] = []
    provider = kind()
    [augmented] = augment(provider, arguments=Thinking, consumer=events.append)
    assert not provider.requests
    model = ScriptedModel(call("weather", ARGUMENTS), "one", "two")
    client = client_of(model, other, augmented)

    ask(client.prompt("x"))
    provider.offered = []
    ask(client.prompt("y"))

    assert len(provider.requests) == 2
    assert len(events) == len(log) == 1
    names = [[c.definition.name for c in p.options.tool_callbacks or ()] for p in model.prompts]
    assert names == [["weather"], ["weather"], []]


def test_augmented_provider_keeps_known_tools() -> None:
    """Schemas are computed once for each tool."""
    provider = Provider()
    [augmented] = augment(provider, arguments=Thinking)

    [first] = augmented.tool_callbacks(ToolRequest(()))
    [second] = augmented.tool_callbacks(ToolRequest(()))

    assert first is second
    assert not hasattr(augmented, "dynamic")
    assert copy.copy(augmented).provider is provider


def test_augmented_provider_with_tools() -> None:
    mixed: list[Any] = [weather, Provider()]

    assert [type(each).__name__ for each in augment(mixed, arguments=Thinking)] == [
        "AugmentedToolCallback",
        "AugmentedToolProvider",
    ]
