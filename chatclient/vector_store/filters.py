"""Filters on the metadata of documents, written as plain data.

A filter is a mapping. Each key names a piece of metadata, its value says what that must be:

* `{"tenant": "acme"}`: equal to it;
* `{"year": {"gte": 2020, "lt": 2025}}`: all of these comparisons hold. There are `eq`, `ne`, `gt`,
  `gte`, `lt`, `lte`, `in` and `not_in` (one of, none of a list), `contains` (a list that has the
  value) and `exists` (True or False).

All keys must hold. `$and` and `$or` take lists of filters, `$not` one. Metadata that is missing, or
of another type than a comparison's value, holds for `ne`, `not_in` and `exists: False` only.
"""

import json
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from chatclient.errors import UsageError

Filter = Mapping[str, Any]
"""Which documents are meant, by their metadata; see `chatclient.vector_store.filters`."""

Predicate = Callable[[Mapping[str, Any]], bool]

_MISSING = object()
_DEPTH = 20  # of filters in filters
_BIGGEST = 2**63
_ORDERINGS: Mapping[str, Callable[[Any, Any], bool]] = {
    "gt": operator.gt,
    "gte": operator.ge,
    "lt": operator.lt,
    "lte": operator.le,
}
_SQL_ORDERINGS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}


def copy_of(where: Any) -> Any:
    """Return a filter in dicts and lists of its own, whatever kinds of mapping it was made of."""
    if isinstance(where, Mapping):
        return {key: copy_of(value) for key, value in where.items()}
    if isinstance(where, list | tuple | set | frozenset):
        return [copy_of(each) for each in where]
    return where


def key_of(where: Filter) -> str:
    """Return what tells filters apart; equal ones may have different keys."""
    return json.dumps(copy_of(where))


def predicate(where: Filter | None, depth: int = 0) -> Predicate:
    """Return a function that says whether metadata fits *where*; None fits all.

    Raises:
        UsageError: It is no filter.
    """
    if depth > _DEPTH:
        msg = f"there are filters in filters, more than {_DEPTH} deep; say it with fewer"
        raise UsageError(msg)
    tests = [_test(key, value, depth + 1) for key, value in (where or {}).items()]
    return lambda metadata: all(test(metadata) for test in tests)


def _test(key: str, value: Any, depth: int) -> Predicate:
    match key:
        case "$and":
            all_of = [predicate(each, depth) for each in _filters(key, value)]
            return lambda metadata: all(fits(metadata) for fits in all_of)
        case "$or":
            any_of = [predicate(each, depth) for each in _filters(key, value)]
            return lambda metadata: any(fits(metadata) for fits in any_of)
        case "$not":
            no = predicate(_filters(key, [value])[0], depth)
            return lambda metadata: not no(metadata)
    checks = [_check(name, wanted) for name, wanted in comparisons(key, value)]
    return lambda metadata: all(check(metadata.get(key, _MISSING)) for check in checks)


def _filters(key: str, value: Any) -> Sequence[Filter]:
    if not isinstance(value, list | tuple) or not all(isinstance(v, Mapping) for v in value):
        msg = f"{key!r} in a filter takes {'a filter' if key == '$not' else 'a list of filters'}"
        raise UsageError(msg)
    return value


def comparisons(key: Any, value: Any) -> list[tuple[str, Any]]:
    """Return what a filter asks of one piece of metadata, as names and values of comparisons."""
    if not isinstance(key, str):
        msg = f"a filter names metadata with texts, not {key!r}"
        raise UsageError(msg)
    if key.startswith("$"):
        msg = f"{key!r} is no part of a filter; there are '$and', '$or' and '$not'"
        raise UsageError(msg)
    if '"' in key or "\\" in key or min(key, default=" ") < " " or not _plain(key):
        msg = f"a filter cannot name {key!r}: quotes, backslashes or control characters are in it"
        raise UsageError(msg)
    asked = list(value.items()) if isinstance(value, Mapping) else [("eq", value)]
    for name, wanted in asked:
        if name not in _COMPARISONS:
            msg = f"no comparison is called {name!r}; there are {', '.join(sorted(_COMPARISONS))}"
            raise UsageError(msg)
        if name in ("in", "not_in") and not isinstance(wanted, list | tuple | set | frozenset):
            msg = f"{name!r} in a filter takes a list, not a {type(wanted).__name__}"
            raise UsageError(msg)
        for each in wanted if name in ("in", "not_in") else [wanted]:
            if not isinstance(each, str | int | float | None):
                msg = f"a filter compares texts, numbers, truth values and None, not {each!r}"
                raise UsageError(msg)
            _check_value(each)
    return asked


def _check_value(value: Any) -> None:
    """See that *value* is one that every store can compare.

    Raises:
        UsageError: It is not.
    """
    if isinstance(value, int) and not -_BIGGEST <= value < _BIGGEST:
        msg = f"a filter compares whole numbers of 64 bits at most, not {value!r}"
        raise UsageError(msg)
    if isinstance(value, str) and not _plain(value):
        msg = f"a filter compares texts without NUL and halves of surrogate pairs, not {value!r}"
        raise UsageError(msg)


def _plain(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text


_COMPARISONS = {"eq", "ne", "in", "not_in", "contains", "exists", *_ORDERINGS}


def _check(name: str, wanted: Any) -> Callable[[Any], bool]:
    match name:
        case "eq":
            return lambda found: _same(found, wanted)
        case "ne":
            return lambda found: not _same(found, wanted)
        case "in":
            return lambda found: any(_same(found, each) for each in wanted)
        case "not_in":
            return lambda found: not any(_same(found, each) for each in wanted)
        case "contains":
            return lambda found: (
                isinstance(found, list | tuple) and any(_same(each, wanted) for each in found)
            )
        case "exists":
            return lambda found: (found is not _MISSING and found is not None) is bool(wanted)
    compare = _ORDERINGS[name]
    return lambda found: _comparable(found, wanted) and compare(found, wanted)


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, str):
        return "str"
    return "number" if isinstance(value, int | float) else type(value).__name__


def _same(found: Any, wanted: Any) -> bool:
    return _kind(found) == _kind(wanted) and bool(found == wanted)


def _comparable(found: Any, wanted: Any) -> bool:
    return _kind(found) == _kind(wanted) and _kind(wanted) in ("number", "str")


def sql(where: Filter | None, column: str) -> tuple[str, list[Any]]:
    """Return *where* as a condition of SQLite on a column of JSON, with its parameters.

    Only names of comparisons get into the text; keys and values are parameters.

    Raises:
        UsageError: It is no filter.
    """
    conditions: list[str] = []
    parameters: list[Any] = []
    for key, value in (where or {}).items():
        condition, more = _condition(key, value, column)
        conditions.append(condition)
        parameters += more
    return _joined(conditions, "AND") or "1", parameters


def _joined(conditions: Sequence[str], by: str) -> str:
    """Return *conditions* in one, as a tree as low as can be: SQLite takes a thousand levels."""
    if len(conditions) < 2:  # noqa: PLR2004 - nothing to join
        return "".join(conditions)
    middle = len(conditions) // 2
    return f"({_joined(conditions[:middle], by)} {by} {_joined(conditions[middle:], by)})"


def _condition(key: str, value: Any, column: str) -> tuple[str, list[Any]]:
    if key in ("$and", "$or"):
        found = [sql(each, column) for each in _filters(key, value)]
        joined = _joined([f"({text})" for text, _ in found], key[1:].upper())
        empty = "1" if key == "$and" else "0"
        return f"({joined or empty})", [p for _, parameters in found for p in parameters]
    if key == "$not":
        text, parameters = sql(_filters(key, [value])[0], column)
        return f"NOT ({text})", parameters
    conditions: list[str] = []
    all_parameters: list[Any] = []
    for name, wanted in comparisons(key, value):
        condition, more = _comparison(name, wanted, column, _path(key))
        conditions.append(f"({condition})")
        all_parameters += more
    return _joined(conditions, "AND") or "1", all_parameters


def _path(key: str) -> str:
    return f'$."{key}"'


def _comparison(name: str, wanted: Any, column: str, path: str) -> tuple[str, list[Any]]:
    """Return one comparison; whatever is missing makes it 0, never NULL."""
    value = f"json_extract({column}, ?)"
    match name:
        case "eq":
            return _equal(wanted, column, path)
        case "ne":
            text, parameters = _equal(wanted, column, path)
            return f"NOT ({text})", parameters
        case "in" | "not_in":
            text, parameters = _one_of(list(wanted), column, path)
            return (text if name == "in" else f"NOT ({text})"), parameters
        case "contains":
            text, parameters = _equal_to("each.value", "each.type", wanted)
            listed = f"json_each({column}, ?) AS each"
            array = f"coalesce(json_type({column}, ?) = 'array', 0)"
            some = f"EXISTS (SELECT 1 FROM {listed} WHERE {text})"  # noqa: S608 - parameters
            return f"{array} AND {some}", [path, path, *parameters]
        case "exists":
            there = f"coalesce(json_type({column}, ?) != 'null', 0)"
            return (there if wanted else f"NOT {there}"), [path]
    kinds = "('integer', 'real')" if _kind(wanted) == "number" else "('text')"
    if _kind(wanted) not in ("number", "str"):
        return "0", []
    ordered = f"{value} {_SQL_ORDERINGS[name]} ?"
    return f"coalesce(json_type({column}, ?) IN {kinds} AND {ordered}, 0)", [path, path, wanted]


def _one_of(wanted: list[Any], column: str, path: str) -> tuple[str, list[Any]]:
    """Return that a value is among *wanted*; texts and numbers are one parameter, however many."""
    words = [each for each in (None, True, False) if any(_same(w, each) for w in wanted)]
    found = [_equal(each, column, path) for each in words]
    listed = "(SELECT value FROM json_each(?))"
    value = f"json_extract({column}, ?)"
    for kind, types in (("str", "('text')"), ("number", "('integer', 'real')")):
        values = [each for each in wanted if _kind(each) == kind and _finite(each)]
        if values:
            condition = f"json_type({column}, ?) IN {types} AND {value} IN {listed}"
            found.append((f"coalesce({condition}, 0)", [path, path, json.dumps(values)]))
    text = _joined([f"({text})" for text, _ in found], "OR") or "0"
    return text, [p for _, parameters in found for p in parameters]


def _finite(value: str | float) -> bool:
    """Return whether JSON has a word for *value*; metadata in a file holds no other numbers."""
    return not isinstance(value, float) or math.isfinite(value)


def _equal(wanted: Any, column: str, path: str) -> tuple[str, list[Any]]:
    text, parameters = _equal_to(f"json_extract({column}, ?)", f"json_type({column}, ?)", wanted)
    # Type and value are taken from the same place: the path goes before each.
    return text, [path] if wanted is None or isinstance(wanted, bool) else [path, path, *parameters]


def _equal_to(value: str, kind: str, wanted: Any) -> tuple[str, list[Any]]:
    if wanted is None or isinstance(wanted, bool):
        name = {None: "null", True: "true", False: "false"}[wanted]
        return f"coalesce({kind} = '{name}', 0)", []
    if isinstance(wanted, int | float):
        return f"coalesce({kind} IN ('integer', 'real') AND {value} = ?, 0)", [wanted]
    return f"coalesce({kind} = 'text' AND {value} = ?, 0)", [wanted]
