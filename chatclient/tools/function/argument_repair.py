"""Repairs arguments that models wrote, and keeps the digits of their numbers."""

import json
import re
from collections.abc import Container, Mapping
from decimal import Decimal
from typing import Any

from chatclient._internal.json import (
    INEXACT_NUMBER,
    LONG_NUMBER,
    ExactFloat,
    dumps_exact,
    loads_exact,
)
from chatclient._internal.json_repair import repair_json, replace_surrogates
from chatclient.tools.function.schema_parts import (
    Schema,
    admits,
    as_list,
    as_mapping,
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


# Between these, some versions of pydantic do not take an integer for a float.
_EXACT, _LARGEST = 2**53, 10**300
_ADMITTED = (str, bool, int, float)
_NUMBER = re.compile(r"-?(0|[1-9]\d{0,400})(\.\d{1,400})?([eE][+-]?\d{1,3})?", re.ASCII)


def repair_value(value: Any, schema: Schema) -> Any:
    """Return *value* with unambiguous corrections of what does not fit the JSON *schema*.

    Servers write schemas too; of a keyword whose value is not of its kind, nothing is understood.

    - Null for an optional property that cannot be null is left out: the strict form of a schema
      has no other way to leave it out.
    - An object or array that was written as a string of JSON is parsed.
    - A number without a fraction is an integer where only integers are asked for.
    - A number is written as text where only text fits, and read from text where only numbers fit.
    - Half a surrogate pair becomes U+FFFD, the replacement character.
    - A text that is none of the admitted values, but is like exactly one of them when case and
      blanks around it do not count, is that one; a number among them may be written as a text.
    - The name of an enum's member means its value.
    """
    return _repaired(value, schema, definitions_of(schema))


def _repaired(value: Any, schema: Any, defs: Schema) -> Any:
    match value:
        case dict():
            return _repaired_object(value, branch_for(value, schema, defs), defs)
        case list():
            schemas = item_schemas(schema, defs)
            return [_repaired(item, next(schemas), defs) for item in value]
        case str():
            value = replace_surrogates(value)
            kinds = {
                kind
                for kind, start in (("object", "{"), ("array", "["))
                if value.lstrip().startswith(start) and admits(schema, defs, kind)
            }
            if not kinds or admits(schema, defs, "string"):
                return _meant_value(value, schema, defs)
            mended = repair_json(value)
            return value if mended is None else _repaired(loads_exact(mended), schema, defs)
        case int() | float() if not isinstance(value, bool):
            return _repaired_number(value, schema, defs)
        case _:
            return value


def _repaired_number(value: Any, schema: Any, defs: Schema) -> Any:
    whole, real = admits(schema, defs, "integer"), admits(schema, defs, "number")
    if not whole and not real and admits(schema, defs, "string"):
        return _meant_value(dumps_exact(value), schema, defs)
    if isinstance(value, ExactFloat):
        return exact_number(value, schema, defs)
    if isinstance(value, float):
        return int(value) if whole and not real and value.is_integer() else value
    if whole or not real or not _EXACT < abs(value) < _LARGEST:
        return value
    is_decimal = any(DECIMAL in branch for branch in branches(schema, defs))
    return value if is_decimal else float(value)


def _repaired_object(value: dict[str, Any], schema: Schema, defs: Schema) -> dict[str, Any]:
    properties = as_mapping(schema.get("properties"))
    required = {name for name in as_list(schema.get("required")) if isinstance(name, str)}
    result: dict[str, Any] = {}
    for key, item in value.items():
        expected = property_schema(schema, key)
        optional = key in properties and key not in required
        if item is None and optional and not admits(expected, defs, "null"):
            continue
        result[replace_surrogates(key)] = _repaired(item, expected, defs)
    return result


def _meant_value(value: str, schema: Any, defs: Schema) -> Any:
    """Return the admitted value that differs from *value* only in case; else *value* itself."""
    admitted: list[Any] = []
    for branch in branches(schema, defs):
        if "string" in types_of(branch) and "enum" not in branch and "const" not in branch:
            return value  # any text is valid
        admitted.extend(as_list(branch.get("enum")) or [branch.get("const")])
    if value in admitted:
        return value
    folded = value.strip().casefold()
    like = {
        each
        for each in admitted
        if isinstance(each, _ADMITTED) and str(each).strip().casefold() == folded
    }
    for branch in () if like else branches(schema, defs):
        names = as_mapping(branch.get(ENUM_NAMES))
        like |= {each for name, each in names.items() if name.casefold() == folded}
    if len(like) == 1:
        return like.pop()
    types = frozenset[str]().union(*(types_of(branch) for branch in branches(schema, defs)))
    is_number = types & {"integer", "number"} and not types - {"integer", "number", "null"}
    if not is_number or not _NUMBER.fullmatch(value.strip()):
        return value
    if any("enum" in branch or "const" in branch for branch in branches(schema, defs)):
        return value
    return _repaired_number(loads_exact(value.strip()), schema, defs)
