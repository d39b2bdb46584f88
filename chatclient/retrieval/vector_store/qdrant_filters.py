"""Payloads and filters of `QdrantVectorStore`; imports qdrant-client.

Qdrant compares lists, null, and numbers of different types in other ways than
`chatclient.retrieval.vector_store.filters`. Therefore a payload contains a token for each value,
such as `["is","kind","cat"]`, and filters compare tokens. One index serves all keys.
"""

import math
import sys
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from qdrant_client import models

from chatclient._internal import json
from chatclient.memory.encoding import digest
from chatclient.retrieval.vector_store.filters import (
    ORDERINGS,
    Filter,
    comparisons,
    filters_in,
    kind_of,
)

TOKENS = "tokens"
"""The key of the payload that needs an index."""

_NUMBERS = "numbers"
_FLOATS = 2**53  # with which Qdrant compares numbers: from here on, they leave out integers
_MAX_TOKEN = 200  # characters
_EVERYTHING = models.Filter()
_NOTHING = models.HasIdCondition(has_id=[])


class NoRangeError(Exception):
    """The filter compares the order of texts, or of integers that floats do not tell apart."""


def filterable(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a payload for filters on *metadata*."""
    tokens = {token for key, value in metadata.items() for token in _tokens(key, value)}
    numbers = {
        _field(key): _limited(value)
        for key, value in metadata.items()
        if kind_of(value) == "number"
    }
    return {TOKENS: sorted(tokens), _NUMBERS: numbers}


def condition(where: Filter | None) -> models.Condition:
    """Return *where* as a condition on the fields of `filterable`.

    Raises:
        UsageError: *where* is not a filter.
        NoRangeError: Qdrant cannot compare the order.
    """
    return _all([_key(key, value) for key, value in (where or {}).items()])


def _tokens(key: str, value: Any) -> Iterator[str]:
    if value is not None:
        yield _token("exists", key)
    if isinstance(value, list):
        yield from (_token("contains", key, item) for item in value if _comparable(item))
    elif _comparable(value):
        yield _token("is", key, value)


def _comparable(value: Any) -> bool:
    return isinstance(value, str | int | float | None)


def _token(*parts: Any) -> str:
    """Return a text that is the same for equal values, and other for others."""
    token = json.dumps([_canonical(part) for part in parts]).decode()
    return token if len(token) <= _MAX_TOKEN else digest(token)


def _canonical(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _field(key: str) -> str:
    """Return a name for *key* without characters that have a meaning in paths."""
    return digest(key)[:32]


def _limited(number: float) -> float:
    """Return *number* within the range of JSON numbers."""
    return max(-sys.float_info.max, min(number, sys.float_info.max))


def _key(key: str, value: Any) -> models.Condition:
    match key:
        case "$and":
            return _all([condition(each) for each in filters_in(key, value)])
        case "$or":
            each = [condition(each) for each in filters_in(key, value)]
            return models.Filter(should=each) if each else _NOTHING
        case "$not":
            return models.Filter(must_not=[condition(filters_in(key, [value])[0])])
    return _all([_comparison(name, key, wanted) for name, wanted in comparisons(key, value)])


def _all(conditions: list[models.Condition]) -> models.Condition:
    # Local mode evaluates each level of a filter for each document.
    if len(conditions) == 1:
        return conditions[0]
    return models.Filter(must=conditions) if conditions else _EVERYTHING


def _comparison(name: str, key: str, wanted: Any) -> models.Condition:
    match name:
        case "eq" | "ne":
            found = _has("is", key, [wanted])
        case "in" | "not_in":
            found = _has("is", key, wanted)
        case "contains":
            return _has("contains", key, [wanted])
        case "exists":
            found = _has("exists", key, None)
            return found if wanted else models.Filter(must_not=[found])
        case _:
            return _ordered(name, key, wanted)
    return models.Filter(must_not=[found]) if name in ("ne", "not_in") else found


def _has(name: str, key: str, values: Collection[Any] | None) -> models.Condition:
    """Return the condition that one of *values* is that of *key*, or any one."""
    if values is None:
        tokens = [_token(name, key)]
    else:  # metadata has no infinite numbers
        finite = (each for each in values if not (isinstance(each, float) and math.isinf(each)))
        tokens = [_token(name, key, each) for each in finite]
    if not tokens:
        return _NOTHING
    match = models.MatchAny(any=tokens) if tokens[1:] else models.MatchValue(value=tokens[0])
    return models.FieldCondition(key=TOKENS, match=match)


def _ordered(name: str, key: str, wanted: Any) -> models.Condition:
    match kind_of(wanted):
        case "number":
            if abs(wanted) >= _FLOATS and math.isfinite(wanted):
                raise NoRangeError
            limits = dict.fromkeys(ORDERINGS) | {name: _limited(wanted)}
            field = f"{_NUMBERS}.{_field(key)}"
            return models.FieldCondition(key=field, range=models.Range(**limits))
        case "str":
            raise NoRangeError
        case _:
            return _NOTHING
