"""Converts errors to and from JSON values, for recorded steps."""

import sys
from collections.abc import Mapping
from typing import Any

from chatclient._internal.json import dumps, loads
from chatclient.errors import ChatClientError, RecordedError


def error_to_dict(error: BaseException) -> dict[str, Any]:
    """Return *error* as JSON values, for `error_from_dict`.

    Attributes without a JSON form are left out.
    """
    kind = type(error)
    attributes = {
        name: _json_or_none(value) for name, value in vars(error).items() if name != "trail"
    }
    return {
        "module": kind.__module__,
        "name": kind.__qualname__,
        "message": str(error.args[0]) if error.args else str(error),
        "attributes": attributes,
    }


def error_from_dict(data: Mapping[str, Any]) -> Exception:
    """Return the error in *data*, the result of `error_to_dict`.

    It has the class of the original error if a loaded module defines it; otherwise it is a
    `RecordedError`. Nothing is imported, and no constructor is called.
    """
    found: Any = sys.modules.get(data["module"])
    for part in data["name"].split("."):
        found = getattr(found, part, None)
    message = data["message"]
    if not (isinstance(found, type) and issubclass(found, Exception)):
        return RecordedError(f"{data['name']}: {message}", kind=f"{data['module']}.{data['name']}")
    error = found.__new__(found)
    error.args = (message,)
    attributes = data["attributes"]
    if isinstance(error, ChatClientError):  # their sequences are tuples
        attributes = {k: tuple(v) if isinstance(v, list) else v for k, v in attributes.items()}
    vars(error).update(attributes)
    return error


def _json_or_none(value: object) -> Any:
    return json_form(value, None)


def json_form(value: object, default: Any) -> Any:
    """Return *value* as JSON values, or *default* if it has no equal JSON form."""
    try:
        found = loads(dumps(value))
    except (TypeError, ValueError):
        return default
    return found if found == value or isinstance(value, tuple) else default
