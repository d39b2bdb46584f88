"""Metadata filters as SQL conditions for SQLite.

The results are those of `chatclient.retrieval.vector_store.filters.predicate`.
"""

import json
import math
from collections.abc import Sequence
from typing import Any

from chatclient.retrieval.vector_store.filters import Filter, comparisons, filters_in, kind_of, same

SQL_ORDERINGS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}


def sql(where: Filter | None, column: str) -> tuple[str, list[Any]]:
    """Return *where* as a SQL condition on a JSON column, with its parameters.

    Keys and values are parameters and not part of the SQL.

    Raises:
        UsageError: *where* is not a filter.
    """
    conditions: list[str] = []
    parameters: list[Any] = []
    for key, value in (where or {}).items():
        condition, more = _condition(key, value, column)
        conditions.append(condition)
        parameters += more
    return joined(conditions, "AND") or "1", parameters


def joined(conditions: Sequence[str], by: str) -> str:
    """Return *conditions* joined as a balanced tree: SQLite limits the depth of expressions."""
    if len(conditions) < 2:  # noqa: PLR2004 - nothing to join
        return "".join(conditions)
    middle = len(conditions) // 2
    return f"({joined(conditions[:middle], by)} {by} {joined(conditions[middle:], by)})"


def _condition(key: str, value: Any, column: str) -> tuple[str, list[Any]]:
    if key in ("$and", "$or"):
        found = [sql(each, column) for each in filters_in(key, value)]
        text = joined([f"({text})" for text, _ in found], key[1:].upper())
        empty = "1" if key == "$and" else "0"
        return f"({text or empty})", [p for _, parameters in found for p in parameters]
    if key == "$not":
        text, parameters = sql(filters_in(key, [value])[0], column)
        return f"NOT ({text})", parameters
    conditions: list[str] = []
    all_parameters: list[Any] = []
    for name, operand in comparisons(key, value):
        condition, more = _comparison(name, operand, column, f'$."{key}"')
        conditions.append(f"({condition})")
        all_parameters += more
    return joined(conditions, "AND") or "1", all_parameters


def _comparison(name: str, operand: Any, column: str, path: str) -> tuple[str, list[Any]]:
    """Return one comparison; for missing values it is 0, never NULL."""
    value = f"json_extract({column}, ?)"
    match name:
        case "eq":
            return _equal(operand, column, path)
        case "ne":
            text, parameters = _equal(operand, column, path)
            return f"NOT ({text})", parameters
        case "in" | "not_in":
            text, parameters = _one_of(list(operand), column, path)
            return (text if name == "in" else f"NOT ({text})"), parameters
        case "contains":
            text, parameters = _equal_to("each.value", "each.type", operand)
            listed = f"json_each({column}, ?) AS each"
            array = f"coalesce(json_type({column}, ?) = 'array', 0)"
            some = f"EXISTS (SELECT 1 FROM {listed} WHERE {text})"  # noqa: S608 - parameters
            return f"{array} AND {some}", [path, path, *parameters]
        case "exists":
            exists = f"coalesce(json_type({column}, ?) != 'null', 0)"
            return (exists if operand else f"NOT {exists}"), [path]
    kinds = "('integer', 'real')" if kind_of(operand) == "number" else "('text')"
    if kind_of(operand) not in ("number", "str"):
        return "0", []
    ordered = f"{value} {SQL_ORDERINGS[name]} ?"
    return f"coalesce(json_type({column}, ?) IN {kinds} AND {ordered}, 0)", [path, path, operand]


def _one_of(operands: list[Any], column: str, path: str) -> tuple[str, list[Any]]:
    """Return the condition that a value is in *operands*, with few parameters."""
    constants = [each for each in (None, True, False) if any(same(w, each) for w in operands)]
    found = [_equal(each, column, path) for each in constants]
    listed = "(SELECT value FROM json_each(?))"
    value = f"json_extract({column}, ?)"
    for kind, types in (("str", "('text')"), ("number", "('integer', 'real')")):
        values = [each for each in operands if kind_of(each) == kind and _finite(each)]
        if values:
            condition = f"json_type({column}, ?) IN {types} AND {value} IN {listed}"
            found.append((f"coalesce({condition}, 0)", [path, path, json.dumps(values)]))
    text = joined([f"({text})" for text, _ in found], "OR") or "0"
    return text, [p for _, parameters in found for p in parameters]


def _finite(value: str | float) -> bool:
    """Return whether *value* can be encoded as JSON; stored metadata has no other numbers."""
    return not isinstance(value, float) or math.isfinite(value)


def _equal(operand: Any, column: str, path: str) -> tuple[str, list[Any]]:
    text, parameters = _equal_to(f"json_extract({column}, ?)", f"json_type({column}, ?)", operand)
    # The path is the parameter of both `json_type` and `json_extract`.
    return text, [path] if operand is None or isinstance(operand, bool) else [
        path,
        path,
        *parameters,
    ]


def _equal_to(value: str, kind: str, operand: Any) -> tuple[str, list[Any]]:
    if operand is None or isinstance(operand, bool):
        name = {None: "null", True: "true", False: "false"}[operand]
        return f"coalesce({kind} = '{name}', 0)", []
    if isinstance(operand, int | float):
        return f"coalesce({kind} IN ('integer', 'real') AND {value} = ?, 0)", [operand]
    return f"coalesce({kind} = 'text' AND {value} = ?, 0)", [operand]
