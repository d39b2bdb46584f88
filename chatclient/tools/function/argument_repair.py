"""Repairs arguments of a tool call that do not fit the schema, if the correction is unambiguous.

That is JSON which is not quite what the schema asks for; text that is not quite JSON is the
business of `chatclient._internal.json_repair`. Ambiguous arguments stay as they are; the model is
told.
"""

import re
from typing import Any

from chatclient._internal.json import ExactFloat, dumps_exact, loads_exact
from chatclient._internal.json_repair import repair_json, replace_surrogates
from chatclient.tools.function.exact_numbers import DECIMAL, ENUM_NAMES, exact_number
from chatclient.tools.function.schema_branches import (
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
    - The name of an enum's member stands for its value.
    """
    return _repaired(value, schema, definitions_of(schema))


def _repaired(value: Any, schema: Any, defs: Schema) -> Any:
    match value:
        case dict():
            return _repaired_object(value, branch_for(value, schema, defs), defs)
        case list():
            return _repaired_array(value, schema, defs)
        case str():
            return _repaired_string(value, schema, defs)
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


def _repaired_array(value: list[Any], schema: Any, defs: Schema) -> list[Any]:
    schemas = item_schemas(schema, defs)
    return [_repaired(item, next(schemas), defs) for item in value]


def _repaired_string(value: str, schema: Any, defs: Schema) -> Any:
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
    return _as_number(value, schema, defs)


def _as_number(value: str, schema: Any, defs: Schema) -> Any:
    """Return the number in *value* if only numbers fit, else *value*."""
    types = frozenset[str]().union(*(types_of(branch) for branch in branches(schema, defs)))
    is_number = types & {"integer", "number"} and not types - {"integer", "number", "null"}
    if not is_number or not _NUMBER.fullmatch(value.strip()):
        return value
    if any("enum" in branch or "const" in branch for branch in branches(schema, defs)):
        return value
    return _repaired_number(loads_exact(value.strip()), schema, defs)
