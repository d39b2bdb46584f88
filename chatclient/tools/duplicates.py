"""Handles several tools with the same name."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

from chatclient.chat.tool import ToolCallback
from chatclient.errors import DuplicateToolError

DuplicatePolicy = Literal["error", "first", "last"]
"""How to handle several tools with the same name."""


def without_duplicates(
    callbacks: Sequence[ToolCallback], policy: DuplicatePolicy
) -> Sequence[ToolCallback]:
    """Return *callbacks* with one for each name; repetitions of the same tool are removed.

    Raises:
        DuplicateToolError: Different tools have the same name, and the policy is `error`.
    """
    callbacks = _distinct(callbacks)
    if policy == "error":
        check_unique(callbacks)
        return callbacks
    kept: dict[str, ToolCallback] = {}
    for callback in callbacks:
        name = callback.definition.name
        if policy == "last" or name not in kept:
            kept[name] = callback
    return list(kept.values())


def _distinct(callbacks: Sequence[ToolCallback]) -> Sequence[ToolCallback]:
    """Return *callbacks* without repetitions of the same tool."""
    if len({callback.definition.name for callback in callbacks}) == len(callbacks):
        return callbacks
    kept: dict[str, list[ToolCallback]] = {}
    return [c for c in callbacks if not _is_known(c, kept.setdefault(c.definition.name, []))]


def _is_known(callback: ToolCallback, callbacks: list[ToolCallback]) -> bool:
    if any(callback is each or _is_same(callback, each) for each in callbacks):
        return True
    callbacks.append(callback)
    return False


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two callbacks are the same tool, according to either."""
    pairs = ((one, other), (other, one))
    return any(hasattr(each, "is_same") and each.is_same(twin) for each, twin in pairs)


def check_unique(callbacks: Sequence[ToolCallback]) -> None:
    """Check that tool names are unique.

    Raises:
        DuplicateToolError: They are not.
    """
    names = [callback.definition.name for callback in callbacks]
    if len(set(names)) == len(names):
        return
    duplicates = sorted(name for name, count in Counter(names).items() if count > 1)
    places = "; ".join(
        f"{name!r} from {' and '.join(_place(c) for c in callbacks if c.definition.name == name)}"
        for name in duplicates
    )
    msg = f"several tools of one name: {places}; give one of them another name"
    raise DuplicateToolError(msg, tool_names=duplicates)


def _place(callback: ToolCallback) -> str:
    function = getattr(callback, "function", callback)
    name: str = getattr(function, "__qualname__", type(function).__name__)
    return f"{getattr(function, '__module__', '?')}.{name}"
