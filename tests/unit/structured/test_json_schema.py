"""Answers for a JSON Schema that is known only at run time."""

import json
import re
from collections import UserDict
from types import MappingProxyType
from typing import Any, Optional

import pytest

from chatclient import ChatClient
from chatclient.errors import EntityError, UsageError
from chatclient.structured import NOTHING, JsonSchemaOutputConverter
from chatclient.structured.converters import converter_of
from chatclient.testing import Ask, ScriptedModel

ORDER = {
    "title": "Order",
    "type": "object",
    "properties": {
        "id": {"type": "integer", "minimum": 1},
        "state": {"enum": ["new", "paid"]},
        "lines": {"type": "array", "items": {"$ref": "#/$defs/Line"}, "minItems": 1},
        "note": {"type": ["string", "null"]},
    },
    "required": ["id", "lines"],
    "additionalProperties": False,
    "$defs": {
        "Line": {
            "properties": {
                "sku": {"type": "string", "pattern": "^A"},
                "price": {"type": "number"},
                "part": {"$ref": "#/$defs/Line"},
            },
            "required": ["sku"],
        }
    },
}
VALUE = {
    "id": 7,
    "state": "new",
    "lines": [{"sku": "A1", "price": 3, "part": {"sku": "A2"}, "colour": "red"}],
    "note": None,
}


@pytest.mark.feature("converter-schema-known-run-time")
def test_answer_by_schema(ask: Ask) -> None:
    """The model gets the schema, and the answer is plain data."""
    model = ScriptedModel(json.dumps(VALUE))
    request = ChatClient.create(model).prompt("Which order?")

    if ask.streaming:
        *_, value = request.stream().entity(ORDER)
    else:
        value = request.call().entity(ORDER)

    assert value == VALUE
    assert json.loads(model.prompts[0].contents.partition("JSON Schema:\n")[2]) == ORDER


def test_partial_answers_by_schema() -> None:
    """Missing properties are absent from partial data."""
    model = ScriptedModel(json.dumps({"id": 7, "lines": [{"sku": "A1"}, {"sku": "A2"}]}))

    values = list(ChatClient.create(model).prompt("x").stream().entity(ORDER))

    assert values[0] == {"id": 7}
    assert values[-1] == {"id": 7, "lines": [{"sku": "A1"}, {"sku": "A2"}]}


def test_partial_answers_by_several_schemas() -> None:
    """Each schema gives partial data."""
    more = {"properties": {"paid": {"type": "boolean"}, "note": {"type": "string"}}}
    model = ScriptedModel('{"id": 7, "paid": true, "note": "Thank you"}', chunks=1)

    values = list(ChatClient.create(model).prompt("x").stream().entity({"allOf": [PAID, more]}))

    assert values[0] == {"id": 7}
    assert {"id": 7, "paid": True, "note": "Thank"} in values
    two = {"type": "array", "items": INTEGER, "allOf": [{"type": "array", "minItems": 2}]}
    model = ScriptedModel("[1, 2, 3]", chunks=1)
    numbers = list(ChatClient.create(model).prompt("x").stream().entity(two))
    assert numbers == [[], [1], [1, 2], [1, 2, 3]]


@pytest.mark.feature("converter-schema-known-run-time")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": 0}, "id: "),
        ({"id": "seven"}, "id: "),
        ({"state": "lost"}, "state: "),
        ({"lines": []}, "lines: "),
        ({"lines": [{"sku": "B1"}]}, "lines[0].sku: "),
        ({"lines": [{}]}, "lines[0].sku: missing, but required"),
        ({"colour": "red"}, "colour: unknown"),
    ],
)
def test_validation_error(change: dict[str, Any], message: str) -> None:
    """Each problem has a line, as with a type."""
    with pytest.raises(EntityError) as caught:
        JsonSchemaOutputConverter(ORDER).convert(json.dumps({**VALUE, **change}))
    assert caught.value.errors[0].startswith(message)
    assert "does not fit Order" in str(caught.value)


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({}, "[1]", [1]),
        ({"type": "string"}, '"a"', "a"),
        ({"type": "boolean"}, '{"value": true}', True),
        ({"type": "array", "items": {"type": "integer"}}, "[1, 2]", [1, 2]),
        ({"type": "object"}, '{"a": 1}', {"a": 1}),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, '{"a": 1}', {"a": 1}),
        ({"properties": {"a": True}, "required": ["b"]}, '{"a": 2, "b": 1}', {"a": 2, "b": 1}),
        ({"oneOf": [{"const": 1}, {"type": "null"}]}, "null", None),
        ({"allOf": [{"type": "integer"}]}, "1", 1),
        ({"type": "integer", "allOf": [{"minimum": 1}, {"type": "number"}]}, "1", 1),
        ({"required": ["a"], "anyOf": [{"required": ["b"]}, {"not": {}}]}, '{"a": 1}', {"a": 1}),
        ({"enum": [1.5, 2.5]}, "1.5", 1.5),
        ({"type": "number", "multipleOf": 0.01}, "19.99", 19.99),
        ({"type": "integer", "multipleOf": 2.5}, "5", 5),
        ({"type": "number", "multipleOf": 0.5}, f"1{'0' * 400}", 10**400),
        ({"type": "string", "pattern": r"^(?!x)\w+$"}, '"abc"', "abc"),
        ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "integer"}}}, "1", 1),
    ],
)
def test_schema_types(schema: dict[str, Any], text: str, value: Any) -> None:
    """Schemas of other types are wrapped for the provider."""
    converter = JsonSchemaOutputConverter(schema)

    assert converter.convert(text) == value
    assert converter.json_schema is not None
    assert converter.json_schema["type"] == "object"
    assert converter.partial("") is NOTHING


INTEGER = {"type": "integer"}
PAID = {"type": "object", "properties": {"id": INTEGER, "paid": {}}, "required": ["paid"]}
EITHER = [{"required": ["cash"]}, {"required": ["card"]}]


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"const": 1}, 2),
        ({"anyOf": [{"const": 1}, INTEGER | {"minimum": 5}]}, 2),
        ({"allOf": [INTEGER]}, "a"),
        ({"allOf": [PAID, {"properties": {"id": {"minimum": 5, **INTEGER}}}]}, {"id": 7}),
        (
            {"allOf": [PAID, {"properties": {"id": {"minimum": 9, **INTEGER}}}]},
            {"id": 7, "paid": 1},
        ),
        ({**PAID, "anyOf": EITHER}, {"id": 7, "card": 1}),
        ({**PAID, "anyOf": EITHER}, {"id": 7, "paid": 1}),
        ({**PAID, "oneOf": EITHER}, {"id": "seven", "paid": 1, "card": 1}),
        ({"$defs": {"paid": PAID}, "$ref": "#/$defs/paid", "required": ["id"]}, {"paid": 1}),
        ({"type": "string", "anyOf": [{"const": "a"}, {"type": "null"}]}, None),
        ({"type": ["integer", "null"]}, "a"),
        ({"type": "array", "items": INTEGER}, ["a"]),
        ({"type": "object", "additionalProperties": False}, {"a": 1}),
        ({"type": "object", "additionalProperties": INTEGER}, {"a": "b"}),
        ({"properties": {"a": True}, "required": ["b"]}, {"a": 1}),
        ({"required": ["b"], "type": "object"}, {"a": 1}),
        (
            {
                "properties": {"a": {"$ref": "#/$defs/number"}, "b": {"$ref": "#/$defs/number"}},
                "$defs": {"number": INTEGER},
            },
            {"a": 1, "b": "c"},
        ),
    ],
)
def test_keywords(schema: dict[str, Any], value: Any) -> None:
    """Every keyword is enforced."""
    with pytest.raises(EntityError, match="does not fit"):
        JsonSchemaOutputConverter(schema).convert(json.dumps(value))


@pytest.mark.parametrize(
    ("schema", "text", "message"),
    [
        ({"type": "number", "multipleOf": 0.01}, "19.995", "should be a multiple of 0.01"),
        ({"type": "integer", "multipleOf": 3}, "7", "should be a multiple of 3"),
        ({"type": "integer", "multipleOf": 1000}, "1700000000123", "should be a multiple of 1000"),
        ({"type": "number", "multipleOf": 0.01}, "1e400", "answer"),
        ({"type": "string", "pattern": "^(?!x)"}, '"xa"', "should match pattern"),
        ({"type": "string", "pattern": "^(?!x)", "maxLength": 1}, '"ab"', "at most 1 char"),
    ],
)
def test_keywords_without_pydantic_support(schema: dict[str, Any], text: str, message: str) -> None:
    """Fractional steps and look-around patterns are checked."""
    with pytest.raises(
        EntityError, match=r"^the answer does not fit (int|int .* float|str):"
    ) as caught:
        JsonSchemaOutputConverter(schema).convert(text)
    assert message in caught.value.errors[0]


# Since Python 3.14 its repr is `int | None`.
OPTIONAL = str(Optional[int]).removeprefix("typing.")  # noqa: UP045


@pytest.mark.parametrize(
    ("schema", "name"),
    [
        ({"type": "array", "items": {"type": "string", "pattern": "^(?!x)"}}, "list[str]"),
        ({"type": ["integer", "null"], "minimum": 1}, OPTIONAL),
    ],
)
def test_internal_checks_are_hidden(schema: dict[str, Any], name: str) -> None:
    """Neither the sent schema nor errors contain internal names."""
    converter = JsonSchemaOutputConverter(schema)

    assert converter.json_schema is not None
    assert converter.json_schema["title"] == name
    with pytest.raises(EntityError, match=f"^the answer does not fit {re.escape(name)}:"):
        converter.convert("{}")


@pytest.mark.parametrize("kind", [UserDict, MappingProxyType])
def test_schema_as_mapping(kind: Any) -> None:
    """Schema and nested values may be any mapping."""
    schema = kind({"type": "object", "properties": kind({"a": kind({"type": "integer"})})})

    assert converter_of(schema).convert('{"a": 1}') == {"a": 1}


def test_schema_is_cached() -> None:
    """A schema is compiled once, and again after a change."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    before = converter_of(schema)

    assert converter_of(json.loads(json.dumps(schema))) is before
    schema["properties"] = {"a": {"type": "string"}}
    assert converter_of(schema).convert('{"a": "x"}') == {"a": "x"}
    with pytest.raises(EntityError):
        before.convert('{"a": "x"}')


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": [object()]},
        {"type": "number", "multipleOf": 0},
        {"type": "number", "multipleOf": True},
        {"type": "number", "minimum": "1"},
        {"type": "string", "pattern": "["},
        {"type": "string", "pattern": 3},
        {"type": "text"},
        {"type": {"integer": {}}},
        {"type": "object", "properties": []},
        {"type": "array", "items": 3},
        {"anyOf": []},
        {"allOf": {"type": "integer"}},
        {"enum": 3},
        {"$ref": "#/$defs/Missing"},
        {"$ref": "https://example.org/schema.json"},
        {"title": "string", "year": "int"},
        {"year": {"type": "integer"}},
    ],
)
def test_invalid_schema(schema: dict[str, Any]) -> None:
    """An invalid schema raises before a request."""
    with pytest.raises(UsageError, match=r"(?i)schema"):
        ChatClient.create(ScriptedModel()).prompt("x").call().entity(schema)


@pytest.mark.parametrize("schema", [{}, {"title": "Anything", "$comment": "x"}, {"not": {}}])
def test_schema_without_type(schema: dict[str, Any]) -> None:
    """Any JSON is valid; misplaced properties are rejected."""
    client = ChatClient.create(ScriptedModel('{"year": 1979}'))

    assert client.prompt("x").call().entity(schema) == {"year": 1979}
    with pytest.raises(UsageError, match="the fields of an object are under 'properties'"):
        client.prompt("x").call().entity({"year": "int"})
