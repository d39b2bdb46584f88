"""Metadata filters as SQL conditions of LanceDB.

The results are those of `chatclient.retrieval.vector_store.filters.predicate`.
"""

import math
from collections.abc import Mapping
from typing import Any

from chatclient._internal import json
from chatclient.errors import UsageError
from chatclient.retrieval.vector_store.filters import (
    Filter,
    comparisons,
    filters_in,
    kind_of,
    same,
)
from chatclient.retrieval.vector_store.sql_filters import SQL_ORDERINGS, joined

Fields = Mapping[str, Any]
"""The Arrow types of the metadata, by key."""


def lance_filter(where: Filter, fields: Fields) -> str:
    """Return *where* as a SQL condition on the struct `metadata`; it is never NULL.

    None is stored like a missing value, and equals nothing.

    Raises:
        UsageError: *where* is not a filter, or the type of a field cannot be compared.
    """
    return joined([_key(key, value, fields) for key, value in where.items()], "AND") or "true"


def lance_text(value: str) -> str:
    """Return *value* as a SQL literal."""
    return "'" + value.replace("'", "''") + "'"


def _key(key: str, value: Any, fields: Fields) -> str:
    match key:
        case "$and" | "$or":
            found = [f"({lance_filter(each, fields)})" for each in filters_in(key, value)]
            return f"({joined(found, key[1:].upper()) or str(key == '$and').lower()})"
        case "$not":
            return f"NOT ({lance_filter(filters_in(key, [value])[0], fields)})"
    kind, column = _kind(key, fields), f"metadata.`{key}`"
    found = [f"({_comparison(name, kind, column, each)})" for name, each in comparisons(key, value)]
    return joined(found, "AND") or "true"


def _kind(key: str, fields: Fields) -> str:
    """Return the kind of a field: that of its values, with `[]` for lists, or `missing`.

    Raises:
        UsageError: Filters cannot compare it.
    """
    if key not in fields:
        return "missing"
    name = str(fields[key])
    listed = name.startswith(("list<", "large_list<"))
    if listed:
        name = str(fields[key].value_type)
    for kind, prefixes in _TYPES.items():
        if name.startswith(prefixes) and "`" not in key:
            return f"{kind}[]" if listed else kind
    msg = f"LanceDB cannot filter by {key!r}, which has the type {name}"
    raise UsageError(msg)


_TYPES = {
    "str": ("string", "large_string"),
    "bool": ("bool",),
    "integer": ("int", "uint"),
    "number": ("float", "double", "halffloat"),
    "null": ("null",),
}


def _comparison(name: str, kind: str, column: str, wanted: Any) -> str:
    match name:
        case "eq":
            return _one_of(kind, column, [wanted])
        case "ne":
            return f"NOT ({_one_of(kind, column, [wanted])})"
        case "in":
            return _one_of(kind, column, list(wanted))
        case "not_in":
            return f"NOT ({_one_of(kind, column, list(wanted))})"
        case "contains":
            found = [] if not kind.endswith("[]") else _literals(kind[:-2], [wanted])
            return f"coalesce(array_has({column}, {found[0]}), false)" if found else "false"
        case "exists":
            exists = "false" if kind == "missing" else f"{column} IS NOT NULL"
            return exists if wanted else f"NOT ({exists})"
    if kind_of(wanted) == "str" and kind == "str":
        return f"coalesce({column} {SQL_ORDERINGS[name]} {lance_text(wanted)}, false)"
    if kind_of(wanted) == "number" and kind in ("integer", "number"):
        ordered = f"CAST({column} AS DOUBLE) {SQL_ORDERINGS[name]} {_double(wanted)}"
        if kind == "integer" and isinstance(wanted, int):  # exact, also for large numbers
            ordered = f"{column} {SQL_ORDERINGS[name]} {int(wanted)}"
        return f"coalesce({ordered}, false)"
    return "false"


def _one_of(kind: str, column: str, wanted: list[Any]) -> str:
    found = _literals(kind, wanted)
    return f"coalesce({column} IN ({', '.join(found)}), false)" if found else "false"


def _literals(kind: str, wanted: list[Any]) -> list[str]:
    """Return those of *wanted* as literals that a field of *kind* may equal."""
    match kind:
        case "str":
            return [lance_text(each) for each in wanted if kind_of(each) == "str"]
        case "bool":
            return [str(e).lower() for e in (True, False) if any(same(e, w) for w in wanted)]
        case "integer" | "number":
            finite = [e for e in wanted if kind_of(e) == "number" and math.isfinite(e)]
            if kind == "number":
                return [_double(each) for each in finite]
            return [str(int(each)) for each in finite if each == int(each)]
        case _:
            return []


def _double(number: float) -> str:
    if math.isinf(number):
        return "1e400" if number > 0 else "-1e400"
    return json.dumps(float(number)).decode()
