"""Answers by a JSON Schema that is known at run time only."""

import json
import re
from collections import UserDict
from types import MappingProxyType
from typing import Any, Optional

import pytest
from conftest import Ask

from chatclient import ChatClient
from chatclient.errors import EntityError, UsageError
from chatclient.structured import NOTHING, JsonSchemaOutputConverter
from chatclient.structured.converters import converter_of
from chatclient.testing import ScriptedModel

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


def test_an_answer_is_read_by_a_schema(ask: Ask) -> None:
    """The model is told the schema, and what it answers comes as plain data."""
    model = ScriptedModel(json.dumps(VALUE))
    request = ChatClient.create(model).prompt("Which order?")

    if ask.streaming:
        *_, value = request.stream().entity(ORDER)
    else:
        value = request.call().entity(ORDER)

    assert value == VALUE
    assert json.loads(model.prompts[0].contents.partition("JSON Schema:\n")[2]) == ORDER


def test_a_stream_gives_ever_more_of_the_data() -> None:
    """Properties that are still to come are not there yet."""
    model = ScriptedModel(json.dumps({"id": 7, "lines": [{"sku": "A1"}, {"sku": "A2"}]}))

    values = list(ChatClient.create(model).prompt("x").stream().entity(ORDER))

    assert values[0] == {"id": 7}
    assert values[-1] == {"id": 7, "lines": [{"sku": "A1"}, {"sku": "A2"}]}


def test_a_stream_gives_what_each_of_several_schemas_describes() -> None:
    """As with a single one."""
    more = {"properties": {"paid": {"type": "boolean"}, "note": {"type": "string"}}}
    model = ScriptedModel('{"id": 7, "paid": true, "note": "Thank you"}', chunks=1)

    values = list(ChatClient.create(model).prompt("x").stream().entity({"allOf": [PAID, more]}))

    assert values[0] == {"id": 7}
    assert {"id": 7, "paid": True, "note": "Thank"} in values
    two = {"type": "array", "items": INTEGER, "allOf": [{"type": "array", "minItems": 2}]}
    model = ScriptedModel("[1, 2, 3]", chunks=1)
    numbers = list(ChatClient.create(model).prompt("x").stream().entity(two))
    assert numbers == [[], [1], [1, 2], [1, 2, 3]]


@pytest.mark.parametrize(
    ("change", "told"),
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
def test_what_does_not_fit_the_schema_is_told(change: dict[str, Any], told: str) -> None:
    """Each place that is wrong has its line, as with a type."""
    with pytest.raises(EntityError) as caught:
        JsonSchemaOutputConverter(ORDER).convert(json.dumps({**VALUE, **change}))
    assert caught.value.errors[0].startswith(told)
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
def test_schemas_of_every_kind(schema: dict[str, Any], text: str, value: Any) -> None:
    """What is no object is wrapped for the provider, as it is with types."""
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
def test_what_a_schema_does_not_admit_is_refused(schema: dict[str, Any], value: Any) -> None:
    """Whichever of its words says so."""
    with pytest.raises(EntityError, match="does not fit"):
        JsonSchemaOutputConverter(schema).convert(json.dumps(value))


@pytest.mark.parametrize(
    ("schema", "text", "told"),
    [
        ({"type": "number", "multipleOf": 0.01}, "19.995", "should be a multiple of 0.01"),
        ({"type": "integer", "multipleOf": 3}, "7", "should be a multiple of 3"),
        ({"type": "integer", "multipleOf": 1000}, "1700000000123", "should be a multiple of 1000"),
        ({"type": "number", "multipleOf": 0.01}, "1e400", "answer"),
        ({"type": "string", "pattern": "^(?!x)"}, '"xa"', "should match pattern"),
        ({"type": "string", "pattern": "^(?!x)", "maxLength": 1}, '"ab"', "at most 1 char"),
    ],
)
def test_bounds_that_pydantic_has_not_are_checked(
    schema: dict[str, Any], text: str, told: str
) -> None:
    """Steps that are no whole numbers, and patterns that look around."""
    with pytest.raises(
        EntityError, match=r"^the answer does not fit (int|int .* float|str):"
    ) as caught:
        JsonSchemaOutputConverter(schema).convert(text)
    assert told in caught.value.errors[0]


# Since Python 3.14 it shows itself as `int | None`.
OPTIONAL = str(Optional[int]).removeprefix("typing.")  # noqa: UP045


@pytest.mark.parametrize(
    ("schema", "name"),
    [
        ({"type": "array", "items": {"type": "string", "pattern": "^(?!x)"}}, "list[str]"),
        ({"type": ["integer", "null"], "minimum": 1}, OPTIONAL),
    ],
)
def test_models_and_users_see_no_checks_of_ours(schema: dict[str, Any], name: str) -> None:
    """Neither in the schema that is sent, nor in errors: they would differ in each process."""
    converter = JsonSchemaOutputConverter(schema)

    assert converter.json_schema is not None
    assert converter.json_schema["title"] == name
    with pytest.raises(EntityError, match=f"^the answer does not fit {re.escape(name)}:"):
        converter.convert("{}")


@pytest.mark.parametrize("kind", [UserDict, MappingProxyType])
def test_a_schema_may_be_any_mapping(kind: Any) -> None:
    """It need not be a dict, nor what is in it."""
    schema = kind({"type": "object", "properties": kind({"a": kind({"type": "integer"})})})

    assert converter_of(schema).convert('{"a": 1}') == {"a": 1}


def test_a_schema_is_read_once() -> None:
    """However often it is asked for; a schema that has been changed is another one."""
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
def test_what_is_no_schema_is_refused(schema: dict[str, Any]) -> None:
    """Before anything is sent."""
    with pytest.raises(UsageError, match=r"(?i)schema"):
        ChatClient.create(ScriptedModel()).prompt("x").call().entity(schema)


@pytest.mark.parametrize("schema", [{}, {"title": "Anything", "$comment": "x"}, {"not": {}}])
def test_a_schema_may_say_little_of_a_value(schema: dict[str, Any]) -> None:
    """Then any JSON fits; fields that were written in its place would be looked at by nobody."""
    client = ChatClient.create(ScriptedModel('{"year": 1979}'))

    assert client.prompt("x").call().entity(schema) == {"year": 1979}
    with pytest.raises(UsageError, match="the fields of an object are under 'properties'"):
        client.prompt("x").call().entity({"year": "int"})
