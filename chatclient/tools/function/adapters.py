"""pydantic's adapters of types: what reads the JSON of a model, and the schema of what it reads.

Most of pydantic is imported when the first adapter is made: it takes as long as all of this
library, and a client without tools and types does not need it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired, TypeVar, get_origin

import pydantic
import typing_extensions  # pydantic's own; its TypedDict is the one that pydantic reads everywhere
from pydantic.annotated_handlers import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, SchemaError, SchemaValidator, to_json

from chatclient._internal.json import loads
from chatclient._internal.json_schema import JsonSchema
from chatclient.chat.messages import UserMessage
from chatclient.chat.tool import ToolContext, ToolRequest
from chatclient.errors import ToolDefinitionError
from chatclient.tools.function.parameters import (
    MISSING,
    PYDANTIC_ERRORS,
    Parameter,
    ToolParam,
    is_memory_id,
    members_of,
    metadata_of,
    unannotated,
)

T = TypeVar("T")


def schema_of(adapter: "pydantic.TypeAdapter[Any]") -> JsonSchema:
    """Return the schema of the values that *adapter* accepts, with `$defs` at its root.

    Raises:
        pydantic.errors.PydanticInvalidForJsonSchema: A value of the type cannot be written as JSON.
    """
    # Imported late, because pydantic's generator takes long to import.
    from chatclient.tools.function.schema_generator import exact_schema  # noqa: PLC0415

    return exact_schema(adapter)


def reason(error: Exception) -> str:
    """Return pydantic's message without its advice, which is for authors of models."""
    if isinstance(error, SchemaError):  # whose first line names a class of pydantic's own
        return str(error).rpartition("SchemaError: ")[2]
    return str(error).partition("\n")[0].partition(". Set `")[0]


_make: Any = typing_extensions.TypedDict


def arguments_of(
    parameters: Iterable[Parameter], texts: Mapping[str, str], place: str
) -> tuple["pydantic.TypeAdapter[dict[str, Any]]", JsonSchema]:
    """Return what reads the arguments of a function, and their schema.

    Args:
        parameters: What the model may give.
        texts: Their descriptions in the docstring, by name.
        place: The function, for messages.

    Raises:
        ToolDefinitionError: A parameter cannot come from JSON; the error names it.
    """
    parameters = tuple(parameters)
    fields = {each.name: _field(each, texts.get(each.name), place) for each in parameters}
    try:
        adapter = typed_dict(fields, extra="forbid")
        schema = schema_of(adapter)
    except PYDANTIC_ERRORS as error:
        raise _culprit(fields, error, place) from error
    return adapter, schema


def typed_dict(
    fields: Mapping[str, Any], *, extra: Literal["allow", "forbid"]
) -> "pydantic.TypeAdapter[dict[str, Any]]":
    """Return what reads a JSON object with *fields*, a mapping of names to annotations."""
    made: Any = _make("Arguments", fields)
    made.__pydantic_config__ = pydantic.ConfigDict(extra=extra)
    return pydantic.TypeAdapter(made)


def _field(parameter: Parameter, text: str | None, place: str) -> Any:
    """Return the annotation that makes pydantic treat a parameter as its tool should."""
    from pydantic.fields import FieldInfo  # noqa: PLC0415 - takes long to import

    kind = Any if parameter.annotation is MISSING else parameter.annotation
    default = parameter.default
    _refuse_misplaced_mark(parameter, place)
    if isinstance(default, FieldInfo):
        kind, default = Annotated[kind, default], MISSING
    fields = [each for each in metadata_of(kind) if isinstance(each, FieldInfo)]
    descriptions = [each.description for each in fields if each.description]
    field = descriptions[-1] if descriptions else None
    if description := parameter.description or field or parameter.text or text:
        kind = Annotated[kind, pydantic.Field(description=description)]
    has_default = any(not each.is_required() for each in fields)
    if parameter.required is False and not (has_default or parameter.may_be_left_out):
        msg = (
            f"parameter {parameter.name!r} of {place} is not required, but has no default and its"
            " type does not admit None; give it one or the other"
        )
        raise ToolDefinitionError(msg)
    if parameter.required or (has_default and default is MISSING):
        return kind
    if has_default:  # of the two defaults, Python's counts
        return Annotated[kind, pydantic.Field(default=default)]
    if default is not MISSING:
        return NotRequired[Annotated[kind, _ShownDefault(default)]]
    return Annotated[kind, pydantic.Field(default=None)] if parameter.admits_none else kind


def _refuse_misplaced_mark(parameter: Parameter, place: str) -> None:
    """Check that the marks of a parameter are in their place, and known to tools.

    Raises:
        ToolDefinitionError: A mark is a type or a default, where pydantic would misunderstand it;
            nothing was made of `ToolParam`; or the mark has a meaning in services only.
    """
    kind, notes = unannotated(parameter.annotation)
    kinds = members_of(kind)
    places = (*kinds, parameter.default, *(note for note in notes if note is ToolParam))
    for given in places:
        if isinstance(given, ToolParam) or given is ToolParam or is_memory_id(given):
            mark = given if isinstance(given, type) else type(given)
            shown = f"{mark.__name__}(...)" if mark is ToolParam else mark.__name__
            msg = (
                f"parameter {parameter.name!r} of {place} must have its {mark.__name__} beside its"
                f" type: {parameter.name}: Annotated[str, {shown}]"
            )
            raise ToolDefinitionError(msg)
    for mark, mend in _MARKS_OF_SERVICES.items():
        if any(mark in (note, type(note)) for note in notes):
            msg = (
                f"parameter {parameter.name!r} of {place} is annotated with {mark.__name__}; {mend}"
            )
            raise ToolDefinitionError(msg)


_MARKS_OF_SERVICES: Mapping[type[Any], str] = {
    ToolContext: "a tool gets its context in a parameter of this type: context: ToolContext",
    UserMessage: "that marks a parameter of a service's method; a tool gets no message",
}


@dataclass(frozen=True, slots=True, eq=False)
class _ShownDefault:
    """Adds the default of the function to the schema, if it has a JSON form."""

    default: Any

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        schema = handler(source)
        # None is `ToolParam`'s for what is left out, and here the function's own default counts.
        return schema["schema"] if schema["type"] == "default" else schema

    def __get_pydantic_json_schema__(
        self, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchema:
        schema = handler(core_schema)
        try:
            return {**schema, "default": loads(to_json(self.default, inf_nan_mode="strings"))}
        except (ValueError, TypeError):
            return schema


def _culprit(fields: Mapping[str, Any], error: Exception, place: str) -> ToolDefinitionError:
    """Return the error that names the parameter whose type cannot be described."""
    guilty = [name for name, kind in fields.items() if not _is_describable(kind)]
    where = f"parameter {guilty[0]!r} of {place}" if guilty else place
    kind = unannotated(fields[guilty[0]])[0] if guilty else None
    if get_origin(kind) is ToolContext:
        mend = "a ToolContext has values by name and no type: context.require(name, type)"
        return ToolDefinitionError(f"{where} cannot be a {kind}; {mend}")
    if kind is ToolRequest:
        mend = "what chooses tools is a provider, an object with a method tool_callbacks(request)"
        return ToolDefinitionError(f"{where} is known to providers only; {mend}")
    msg = (
        f"{where} has a type that cannot come from a model: {reason(error)}; use JSON's types,"
        " pydantic models, dataclasses and the like. What only the application knows goes"
        " through a ToolContext"
    )
    return ToolDefinitionError(msg)


def _is_describable(kind: Any) -> bool:
    try:
        schema_of(typed_dict({"it": kind}, extra="forbid"))
    except PYDANTIC_ERRORS:
        return False
    return True


def validator_of(adapter: "pydantic.TypeAdapter[T]") -> Callable[[str], T]:
    """Return a function that reads JSON text with *adapter*.

    pydantic validates the items of an `Iterable` when they are used, which would be inside of the
    tool. The function validates them immediately, and returns lists.
    """
    if not _has_lazy_items(adapter.core_schema):
        validate: Callable[[str], T] = adapter.validator.validate_json
        return validate
    schema = _with_list_schemas(adapter.core_schema)
    if _CAN_REBUILD_MODELS:
        return SchemaValidator(schema, _use_prebuilt=False).validate_json
    validator = SchemaValidator(schema)
    return lambda text: _with_lists(validator.validate_json(text))


_CAN_REBUILD_MODELS = "_use_prebuilt" in (
    getattr(SchemaValidator, "__text_signature__", None) or ""
)
"""Whether pydantic can be told to read the fields of a model by the schema that it is given.
Its versions 2.11 and 2.12 take the validator that the class of an inner model already has."""

_NO_SCHEMAS = frozenset({"config", "default", "expected", "metadata", "serialization"})
"""The keys of a core schema whose values are not schemas for validation."""


def _has_lazy_items(schema: Any) -> bool:
    """Return whether a core schema of pydantic contains an `Iterable`."""
    if isinstance(schema, Mapping):
        return schema.get("type") == "generator" or any(map(_has_lazy_items, schema.values()))
    return isinstance(schema, list | tuple) and any(map(_has_lazy_items, schema))


def _with_list_schemas(schema: Any) -> Any:
    """Return a core schema of pydantic with a list for each `Iterable` in it."""
    if isinstance(schema, list | tuple):
        return type(schema)(map(_with_list_schemas, schema))
    if not isinstance(schema, Mapping):
        return schema
    kind = schema.get("type")
    # Fields and choices are mappings by name, and a name may be one of these keys.
    kept = _NO_SCHEMAS if isinstance(kind, str) else ()
    copy = {
        key: value if key in kept else _with_list_schemas(value) for key, value in schema.items()
    }
    return {**copy, "type": "list"} if kind == "generator" else copy


def _with_lists(value: Any) -> Any:
    """Return *value* with a list for each `Iterable` of an inner model in it.

    Raises:
        ValidationError: An item is invalid.
    """
    if type(value).__name__ == "ValidatorIterator":
        return [_with_lists(item) for item in value]
    if type(value) is list or type(value) is tuple:
        return type(value)(map(_with_lists, value))
    if type(value) is dict:
        return {key: _with_lists(item) for key, item in value.items()}
    for name, item in getattr(value, "__dict__", {}).items():  # of a model or a dataclass
        value.__dict__[name] = _with_lists(item)
    return value
