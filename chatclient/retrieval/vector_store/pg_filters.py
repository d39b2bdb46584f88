"""Metadata filters as SQL conditions for PostgreSQL; imports SQLAlchemy.

The results are those of `chatclient.retrieval.vector_store.filters.predicate`.
"""

import math
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from chatclient._internal import json
from chatclient.retrieval.vector_store.filters import (
    ORDERINGS,
    Filter,
    comparisons,
    filters_in,
    kind_of,
)

Condition = sa.ColumnElement[bool]
Metadata = sa.ColumnElement[Any]


def condition(where: Filter | None, metadata: Metadata) -> Condition:
    """Return *where* as a condition on a `jsonb` column; it is never NULL.

    Keys and values are parameters and not part of the SQL.

    Raises:
        UsageError: *where* is not a filter.
    """
    return sa.and_(sa.true(), *(_key(key, value, metadata) for key, value in (where or {}).items()))


def _key(key: str, value: Any, metadata: Metadata) -> Condition:
    match key:
        case "$and":
            return sa.and_(
                sa.true(), *(condition(each, metadata) for each in filters_in(key, value))
            )
        case "$or":
            return sa.or_(
                sa.false(), *(condition(each, metadata) for each in filters_in(key, value))
            )
        case "$not":
            return sa.not_(condition(filters_in(key, [value])[0], metadata))
    found = comparisons(key, value)
    return sa.and_(sa.true(), *(_comparison(name, key, each, metadata) for name, each in found))


def _comparison(name: str, key: str, wanted: Any, metadata: Metadata) -> Condition:
    match name:
        case "eq":
            return _contains(metadata, {key: wanted})
        case "ne":
            return sa.not_(_contains(metadata, {key: wanted}))
        case "in":
            return _one_of(key, wanted, metadata)
        case "not_in":
            return sa.not_(_one_of(key, wanted, metadata))
        case "contains":
            return _contains(metadata, {key: [wanted]})
        case "exists":
            exists = sa.func.coalesce(_type(key, metadata) != "null", sa.false())
            return exists if wanted else sa.not_(exists)
    return _ordered(name, key, wanted, metadata)


def _contains(metadata: Metadata, part: dict[str, Any]) -> Condition:
    """Return whether the metadata contains *part*; a GIN index serves this condition.

    A list contains another one if it has all its elements; other values contain only equals.
    """
    [wanted] = part.values()
    return sa.false() if _infinite(wanted) else metadata.bool_op("@>")(_json(part))


def _one_of(key: str, wanted: Any, metadata: Metadata) -> Condition:
    """Return whether the value is one of *wanted*, with one parameter for all of them."""
    values = sa.func.jsonb_array_elements(_json([each for each in wanted if not _infinite(each)]))
    value = sa.func.jsonb_extract_path(metadata, key)
    return sa.func.coalesce(value.in_(sa.select(values)), sa.false())


def _ordered(name: str, key: str, wanted: Any, metadata: Metadata) -> Condition:
    text = sa.func.jsonb_extract_path_text(metadata, key)
    value: sa.ColumnElement[Any]
    match kind_of(wanted):
        case "number":
            kind, value = "number", sa.cast(text, sa.Numeric)
            number = str(float(wanted)) if _infinite(wanted) else json.dumps(wanted).decode()
            limit = sa.cast(sa.literal(number, sa.Text), sa.Numeric)
            compared = ORDERINGS[name](value, limit)
        case "str":  # in the order of code points, as in Python
            kind, value = "string", sa.collate(text, "C")
            # A plain text, if it is a member of an enum.
            compared = ORDERINGS[name](value, sa.literal(wanted[:], sa.Text))
        case _:
            return sa.false()
    # Only CASE guarantees that other values are not converted to numbers.
    return sa.case((_type(key, metadata) == kind, compared), else_=sa.false())


def _type(key: str, metadata: Metadata) -> sa.ColumnElement[str]:
    return sa.func.jsonb_typeof(sa.func.jsonb_extract_path(metadata, key))


def _json(value: Any) -> sa.ColumnElement[Any]:
    return sa.cast(sa.literal(json.dumps(value).decode(), sa.Text), JSONB)


def _infinite(value: Any) -> bool:
    """Return whether *value*, or the element of a list, is infinite; metadata never is."""
    if isinstance(value, list):
        return any(map(_infinite, value))
    return isinstance(value, float) and math.isinf(value)
