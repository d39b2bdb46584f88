"""Checks values against a JSON Schema, for tools that are defined by one.

Only keywords whose meaning does not depend on others are checked; unknown ones are ignored.
"""

import operator
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from pydantic_core import SchemaError, SchemaValidator, core_schema

from chatclient._internal.text import shortened
from chatclient.tools.function.schema_branches import (
    Schema,
    as_list,
    as_mapping,
    branches,
    definitions_of,
    item_schemas,
    kind_of,
    property_schema,
    types_of,
)

_MAX_STEPS = 20_000  # for one value: references of a schema may multiply
_MAX_SHOWN = 80  # characters of a value
_BOUNDS: Mapping[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "minimum": ("at least", operator.ge),
    "maximum": ("at most", operator.le),
    "exclusiveMinimum": ("greater than", operator.gt),
    "exclusiveMaximum": ("less than", operator.lt),
}


class _TooComplexError(Exception):
    """The check takes too many steps."""


def misfits(value: Any, schema: Schema) -> list[str]:
    """Return what in *value* does not fit *schema*, one line for each place.

    Returns:
        An empty list if everything fits, or if the schema is too complex to tell.
    """
    check = _Check(definitions_of(schema))
    try:
        return list(check.errors(value, schema, ""))
    except (_TooComplexError, RecursionError):
        return []


class _Check:
    def __init__(self, defs: Schema) -> None:
        self._defs = defs
        self._steps = 0

    def errors(self, value: Any, schema: Any, place: str) -> Iterator[str]:
        """Yield the errors of *value* in the alternative that it fits best."""
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise _TooComplexError
        found: list[tuple[bool, list[str]]] = []
        for branch in branches(schema, self._defs):
            errors = list(self._branch_errors(value, branch, place))
            if not errors:
                return
            found.append((not _has_type(value, branch), errors))
        if not found:
            yield f"{place or 'arguments'}: not allowed"
            return
        yield from min(found, key=lambda each: (each[0], len(each[1])))[1]

    def _branch_errors(self, value: Any, schema: Schema, place: str) -> Iterator[str]:
        if "enum" in schema or "const" in schema:
            admitted = as_list(schema.get("enum")) or [schema.get("const")]
            if not any(_equal(value, each) for each in admitted):
                options = ", ".join(repr(each) for each in admitted[:20])
                yield _line(place, f"should be {options}", value)
        elif not _has_type(value, schema):
            yield _line(place, f"should be {' or '.join(sorted(types_of(schema)))}", value)
        else:
            for part in as_list(schema.get("allOf")):
                yield from self.errors(value, part, place)
            yield from self._value_errors(value, schema, place)

    def _value_errors(self, value: Any, schema: Schema, place: str) -> Iterator[str]:
        match value:
            case dict():
                yield from self._object_errors(value, schema, place)
            case list():
                schemas = item_schemas(schema, self._defs)
                for at, item in enumerate(value):
                    yield from self.errors(item, next(schemas), f"{place}[{at}]")
                yield from _size_errors(len(value), schema, place, "Items", "items")
            case str():
                yield from _size_errors(len(value), schema, place, "Length", "characters")
                if not _matches(value, schema.get("pattern")):
                    yield _line(place, f"should match {schema['pattern']}", value)
            case int() | float() if not isinstance(value, bool):
                yield from _number_errors(value, schema, place)

    def _object_errors(self, value: dict[str, Any], schema: Schema, place: str) -> Iterator[str]:
        properties = as_mapping(schema.get("properties"))
        for name in as_list(schema.get("required")):
            if name not in value:
                yield f"{_below(place, name)}: missing, but required"
        closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
        for name, item in value.items():
            if name in properties or not closed:
                yield from self.errors(item, property_schema(schema, name), _below(place, name))
            else:
                known = ", ".join(properties) or "none"
                yield f"{_below(place, name)}: unknown; known are {known}"


def _has_type(value: Any, schema: Schema) -> bool:
    kinds, kind = types_of(schema), kind_of(value)
    if kind == "integer":
        return bool(kinds & {"integer", "number"})
    return kind in kinds or (kind == "number" and "integer" in kinds and value.is_integer())


def _equal(value: Any, admitted: Any) -> bool:
    """Return whether two values of JSON are equal; true is not 1."""
    return bool(value == admitted) and isinstance(value, bool) == isinstance(admitted, bool)


def _size_errors(size: int, schema: Schema, place: str, suffix: str, unit: str) -> Iterator[str]:
    least, most = schema.get(f"min{suffix}"), schema.get(f"max{suffix}")
    if isinstance(least, int) and size < least:
        yield f"{place}: should have at least {least} {unit}"
    if isinstance(most, int) and size > most:
        yield f"{place}: should have at most {most} {unit}"


def _number_errors(value: float, schema: Schema, place: str) -> Iterator[str]:
    for name, (words, fits) in _BOUNDS.items():
        bound = schema.get(name)
        is_number = isinstance(bound, int | float) and not isinstance(bound, bool)
        if is_number and not fits(value, bound):
            yield _line(place, f"should be {words} {bound}", value)


def _matches(value: str, pattern: Any) -> bool:
    validator = _pattern_validator(pattern) if isinstance(pattern, str) else None
    return validator is None or validator.isinstance_python(value)


@lru_cache(maxsize=256)
def _pattern_validator(pattern: str) -> SchemaValidator | None:
    """Return a validator of texts that match *pattern*, in linear time; None if it is invalid."""
    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except SchemaError:
        return None


def _line(place: str, problem: str, value: Any) -> str:
    return f"{place or 'arguments'}: {problem}; got {shortened(repr(value), _MAX_SHOWN)}"


def _below(place: str, name: object) -> str:
    return f"{place}.{name}" if place else str(name)
