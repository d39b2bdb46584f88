# pyright: reportAssignmentType=false, reportIncompatibleMethodOverride=false
"""What every immutable value shares: frozen mappings and copies with changes."""

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

    def _refuse(self, *_args: object, **_kwargs: object) -> NoReturn:
        msg = "this mapping belongs to an immutable value; build a changed copy instead"
        raise TypeError(msg)

    __setitem__ = __delitem__ = clear = pop = popitem = setdefault = update = _refuse
    __ior__ = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        # Of the keys only: values may be lists, and equal mappings have equal keys.
        return hash(frozenset(self))

    def __reduce__(self) -> tuple[type[Self], tuple[dict[K, V]]]:
        return type(self), (dict(self),)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, _memo: dict[int, Any]) -> Self:
        return self


class FrozenTree(FrozenDict[K, V]):
    """A `FrozenDict` in which every mapping is one as well; `deep_frozen` makes it."""

    __slots__ = ()


EMPTY: FrozenDict[str, Any] = FrozenDict()


def frozen(
    mapping: Mapping[str, Any] | None, what: str = "what is given by name"
) -> FrozenDict[str, Any]:
    """Return *mapping* as an immutable one; nothing is copied when it already is.

    Args:
        mapping: What is to be frozen.
        what: What the error calls it.

    Raises:
        WrongTypeError: It is something else.
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
    """Freeze the mappings that a frozen dataclass was given, in its `__post_init__`.

    Otherwise whoever made the value could change it through the mapping it was made of.
    """
    for name in names:
        mapping = getattr(value, name)
        if mapping is not None and not isinstance(mapping, FrozenDict):
            object.__setattr__(value, name, frozen(mapping, name))


def deep_frozen(value: Any) -> Any:
    """Return *value* with every mapping in it immutable; lists stay what JSON takes them for.

    Nothing is copied when that has been done already.
    """
    if type(value) is FrozenTree:
        return value
    if isinstance(value, Mapping):
        return FrozenTree({key: deep_frozen(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return [deep_frozen(item) for item in value]
    return value


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> FrozenDict[str, Any]:
    """Return *base* with the entries of *over* on top."""
    if not over:
        return frozen(base)
    if not base:
        return frozen(over)
    return FrozenDict({**base, **over})


def without(mapping: Mapping[str, Any], *keys: str) -> FrozenDict[str, Any]:
    """Return *mapping* without the entries of *keys*."""
    return frozen({key: value for key, value in mapping.items() if key not in keys})
