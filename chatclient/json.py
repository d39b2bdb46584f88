"""JSON as fast as the core dependencies allow: pydantic's parser and writer, bytes in and out.

JSON has no word for NaN and infinity. What Python's servers write in their place (`NaN`,
`-Infinity`, in log probabilities as a rule) is read; we write null, as browsers do: services and
databases refuse anything else.
"""

import json
import math
from typing import Any

from pydantic_core import from_json, to_json, to_jsonable_python


def loads(data: str | bytes | bytearray) -> Any:
    """Return the value that *data* spells.

    Raises:
        ValueError: It is not JSON.
    """
    try:
        return from_json(data)
    except (ValueError, TypeError):  # TypeError: raw surrogates in a str
        # The standard parser knows lone surrogates, which some models emit; and its message
        # names line and column.
        try:
            return json.loads(data)
        except RecursionError as error:
            msg = "nested too deeply"
            raise ValueError(msg) from error
        except UnicodeDecodeError as error:
            msg = str(error)
        # Not in there: that error would show all of the data.
        raise ValueError(msg) from None


def dumps(value: Any) -> bytes:
    """Return *value* as compact JSON, NaN and infinity as null.

    Raises:
        TypeError: Something in it has no JSON form.
    """
    try:
        return to_json(value, inf_nan_mode="null")
    except ValueError:
        # Again only the standard one knows lone surrogates.
        return _standard_dumps(value)


def has_json_form(value: Any) -> bool:
    """Return whether `dumps` can write *value*."""
    try:
        dumps(value)
    except TypeError:
        return False
    return True


def _standard_dumps(value: Any) -> bytes:
    try:
        finite = _finite(value)
        return json.dumps(finite, separators=(",", ":"), default=to_jsonable_python).encode()
    except (ValueError, RecursionError) as error:  # pydantic's serialisation error is one
        msg = f"not serialisable as JSON: {error}"
        raise TypeError(msg) from error


def _finite(value: Any) -> Any:
    """Return *value* with null for all numbers that JSON does not know."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
