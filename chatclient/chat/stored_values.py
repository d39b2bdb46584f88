"""The JSON form of everything that is stored: pending turns, recorded steps, results, journals."""

import base64
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Set as AbstractSet
from dataclasses import dataclass, fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from importlib import import_module
from typing import Any, TypeVar
from uuid import UUID

from pydantic_core import to_jsonable_python

from chatclient._internal.json import MOST_LEVELS
from chatclient._internal.logging import get_logger
from chatclient.errors import UsageError

log = get_logger(__name__)

T = TypeVar("T")

TYPE = "$type"
LEFT_OUT = "left_out"
"""The key in a stored record of the paths of values that have no JSON form, with their types."""

# Types of this package that register their form when their module is loaded.
_MODULES = {
    "document": "chatclient.chat.document",
    "yes/no answer": "chatclient.decisions.questions",
    "choice answer": "chatclient.decisions.questions",
    "score answer": "chatclient.decisions.questions",
    "refusal": "chatclient.decisions.questions",
    "decision metadata": "chatclient.decisions.model",
    "decision": "chatclient.decisions.model",
}


@dataclass(frozen=True, slots=True)
class _Form:
    name: str
    dump: Callable[[Any], Any]
    load: Callable[[Any], Any]


_by_type: dict[type[Any], _Form] = {}
_by_name: dict[str, _Form] = {}


def register_stored_type(
    kind: type[T], name: str, dump: Callable[[T], Any], load: Callable[[Any], T]
) -> None:
    """Let values of the type *kind* be stored, and read again as such values.

    Without this, a dataclass, a pydantic model or an enum is stored, and is read as the mapping or
    the plain value that it consists of; other objects are left out.

    Args:
        kind: The type, without its subclasses.
        name: The name in what is stored; no other type may have it.
        dump: Returns what a value consists of; anything that has a form itself.
        load: Returns the value again. It must not trust what it is given.

    Raises:
        UsageError: Another type has the name.
    """
    present = _by_name.get(name)
    if present is not None and _by_type.get(kind) is not present:
        msg = f"another type is stored under the name {name!r}"
        raise UsageError(msg)
    _by_type[kind] = _by_name[name] = _Form(name, dump, load)


def to_stored(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return *record* as JSON values, for `from_stored`.

    A value without a JSON form is left out (None in a list), named under `LEFT_OUT`, and logged.
    """
    left_out: dict[str, str] = {}
    stored: dict[str, Any] = _stored(record, "", left_out, 0)
    if left_out:
        stored[LEFT_OUT] = left_out
        for path, kind in left_out.items():
            _warn_once(path, kind)
    return stored


def from_stored(stored: Any) -> Any:
    """Return what `to_stored` was given, or a part of it.

    Only registered types are read; nothing else is called. A value of an unknown type is what its
    `dump` returned.

    Raises:
        ValueError: A value is not one of its type.
    """
    match stored:
        case dict():
            kind = stored.get(TYPE)
            if not isinstance(kind, str) or stored.keys() != {TYPE, "value"}:
                return {key: from_stored(value) for key, value in stored.items()}
            value = stored["value"]
            if kind == "mapping" and isinstance(value, dict):  # it looks like a value with a type
                return {key: from_stored(item) for key, item in value.items()}
            if kind in _MODULES and kind not in _by_name:
                import_module(_MODULES[kind])
            form = _by_name.get(kind)
            return from_stored(value) if form is None else _loaded(form, value)
        case list():
            return [from_stored(item) for item in stored]
    return stored


def equal_form(value: object) -> Any:
    """Return *value* as JSON values that `from_stored` reads as an equal value; None without."""
    left_out: dict[str, str] = {}
    try:
        stored = _stored(value, "", left_out, 0)
        read = from_stored(stored)
        equal = read == value
    except Exception:  # noqa: BLE001 - of the type of the value
        return None
    return stored if equal and not left_out else None


def _loaded(form: _Form, value: Any) -> Any:
    try:
        return form.load(from_stored(value))
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
        msg = f"not a stored {form.name}: {error!r}"
        raise ValueError(msg) from error


class _NoFormError(Exception):
    """A value has no JSON form."""


def _stored(value: Any, path: str, left_out: dict[str, str], level: int) -> Any:
    """Return *value* as JSON values, and add what is left out to *left_out*.

    Raises:
        _NoFormError: It has no JSON form itself.
    """
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if level >= MOST_LEVELS:  # which are read again
        raise _NoFormError
    form = _by_type.get(kind)
    if form is not None:
        dumped = _stored(form.dump(value), path, left_out, level + 1)
        return {TYPE: form.name, "value": dumped}
    if isinstance(value, Enum):
        return _stored(value.value, path, left_out, level + 1)
    if isinstance(value, str | int):
        return str(value) if isinstance(value, str) else int(value)
    if isinstance(value, Mapping):
        items = {str(key): item for key, item in _parts(value.items(), path, left_out, level)}
        return {TYPE: "mapping", "value": items} if items.keys() == {TYPE, "value"} else items
    if isinstance(value, list | tuple | AbstractSet):
        several = enumerate(value)
        return [item for _, item in _parts(several, path, left_out, level, keep=True)]
    if is_dataclass(value) and not isinstance(value, type):
        parts = ((each.name, getattr(value, each.name)) for each in fields(value))
        return dict(_parts(parts, path, left_out, level))
    return _by_pydantic(value)


def _parts(
    items: Any, path: str, left_out: dict[str, str], level: int, *, keep: bool = False
) -> Iterator[tuple[Any, Any]]:
    """Yield each item with its JSON form; if *keep*, None for one that is left out."""
    for key, item in items:
        inner = f"{path}[{key}]" if isinstance(key, int) else f"{path}.{key}" if path else str(key)
        try:
            yield key, _stored(item, inner, left_out, level + 1)
        except Exception:  # noqa: BLE001 - forms of the application may raise any error
            left_out[inner] = f"{type(item).__module__}.{type(item).__qualname__}"
            if keep:
                yield key, None


def _by_pydantic(value: Any) -> Any:
    """Return a pydantic model, a path, an address and so on as JSON values.

    Raises:
        _NoFormError: It has no JSON form.
    """
    if hasattr(value, "__next__") or isinstance(value, type):  # would be consumed
        raise _NoFormError
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    return to_jsonable_python(value, inf_nan_mode="null")


@functools.lru_cache(maxsize=1000)
def _warn_once(path: str, kind: str) -> None:
    log.warning("a value without a JSON form was not stored", path=path, type=kind)


register_stored_type(tuple, "tuple", list, tuple)
register_stored_type(set, "set", list, set)
register_stored_type(frozenset, "frozenset", list, frozenset)
register_stored_type(datetime, "datetime", datetime.isoformat, datetime.fromisoformat)
register_stored_type(date, "date", date.isoformat, date.fromisoformat)
register_stored_type(time, "time", time.isoformat, time.fromisoformat)
register_stored_type(
    timedelta, "timedelta", timedelta.total_seconds, lambda it: timedelta(seconds=it)
)
register_stored_type(Decimal, "decimal", str, Decimal)
register_stored_type(UUID, "uuid", str, UUID)
register_stored_type(bytes, "bytes", lambda it: base64.b64encode(it).decode(), base64.b64decode)
