"""The strict form of a schema."""

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from chatclient.tools.function.schema import signature_of, strict_form


class Inner(BaseModel):
    """A nested model."""

    a: int
    b: str = "b"


def strict_of(annotation: Any, default: Any = ...) -> Any:
    """Return the strict schema of one parameter, or None."""

    def function(x: Any) -> None: ...

    function.__annotations__["x"] = annotation
    if default is not ...:
        function.__defaults__ = (default,)
    strict = strict_form(signature_of(function).input_schema)
    return strict and strict["properties"]["x"]


@pytest.mark.feature("schema-strict-form-providers", "lc4j-strict-rendering")
def test_strict_objects() -> None:
    """All properties are required, optional ones nullable, at any depth."""

    def function(x: Inner, y: Inner | None = None, z: int | None = 1) -> None:
        """Do it.

        Args:
            x: First.
            y: Second.
            z: Third.
        """

    assert strict_form(signature_of(function).input_schema) == {
        "type": "object",
        "properties": {
            "x": {"anyOf": [{"$ref": "#/$defs/Inner"}], "description": "First."},
            "y": {"anyOf": [{"$ref": "#/$defs/Inner"}, {"type": "null"}], "description": "Second."},
            "z": {"anyOf": [{"type": "integer"}, {"type": "null"}], "description": "Third."},
        },
        "required": ["x", "y", "z"],
        "additionalProperties": False,
        "$defs": {
            "Inner": {
                "type": "object",
                "description": "A nested model.",
                "properties": {
                    "a": {"type": "integer"},
                    "b": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                },
                "required": ["a", "b"],
                "additionalProperties": False,
            }
        },
    }


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        (Annotated[str, Field(min_length=1, max_length=3)], {"type": "string"}),
        (Annotated[str, Field(pattern="^a")], {"type": "string", "pattern": "^a"}),
        (set[int], {"type": "array", "items": {"type": "integer"}}),
        (Annotated[int, Field(ge=1)], {"type": "integer", "minimum": 1}),
        (
            tuple[int, int],
            {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2},
        ),
        (
            tuple[int, str],
            {
                "type": "array",
                "items": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
                "minItems": 2,
                "maxItems": 2,
            },
        ),
        (tuple[()], {"type": "array", "minItems": 0, "maxItems": 0}),
    ],
    ids=str,
)
def test_unknown_keywords_are_dropped(annotation: Any, schema: Any) -> None:
    """Keywords unknown to strict mode are removed, others kept."""
    assert strict_of(annotation) == schema


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        (Literal["a", "b"], {"anyOf": [{"type": "string", "enum": ["a", "b"]}, {"type": "null"}]}),
        (Literal["a"] | None, {"anyOf": [{"const": "a", "type": "string"}, {"type": "null"}]}),
        (int | str, {"anyOf": [{"type": "integer"}, {"type": "string"}, {"type": "null"}]}),
    ],
    ids=str,
)
def test_optional_is_nullable(annotation: Any, schema: Any) -> None:
    """Null is added once."""
    assert strict_of(annotation, "a") == schema


@pytest.mark.feature("schema-strict-form-providers")
@pytest.mark.parametrize(
    "annotation", [Any, dict[str, int], dict, list, list[Any], list[dict[str, Any]]]
)
def test_open_types(annotation: Any) -> None:
    """Any type and arbitrary keys have no strict form."""
    assert strict_of(annotation) is None


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {"anyOf": [{"type": "object", "properties": {}}]},
        {"$ref": "#/$defs/X", "$defs": {"X": {"type": "object", "properties": {}}}},
        {"type": "object"},
        {"type": "object", "properties": {"a": {"allOf": [{"type": "string"}]}}},
        {"type": "object", "properties": {"a": {"type": "array"}}},
        {"type": "object", "properties": {"a": {"type": "object", "patternProperties": {}}}},
        {"type": "object", "properties": {"a": True}},
        {"type": "object", "properties": {"a": {"anyOf": [False, {"type": "string"}]}}},
        {"type": "object", "properties": {"a": {"type": "array", "items": True}}},
    ],
    ids=str,
)
def test_schemas_without_strict_form(schema: Any) -> None:
    """A schema whose meaning would change has no strict form."""
    assert strict_form(schema) is None


def test_strict_form_of_given_schemas() -> None:
    """Given schemas are converted without being modified."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "properties": {
            "a": {"oneOf": [{"type": "string", "title": "A"}, {"const": 1}]},
            "b": {"type": ["integer", "null"], "format": "int32"},
        },
        "required": ["a"],
    }

    assert strict_form(schema) == {
        "type": "object",
        "properties": {
            "a": {"anyOf": [{"type": "string"}, {"const": 1}]},
            "b": {"type": ["integer", "null"]},
        },
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    assert "additionalProperties" not in schema
