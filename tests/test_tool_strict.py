"""The strict form of a schema."""

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from chatclient.tools.schema import signature_of, strict_form


class Inner(BaseModel):
    """Something inside."""

    a: int
    b: str = "b"


def strict_of(annotation: Any, default: Any = ...) -> Any:
    """Return the strict schema of one parameter, or None if there is none."""

    def function(x: Any) -> None: ...

    function.__annotations__["x"] = annotation
    if default is not ...:
        function.__defaults__ = (default,)
    strict = strict_form(signature_of(function).input_schema)
    return strict and strict["properties"]["x"]


def test_everything_is_required_and_closed() -> None:
    """What was optional may be null instead, at every depth."""

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
                "description": "Something inside.",
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
    """What strict mode does not know is left out; what it does know stays."""
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
def test_optional_may_be_null(annotation: Any, schema: Any) -> None:
    """Null is added once, and not where it already is."""
    assert strict_of(annotation, "a") == schema


@pytest.mark.parametrize(
    "annotation", [Any, dict[str, int], dict, list, list[Any], list[dict[str, Any]]]
)
def test_open_types_have_no_strict_form(annotation: Any) -> None:
    """Where anything goes, or keys are arbitrary, strict mode has nothing to hold on to."""
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
    """A schema that would say something else in strict mode is not translated."""
    assert strict_form(schema) is None


def test_schemas_as_data_have_a_strict_form() -> None:
    """Schemas from elsewhere are closed and completed like our own, and are not changed."""
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
