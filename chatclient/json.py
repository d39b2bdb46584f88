"""JSON as fast as the core dependencies allow: pydantic's parser and writer, bytes in and out."""

import json
from typing import Any

from pydantic_core import from_json, to_json, to_jsonable_python


def loads(data: str | bytes | bytearray) -> Any:
    """Return the value that *data* spells.

    Raises:
        ValueError: It is not JSON.
    """
    try:
        return from_json(data, allow_inf_nan=False)
    except (ValueError, TypeError):  # TypeError: raw surrogates in a str
        # The standard parser knows lone surrogates, which some models emit; and its message
        # names line and column.
        try:
            return json.loads(data)
        except RecursionError as error:
            msg = "nested too deeply"
            raise ValueError(msg) from error


def dumps(value: Any) -> bytes:
    """Return *value* as compact JSON.

    Raises:
        TypeError: Something in it has no JSON form.
    """
    try:
        return to_json(value)
    except ValueError:
        # Again only the standard one knows lone surrogates.
        return _standard_dumps(value)


def _standard_dumps(value: Any) -> bytes:
    try:
        return json.dumps(value, separators=(",", ":"), default=to_jsonable_python).encode()
    except (ValueError, RecursionError) as error:  # pydantic's serialisation error is one
        msg = f"not serialisable as JSON: {error}"
        raise TypeError(msg) from error
