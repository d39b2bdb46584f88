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
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from chatclient.checks import check_kind
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
        UsageError: It is not a filter.
    """
    if depth > _DEPTH:
        msg = f"the filter is nested more than {_DEPTH} deep"
        raise UsageError(msg)
    check_kind("a filter", {} if where is None else where, Mapping, 'write {"year": {"gte": 2020}}')
    tests = [_test(key, value, depth + 1) for key, value in (where or {}).items()]
    return lambda metadata: all(test(metadata) for test in tests)


def _test(key: str, value: Any, depth: int) -> Predicate:
    match key:
        case "$and":
            all_of = [predicate(each, depth) for each in filters_in(key, value)]
            return lambda metadata: all(fits(metadata) for fits in all_of)
        case "$or":
            any_of = [predicate(each, depth) for each in filters_in(key, value)]
            return lambda metadata: any(fits(metadata) for fits in any_of)
        case "$not":
            no = predicate(filters_in(key, [value])[0], depth)
            return lambda metadata: not no(metadata)
    checks = [_check(name, wanted) for name, wanted in comparisons(key, value)]
    return lambda metadata: all(check(metadata.get(key, _MISSING)) for check in checks)


def filters_in(key: str, value: Any) -> Sequence[Filter]:
    """Return the filters that `$and`, `$or` or `$not` has.

    Raises:
        UsageError: They are something else.
    """
    if not isinstance(value, list | tuple) or not all(isinstance(v, Mapping) for v in value):
        msg = f"{key!r} in a filter takes {'a filter' if key == '$not' else 'a list of filters'}"
        raise UsageError(msg)
    return value


def comparisons(key: Any, value: Any) -> list[tuple[str, Any]]:
    """Return what a filter asks of one piece of metadata, as names and values of comparisons.

    Raises:
        UsageError: It asks for something that cannot be compared.
    """
    _check_key(key)
    asked = list(value.items()) if isinstance(value, Mapping) else [("eq", value)]
    for name, wanted in asked:
        if name not in _COMPARISONS:
            msg = f"no comparison is called {name!r}; there are {', '.join(sorted(_COMPARISONS))}"
            raise UsageError(msg)
        if name in ("in", "not_in") and not isinstance(wanted, list | tuple | set | frozenset):
            msg = f"{name!r} in a filter takes a list, not a {type(wanted).__name__}"
            raise UsageError(msg)
        for each in wanted if name in ("in", "not_in") else [wanted]:
            _check_value(each)
    return asked


def equalities(where: Filter) -> Iterator[tuple[str, Any]]:
    """Yield the pieces of metadata that have to be equal to something, each with that."""
    for key, value in where.items():
        if not key.startswith("$"):
            yield from ((key, wanted) for name, wanted in comparisons(key, value) if name == "eq")


def _check_key(key: Any) -> None:
    """Make sure that *key* is a name that every store can look for."""
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
    """Make sure that *value* is one that every store can compare."""
    if not isinstance(value, str | int | float | None):
        msg = f"a filter compares texts, numbers, truth values and None, not {value!r}"
        raise UsageError(msg)
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
            return lambda found: same(found, wanted)
        case "ne":
            return lambda found: not same(found, wanted)
        case "in":
            return lambda found: any(same(found, each) for each in wanted)
        case "not_in":
            return lambda found: not any(same(found, each) for each in wanted)
        case "contains":
            return lambda found: (
                isinstance(found, list | tuple) and any(same(each, wanted) for each in found)
            )
        case "exists":
            return lambda found: (found is not _MISSING and found is not None) is bool(wanted)
    compare = _ORDERINGS[name]
    return lambda found: _comparable(found, wanted) and compare(found, wanted)


def kind_of(value: Any) -> str:
    """Return what kind of thing *value* is; only those of one kind are ever equal or ordered."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, str):
        return "str"
    return "number" if isinstance(value, int | float) else type(value).__name__


def same(found: Any, wanted: Any) -> bool:
    """Return whether both are equal and of one kind."""
    return kind_of(found) == kind_of(wanted) and bool(found == wanted)


def _comparable(found: Any, wanted: Any) -> bool:
    return kind_of(found) == kind_of(wanted) and kind_of(wanted) in ("number", "str")
