"""Repair of malformed JSON arguments."""

import enum
import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from chatclient._internal.json_repair import repair_json
from chatclient.errors import ToolArgumentError
from chatclient.tools.function.argument_repair import repair_value
from chatclient.tools.function.schema import signature_of


@pytest.mark.feature("function-unparsable-json-told-model", "lc4j-tool-json-repair")
@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ('{"a": 1,}', {"a": 1}),
        ('{"a": [1, 2,],}', {"a": [1, 2]}),
        ('{"a": {"b": [1, 2]', {"a": {"b": [1, 2]}}),
        ('{"a": {"b": ["text"', {"a": {"b": ["text"]}}),
        ('{"a": [True, null', {"a": [True, None]}),
        ('{"a": "te}xt",', {"a": "te}xt"}),
        ('{"a": 1}}', {"a": 1}),
        ('{"a": 1}]}\n', {"a": 1}),
        ('```json\n{"a": 1}\n```', {"a": 1}),
        ('```\n{"a": 1}```', {"a": 1}),
        ('```json\n{"a": 1}', {"a": 1}),
        ('"{\\"a\\": 1}"', {"a": 1}),
        ('"\\"{\\\\\\"a\\\\\\": 1}\\""', {"a": 1}),
        ('"{\\"a\\": 1,}"', {"a": 1}),
        (
            "{'a': 'b', 'c': True, 'd': None, 'e': False}",
            {"a": "b", "c": True, "d": None, "e": False},
        ),
        ("{'a': 'say \"hi\"'}", {"a": 'say "hi"'}),
        ("{'a': 'it\\'s'}", {"a": "it's"}),
        ('{"a": "it\\\'s"}', {"a": "it's"}),
        ("{'a': 'b'", {"a": "b"}),
        ('{"a": "two\nlines\tand a tab"}', {"a": "two\nlines\tand a tab"}),
        ("{'a': 'one\\ntwo \\\\ \\\"'}", {"a": 'one\ntwo \\ "'}),
        ('\ufeff{"a": 1}', {"a": 1}),
        ('{"a": -1.5e3,}', {"a": -1500.0}),
        ('{"a": 1}{"a": 1}', {"a": 1}),
        ('{"a": {"b": 1}}\n{"a": {"b": 1}}', {"a": {"b": 1}}),
        ('{"a": "on{"a": "one"}', {"a": "one"}),
        ('{{"a": 1}', {"a": 1}),
        ('{{"a": 1}}', {"a": 1}),
        ('{}{"a": 1}', {"a": 1}),
        ('{} {"a": {"b": [1]', {"a": {"b": [1]}}),
    ],
)
def test_unambiguous_damage(text: str, meant: Any) -> None:
    """Unambiguous damage is repaired."""
    repaired = repair_json(text)

    assert repaired is not None
    assert json.loads(repaired) == meant


@pytest.mark.feature("function-input-schema")
@pytest.mark.parametrize(
    ("schema", "value", "meant"),
    [
        ({"properties": {"a": True}}, {"a": [1]}, {"a": [1]}),
        ({"properties": {"a": True}}, {"a": None}, {"a": None}),
        ({"properties": {"a": False}}, {"a": None}, {}),
        (
            {"properties": {"a": {"prefixItems": [True, {"type": "integer"}]}}},
            *[{"a": ["x", 2]}] * 2,
        ),
        ({"properties": {"a": {"anyOf": [True, {"type": "string"}]}}}, *[{"a": "[1]"}] * 2),
        ({"anyOf": [{"properties": {"a": False}, "additionalProperties": False}]}, *[{"a": 1}] * 2),
        ({"properties": {"a": {"anyOf": []}}}, {"a": "x"}, {"a": "x"}),
    ],
)
def test_boolean_schemas(schema: Any, value: Any, meant: Any) -> None:
    """Boolean schemas admit anything or nothing."""
    assert repair_value(value, {"type": "object", **schema}) == meant


@pytest.mark.parametrize("keyword", ["properties", "required", "type", "enum", "$ref", "items"])
def test_null_keyword(keyword: str) -> None:
    """A keyword of null is ignored."""
    schema = {"properties": {"a": {"type": "object", keyword: None}, "b": {keyword: None}}}
    value = {"a": {"c": None}, "b": ["x", {"c": None}]}

    assert repair_value(value, schema) == value


def test_draft_7_definitions() -> None:
    """`definitions` of draft 7 are resolved."""
    schema = {
        "properties": {"a": {"$ref": "#/definitions/A"}},
        "definitions": {"A": {"type": "array"}},
    }

    assert repair_value({"a": "[1]"}, schema) == {"a": [1]}


def test_recursive_schema() -> None:
    """A circular reference ends."""
    itself = {"$ref": "#/$defs/A"}
    definitions = {"A": {"anyOf": [itself, {"type": "array"}]}}

    assert repair_value({"a": "[1]"}, {"properties": {"a": itself}, "$defs": definitions}) == {
        "a": [1]
    }


@pytest.mark.feature("function-unparsable-json-told-model", "lc4j-tool-json-repair")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "the weather in Paris",
        '{"a": 1, "b"',
        '{"a": 1, "b":',
        '{"a": "text',
        '{"a": ["one", "tw',
        "{'a': 'b",
        '{"a": {"b": [1, 2',
        '{"a": 10',
        '{"a": -1.',
        '{} {"a": {"b": [1',
        '{"a": [1, 2}',
        '{"a": 1} {"b": 2}',
        '{"a": 1}{"a": 2}',
        '{"a": "one"}{"a": "o',
        "{}1",
        "{" * 100_000,
        '{"a": ' * 1_000 + "}",
        '{"a": 1}} and more',
        '{"a" 1}',
        '{"a": 1 "b": 2}',
        "{'a': 'it's'}",
        '{"a": "x\\',
        '{"a": (1, 2)}',
        "{a: 1}",
        "[" * 100_000,
        "```" + " " * 100_000 + "x",
        '{"a": "' + "\\" * 100_001,
    ],
)
def test_ambiguous_damage(text: str) -> None:
    """Ambiguous damage is not repaired."""
    assert repair_json(text) is None


@pytest.mark.parametrize("text", ['{"a": 1}', "[1, 2]", "12", '"word"', "null"])
def test_valid_json_is_unchanged(text: str) -> None:
    """Valid JSON is returned unchanged."""
    assert repair_json(text) == text


@given(st.text(alphabet="{}[],:'\"\\ \nabTrue1.", max_size=30))
def test_repair_never_raises(text: str) -> None:
    """The result is JSON or None for any text."""
    repaired = repair_json(text)

    assert repaired is None or json.loads(repaired, strict=False) is not ...


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=8,
    ).filter(lambda value: isinstance(value, dict | list))
)
def test_python_literals(value: Any) -> None:
    """Values written as Python literals are read."""
    repaired = repair_json(str(value))

    assert repaired is None or json.loads(repaired) == value


# --- values ---------------------------------------------------------------------------------

POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}},
    "required": ["x"],
    "additionalProperties": False,
}


def in_properties(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


@pytest.mark.feature(
    "lc4j-tool-numeric-coercion",
    "lc4j-tool-enum-argument-exact-upper",
    "lc4j-tool-objects-given-json-text",
)
@pytest.mark.parametrize(
    ("schema", "value", "repaired"),
    [
        (POINT, {"x": 1, "y": None}, {"x": 1}),
        (POINT, {"x": None, "y": 1}, {"x": None, "y": 1}),
        (POINT, {"x": 1.0, "y": 1.5}, {"x": 1, "y": 1.5}),
        (POINT, {"x": 1, "z": None}, {"x": 1, "z": None}),
        (in_properties(a={"type": ["integer", "null"]}), {"a": None}, {"a": None}),
        (in_properties(a={"enum": ["b", None]}), {"a": None}, {"a": None}),
        (in_properties(a={"enum": [1, True, 1.5, [], {}]}), {"a": None}, {}),
        (in_properties(a={}), {"a": None}, {"a": None}),
        (in_properties(a={"type": "number"}), {"a": 5}, {"a": 5}),
        (in_properties(a={"type": "number"}), {"a": 10**20}, {"a": 1e20}),
        (in_properties(a={"type": "number"}), {"a": 10**400}, {"a": 10**400}),
        (in_properties(a={"type": "integer"}), {"a": True}, {"a": True}),
        (in_properties(a=POINT), {"a": '{"x": 1, "y": null}'}, {"a": {"x": 1}}),
        (in_properties(a=POINT), {"a": "{'x': 1,"}, {"a": {"x": 1}}),
        (in_properties(a=POINT), {"a": "{x"}, {"a": "{x"}),
        (in_properties(a=POINT), {"a": "[1]"}, {"a": "[1]"}),
        (in_properties(a={"type": "string"}), {"a": "{}"}, {"a": "{}"}),
        (in_properties(a={"type": "string"}), {"a": "\ud800!"}, {"a": "\ufffd!"}),
        (
            in_properties(a={"type": "array", "items": POINT}),
            {"a": "[{'x': 1}]"},
            {"a": [{"x": 1}]},
        ),
        (in_properties(a={"type": "array"}), {"a": [1.0]}, {"a": [1.0]}),
        (in_properties(a={"type": "array", "items": False}), {"a": [1.0]}, {"a": [1.0]}),
        (
            in_properties(a={"type": "array", "items": {"type": "integer"}}),
            {"a": [1.0]},
            {"a": [1]},
        ),
        (
            in_properties(
                a={
                    "type": "array",
                    "prefixItems": [{"type": "number"}],
                    "items": {"type": "integer"},
                }
            ),
            {"a": [1.0, 2.0]},
            {"a": [1.0, 2]},
        ),
        (in_properties(a={"enum": ["celsius", "K"]}), {"a": "Celsius"}, {"a": "celsius"}),
        (in_properties(a={"enum": ["celsius", "K"]}), {"a": " k\n"}, {"a": "K"}),
        (in_properties(a={"enum": ["celsius", "K"]}), {"a": "kelvin"}, {"a": "kelvin"}),
        (in_properties(a={"enum": ["mW", "MW"]}), {"a": "mw"}, {"a": "mw"}),
        (in_properties(a={"enum": ["mW", "MW"]}), {"a": "MW"}, {"a": "MW"}),
        (in_properties(a={"const": "yes"}), {"a": "YES"}, {"a": "yes"}),
        (in_properties(a={"enum": ["on", 1, None]}), {"a": "ON"}, {"a": "on"}),
        (in_properties(a={"enum": [1, 2.5, False]}), {"a": "1"}, {"a": 1}),
        (in_properties(a={"enum": [1, 2.5, False]}), {"a": "2.5"}, {"a": 2.5}),
        (in_properties(a={"const": False}), {"a": "false"}, {"a": False}),
        (in_properties(a={"enum": [1, "1"]}), {"a": "1"}, {"a": "1"}),
        (in_properties(a={"enum": ["1 ", 1]}), {"a": "1"}, {"a": "1"}),  # ambiguous
        (in_properties(a={"enum": [1, 2]}), {"a": "3"}, {"a": "3"}),
        (
            in_properties(a={"anyOf": [{"enum": ["red"]}, {"type": "null"}]}),
            {"a": "Red"},
            {"a": "red"},
        ),
        (
            in_properties(a={"anyOf": [{"enum": ["red"]}, {"type": "string"}]}),
            {"a": "Red"},
            {"a": "Red"},
        ),
        (
            in_properties(a={"type": "array", "items": {"enum": ["Red", "Blue"]}}),
            {"a": ["RED", "blue"]},
            {"a": ["Red", "Blue"]},
        ),
        (in_properties(a={"type": "string"}), {"a": [1.0]}, {"a": [1.0]}),
        (in_properties(a={"type": "string"}), {"a": {"b": 1.0}}, {"a": {"b": 1.0}}),
        (
            {"type": "object", "additionalProperties": {"type": "integer"}},
            {"a": 1.0},
            {"a": 1},
        ),
    ],
)
def test_values_are_corrected_by_schema(schema: Any, value: Any, repaired: Any) -> None:
    """Invalid values are converted to the schema's type; others are unchanged."""
    result = repair_value(value, schema)

    assert json.dumps(result) == json.dumps(repaired)


KEYWORDS = ("type", "enum", "anyOf", "oneOf", "properties", "required", "items", "prefixItems")


@pytest.mark.parametrize("keyword", [*KEYWORDS, "additionalProperties", "$defs", "$ref"])
@pytest.mark.parametrize("nonsense", [5, True, [[]]], ids=repr)
def test_invalid_keyword_value(keyword: str, nonsense: Any) -> None:
    """Keywords with a value of the wrong type are ignored."""
    schema = {keyword: nonsense}
    for value in ({"a": {"b": None}}, {"a": [1]}, {"a": "x"}, {"a": 1.5}):
        assert repair_value(value, schema) == value
        assert repair_value(value, {"type": "object", "properties": {"a": schema}}) == value


@pytest.mark.feature("lc4j-tool-polymorphic-parameters")
def test_union_alternative_by_properties() -> None:
    """The alternative with the object's properties is used."""
    cat = in_properties(kind={"const": "cat"}, lives={"type": "integer"})
    dog = in_properties(kind={"const": "dog"}, lives={"type": ["integer", "null"]})
    bird = {**in_properties(wings={"type": "integer"}), "additionalProperties": False}
    schema = {
        **in_properties(pet={"anyOf": [{"type": "string"}, {"$ref": "#/$defs/Pet"}]}),
        "$defs": {"Pet": {"oneOf": [bird, cat, dog]}},
    }

    def pet(**values: Any) -> Any:
        return repair_value({"pet": values}, schema)["pet"]

    assert pet(kind="cat", lives=None) == {"kind": "cat"}
    assert pet(kind="dog", lives=None) == {"kind": "dog", "lives": None}
    assert pet(wings=None) == {}
    assert pet(kind="fish", lives=None) == {"kind": "fish", "lives": None}


class Priority(enum.Enum):
    LOW = enum.auto()
    HIGH = enum.auto()


@pytest.mark.parametrize(
    ("annotation", "written", "expected"),
    [
        (Priority, '"HIGH"', Priority.HIGH),
        (Priority, '"high"', Priority.HIGH),
        (Priority, '"2"', Priority.HIGH),
        (list[Priority], '["LOW", 2]', [Priority.LOW, Priority.HIGH]),
        (str, "5", "5"),
        (str, "1.50", "1.50"),
        (str | None, "12345678901234567890", "12345678901234567890"),
        (int, '"5"', 5),
        (float, '" 2.5 "', 2.5),
    ],
)
def test_unambiguous_values(annotation: Any, written: str, expected: Any) -> None:
    """Names of enum members, and numbers in place of texts and the other way round."""

    def function(value: Any) -> None: ...

    function.__annotations__["value"] = annotation
    signature = signature_of(function)

    assert signature.read(f'{{"value": {written}}}') == {"value": expected}
    assert "x-enum" not in repr(signature.input_schema)


@pytest.mark.parametrize(
    ("annotation", "written"),
    [(Priority, '"MIDDLE"'), (str, "true"), (str, "[5]"), (int, '"five"'), (int, '"5 km"')],
)
def test_other_values_are_not_guessed(annotation: Any, written: str) -> None:
    def function(value: Any) -> None: ...

    function.__annotations__["value"] = annotation
    with pytest.raises(ToolArgumentError):
        signature_of(function).read(f'{{"value": {written}}}')
