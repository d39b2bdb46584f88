"""Annotations at run time: their names, and type variables replaced by types.

Annotations may contain names that are imported under `TYPE_CHECKING` only. Until Python 3.13, they
are strings then. Since 3.14, annotations are evaluated on access, which would raise a `NameError`.

In `class Base(Generic[X])` with a method that takes an `X`, and `class Items(Base[Item])`, the
method of `Items` takes an `Item`.
"""

import functools
import inspect
import operator
import sys
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from importlib import import_module
from typing import (
    Annotated,
    Any,
    Literal,
    Self,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints as _get_type_hints,
)

from typing_extensions import NoDefault

# Missing names become a `ForwardRef`, which is handled like an annotation that is a string.
_FORMAT: Mapping[str, Any] = (
    {"format": import_module("annotationlib").Format.FORWARDREF}
    if sys.version_info >= (3, 14)
    else {}
)


def declared_signature(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of *function*, like `inspect.signature`, without resolving names.

    Raises:
        TypeError: It is not callable.
        ValueError: It is written in C and has no signature.
    """
    return inspect.signature(function, **{f"annotation_{key}": _FORMAT[key] for key in _FORMAT})


def annotated_names(kind: type[Any]) -> Collection[str]:
    """Return the names that *kind* annotates, without those of its base classes."""
    return inspect.get_annotations(kind, **_FORMAT).keys()


Result = TypeVar("Result")


def cached_by_type(function: Callable[[Any], Result]) -> Callable[[Any], Result]:
    """Cache the results of *function*, which takes a type, for the types that can be hashed.

    A type with annotations such as `Annotated[int, {"unit": "m"}]` cannot.
    """
    cached = functools.lru_cache(maxsize=1024)(function)

    @functools.wraps(function)
    def result_of(kind: Any) -> Result:
        try:
            hash(kind)
        except TypeError:
            return function(kind)
        return cached(kind)

    return result_of


TypeArguments: TypeAlias = Mapping[Any, Any]
"""Types by type variable; `Self` may be a key."""


class UnknownTypeError(TypeError):
    """A type variable has no type, no default and no bound.

    Attributes:
        variable: The variable.
    """

    def __init__(self, variable: Any) -> None:
        super().__init__(f"the type variable {variable} has no type, no default and no bound")
        self.variable = variable


def resolve_variables(kind: Any, given: TypeArguments) -> Any:
    """Return *kind* with its type variables replaced by *given* types.

    A variable that is not in *given* is replaced by its default, the union of its constraints, or
    its bound.

    Raises:
        UnknownTypeError: A variable has none of these.
    """

    def type_for(variable: Any) -> Any:
        if variable in given:
            return replace_variables(given[variable], _fallback_type)
        return replace_variables(_fallback_type(variable), type_for)

    return replace_variables(kind, type_for)


def replace_variables(kind: Any, type_for: Callable[[Any], Any]) -> Any:
    """Return *kind* with every type variable, and `Self`, replaced by what *type_for* returns."""
    if isinstance(kind, TypeVar) or kind is Self:
        return type_for(kind)
    origin, arguments = get_origin(kind), get_args(kind)
    if not arguments:
        # A generic pydantic model: its `Page[X]` is a class.
        if not (isinstance(kind, type) and hasattr(kind, "__pydantic_generic_metadata__")):
            return kind
        variables = _parameters(kind)
        try:
            replaced = tuple(map(type_for, variables))
        except UnknownTypeError:
            # An unparametrized `Page` accepts any type.
            if not _parts(kind)[1]:
                return kind
            raise
        return kind if replaced == variables else _indexed(kind, replaced)
    if origin is Literal or any(isinstance(each, list) for each in arguments):
        return kind
    if origin is Annotated:
        return Annotated[(replace_variables(arguments[0], type_for), *kind.__metadata__)]
    replaced = tuple(replace_variables(each, type_for) for each in arguments)
    if all(map(operator.is_, replaced, arguments)):
        return kind
    if origin in (Union, types.UnionType):
        return Union[replaced]  # noqa: UP007 - a tuple of any length
    return kind.copy_with(replaced) if hasattr(kind, "copy_with") else _indexed(origin, replaced)


def alias_value(alias: Any) -> Any:
    """Return what an alias of a `type` statement refers to, such as `Words` or `Pair[int]`."""
    arguments = get_args(alias)
    if not arguments:
        return alias.__value__
    given = dict(zip(get_origin(alias).__type_params__, arguments, strict=True))
    return replace_variables(alias.__value__, lambda variable: given.get(variable, variable))


def type_arguments(owner: Any, definer: type[Any]) -> TypeArguments:
    """Return the types that *owner* binds the type variables of *definer* to.

    Args:
        owner: *definer* or a subclass, with type arguments or without.
        definer: The class that declares the variables.
    """
    return {Self: owner, **_arguments_for(owner, definer)}


def _arguments_for(owner: Any, definer: type[Any]) -> TypeArguments:
    left, seen = [owner], list[Any]()
    while left:
        kind = left.pop(0)
        if kind in seen:
            continue
        seen.append(kind)
        cls, arguments = _parts(kind)
        variables = _parameters(cls)
        # The numbers differ for a `TypeVarTuple`.
        fits = len(variables) == len(arguments) and all(isinstance(v, TypeVar) for v in variables)
        bound = dict(zip(variables, arguments, strict=True)) if fits else {}
        if cls is definer and bound:
            return bound
        left.extend(
            replace_variables(base, lambda variable, bound=bound: bound.get(variable, variable))  # type: ignore[misc]
            for base in _bases(cls)
        )
    return {}


def defining_class(owner: Any, function: Any) -> type[Any]:
    """Return the class in the MRO of *owner* that defines *function*, else *owner* itself."""
    cls, _ = _parts(owner)
    for each in cls.__mro__:
        if any(_defines(attribute, function) for attribute in vars(each).values()):
            return each  # type: ignore[no-any-return]
    return cls  # type: ignore[no-any-return]


def _defines(attribute: Any, function: Any) -> bool:
    if isinstance(attribute, staticmethod | classmethod):
        attribute = attribute.__func__
    elif isinstance(attribute, functools.partialmethod):
        attribute = attribute.func
    return attribute is function


def _bases(cls: type[Any]) -> Iterator[Any]:
    """Yield the bases of *cls* with their type arguments; forward references are resolved."""
    names = getattr(sys.modules.get(cls.__module__), "__dict__", {})
    for base in vars(cls).get("__orig_bases__", cls.__bases__):
        holder = types.SimpleNamespace(__annotations__={"it": base})
        try:
            yield _get_type_hints(holder, dict(names), include_extras=True)["it"]
        except (NameError, TypeError):
            yield base


def _parts(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the class and the type arguments of *kind*: `Page` and `(Film,)` for `Page[Film]`."""
    model = getattr(kind, "__pydantic_generic_metadata__", None) if isinstance(kind, type) else None
    if model and model["origin"] is not None:
        return model["origin"], model["args"]
    return get_origin(kind) or kind, get_args(kind)


def _parameters(kind: Any) -> tuple[Any, ...]:
    model = getattr(kind, "__pydantic_generic_metadata__", None)
    variables: tuple[Any, ...] = (
        model["parameters"] if model else getattr(kind, "__parameters__", ())
    )
    return variables


def _fallback_type(variable: Any) -> Any:
    """Return the default, the constraints or the bound of *variable*.

    Raises:
        UnknownTypeError: It has none of these.
    """
    default = getattr(variable, "__default__", NoDefault)
    if default is not NoDefault:
        return _resolve_names(default, variable)
    if constraints := getattr(variable, "__constraints__", ()):
        return Union[constraints]  # noqa: UP007 - a tuple of any length
    bound = getattr(variable, "__bound__", None)
    if bound is None:
        raise UnknownTypeError(variable)
    return _resolve_names(bound, variable)


def _resolve_names(kind: Any, variable: Any) -> Any:
    """Return *kind* with forward references resolved in the module of *variable*."""
    names = getattr(sys.modules.get(variable.__module__), "__dict__", {})
    holder = types.SimpleNamespace(__annotations__={"it": kind})
    return _get_type_hints(holder, dict(names), include_extras=True)["it"]


def _indexed(kind: Any, arguments: tuple[Any, ...]) -> Any:
    if len(arguments) == 1:
        [arguments] = arguments
    return kind[arguments]
