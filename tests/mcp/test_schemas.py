"""The check of values with the schemas of servers, which are untrusted."""

from collections.abc import Iterator
from typing import Any

import pytest

from chatclient.mcp.schemas import CHECK_SECONDS_ON_LOOP, misfits, validator_of


def forks(keyword: str) -> dict[str, Any]:
    """Return a schema whose check doubles with each of its definitions."""
    definitions: dict[str, Any] = {
        f"d{at}": {keyword: [{"$ref": f"#/$defs/d{at + 1}"}] * 2} for at in range(60)
    }
    return {"$defs": {**definitions, "d60": {"const": {}}}, "$ref": "#/$defs/d0"}


def nested(levels: int) -> Any:
    return [nested(levels - 1) for _ in range(9)] if levels else 0


MANY = [{"type": "object", "required": ["a"], "const": at} for at in range(2_000)]

ENDLESS: dict[str, tuple[dict[str, Any], Any]] = {
    "anyOf of a list": ({"items": {"anyOf": MANY}}, [{}] * 20_000),
    "oneOf of a list": ({"items": {"oneOf": MANY}}, [{}] * 20_000),
    "anyOf of references": (forks("anyOf"), 1),
    "allOf of references": (forks("allOf"), {}),
    "unevaluated": ({**forks("allOf"), "unevaluatedProperties": False}, {}),
    "contains": ({"items": {"contains": {"enum": [[1]] * 9_000}}}, [[[2]] * 9_000] * 9_000),
    "not": ({"items": {"not": {"allOf": MANY * 9}}}, [{"a": 1}] * 20_000),
    "if": ({"items": {"if": {"anyOf": MANY}, "then": True}}, [{}] * 20_000),
    "names": ({"items": {"propertyNames": {"anyOf": MANY}}}, [{"a": 1}] * 20_000),
    "dependent": ({"items": {"dependentSchemas": {"a": {"anyOf": MANY}}}}, [{"a": 1}] * 20_000),
    "required": ({"anyOf": [{"required": [str(at) for at in range(90)]}] * 2_000}, {}),
    "items": ({"$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"}, nested(4)),
    "automaton": ({"pattern": r"(?:[^x]{0,50}[^y]{0,50}){0,50}!$"}, "a" * 400),
    "groups": ({"pattern": r"((((a{9}){9}){9}){9}){9}"}, "a"),
    "letters": ({"pattern": r"\p{L}{900}"}, "a"),
    "names of patterns": ({"patternProperties": {"(a+)+$": {}}}, {"a" * 60 + "!": 1}),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_endless_check(name: str) -> None:
    """A check that would take hours ends after the time limit, without a result."""
    schema, value = ENDLESS[name]

    assert misfits(validator_of(schema), value, CHECK_SECONDS_ON_LOOP) is None


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "integer"}, "x" * 10**7),
        ({"maxItems": 1}, [0] * 10**6),
        ({"maxProperties": 1}, {str(at): 0 for at in range(10**5)}),
        ({"prefixItems": [{}], "unevaluatedItems": False}, [0, 0]),
    ],
    ids=["text", "list", "object", "unevaluatedItems"],
)
def test_step_without_interruption(schema: dict[str, Any], value: Any) -> None:
    """Values whose size alone takes time, and a keyword that takes quadratic time, are left out."""
    assert misfits(validator_of(schema), value, 10.0) is None


def errors(schema: dict[str, Any], value: Any) -> list[str] | None:
    found = misfits(validator_of(schema), value, 10.0)
    return None if found is None else [error.message for error in found]


@pytest.mark.parametrize(
    "schema",
    [
        {"required": "name"},
        {"required": True},
        {"required": [1]},
        {"dependentRequired": {"a": "bc"}},
        {"enum": "abc"},
        {"additionalProperties": None},
        {"uniqueItems": "false"},
        {"exclusiveMinimum": True},
        {"properties": {"a": {"required": "name"}}},
        {"properties": ["a"]},
        {"anyOf": {"a": {}}},
        {"items": None},
        {"type": "strange"},
        {"minProperties": "5"},
        {"$ref": "#/title", "title": "no schema"},
        {"$ref": "https://example.com/schema"},
    ],
    ids=str,
)
def test_invalid_schema(schema: dict[str, Any]) -> None:
    """A keyword with an invalid value is ignored."""
    value = [] if schema.keys() & {"uniqueItems", "items"} else {"a": {}}

    assert not errors(schema, 0 if "exclusiveMinimum" in schema else value)


def cases() -> Iterator[tuple[dict[str, Any], Any, Any]]:
    day, id = r"^\d{4}-\d\d-\d\d$", r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"
    for pattern, good, bad in [
        (day, "2026-01-01", "today"),
        (id, f"{0:08}{'-0000' * 3}-{0:012}", ""),
    ]:
        yield {"pattern": pattern}, good, bad
    yield {"pattern": r"^\w{1,64}$"}, "name", "no name"
    yield {"pattern": r"[\]a]{3,}"}, "]]a", "]a"
    yield {"anyOf": [{"type": "string"}, {"items": {"enum": [1, 2]}}]}, [2, 1], [3]
    yield {"additionalProperties": {"type": "integer"}, "required": ["a"]}, {"a": 1}, {"b": "c"}
    yield {"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 3}, 3, 2
    yield {"items": {"type": "string", "maxLength": 3}}, ["abc"] * 4_000, ["abcd"]


@pytest.mark.parametrize(("schema", "good", "bad"), [*cases()], ids=lambda each: str(each)[:40])
def test_usual_schema(schema: dict[str, Any], good: Any, bad: Any) -> None:
    """The values of usual schemas are checked."""
    assert errors(schema, good) == []
    assert errors(schema, bad)
