"""JSON encoding and decoding with pydantic's fast parser and serializer.

JSON has no NaN and no infinity. `NaN` and `-Infinity`, which Python servers send in log
probabilities, are accepted; null is written instead, because services and databases refuse them.
"""

import json
import math
import re
from decimal import Decimal
from typing import Any, Self

from pydantic_core import from_json, to_json, to_jsonable_python

MOST_LEVELS = 200
"""Maximum nesting of JSON; the limit of pydantic's parser."""


class NestingError(ValueError):
    """JSON is nested more deeply than `MOST_LEVELS`."""

    def __init__(self) -> None:
        super().__init__("nested too deeply")


def loads(data: str | bytes | bytearray) -> Any:
    """Return the value of the JSON in *data*.

    Raises:
        NestingError: It is nested too deeply.
        ValueError: It is not JSON.
    """
    try:
        return from_json(data)
    except (ValueError, TypeError) as error:  # TypeError: raw surrogates in a str
        if "recursion limit" in str(error):
            raise NestingError from None
        # The standard parser accepts lone surrogates, which some models emit, and its message
        # has line and column.
        try:
            value = json.loads(data)
        except RecursionError as error:
            raise NestingError from error
        except UnicodeDecodeError as error:
            msg = str(error)
        else:
            # The limit of pydantic's parser: later code walks the value recursively.
            level, levels = [value], 0
            while level := [
                item
                for each in level
                if isinstance(each, dict | list)
                for item in (each.values() if isinstance(each, dict) else each)
            ]:
                levels += 1
                if levels > MOST_LEVELS:
                    raise NestingError
            return value
        # Raised here, not in the handler: the `UnicodeDecodeError` as context would show the data.
        raise ValueError(msg) from None


class ExactFloat(float):
    """A float with its literal in the JSON, whose digits a float may not represent.

    Attributes:
        literal: The number as written in the JSON.
    """

    __slots__ = ("literal",)

    literal: str

    def __new__(cls, literal: str) -> Self:
        """Return the float of *literal*."""
        value = super().__new__(cls, literal)
        value.literal = literal
        return value


# A float represents fifteen digits exactly. A match within a string only costs time.
_BEGIN = r"\d(?<![\d.]\d)"  # faster than a pattern with the lookbehind first
_LONG = r"(?=[\d.]{15})\d*[.eE]"
LONG_NUMBER = re.compile(_BEGIN + _LONG, re.ASCII)
"""Matches numbers with a fraction or an exponent that may have more digits than a float."""

INEXACT_NUMBER = re.compile(
    rf"{_BEGIN}(?:{_LONG}|\d*\.\d*0(?!\d)|[\d.]*[eE][+-]?\d{{3}})", re.ASCII
)
"""Matches like `LONG_NUMBER`, and also trailing zeros of a fraction and large exponents."""


def loads_exact(data: str | bytes) -> Any:
    """Like `loads`, with an `ExactFloat` for numbers that `repr` of a float would change.

    Raises:
        NestingError: It is nested too deeply.
        ValueError: It is not JSON.
    """
    value = loads(data)  # also checks the nesting
    text = data if isinstance(data, str) else data.decode(errors="replace")
    if INEXACT_NUMBER.search(text) is None:
        return value
    return json.loads(data, parse_float=exact_float)


def loads_comparable(data: str) -> Any:
    """Like `loads`, with a `Decimal` for each number that a float rounds.

    Raises:
        NestingError: It is nested too deeply.
        ValueError: It is not JSON.
    """
    value = loads(data)
    if INEXACT_NUMBER.search(data) is None:
        return value
    return _unrounded(json.loads(data, parse_float=exact_float))


def exact_float(literal: str) -> float:
    """Return the float of *literal*; an `ExactFloat` if its `repr` differs from *literal*."""
    value = float(literal)
    return value if repr(value) == literal else ExactFloat(literal)


def dumps_exact(value: Any) -> str:
    """Return *value* as compact JSON text, with the literal of each finite `ExactFloat`."""
    return _exact_text(value) if _has_exact_float(value) else dumps(value).decode()


def _exact_text(value: Any) -> str:
    match value:
        case ExactFloat() if math.isfinite(value):
            return value.literal
        case dict():
            items = (f"{_exact_text(key)}:{_exact_text(item)}" for key, item in value.items())
            return "{" + ",".join(items) + "}"
        case list():
            return "[" + ",".join(map(_exact_text, value)) + "]"
        case _:
            return dumps(value).decode()


def _has_exact_float(value: Any) -> bool:
    match value:
        case dict():
            return any(map(_has_exact_float, value.values()))
        case list():
            return any(map(_has_exact_float, value))
        case _:
            return isinstance(value, ExactFloat)


def _unrounded(value: Any) -> Any:
    match value:
        case dict():
            return {key: _unrounded(item) for key, item in value.items()}
        case list():
            return [_unrounded(item) for item in value]
        case ExactFloat() if value and math.isfinite(value):  # limits the exponent
            exact = Decimal(value.literal)
            return float(value) if exact == Decimal(repr(value)) else exact
        case _:
            return value


def dumps(value: Any) -> bytes:
    """Return *value* as compact JSON, NaN and infinity as null.

    Raises:
        TypeError: Something in it has no JSON form.
    """
    try:
        return to_json(value, inf_nan_mode="null")
    except ValueError:
        # Only the standard encoder accepts lone surrogates.
        try:
            finite = _finite(value)
            return json.dumps(finite, separators=(",", ":"), default=to_jsonable_python).encode()
        except (ValueError, RecursionError) as error:  # PydanticSerializationError is a ValueError
            msg = f"not serialisable as JSON: {error}"
            raise TypeError(msg) from error


def has_json_form(value: Any) -> bool:
    """Return whether `dumps` can write *value*."""
    try:
        dumps(value)
    except TypeError:
        return False
    return True


def _finite(value: Any) -> Any:
    """Return *value* with NaN and infinity replaced by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
