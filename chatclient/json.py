"""JSON as fast as the core dependencies allow: pydantic's parser and writer, bytes in and out."""

import json
from typing import Any

from pydantic_core import from_json, to_json


def loads(data: str | bytes | bytearray) -> Any:
    """Return the value that *data* spells.

    Raises:
        ValueError: It is not JSON.
    """
    try:
        return from_json(data, allow_inf_nan=False)
    except ValueError:
        # The standard parser knows lone surrogates, which some models emit; and its message
        # names line and column.
        return json.loads(data)


def dumps(value: Any) -> bytes:
    """Return *value* as compact JSON.

    Raises:
        TypeError: Something in it has no JSON form.
    """
    try:
        return to_json(value)
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()
    except ValueError as error:  # pydantic's serialisation error is one
        msg = f"not serialisable as JSON: {error}"
        raise TypeError(msg) from error
