"""Tool definitions as values and as JSON."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from chatclient import tool
from chatclient._internal.frozen import FrozenDict
from chatclient.errors import ToolDefinitionError, UsageError, WrongTypeError
from chatclient.tools import DataToolCallback, FunctionToolCallback, ToolDefinition, tool_callbacks


@tool(strict=True)
def book(seats: int, name: str) -> str:
    """Book seats."""
    return f"{seats} for {name}"


@pytest.mark.feature("lc4j-tool-specification-metadata-json")
@pytest.mark.parametrize(
    "definition",
    [
        tool_callbacks(book)[0].definition,
        ToolDefinition("a", "", {"type": "object", "properties": {}}),
        ToolDefinition("ü", 'Ünï \ud800 "x"', {"type": "object", "properties": {"n": {}}}, False),
        ToolDefinition("m", "M", {"type": "object", "properties": {}}, None, {"visible": "always"}),
    ],
)
def test_json_round_trip(definition: ToolDefinition) -> None:
    """A definition restored from JSON is equal and can be offered."""
    again = ToolDefinition.from_json(definition.to_json())

    assert again == definition
    assert again.metadata == definition.metadata


def test_unset_fields_are_not_serialised() -> None:
    """Unset fields are not in the JSON."""
    written = json.loads(ToolDefinition("a", "A", {"type": "object", "properties": {}}).to_json())

    assert written == {
        "name": "a",
        "description": "A",
        "input_schema": {"type": "object", "properties": {}},
    }


@pytest.mark.feature("tool-definition-builder-missing")
def test_name_is_sufficient() -> None:
    """Without a schema a tool takes no arguments; a partial schema is completed."""
    nothing = {"type": "object", "properties": {}}

    assert ToolDefinition.from_json('{"name": "a"}') == ToolDefinition("a", "", nothing)
    partial = '{"name": "a", "input_schema": {"required": ["n"], "properties": {"n": {}}}}'
    assert ToolDefinition.from_json(partial).input_schema["type"] == "object"


@pytest.mark.feature("schema-ensure-valid-input-schema")
@pytest.mark.parametrize("schema", [{}, {"type": "object"}, {"properties": {}}])
def test_empty_schema_gets_type_object(schema: dict[str, Any]) -> None:
    """An empty schema gets the type that providers require."""
    assert ToolDefinition("a", "A", schema).input_schema == {"type": "object", "properties": {}}


@pytest.mark.feature("function-input-schema")
@pytest.mark.parametrize("schema", ['{"type": "object"}', [{"type": "object"}]])
def test_schema_must_be_a_mapping(schema: Any) -> None:
    """A JSON string as schema is rejected."""
    makers: list[Callable[[], object]] = [
        lambda: ToolDefinition("a", "A", schema),
        lambda: FunctionToolCallback(book, input_schema=schema),
    ]
    for make in makers:
        with pytest.raises(WrongTypeError, match=r"must be a Mapping, .*; such as json"):
            make()


def test_definition_and_executor_are_checked() -> None:
    """A wrong definition or executor raises when the tool is made."""
    definition: Any = {"name": "a"}
    executor: Any = "print"
    with pytest.raises(WrongTypeError, match="must be a ToolDefinition"):
        DataToolCallback(definition, lambda call, context: "")
    with pytest.raises(WrongTypeError, match="must be a function"):
        DataToolCallback(ToolDefinition("a", "A", {}), executor)


def test_executor_without_signature() -> None:
    """A callable without a signature is accepted."""
    executor: Any = max

    assert DataToolCallback(ToolDefinition("a"), executor).definition.name == "a"


@pytest.mark.feature("tool-definition-builder-missing", "lc4j-tool-specification-metadata-json")
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
def test_invalid_definition_data(text: str, words: str) -> None:
    """The error names the field and its expected type."""
    with pytest.raises(ToolDefinitionError, match=words):
        ToolDefinition.from_json(text)


@pytest.mark.feature("tool-definition")
def test_definition_copies_its_schema() -> None:
    """The definition is independent of the given schema, and immutable."""
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


@pytest.mark.feature("lc4j-tool-specification-name-description")
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
def test_type_object_is_added_to_schema(given: dict[str, Any], kept: dict[str, Any]) -> None:
    """A schema without a type gets `object`, which providers require."""
    definition = ToolDefinition("a", "A", given)

    assert definition.input_schema == kept
    assert definition == ToolDefinition("a", "A", kept)


def test_definition_without_schema() -> None:
    """A tool without a schema takes no arguments."""
    assert ToolDefinition("a") == ToolDefinition.from_json('{"name": "a"}')


@pytest.mark.feature("lc4j-tool-specification-name-description")
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
def test_non_object_schema_is_rejected(schema: Any, words: str) -> None:
    """A schema of another type, a string or a class is rejected."""
    with pytest.raises(UsageError, match=words):
        ToolDefinition("a", "A", schema)


@pytest.mark.parametrize(("name", "description"), [(None, "A"), ("a", None)])
def test_name_and_description_must_be_strings(name: Any, description: Any) -> None:
    """Other types raise when the definition is made."""
    with pytest.raises(UsageError, match="of a tool must be a str, not None"):
        ToolDefinition(name, description)


def test_a_frozen_schema_is_not_copied() -> None:
    """Tools of one function share their frozen schema."""
    definition = tool_callbacks(book)[0].definition
    again = ToolDefinition("again", "", definition.input_schema)

    assert again.input_schema is definition.input_schema


def test_equality_includes_metadata() -> None:
    """Equality compares all fields."""
    schema: dict[str, Any] = {"type": "object", "properties": {}}

    assert ToolDefinition("a", "", schema) != ToolDefinition("a", "", schema, None, {"x": 1})


def test_tool_from_stored_definition() -> None:
    """A stored definition and an executor form a tool."""
    definition = ToolDefinition.from_json(tool_callbacks(book)[0].definition.to_json())
    callback = DataToolCallback(definition, lambda made, context: made.arguments)

    assert callback.definition.input_schema["required"] == ["seats", "name"]
