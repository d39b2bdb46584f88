"""Short texts for objects whose class has no `__repr__` of its own."""

from collections.abc import Iterator, Mapping
from typing import Any

_LONGEST = 100  # characters
_PLAIN = (bool, int, float)


def add_short_repr(kind: Any) -> None:
    """Give *kind* a short text if it is a class without one; protocols are left as they are."""
    if not isinstance(kind, type) or getattr(kind, "_is_protocol", False):
        return
    if vars(kind).get("__repr__", kind.__repr__) is object.__repr__:
        changed: Any = kind
        changed.__repr__ = _short


def _short(self: object) -> str:
    """Return the name of the class, and those public attributes that contain no secrets.

    These are numbers, functions and objects of this library. Texts are left out, apart from names:
    they may be keys, addresses or what users say.
    """
    shown = " ".join(_shown(self))
    if len(shown) > _LONGEST:
        shown = f"{shown[:_LONGEST]}..."
    return f"<{type(self).__name__}{' ' if shown else ''}{shown}>"


def _shown(owner: object) -> Iterator[str]:
    names = getattr(owner, "__dict__", None) or {
        name: None for kind in type(owner).__mro__ for name in getattr(kind, "__slots__", ())
    }
    for name in list(names):
        value = getattr(owner, name, None)
        if not name.startswith("_") and name != "order" and (text := _text(name, value)):
            yield f"{name}={text}"


def _text(name: str, value: Any) -> str:
    if isinstance(value, _PLAIN) or (name == "name" and isinstance(value, str)):
        return repr(value)
    if isinstance(value, Mapping):
        plain = all(isinstance(each, _PLAIN) for each in value.values())
        return repr(dict(value)) if value and plain else ""
    if isinstance(value, tuple | list):
        texts = [_text(name, each) for each in value[:3]]
        return f"[{', '.join(texts)}]" if texts and all(texts) else ""
    if type(value).__module__.startswith("chatclient."):
        return type(value).__name__
    return value.__name__ if callable(value) and hasattr(value, "__name__") else ""
