"""Tool definitions as values and as JSON."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from chatclient.errors import ToolDefinitionError, UsageError, WrongTypeError
from chatclient.tools import (
    DataToolCallback,
    FunctionToolCallback,
    ToolDefinition,
    tool,
    tool_callbacks,
)
from chatclient.values import FrozenDict


@tool(strict=True)
def book(seats: int, name: str) -> str:
    """Book seats."""
    return f"{seats} for {name}"


@pytest.mark.parametrize(
    "definition",
    [
        tool_callbacks(book)[0].definition,
        ToolDefinition("a", "", {"type": "object", "properties": {}}),
        ToolDefinition("ü", 'Ünï \ud800 "x"', {"type": "object", "properties": {"n": {}}}, False),
        ToolDefinition("m", "M", {"type": "object", "properties": {}}, None, {"visible": "always"}),
    ],
)
def test_a_definition_is_json_both_ways(definition: ToolDefinition) -> None:
    """What comes back is equal, and can be offered."""
    again = ToolDefinition.from_json(definition.to_json())

    assert again == definition
    assert again.metadata == definition.metadata


def test_only_what_is_said_is_written() -> None:
    """What a definition leaves open is not in its JSON."""
    written = json.loads(ToolDefinition("a", "A", {"type": "object", "properties": {}}).to_json())

    assert written == {
        "name": "a",
        "description": "A",
        "input_schema": {"type": "object", "properties": {}},
    }


def test_a_name_is_enough() -> None:
    """Without a schema a tool takes no arguments; one that says less is completed."""
    nothing = {"type": "object", "properties": {}}

    assert ToolDefinition.from_json('{"name": "a"}') == ToolDefinition("a", "", nothing)
    partial = '{"name": "a", "input_schema": {"required": ["n"], "properties": {"n": {}}}}'
    assert ToolDefinition.from_json(partial).input_schema["type"] == "object"


@pytest.mark.parametrize("schema", [{}, {"type": "object"}, {"properties": {}}])
def test_an_empty_schema_is_that_of_an_object(schema: dict[str, Any]) -> None:
    """Some providers refuse one that does not say so."""
    assert ToolDefinition("a", "A", schema).input_schema == {"type": "object", "properties": {}}


@pytest.mark.parametrize("schema", ['{"type": "object"}', [{"type": "object"}]])
def test_a_schema_is_a_mapping(schema: Any) -> None:
    """A text of JSON would be sent as a text, which no provider understands."""
    makers: list[Callable[[], object]] = [
        lambda: ToolDefinition("a", "A", schema),
        lambda: FunctionToolCallback(book, input_schema=schema),
    ]
    for make in makers:
        with pytest.raises(WrongTypeError, match=r"must be a Mapping, .*; such as json"):
            make()


def test_what_tools_as_data_are_made_of() -> None:
    """A definition and something to call; neither shows its fault before the model calls it."""
    definition: Any = {"name": "a"}
    executor: Any = "print"
    with pytest.raises(WrongTypeError, match="must be a ToolDefinition"):
        DataToolCallback(definition, lambda call, context: "")
    with pytest.raises(WrongTypeError, match="must be a function"):
        DataToolCallback(ToolDefinition("a", "A", {}), executor)


def test_an_executor_may_have_no_signature() -> None:
    """As some functions of C have none; what they take shows when they are called."""
    executor: Any = max

    assert DataToolCallback(ToolDefinition("a"), executor).definition.name == "a"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not a tool definition"),
        ("[]", "a JSON object"),
        ("{}", "'name' must be a text"),
        ('{"name": ""}', "'name' must be a text"),
        ('{"name": 7}', "'name' must be a text, not 7"),
        ('{"name": "a", "description": null}', "'description' must be a text"),
        ('{"name": "a", "input_schema": []}', "'input_schema' must be the JSON Schema"),
        ('{"name": "a", "input_schema": {"type": "array"}}', "the JSON Schema of an object"),
        ('{"name": "a", "strict": "yes"}', "'strict' must be true, false or null"),
        ('{"name": "a", "metadata": "x"}', "'metadata' must be a JSON object"),
        ('{"name": "a", "parameters": {}}', r"the fields \['parameters'\]"),
    ],
)
def test_what_is_no_definition_is_refused(text: str, words: str) -> None:
    """The error names the field and says what it must be."""
    with pytest.raises(ToolDefinitionError, match=words):
        ToolDefinition.from_json(text)


def test_a_definition_keeps_no_hold_of_what_it_was_given() -> None:
    """The schema may change afterwards; the definition does not, and cannot be changed itself."""
    schema: dict[str, Any] = {"type": "object", "properties": {"n": {"type": "integer"}}}
    metadata = {"tags": {"a": 1}}
    definition = ToolDefinition("a", "", schema, metadata=metadata)
    schema["properties"]["n"]["type"] = "string"
    metadata["tags"]["a"] = 2

    assert definition.input_schema["properties"]["n"]["type"] == "integer"
    assert definition.metadata == {"tags": {"a": 1}}
    assert isinstance(definition.input_schema["properties"], FrozenDict)
    with pytest.raises(TypeError, match="immutable"):
        definition.input_schema["properties"]["n"]["type"] = "string"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({}, {"type": "object", "properties": {}}),
        ({"type": "object"}, {"type": "object", "properties": {}}),
        ({"properties": None, "required": None}, {"type": "object", "properties": {}}),
        (
            {"properties": {"n": {}}, "required": ["n"]},
            {"type": "object", "properties": {"n": {}}, "required": ["n"]},
        ),
    ],
)
def test_a_schema_says_that_it_is_that_of_an_object(
    given: dict[str, Any], kept: dict[str, Any]
) -> None:
    """Providers refuse a tool whose schema leaves it out; so no request is sent with one."""
    definition = ToolDefinition("a", "A", given)

    assert definition.input_schema == kept
    assert definition == ToolDefinition("a", "A", kept)


def test_a_tool_without_a_schema_takes_nothing() -> None:
    """A name is enough, as in JSON."""
    assert ToolDefinition("a") == ToolDefinition.from_json('{"name": "a"}')


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ('{"type": "object"}', r"must be a Mapping, not '.*; such as json.loads\(text\)"),
        (int, r"must be a Mapping, not the class int; .*model_json_schema\(\)"),
        (None, "an input schema must be a Mapping, not None"),
        ({"type": "string"}, "a tool takes a JSON object, but its input schema says"),
        ({"required": "n"}, "a tool takes a JSON object"),
        ({"properties": ["n"]}, "a tool takes a JSON object"),
    ],
)
def test_what_is_no_schema_of_an_object_is_refused(schema: Any, words: str) -> None:
    """Before anything is offered to a model; a text or a class is easily meant for it."""
    with pytest.raises(UsageError, match=words):
        ToolDefinition("a", "A", schema)


@pytest.mark.parametrize(("name", "description"), [(None, "A"), ("a", None)])
def test_names_and_descriptions_are_texts(name: Any, description: Any) -> None:
    """A provider would only say that the request is wrong."""
    with pytest.raises(UsageError, match="of a tool must be a str, not None"):
        ToolDefinition(name, description)


def test_a_frozen_schema_is_not_copied() -> None:
    """All tools of one function share their schema, however often they are defined anew."""
    definition = tool_callbacks(book)[0].definition
    again = ToolDefinition("again", "", definition.input_schema)

    assert again.input_schema is definition.input_schema


def test_definitions_differ_by_metadata() -> None:
    """Equality is that of all fields."""
    schema: dict[str, Any] = {"type": "object", "properties": {}}

    assert ToolDefinition("a", "", schema) != ToolDefinition("a", "", schema, None, {"x": 1})


def test_tools_can_be_loaded_from_json() -> None:
    """A stored definition and an executor are a tool."""
    definition = ToolDefinition.from_json(tool_callbacks(book)[0].definition.to_json())
    callback = DataToolCallback(definition, lambda made, context: made.arguments)

    assert callback.definition.input_schema["required"] == ["seats", "name"]
