"""The parameters of a callable, as its tool sees them."""

import functools
import inspect
import types
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError
from pydantic_core import CoreSchema, SchemaError
from pydantic_core.core_schema import with_default_schema

from chatclient._internal.annotations import (
    TypeArguments,
    UnknownTypeError,
    alias_value,
    declared_signature,
    defining_class,
    resolve_variables,
    type_arguments,
)
from chatclient._internal.frozen import EMPTY
from chatclient.chat.tool import ToolContext
from chatclient.errors import ToolDefinitionError
from chatclient.tools.function.schema_tidying import REQUIRED

MISSING: Any = inspect.Parameter.empty
"""Stands for a default or an annotation that is not there."""

PYDANTIC_ERRORS = (
    PydanticUserError,
    PydanticUndefinedAnnotation,
    SchemaError,
    TypeError,
    ValueError,
)
"""The errors of pydantic for a type that it cannot validate or describe."""

Role: TypeAlias = Literal["argument", "context", "memory_id"]
"""Who gives a parameter its value: the model, or the library."""


@dataclass(frozen=True, slots=True)
class ToolParam:
    """Describes a parameter for the model, in `Annotated[int, ToolParam("how many")]`.

    Says the same of a field of a model, dataclass or `TypedDict`, at any depth.

    Attributes:
        description: What the parameter means; wins over `Field`, a bare text and the docstring.
        required: Whether the model must give it; wins over what default and type say. A parameter
            that is not required gets its default if the model leaves it out, or None if its type
            allows that; it needs one of the two. (A key of a `TypedDict` has to be `NotRequired`.)
            If the model leaves out a field with a default although it was told that the field is
            required, the field has its default.
    """

    description: str | None = None
    required: bool | None = None

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        schema = handler(source)
        if self.required is False and _admits_none(source):
            return with_default_schema(schema, default=None)
        return schema

    def __get_pydantic_json_schema__(
        self, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        said = {"description": self.description or None, REQUIRED: self.required}
        schema = handler(core_schema)
        return {**schema, **{key: value for key, value in said.items() if value is not None}}


class ToolMemoryId:
    """Marks a parameter that gets the conversation's id: `Annotated[str, ToolMemoryId]`.

    The id is a text, and is converted to the type of the parameter, such as int or UUID.
    The model neither sees the parameter nor chooses its value. Outside of a conversation it gets
    its default; without one it gets None where the type admits it, and else the call fails.

    It stands beside the type of a parameter. Anywhere else, as in `list[Annotated[str,
    ToolMemoryId]]` or a field of a model, the model would have to write the id; a tool with such a
    type is refused when it is defined.
    """

    @classmethod
    def __get_pydantic_json_schema__(
        cls, _core_schema: CoreSchema, _handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        msg = f"{cls.__name__} belongs beside the type of a parameter, not into its parts"
        raise PydanticUserError(msg, code="invalid-for-json-schema")


@dataclass(slots=True, eq=False)
class Parameter:
    """One parameter of a tool's function.

    Attributes:
        name: Its name in the function.
        kind: How it is passed, as in `inspect.Parameter`.
        annotation: Its type, resolved; `MISSING` without an annotation.
        default: Its default in the function, or `MISSING`.
    """

    name: str
    kind: inspect._ParameterKind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    annotation: Any = MISSING
    default: Any = MISSING

    @property
    def role(self) -> Role:
        """Who gives it its value."""
        return _role(self.annotation)

    @property
    def admits_none(self) -> bool:
        """Whether None is among the values that its type names."""
        return _admits_none(self.annotation)

    @property
    def may_be_left_out(self) -> bool:
        """Whether it has a default or may be omitted."""
        return self.default is not MISSING or self.admits_none

    @property
    def description(self) -> str | None:
        """The description of its outermost `ToolParam` that has one."""
        said = [each.description for each in self._notes if each.description]
        return said[-1] if said else None

    @property
    def text(self) -> str | None:
        """What its type is annotated with as a bare text: `Annotated[int, "how many"]`."""
        return text_beside(self.annotation)

    @property
    def required(self) -> bool | None:
        """Whether `ToolParam` requires it; None if unspecified."""
        said = [each.required for each in self._notes if each.required is not None]
        return said[-1] if said else None

    @property
    def _notes(self) -> list[ToolParam]:
        return [each for each in metadata_of(self.annotation) if isinstance(each, ToolParam)]


@dataclass(slots=True, eq=False)
class Callee:
    """A callable, as its signature and its docstring describe it.

    Attributes:
        place: Its location, for messages.
        doc: Its docstring.
        parameters: What it takes, in order.
        returns: Its return annotation, or `MISSING` when there is none or it cannot be resolved.
    """

    place: str
    doc: str | None
    parameters: tuple[Parameter, ...]
    returns: Any


def callee_of(function: Callable[..., Any]) -> Callee:
    """Describe *function*, any callable with a signature.

    Raises:
        ToolDefinitionError: It cannot be described; the error contains the place and the reason.
    """
    called = _called(function)
    place = _place(called)
    try:
        signature = declared_signature(function)
    except (TypeError, ValueError) as error:
        msg = f"{place} does not say what it takes ({error}); wrap it in a def"
        raise ToolDefinitionError(msg) from error
    names: Mapping[str, Any] = getattr(inspect.unwrap(called), "__globals__", EMPTY)
    settled = settled_by_partial(function)
    types_given = _types_given(function, called)

    def parameter_of(declared: inspect.Parameter) -> Parameter:
        kind = _resolved_parameter(declared, names, types_given, place)
        return Parameter(declared.name, declared.kind, kind, declared.default)

    parameters = tuple(
        parameter_of(each) for each in signature.parameters.values() if each.name not in settled
    )
    _refuse_unbound(called, parameters, place)
    returns = MISSING if isinstance(function, type) else _returns(signature, names, types_given)
    return Callee(place, _doc(function, called), parameters, returns)


def owner_of(function: Callable[..., Any]) -> Any:
    """Return the class that a callable is a method of, with its type arguments if it has them.

    That is the class of the object that a method is bound to, or of an object that is called, or
    the class itself that is; None for any other function.
    """
    while isinstance(function, functools.partial):
        function = function.func
    if isinstance(function, type):
        return function
    if inspect.ismethod(function):
        target: Any = function.__self__
    elif inspect.isroutine(function):
        return None
    else:
        target = function
    if isinstance(target, type):
        return target
    # `Box[int]()` notes its arguments in the object itself.
    return getattr(target, "__dict__", EMPTY).get("__orig_class__", type(target))


def settled_by_partial(function: Callable[..., Any] | None) -> Mapping[str, Any]:
    """Return what `functools.partial` gives *function* by name: no business of the model's."""
    return function.keywords if isinstance(function, functools.partial) else EMPTY


def returns_nothing(returns: Any) -> bool:
    """Whether a return annotation is None or an awaitable of None."""
    if _is_awaitable(returns):
        return get_args(returns)[-1:] in ((None,), (type(None),))
    return returns in (None, type(None))


def returns_function(returns: Any) -> bool:
    """Whether a return annotation promises something to be called, which no model can do."""
    if _is_awaitable(returns) or _is_union(returns):
        return any(map(returns_function, get_args(returns)))
    return Callable in (returns, get_origin(returns)) or returns is types.FunctionType


def metadata_of(annotation: Any) -> tuple[Any, ...]:
    """Return what `Annotated` adds to a type, the innermost first."""
    return unannotated(annotation)[1]


def text_beside(annotation: Any) -> str | None:
    """Return the bare text that a type is annotated with, the outermost if there are several."""
    if get_origin(annotation) in (NotRequired, Required):
        annotation = get_args(annotation)[0]
    said = [each for each in metadata_of(annotation) if isinstance(each, str) and each]
    return said[-1] if said else None


def _is_awaitable(annotation: Any) -> bool:
    return get_origin(annotation) in (Awaitable, Coroutine)


def _called(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that a partial, a class or a callable object runs."""
    while isinstance(function, functools.partial):
        function = function.func
    if isinstance(function, type):
        initialiser: Callable[..., Any] = getattr(function, "__init__")  # noqa: B009  # the class's
        return initialiser
    if hasattr(function, "__code__") or not hasattr(type(function).__call__, "__code__"):
        return function
    return type(function).__call__


def _types_given(function: Callable[..., Any], called: Callable[..., Any]) -> TypeArguments:
    """Return the values of the type variables in the annotations of a callable."""
    owner = owner_of(function)
    if owner is None:
        return EMPTY
    return type_arguments(owner, defining_class(owner, getattr(called, "__func__", called)))


def _doc(function: Callable[..., Any], called: Callable[..., Any]) -> str | None:
    while isinstance(function, functools.partial):
        function = function.func
    if called is type(function).__call__:
        return called.__doc__ or inspect.getdoc(function)
    return inspect.getdoc(function)


def _place(function: Callable[..., Any]) -> str:
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{name}() ({code.co_filename}:{code.co_firstlineno})" if code else f"{name}()"


def _refuse_unbound(
    called: Callable[..., Any], parameters: tuple[Parameter, ...], place: str
) -> None:
    first = parameters[0] if parameters else None
    owner = getattr(called, "__qualname__", "").rpartition(".")[0]
    if owner and not owner.endswith("<locals>") and first and first.name in ("self", "cls"):
        msg = f"{place} is a method without its object; pass it bound, as object.method"
        raise ToolDefinitionError(msg)


# --- annotations ----------------------------------------------------------------------------

_UNRESOLVABLE = (NameError, AttributeError, TypeError, SyntaxError)


def _resolved(annotation: Any, names: Mapping[str, Any]) -> Any:
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    return get_type_hints(holder, dict(names), include_extras=True)["it"]


def _resolved_parameter(
    parameter: inspect.Parameter, names: Mapping[str, Any], given: TypeArguments, place: str
) -> Any:
    if parameter.annotation is MISSING:
        return MISSING
    try:
        return resolve_variables(_resolved(parameter.annotation, names), given)
    except UnknownTypeError as error:
        msg = (
            f"parameter {parameter.name!r} of {place} has the type variable {error.variable}, and"
            " nothing says which type that is; say so in the class that inherits the method, as in"
            " `class Items(Base[Item])`, or give the variable a bound or a default"
        )
        raise ToolDefinitionError(msg) from error
    except _UNRESOLVABLE as error:
        msg = (
            f"parameter {parameter.name!r} of {place} has an annotation that cannot be resolved"
            f" ({error}); its names must exist at run time in the module, not only under"
            " TYPE_CHECKING or inside a function"
        )
        raise ToolDefinitionError(msg) from error


def _returns(signature: inspect.Signature, names: Mapping[str, Any], given: TypeArguments) -> Any:
    """Return what is promised; a promise only type checkers can read changes nothing here."""
    try:
        return resolve_variables(_resolved(signature.return_annotation, names), given)
    except _UNRESOLVABLE:
        return MISSING


def unannotated(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the type inside aliases and `Annotated`, and the metadata on the way to it."""
    metadata: tuple[Any, ...] = ()
    while True:
        if get_origin(annotation) is Annotated:
            annotation, metadata = annotation.__origin__, (*annotation.__metadata__, *metadata)
        elif hasattr(annotation, "__value__"):  # a `type` statement's
            annotation = alias_value(annotation)
        else:
            return annotation, metadata


def members_of(kind: Any) -> tuple[Any, ...]:
    """Return the members of a union, and any other type alone."""
    return get_args(kind) if _is_union(kind) else (kind,)


def _is_union(annotation: Any) -> bool:
    return get_origin(annotation) in (Union, types.UnionType)


def _admits_none(annotation: Any) -> bool:
    kind, _ = unannotated(annotation)
    if _is_union(kind):
        return any(map(_admits_none, get_args(kind)))
    return kind in (None, type(None)) or (get_origin(kind) is Literal and None in get_args(kind))


def is_memory_id(value: Any) -> bool:
    """Whether *value* is `ToolMemoryId`, a subclass such as `MemoryId`, or an object of one."""
    return issubclass(value if isinstance(value, type) else type(value), ToolMemoryId)


def _role(annotation: Any) -> Role:
    kind, metadata = unannotated(annotation)
    if any(map(is_memory_id, metadata)):
        return "memory_id"
    if kind is ToolContext:
        return "context"
    if _is_union(kind):
        roles: set[Role] = {_role(each) for each in get_args(kind) if each is not type(None)}
        return roles.pop() if len(roles) == 1 else "argument"
    return "argument"
