# pyright: reportAssignmentType=false, reportIncompatibleMethodOverride=false
"""Immutable mappings for frozen dataclasses."""

from collections.abc import Mapping
from typing import Any, NoReturn, Self, TypeVar

from chatclient.errors import WrongTypeError

K = TypeVar("K")
V = TypeVar("V")


class FrozenDict(dict[K, V]):
    """A dict that cannot change.

    A `dict` subclass rather than a `MappingProxyType`, so that it pickles, compares with plain
    dicts and serialises as JSON.
    """

    __slots__ = ()

    def _raise_immutable(self, *_args: object, **_kwargs: object) -> NoReturn:
        msg = "this mapping is part of an immutable value; build a changed copy instead"
        raise TypeError(msg)

    __setitem__ = __delitem__ = clear = pop = popitem = setdefault = update = _raise_immutable
    __ior__ = _raise_immutable

    def __hash__(self) -> int:  # type: ignore[override]
        # Only the keys: values may be unhashable, and equal mappings have equal keys.
        return hash(frozenset(self))

    def __reduce__(self) -> tuple[type[Self], tuple[dict[K, V]]]:
        return type(self), (dict(self),)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, _memo: dict[int, Any]) -> Self:
        return self


class FrozenTree(FrozenDict[K, V]):
    """A `FrozenDict` whose nested mappings are frozen, too; made by `deep_frozen`."""

    __slots__ = ()


EMPTY: FrozenDict[str, Any] = FrozenDict()


def frozen(
    mapping: Mapping[str, Any] | None, what: str = "what is given by name"
) -> FrozenDict[str, Any]:
    """Return an immutable copy of *mapping*, or itself if it is immutable.

    Args:
        mapping: The mapping; None means an empty one.
        what: Its name in the error message.

    Raises:
        WrongTypeError: It is not a mapping.
    """
    if not mapping:
        return EMPTY
    if isinstance(mapping, FrozenDict):
        return mapping
    try:
        return FrozenDict(mapping)
    except (TypeError, ValueError) as error:
        kind = type(mapping).__name__
        msg = f"{what} must be a mapping, such as a dict, not {kind}"
        raise WrongTypeError(msg) from error


def freeze_fields(value: object, *names: str) -> None:
    """Freeze the fields *names* of a frozen dataclass; called in its `__post_init__`.

    Without this, the caller could change the value through the mapping passed to its constructor.
    """
    for name in names:
        mapping = getattr(value, name)
        if mapping is not None and not isinstance(mapping, FrozenDict):
            object.__setattr__(value, name, frozen(mapping, name))


def deep_frozen(value: Any) -> Any:
    """Return JSON-like *value* with every mapping in it immutable, and tuples as lists.

    A `FrozenTree` is returned as it is.
    """
    if type(value) is FrozenTree:
        return value
    if isinstance(value, Mapping):
        return FrozenTree({key: deep_frozen(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return [deep_frozen(item) for item in value]
    return value


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> FrozenDict[str, Any]:
    """Return *base* updated with the entries of *over*."""
    if not over:
        return frozen(base)
    if not base:
        return frozen(over)
    return FrozenDict({**base, **over})


def without(mapping: Mapping[str, Any], *keys: str) -> FrozenDict[str, Any]:
    """Return *mapping* without the entries of *keys*."""
    return frozen({key: value for key, value in mapping.items() if key not in keys})
