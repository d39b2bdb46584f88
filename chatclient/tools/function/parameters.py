"""Describes the parameters of a callable that is to become a tool, and their annotations."""

import functools
import inspect
import types
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
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

from pydantic.annotated_handlers import GetCoreSchemaHandler, GetJsonSchemaHandler
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
from chatclient._internal.json_schema import JsonSchema
from chatclient.chat.tool import ToolContext
from chatclient.errors import ToolDefinitionError
from chatclient.tools.function.schema_parts import REQUIRED

Path: TypeAlias = Sequence[str | int]
"""The way to a value: names of properties and places in arrays."""


def path_of(alias: Any) -> Path | None:
    """Return where a field is read from by *alias*, as core schemas of pydantic have it.

    Of several choices, the first that is a plain name, else the first. None if *alias* is no path.
    """
    if not isinstance(alias, list):
        return None
    choices = alias if isinstance(alias[0], list) else [alias]
    return next((choice for choice in choices if len(choice) == 1), choices[0])


def insert_at(schema: JsonSchema, path: Path, value: JsonSchema, *, required: bool) -> None:
    """Add *value* to an object's *schema*, in the objects and arrays that *path* leads through.

    What another field says of the same place stays as it is. Insert required values first: what is
    on the way to an optional one only has to contain it, or pydantic would take it for unknown.
    """
    step, *rest = path
    place = _property(schema, step) if isinstance(step, str) else _item(schema, step)
    if required:
        if isinstance(step, str):
            schema["required"] = list(dict.fromkeys([*schema.get("required", ()), step]))
        else:
            least = step + 1 if step >= 0 else -step
            schema["minItems"] = max(schema.get("minItems", 0), least)
    required = required or step not in schema.get("required", ())
    if not rest:
        place.update({**value, **place})
    elif not place or place.get("type") == ("object" if isinstance(rest[0], str) else "array"):
        insert_at(place, rest, value, required=required)


def _property(schema: JsonSchema, name: str) -> JsonSchema:
    schema.setdefault("type", "object")
    place: JsonSchema = schema.setdefault("properties", {}).setdefault(name, {})
    return place


def _item(schema: JsonSchema, at: int) -> JsonSchema:
    schema.setdefault("type", "array")
    if at < 0:
        place: JsonSchema = schema.setdefault("items", {})
        return place
    items = schema.setdefault("prefixItems", [])
    items.extend({} for _ in range(at + 1 - len(items)))
    return items[at]  # type: ignore[no-any-return]


MISSING: Any = inspect.Parameter.empty
"""The value of a missing default or annotation."""

PYDANTIC_ERRORS = (
    *(PydanticUserError, PydanticUndefinedAnnotation, SchemaError),
    *(TypeError, ValueError),
)
"""The errors of pydantic for a type that it cannot validate or describe."""

Role: TypeAlias = Literal["argument", "context", "memory_id"]
"""The source of a parameter's value: an argument of the model, or a value of the application."""


@dataclass(frozen=True, slots=True)
class ToolParam:
    """Describes a parameter for the model, in `Annotated[int, ToolParam("how many")]`.

    It can also describe a field of a model, dataclass or `TypedDict`, at any depth.

    Attributes:
        description: The meaning of the parameter. Takes precedence over `Field`, a text in the
            annotation, and the docstring.
        required: Whether the model must pass a value. Takes precedence over default and type. An
            optional parameter needs a default, or a type that allows None, for calls without it.
            (A key of a `TypedDict` has to be `NotRequired`.) A required field with a default gets
            the default if the model leaves it out nevertheless.
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
        fields = {"description": self.description or None, REQUIRED: self.required}
        schema = handler(core_schema)
        return {**schema, **{key: value for key, value in fields.items() if value is not None}}


class ToolMemoryId:
    """Marks a parameter that receives the conversation id: `Annotated[str, ToolMemoryId]`.

    The model does not see the parameter. The id, a text, is converted to the parameter's type, such
    as int or UUID. In a request without a conversation, the value is the default, else None if the
    type allows it, else the call fails.

    The mark is part of the type of a complete parameter. A tool with a mark elsewhere, as in
    `list[Annotated[str, ToolMemoryId]]` or a field of a model, is rejected when it is defined,
    because the model would have to write the id.
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
        name: The name.
        kind: How it is passed, as in `inspect.Parameter`.
        annotation: The resolved type, or `MISSING`.
        default: The default, or `MISSING`.
    """

    name: str
    kind: inspect._ParameterKind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    annotation: Any = MISSING
    default: Any = MISSING

    @property
    def role(self) -> Role:
        """The source of its value."""
        return _role(self.annotation)

    @property
    def admits_none(self) -> bool:
        """Whether its type allows None."""
        return _admits_none(self.annotation)

    @property
    def may_be_left_out(self) -> bool:
        """Whether it has a default, or None as the value of a call without it."""
        return self.default is not MISSING or self.admits_none

    @property
    def description(self) -> str | None:
        """The description of the outermost `ToolParam` that has one."""
        descriptions = [mark.description for mark in self._marks if mark.description]
        return descriptions[-1] if descriptions else None

    @property
    def text(self) -> str | None:
        """The text in its annotation: `Annotated[int, "how many"]`."""
        return text_beside(self.annotation)

    @property
    def required(self) -> bool | None:
        """Whether `ToolParam` requires it; None if unspecified."""
        values = [mark.required for mark in self._marks if mark.required is not None]
        return values[-1] if values else None

    @property
    def _marks(self) -> list[ToolParam]:
        return [each for each in metadata_of(self.annotation) if isinstance(each, ToolParam)]


@dataclass(slots=True, eq=False)
class CallableDescription:
    """The signature and the docstring of a callable.

    Attributes:
        place: Name, file and line, for messages.
        doc: The docstring.
        parameters: The parameters, in order.
        returns: The return annotation, or `MISSING` if there is none or it cannot be resolved.
    """

    place: str
    doc: str | None
    parameters: tuple[Parameter, ...]
    returns: Any


def describe_callable(function: Callable[..., Any]) -> CallableDescription:
    """Return the description of *function*, any callable with a signature.

    Parameters that `functools.partial` binds by name are left out.

    Raises:
        ToolDefinitionError: The signature or an annotation cannot be read.
    """
    called = _called(function)
    name = getattr(called, "__qualname__", None) or type(called).__qualname__
    code = getattr(inspect.unwrap(called), "__code__", None)
    place = f"{name}() ({code.co_filename}:{code.co_firstlineno})" if code else f"{name}()"
    try:
        signature = declared_signature(function)
    except (TypeError, ValueError) as error:
        msg = f"{place} does not say what it takes ({error}); wrap it in a def"
        raise ToolDefinitionError(msg) from error
    names: Mapping[str, Any] = getattr(inspect.unwrap(called), "__globals__", EMPTY)
    bound = bound_by_partial(function)
    variable_types = _variable_types(function, called)

    def parameter_of(declared: inspect.Parameter) -> Parameter:
        kind = _resolved_parameter(declared, names, variable_types, place)
        return Parameter(declared.name, declared.kind, kind, declared.default)

    parameters = tuple(
        parameter_of(each) for each in signature.parameters.values() if each.name not in bound
    )
    first = parameters[0] if parameters else None
    owner = getattr(called, "__qualname__", "").rpartition(".")[0]
    if owner and not owner.endswith("<locals>") and first and first.name in ("self", "cls"):
        msg = f"{place} is a method without its object; pass it bound, as object.method"
        raise ToolDefinitionError(msg)
    returns = MISSING if isinstance(function, type) else _returns(signature, names, variable_types)
    return CallableDescription(place, _doc(function, called), parameters, returns)


def owner_of(function: Callable[..., Any]) -> Any:
    """Return the class of a method or callable object, with its type arguments if it has them.

    That is the class of a bound method's object, the class of a callable object, or *function*
    itself if it is a class; None for any other function.
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


def bound_by_partial(function: Callable[..., Any] | None) -> Mapping[str, Any]:
    """Return the arguments that a `functools.partial` binds by name, unseen by the model."""
    return function.keywords if isinstance(function, functools.partial) else EMPTY


def returns_nothing(returns: Any) -> bool:
    """Whether a return annotation is None or an awaitable of None."""
    if _is_awaitable(returns):
        return get_args(returns)[-1:] in ((None,), (type(None),))
    return returns in (None, type(None))


def returns_function(returns: Any) -> bool:
    """Whether a return annotation is a callable, or contains one; a model cannot call it."""
    if _is_awaitable(returns) or _is_union(returns):
        return any(map(returns_function, get_args(returns)))
    return Callable in (returns, get_origin(returns)) or returns is types.FunctionType


def metadata_of(annotation: Any) -> tuple[Any, ...]:
    """Return the metadata of `Annotated`, the innermost first."""
    return unannotated(annotation)[1]


def text_beside(annotation: Any) -> str | None:
    """Return the text among the metadata of a type, the outermost if there are several."""
    if get_origin(annotation) in (NotRequired, Required):
        annotation = get_args(annotation)[0]
    texts = [each for each in metadata_of(annotation) if isinstance(each, str) and each]
    return texts[-1] if texts else None


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


def _variable_types(function: Callable[..., Any], called: Callable[..., Any]) -> TypeArguments:
    """Return the types of the type variables in the annotations of a callable."""
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


# --- annotations ----------------------------------------------------------------------------

_UNRESOLVABLE = (NameError, AttributeError, TypeError, SyntaxError)


def _resolved(annotation: Any, names: Mapping[str, Any]) -> Any:
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    return get_type_hints(holder, dict(names), include_extras=True)["it"]


def _resolved_parameter(
    parameter: inspect.Parameter,
    names: Mapping[str, Any],
    variable_types: TypeArguments,
    place: str,
) -> Any:
    if parameter.annotation is MISSING:
        return MISSING
    try:
        return resolve_variables(_resolved(parameter.annotation, names), variable_types)
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


def _returns(
    signature: inspect.Signature, names: Mapping[str, Any], variable_types: TypeArguments
) -> Any:
    """Return the return annotation; `MISSING` if only type checkers can resolve it."""
    try:
        return resolve_variables(_resolved(signature.return_annotation, names), variable_types)
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
