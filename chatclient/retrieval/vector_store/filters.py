"""Filters on the metadata of documents, written as plain data.

A filter is a mapping of metadata keys to conditions:

* `{"tenant": "acme"}`: the value is equal;
* `{"year": {"gte": 2020, "lt": 2025}}`: all comparisons are true. There are `eq`, `ne`, `gt`,
  `gte`, `lt`, `lte`, `in` and `not_in` (one of, none of a list), `contains` (the value is a list
  with an element) and `exists` (True or False).

The conditions of all keys must be true. `$and` and `$or` take lists of filters, `$not` one filter.
For a missing value, or one of another type, only `ne`, `not_in` and `exists: False` are true.
"""

import json
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from chatclient._internal.checks import check_type
from chatclient.errors import UsageError

Filter = Mapping[str, Any]
"""A metadata filter; see `chatclient.retrieval.vector_store.filters`."""

Predicate = Callable[[Mapping[str, Any]], bool]

_MISSING = object()
_MAX_DEPTH = 20  # nesting of filters
_INTEGER_LIMIT = 2**63
ORDERINGS: Mapping[str, Callable[[Any, Any], bool]] = {
    "gt": operator.gt,
    "gte": operator.ge,
    "lt": operator.lt,
    "lte": operator.le,
}


def equal_to(**values: str | float | bool) -> Filter:
    """Return the filter that compares metadata with plain *values*, of which all must be equal.

    In a filter, a value that is a mapping is a comparison. So a value from outside, such as a part
    of a request's JSON, could find everything: `{"ne": ""}`. Here it is an error.

    Raises:
        UsageError: A value is neither a text, a number nor a truth value.
    """
    for name, value in values.items():
        given: object = value
        if not isinstance(given, str | int | float):
            msg = f"{name} must be compared with a text, a number or a truth value, not {given!r}"
            raise UsageError(msg)
    if not values:
        msg = "equal_to() needs a value, such as equal_to(tenant=tenant)"
        raise UsageError(msg)
    return {name: {"eq": value} for name, value in values.items()}


def copy_of(where: Any) -> Any:
    """Return a deep copy of a filter, with plain dicts and lists.

    Alternatives for one key become one comparison: stores are slow with thousands of conditions.
    """
    if isinstance(where, Mapping):
        copy = {key: copy_of(value) for key, value in where.items()}
        return copy | {"$or": _merged(copy["$or"])} if "$or" in copy else copy
    if isinstance(where, list | tuple | set | frozenset):
        return [copy_of(each) for each in where]
    return where


def _merged(alternatives: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the filters of `$or`, with those that compare one key by equality as one `in`."""
    values: dict[str, list[Any]] = {}
    others = []
    for each in alternatives:
        [(key, value), *rest] = each.items() or [("", {})]
        if rest or isinstance(value, dict) or key.startswith("$"):
            others.append(each)
        else:
            values.setdefault(key, []).append(value)
    return [*({key: {"in": found}} for key, found in values.items()), *others]


def key_of(where: Filter) -> str:
    """Return a cache key of a filter; equal filters may have different keys."""
    return json.dumps(copy_of(where))


def predicate(where: Filter | None, depth: int = 0) -> Predicate:
    """Return a function that returns whether metadata matches *where*; None matches everything.

    Raises:
        UsageError: *where* is not a filter.
    """
    if depth > _MAX_DEPTH:
        msg = f"the filter is nested more than {_MAX_DEPTH} levels deep"
        raise UsageError(msg)
    check_type("a filter", {} if where is None else where, Mapping, 'write {"year": {"gte": 2020}}')
    tests = [_test(key, value, depth + 1) for key, value in (where or {}).items()]
    return lambda metadata: all(test(metadata) for test in tests)


def _test(key: str, value: Any, depth: int) -> Predicate:
    match key:
        case "$and":
            all_of = [predicate(each, depth) for each in filters_in(key, value)]
            return lambda metadata: all(matches(metadata) for matches in all_of)
        case "$or":
            any_of = [predicate(each, depth) for each in filters_in(key, value)]
            return lambda metadata: any(matches(metadata) for matches in any_of)
        case "$not":
            negated = predicate(filters_in(key, [value])[0], depth)
            return lambda metadata: not negated(metadata)
    checks = [_check(name, operand) for name, operand in comparisons(key, value)]
    return lambda metadata: all(check(stored(metadata.get(key, _MISSING))) for check in checks)


def filters_in(key: str, value: Any) -> Sequence[Filter]:
    """Return *value*, the filters of the operator *key*.

    Raises:
        UsageError: They are not filters.
    """
    if not isinstance(value, list | tuple) or not all(isinstance(v, Mapping) for v in value):
        msg = f"{key!r} in a filter takes {'a filter' if key == '$not' else 'a list of filters'}"
        raise UsageError(msg)
    if not all(value):
        msg = f"{key!r} in a filter has an empty filter; leave it out"
        raise UsageError(msg)
    return value


def comparisons(key: Any, value: Any) -> list[tuple[str, Any]]:
    """Return the names and values of the comparisons for a metadata key.

    Raises:
        UsageError: The key, a name or a value is not supported.
    """
    _check_key(key)
    if value == {}:
        msg = f"the filter of {key!r} is empty, and would accept every value"
        raise UsageError(msg)
    found = list(value.items()) if isinstance(value, Mapping) else [("eq", value)]
    for name, operand in found:
        if name not in _COMPARISONS:
            msg = f"no comparison is called {name!r}; there are {', '.join(sorted(_COMPARISONS))}"
            raise UsageError(msg)
        if name in ("in", "not_in") and not isinstance(operand, list | tuple | set | frozenset):
            msg = f"{name!r} in a filter takes a list, not a {type(operand).__name__}"
            raise UsageError(msg)
        for each in operand if name in ("in", "not_in") else [operand]:
            _check_value(each)
    return found


def equalities(where: Filter) -> Iterator[tuple[str, Any]]:
    """Yield the keys and values of the `eq` comparisons at the top level of a filter."""
    for key, value in where.items():
        if not key.startswith("$"):
            yield from ((key, operand) for name, operand in comparisons(key, value) if name == "eq")


def _check_key(key: Any) -> None:
    """Check that every store supports the metadata key *key*."""
    if not isinstance(key, str):
        msg = f"the keys of a filter must be texts, not {key!r}"
        raise UsageError(msg)
    if key.startswith("$"):
        msg = f"{key!r} is not an operator of filters; there are '$and', '$or' and '$not'"
        raise UsageError(msg)
    if '"' in key or "\\" in key or min(key, default=" ") < " " or not _plain(key):
        msg = f"a filter cannot name {key!r}: quotes, backslashes or control characters are in it"
        raise UsageError(msg)


def _check_value(value: Any) -> None:
    """Check that every store can compare *value*."""
    if not isinstance(value, str | int | float | None):
        msg = f"a filter compares texts, numbers, truth values and None, not {value!r}"
        raise UsageError(msg)
    if isinstance(value, int) and not -_INTEGER_LIMIT <= value < _INTEGER_LIMIT:
        msg = f"a filter compares integers of 64 bits at most, not {value!r}"
        raise UsageError(msg)
    if isinstance(value, float) and math.isnan(value):
        msg = "a filter cannot compare with NaN; documents without a number: {'exists': False}"
        raise UsageError(msg)
    if isinstance(value, str) and not _plain(value):
        msg = f"a filter compares texts without NUL and lone surrogates, not {value!r}"
        raise UsageError(msg)


def _plain(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text


_COMPARISONS = {"eq", "ne", "in", "not_in", "contains", "exists", *ORDERINGS}


def _check(name: str, operand: Any) -> Callable[[Any], bool]:
    match name:
        case "eq":
            return lambda value: same(value, operand)
        case "ne":
            return lambda value: not same(value, operand)
        case "in":
            return lambda value: any(same(value, each) for each in operand)
        case "not_in":
            return lambda value: not any(same(value, each) for each in operand)
        case "contains":
            return lambda value: (
                isinstance(value, list | tuple) and any(same(each, operand) for each in value)
            )
        case "exists":
            return lambda value: (value is not _MISSING and value is not None) is bool(operand)
    compare = ORDERINGS[name]
    return lambda value: (
        (kind_of(value) == kind_of(operand) and kind_of(operand) in ("number", "str"))
        and compare(value, operand)
    )


def stored(value: Any) -> Any:
    """Return *value* as JSON contains it: NaN and infinite numbers are null."""
    if isinstance(value, list | tuple):
        return [stored(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def kind_of(value: Any) -> str:
    """Return the name of the type of *value* in comparisons; other types are never equal to it."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, str):
        return "str"
    return "number" if isinstance(value, int | float) else type(value).__name__


def same(value: Any, operand: Any) -> bool:
    """Return whether both values are equal and of the same type."""
    return kind_of(value) == kind_of(operand) and bool(value == operand)
