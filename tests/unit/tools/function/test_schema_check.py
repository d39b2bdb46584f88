"""Values that are checked against a JSON Schema."""

from typing import Any

import jsonschema
import pytest
from hypothesis import given, strategies as st

from chatclient.tools.function.schema_parts import misfits


def obj(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


TREE = {
    "$ref": "#/$defs/node",
    "$defs": {"node": obj(name={"type": "string"}, next={"$ref": "#/$defs/node"})},
}


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        (obj(unit={"enum": ["C", "F"]}), {"unit": "K"}, ["unit: should be 'C', 'F'; got 'K'"]),
        (obj(unit={"enum": ["C", "F"]}), {"unit": "C"}, []),
        (obj(a={"const": 1}), {"a": True}, ["a: should be 1; got True"]),
        (obj(a={"type": "integer"}), {"a": 1.0}, []),
        (obj(a={"type": "integer"}), {"a": 1.5}, ["a: should be integer; got 1.5"]),
        (obj(a={"type": "number"}), {"a": 1}, []),
        (obj(a={"type": "number"}), {"a": True}, ["a: should be number; got True"]),
        (obj(a={"type": ["string", "null"]}), {"a": None}, []),
        (
            obj(a={"minimum": 1, "exclusiveMaximum": 3}),
            {"a": 3},
            ["a: should be less than 3; got 3"],
        ),
        (obj(a={"minLength": 2}), {"a": "x"}, ["a: should have at least 2 characters"]),
        (obj(a={"maxItems": 1}), {"a": [1, 2]}, ["a: should have at most 1 items"]),
        (obj(a={"pattern": "^x"}), {"a": "y"}, ["a: should match ^x; got 'y'"]),
        (obj(a={"pattern": "(?=x)"}), {"a": "y"}, []),  # not supported, so not checked
        (obj(a={"items": {"type": "string"}}), {"a": ["x", 1]}, ["a[1]: should be string; got 1"]),
        (
            obj(a={"anyOf": [{"type": "integer"}, obj(b={"enum": ["x"]})]}),
            {"a": {"b": "y"}},
            ["a.b: should be 'x'; got 'y'"],
        ),
        (obj(a={"allOf": [{"minimum": 5}]}), {"a": 1}, ["a: should be at least 5; got 1"]),
        ({**obj(a={}), "required": ["b"]}, {}, ["b: missing, but required"]),
        ({**obj(a={}), "additionalProperties": False}, {"c": 1}, ["c: unknown; known are a"]),
        (TREE, {"name": "x", "next": {"name": 1}}, ["next.name: should be string; got 1"]),
        (obj(a=False), {"a": 1}, ["a: not allowed"]),
        (obj(a={"$ref": "https://example.org/other"}), {"a": 1}, []),
    ],
)
def test_misfits(schema: dict[str, Any], value: Any, expected: list[str]) -> None:
    assert misfits(value, schema) == expected


def test_complex_schema() -> None:
    """References that multiply are given up."""
    defs = {
        f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]}
        for n in range(40)
    }

    assert misfits("x", {"$ref": "#/$defs/d0", "$defs": {**defs, "d40": {"type": "string"}}}) == []


scalars = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "x", "xy"])
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner),
    max_leaves=4,
)
types = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])
schemas = st.recursive(
    st.fixed_dictionaries({"type": types})
    | st.fixed_dictionaries({"enum": st.lists(scalars, min_size=1, max_size=3)})
    | st.fixed_dictionaries({"minimum": st.integers(-2, 2)}, optional={"minLength": st.just(1)}),
    lambda inner: (
        st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=2)})
        | st.fixed_dictionaries({"type": st.just("array"), "items": inner})
        | st.fixed_dictionaries(
            {"properties": st.dictionaries(st.sampled_from("ab"), inner, min_size=1)},
            optional={
                "required": st.lists(st.sampled_from("ab"), unique=True),
                "additionalProperties": st.booleans(),
            },
        )
    ),
    max_leaves=4,
)


@given(value=values, schema=schemas)
def test_agrees_with_jsonschema(value: Any, schema: dict[str, Any]) -> None:
    """Another implementation is the judge."""
    fits = jsonschema.Draft202012Validator(schema).is_valid(value)

    assert (misfits(value, schema) == []) is fits
