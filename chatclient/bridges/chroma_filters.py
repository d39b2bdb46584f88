"""Metadata filters as those of Chroma.

The results are those of `chatclient.retrieval.vector_store.filters.predicate`.
"""

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from chatclient.errors import UsageError
from chatclient.retrieval.vector_store.filters import (
    ORDERINGS,
    Filter,
    comparisons,
    filters_in,
    kind_of,
)

ChromaFilter = Mapping[str, Any] | bool
"""A filter of Chroma, or whether all or no documents match."""

_MAX_OPERANDS = 50  # SQLite, below Chroma, limits the depth of expressions
_NEGATIONS = {"eq": "ne", "in": "not_in", "contains": "not_contains"}


def chroma_filter(where: Filter, *, negated: bool = False) -> ChromaFilter:
    """Return *where*, or its negation, as a filter of Chroma.

    Chroma stores no None, so that it equals nothing.

    Raises:
        UsageError: *where* is not a filter, or Chroma has nothing that corresponds to it.
    """
    found = [_key(key, value, negated=negated) for key, value in where.items()]
    return _joined("$or" if negated else "$and", found)


def _joined(junction: str, filters: Sequence[ChromaFilter]) -> ChromaFilter:
    decisive = junction == "$or"  # True decides $or, False decides $and
    if any(each is decisive for each in filters):
        return decisive
    several = [each for each in filters if not isinstance(each, bool)]
    if not several:
        return not decisive
    if len(several) > _MAX_OPERANDS:
        parts = [several[at : at + _MAX_OPERANDS] for at in range(0, len(several), _MAX_OPERANDS)]
        return _joined(junction, [_joined(junction, part) for part in parts])
    return several[0] if len(several) == 1 else {junction: several}


def _key(key: str, value: Any, *, negated: bool) -> ChromaFilter:
    match key:
        case "$and" | "$or":
            found = [chroma_filter(each, negated=negated) for each in filters_in(key, value)]
            return _joined("$or" if (key == "$or") != negated else "$and", found)
        case "$not":
            return chroma_filter(filters_in(key, [value])[0], negated=not negated)
    found = [_negatable(name, key, each, negated) for name, each in comparisons(key, value)]
    return _joined("$or" if negated else "$and", found)


def _negatable(name: str, key: str, wanted: Any, negated: bool) -> ChromaFilter:  # noqa: FBT001
    opposites = _NEGATIONS | {opposite: name for name, opposite in _NEGATIONS.items()}
    if not negated:
        return _comparison(name, key, wanted)
    if name not in opposites:
        _refuse(f"the negation of {name!r}")
    return _comparison(opposites[name], key, wanted)


def _comparison(name: str, key: str, wanted: Any) -> ChromaFilter:
    match name:
        case "eq" | "ne":
            return _value(name, key, wanted)
        case "in":
            return _joined("$or", _one_of("in", key, list(wanted)))
        case "not_in":
            return _joined("$and", _one_of("nin", key, list(wanted)))
        case "contains":
            return _joined("$or", [{key: {"$contains": each}} for each in _forms(wanted)])
        case "not_contains":
            return _joined("$and", [{key: {"$not_contains": each}} for each in _forms(wanted)])
        case "exists":
            _refuse("'exists'")
    if kind_of(wanted) == "str":
        _refuse("the order of texts")
    return _value(name, key, wanted) if kind_of(wanted) == "number" else False


def _value(name: str, key: str, wanted: Any) -> ChromaFilter:
    """Return one comparison with a text, number, truth value or None."""
    if wanted is None:
        return name == "ne"
    if isinstance(wanted, float) and math.isinf(wanted):
        _refuse("an infinite number")
    found = {key: {f"${name}": wanted}}
    if not isinstance(wanted, float) or wanted.is_integer():
        return found
    # Chroma compares integers with the integral part of a number with a fraction.
    whole = math.trunc(wanted)
    compare = {**ORDERINGS, "eq": operator.eq, "ne": operator.ne}[name]
    expected, actual = compare(whole, wanted), compare(whole, whole)
    if expected == actual:
        return found
    if expected:
        return _joined("$or", [found, {key: {"$eq": whole}}])
    return _joined("$and", [found, {key: {"$ne": whole}}])


def _one_of(name: str, key: str, wanted: list[Any]) -> list[ChromaFilter]:
    """Return the parts of a comparison with a list; a list in Chroma has values of one type."""
    single = {"in": "eq", "nin": "ne"}[name]
    texts = [each for each in wanted if kind_of(each) == "str"]
    whole = [int(e) for e in wanted if kind_of(e) == "number" and math.isfinite(e) and e == int(e)]
    others = [e for e in wanted if e not in texts and not (kind_of(e) == "number" and e in whole)]
    lists: list[ChromaFilter] = [{key: {f"${name}": each}} for each in (texts, whole) if each]
    return [*lists, *(_value(single, key, each) for each in others)]


def _forms(wanted: Any) -> list[Any]:
    """Return the values in lists that are the same as *wanted*; 1 and 1.0 differ in Chroma."""
    if wanted is None:
        return []
    if isinstance(wanted, float) and math.isinf(wanted):
        _refuse("an infinite number")
    if kind_of(wanted) == "number" and wanted == int(wanted):
        forms = [int(wanted), float(wanted)]
        return forms if forms[1] == forms[0] else forms[:1]
    return [wanted]


def _refuse(what: str) -> NoReturn:
    msg = f"Chroma has no filter for {what}"
    raise UsageError(msg)
