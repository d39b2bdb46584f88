"""Numbers in JSON that keep their digits on the way to a `Decimal` or an `int`.

pydantic reads a JSON number with a fraction as a binary float, also for a `Decimal`, but it reads
the digits of a string. Where a number would change, the JSON is rewritten before validation: as a
string for a `Decimal`, as an integer for an `int`.
"""

import json
from collections.abc import Container, Mapping
from decimal import Decimal
from typing import Any

from chatclient._internal.json import INEXACT_NUMBER, LONG_NUMBER, ExactFloat, loads_exact
from chatclient.tools.function.schema_branches import (
    Schema,
    branch_for,
    branches,
    definitions_of,
    item_schemas,
    property_schema,
    types_of,
)

DECIMAL = "x-decimal"
"""Marks in a schema what is read as a `Decimal`; `public_schema` removes it."""

ENUM_NAMES = "x-enum-names"
"""Mark of an enum: the values of its members by their names, which models write, too."""

_MARKS = (DECIMAL, ENUM_NAMES)


class NumberRewriter:
    """Rewrites the numbers of JSON texts by a schema.

    Args:
        schema: The JSON Schema of the texts, with `DECIMAL` marks.
    """

    __slots__ = ("_defs", "_pattern", "_schema")

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._defs = definitions_of(schema)
        self._pattern = None
        if _mentions(schema, (DECIMAL,)):
            self._pattern = INEXACT_NUMBER
        elif _mentions(schema, ("integer",)):
            self._pattern = LONG_NUMBER

    def may_change(self, text: str) -> bool:
        """Return whether *text* may have a number that would change."""
        return self._pattern is not None and self._pattern.search(text) is not None

    def rewrite(self, text: str) -> str:
        """Return *text* with exact numbers; as it is where none would change or it is no JSON."""
        if not self.may_change(text):
            return text
        try:
            return json.dumps(self.convert(loads_exact(text)))
        except ValueError:
            return text

    def convert(self, value: Any) -> Any:
        """Return *value* with each `ExactFloat` in the form that its schema needs."""
        return _converted(value, self._schema, self._defs)


def _converted(value: Any, schema: Any, defs: Schema) -> Any:
    match value:
        case ExactFloat():
            return exact_number(value, schema, defs)
        case dict():
            branch = branch_for(value, schema, defs)
            return {
                key: _converted(item, property_schema(branch, key), defs)
                for key, item in value.items()
            }
        case list():
            schemas = item_schemas(schema, defs)
            return [_converted(item, next(schemas), defs) for item in value]
        case _:
            return value


def exact_number(number: ExactFloat, schema: Any, defs: Schema) -> float | int | str:
    """Return *number* in the form in which *schema* reads all of its digits.

    That is a float where the schema admits floats, and where a string would be read as a `str`.
    """
    kinds: set[str] = set()
    for branch in branches(schema, defs):
        if DECIMAL in branch and "string" not in kinds:
            kinds.add(DECIMAL)
        elif "enum" not in branch and "const" not in branch:
            kinds |= types_of(branch)
    if "number" in kinds:
        return float(number)
    if DECIMAL in kinds:
        return number.literal
    return _as_integer(number, is_text="string" in kinds) if "integer" in kinds else float(number)


def _as_integer(number: ExactFloat, *, is_text: bool) -> float | int | str:
    if not number.is_integer():
        return float(number)
    # Its fraction is zero or lost. The exponent is small: the float is finite.
    exact = Decimal(number.literal) if number else Decimal()
    if exact == exact.to_integral_value():
        return int(exact)
    return float(number) if is_text else number.literal  # pydantic refuses such a string


def public_schema(schema: Any) -> Any:
    """Return *schema* without the marks `DECIMAL` and `ENUM_NAMES`."""
    if isinstance(schema, list):
        return [public_schema(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {key: public_schema(item) for key, item in schema.items() if key not in _MARKS}


def _mentions(schema: Any, words: Container[str]) -> bool:
    if isinstance(schema, Mapping):
        return any(key in words or _mentions(item, words) for key, item in schema.items())
    if isinstance(schema, list | tuple):
        return any(_mentions(item, words) for item in schema)
    return isinstance(schema, str) and schema in words
