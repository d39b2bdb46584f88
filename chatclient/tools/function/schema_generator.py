"""JSON Schema of Python types, for models and their providers.

pydantic accepts less than its own schemas allow, and adds titles, which cost tokens without telling
the model anything. The schemas of `schema_of` are exact: pydantic accepts every value that matches
one, including its formats. Exceptions are rules that JSON Schema cannot express: validators written
in Python, bounds of dates and durations, files that must exist, and numbers or years out of
Python's range.

A schema may contain marks for later steps: `READS_TEXT`, which `tidied` removes, and `DECIMAL` and
`ENUM_NAMES`, which repair arguments and which `public_schema` removes before the schema is sent.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired, TypeVar, get_origin, get_type_hints

import typing_extensions  # pydantic's own; its TypedDict is the one that pydantic reads everywhere
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    TypeAdapter,
)
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonRef, JsonSchemaWarningKind
from pydantic_core import CoreSchema, SchemaError, SchemaValidator, to_json

from chatclient._internal.json import loads
from chatclient._internal.json_schema import JsonSchema
from chatclient.chat.messages import UserMessage
from chatclient.chat.tool import ToolContext, ToolRequest
from chatclient.errors import ToolDefinitionError
from chatclient.tools.function.argument_repair import DECIMAL, ENUM_NAMES
from chatclient.tools.function.docstring import parse_docstring
from chatclient.tools.function.parameters import (
    MISSING,
    PYDANTIC_ERRORS,
    Parameter,
    ToolParam,
    insert_at,
    is_memory_id,
    members_of,
    metadata_of,
    path_of,
    text_beside,
    unannotated,
)
from chatclient.tools.function.schema_parts import BASE64URL, READS_TEXT, tidied


def schema_of(adapter: TypeAdapter[Any]) -> JsonSchema:
    """Return the schema of the values that *adapter* accepts, with `$defs` at its root.

    Raises:
        pydantic.errors.PydanticInvalidForJsonSchema: A value of the type cannot be written as JSON.
    """
    return tidied(adapter.json_schema(schema_generator=_Generator))


_SCALARS = (str, int, float, type(None))  # and so bool
_UNHASHABLE = frozenset({"dict", "list", "set", "typed-dict"})
_BOUNDS = ("ge", "gt", "le", "lt", "multiple_of")
# The property names from which pydantic reads the keys of a mapping, by the type of the keys.
_PROPERTY_NAMES: Mapping[str, JsonSchema] = {
    "any": {},
    "integer": {"pattern": r"^(0|-?[1-9]\d*)$"},
    "number": {"pattern": r"^-?(0|[1-9]\d*)(\.\d+)?$"},
    "boolean": {"enum": ["true", "false"]},
}
_STRING_KEYWORDS = frozenset({"pattern", "format", "minLength", "maxLength"})
_LEAP = r"(\d\d(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)-02-29"
_YEAR = r"(\d{3}[1-9]|\d\d[1-9]0|\d[1-9]00|[1-9]000)"
_DAY = (
    r"((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)"
    r"|02-(0[1-9]|1\d|2[0-8]))"
)
_TIME = r"([01]\d|2[0-3]):[0-5]\d(:[0-5]\d(\.\d{1,6})?)?"
_NAIVE = f"^({_YEAR}-{_DAY}|{_LEAP})T{_TIME}$"
_COMPLEX = r"^-?\d+(\.\d+)?([+-]\d+(\.\d+)?j)?$"


class _Generator(GenerateJsonSchema):
    """pydantic's generator, with stricter and more detailed schemas for some types."""

    def emit_warning(self, kind: JsonSchemaWarningKind, detail: str) -> None:
        """Log nothing: a value without a JSON form, such as some defaults, is left out."""

    def sort(self, value: JsonSchema, parent_key: str | None = None) -> JsonSchema:  # noqa: ARG002
        return value

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002
        return False

    # Scalars.

    def str_schema(self, schema: Any) -> JsonSchema:
        result = super().str_schema(schema)
        shortest = result.get("minLength", 0)
        if schema.get("strip_whitespace") and shortest and "pattern" not in result:
            result["pattern"] = r"\S" if shortest == 1 else rf"\S[\s\S]{{{shortest - 2},}}\S"
        return result

    def bytes_schema(self, schema: Any) -> JsonSchema:
        result: JsonSchema = {"type": "string"}
        encoding = self._config.val_json_bytes
        if encoding == "base64":
            return {**result, "contentEncoding": "base64", "pattern": BASE64URL}
        if encoding == "hex":
            return {**result, "contentEncoding": "base16", "pattern": "^([0-9a-fA-F]{2})*$"}
        self.update_with_validations(result, schema, self.ValidationsMapping.bytes)
        if len(result) > 1:  # a length in bytes is one in characters only in ASCII
            result["pattern"] = r"^[\x00-\x7f]*$"
        return result

    def decimal_schema(self, schema: Any) -> JsonSchema:
        """Return a number; with `max_digits` alone, which numbers cannot express, a string."""
        if schema.get("max_digits") is not None and schema.get("decimal_places") is None:
            pattern = _digits(schema["max_digits"])
            return {"type": "string", "pattern": pattern, DECIMAL: True}
        result: JsonSchema = {"type": "number", DECIMAL: True}
        bounds: Any = {key: float(schema[key]) for key in _BOUNDS if schema.get(key) is not None}
        self.update_with_validations(result, bounds, self.ValidationsMapping.numeric)
        if schema.get("decimal_places") is not None:
            places: int = schema["decimal_places"]
            result.setdefault("multipleOf", 1 if places == 0 else float(f"1e-{places}"))
            if schema.get("max_digits") is not None:
                limit = 10 ** (schema["max_digits"] - places)
                result.setdefault("exclusiveMaximum", limit)
                result.setdefault("exclusiveMinimum", -limit)
        return result

    def function_before_schema(self, schema: Any) -> JsonSchema:
        # The application's validator gets the JSON number, and not a `Decimal`.
        return _without_decimal_mark(super().function_before_schema(schema))

    def function_wrap_schema(self, schema: Any) -> JsonSchema:
        return _without_decimal_mark(super().function_wrap_schema(schema))

    def union_schema(self, schema: Any) -> JsonSchema:
        """Return the union, with one branch for a `Decimal` and a float with equal schemas."""
        result = super().union_schema(schema)
        branches = result.get("anyOf")
        if branches is None:
            return result
        kept = [
            each
            for each in branches
            if DECIMAL not in each or _without_decimal_mark(each) not in branches
        ]
        return {**result, "anyOf": kept} if len(kept) != 1 else kept[0]

    def complex_schema(self, schema: Any) -> JsonSchema:
        return {**super().complex_schema(schema), "pattern": _COMPLEX}

    def datetime_schema(self, schema: Any) -> JsonSchema:
        if schema.get("tz_constraint") == "naive":  # the format demands an offset
            return {"type": "string", "pattern": _NAIVE}
        return super().datetime_schema(schema)

    def uuid_schema(self, schema: Any) -> JsonSchema:
        result: JsonSchema = {"type": "string", "format": "uuid"}
        if schema.get("version") is not None:
            result["pattern"] = f"^.{{14}}{schema['version']}"
        return result

    def url_schema(self, schema: Any) -> JsonSchema:
        result = super().url_schema(schema)
        if schema.get("allowed_schemes"):
            schemes = "|".join(re.escape(scheme) for scheme in schema["allowed_schemes"])
            result["pattern"] = f"^({schemes})://[^/?#]"
        return result

    def enum_schema(self, schema: Any) -> JsonSchema:
        result = super().enum_schema(schema)
        members = schema["members"]
        for member in members:
            if not isinstance(member.value, _SCALARS):
                msg = f"{member!r} has no JSON value; give its members strings or numbers"
                raise PydanticInvalidForJsonSchema(msg)
        if not all(isinstance(member.value, str) for member in members):
            meaning = ", ".join(f"{member.value!r} = {member.name}" for member in members)
            result["description"] = _joined_texts(result.get("description"), meaning)
        if schema.get("sub_type") in ("int", "float"):
            result[READS_TEXT] = True
        result[ENUM_NAMES] = {member.name: member.value for member in members}
        return result

    def literal_schema(self, schema: Any) -> JsonSchema:
        for member in schema["expected"]:
            if not isinstance(member, _SCALARS):
                msg = f"Literal[{member!r}] cannot be written in JSON; use the value, or a StrEnum"
                raise PydanticInvalidForJsonSchema(msg)
        return super().literal_schema(schema)

    # Collections.

    def set_schema(self, schema: Any) -> JsonSchema:
        return _of_hashable(super().set_schema(schema), schema.get("items_schema", {}))

    def frozenset_schema(self, schema: Any) -> JsonSchema:
        return _of_hashable(super().frozenset_schema(schema), schema.get("items_schema", {}))

    def dict_schema(self, schema: Any) -> JsonSchema:
        return self._with_property_names(super().dict_schema(schema), schema)

    def ordered_dict_schema(self, schema: Any) -> JsonSchema:
        return self._with_property_names(super().ordered_dict_schema(schema), schema)

    def counter_schema(self, schema: Any) -> JsonSchema:
        return self._with_property_names(super().counter_schema(schema), schema)

    def _with_property_names(self, result: JsonSchema, schema: Any) -> JsonSchema:
        """Return *result*, the schema of a mapping, with property names that are valid keys."""
        result.pop("propertyNames", None)
        for values in result.pop("patternProperties", {}).values():
            result["additionalProperties"] = values
        names = self._property_names(
            self.generate_inner(schema.get("keys_schema", {"type": "any"}))
        )
        if names is None:
            msg = "the keys of a JSON object are strings; a mapping needs keys made from those"
            raise PydanticInvalidForJsonSchema(msg)
        result.setdefault("additionalProperties", True)
        return {**result, "propertyNames": names} if names else result

    def _property_names(self, schema: JsonSchema) -> JsonSchema | None:
        """Return the schema of the property names that are read as keys of *schema*.

        None if there are no such names.
        """
        if "$ref" in schema:
            schema = self.get_schema_from_definitions(JsonRef(schema["$ref"])) or {}
        branches = schema.get("anyOf") or schema.get("oneOf")
        if branches:
            names = [name for name in map(self._property_names, branches) if name is not None]
            if {} in names:
                return {}
            return {"anyOf": names} if len(names) > 1 else next(iter(names), None)
        if "enum" in schema or "const" in schema:
            values = schema.get("enum", [schema.get("const")])
            texts = [str(v) for v in values if isinstance(v, str) or READS_TEXT in schema]
            return {"enum": texts} if texts else None
        if schema.get("type") == "string":
            return {key: value for key, value in schema.items() if key in _STRING_KEYWORDS}
        return _PROPERTY_NAMES.get(schema.get("type", "any"))

    # Classes.

    def _named_required_fields_schema(
        self, named_required_fields: Sequence[tuple[str, bool, Any]]
    ) -> JsonSchema:
        """Put fields with an `AliasPath` at that path; pydantic puts them at the top level."""
        if self._config.populate_by_name or getattr(self._config, "validate_by_name", False):
            return super()._named_required_fields_schema(named_required_fields)
        paths = [path_of(each[2].get("validation_alias")) for each in named_required_fields]
        fields = list(zip(named_required_fields, paths, strict=True))
        result = super()._named_required_fields_schema([each for each, path in fields if not path])
        for each, path in sorted(fields, key=lambda field: not field[0][1]):
            if path:
                alone = super()._named_required_fields_schema([each])
                for value in alone["properties"].values():
                    insert_at(result, path, value, required=each[1])
        return result

    def named_tuple_schema(self, schema: Any) -> JsonSchema:
        """Return an object instead of an array, so that models name the fields."""
        array = super().named_tuple_schema(schema)
        names = [field.get("validation_alias", field["name"]) for field in schema["fields"]]
        return {
            "type": "object",
            "properties": dict(zip(names, array.get("prefixItems", ()), strict=True)),
            "required": names[: array.get("minItems", 0)],
        }

    def call_schema(self, schema: Any) -> JsonSchema:
        """Return the schema of a named tuple, which is a call of its class before pydantic 2.14."""
        return self.kw_arguments_schema(schema["arguments_schema"]["arguments_schema"], None)

    def model_schema(self, schema: Any) -> JsonSchema:
        if schema["cls"] is BaseModel:
            msg = "BaseModel has no fields; name a model of your own"
            raise PydanticUserError(msg, code="invalid-for-json-schema")
        return _documented(super().model_schema(schema), schema["cls"])

    def dataclass_schema(self, schema: Any) -> JsonSchema:
        return _documented(super().dataclass_schema(schema), schema["cls"])

    def typed_dict_schema(self, schema: Any) -> JsonSchema:
        return _documented(super().typed_dict_schema(schema), schema["cls"])


def _without_decimal_mark(schema: JsonSchema) -> JsonSchema:
    return {key: value for key, value in schema.items() if key != DECIMAL}


def _digits(most: int) -> str:
    """Return the pattern of decimal numbers of at most *most* digits."""
    splits = [rf"\d{{1,{most}}}"]
    splits += [rf"\d{{1,{most - places}}}\.\d{{1,{places}}}" for places in range(1, most)]
    return f"^-?({'|'.join(splits)})$"


def _joined_texts(*texts: str | None) -> str:
    return "; ".join(text for text in texts if text)


def _of_hashable(result: JsonSchema, items: Mapping[str, Any]) -> JsonSchema:
    """Return *result*, the schema of a set, with items that can be hashed.

    Raises:
        PydanticInvalidForJsonSchema: Its items cannot be hashed.
    """
    if items.get("type") in _UNHASHABLE or getattr(items.get("cls"), "__hash__", True) is None:
        msg = "a set holds only what can be hashed; use a list, or a frozen class"
        raise PydanticInvalidForJsonSchema(msg)
    if not result["items"]:
        result["items"] = {"type": ["string", "number", "boolean", "null"]}
    return result


def _documented(result: JsonSchema, cls: type[Any]) -> JsonSchema:
    """Return *result* with descriptions of the class and its fields.

    Sources are the docstring of the class, and texts in the annotations of the fields.
    """
    properties = result.get("properties", {})
    for name, annotation in _hints(cls).items():
        if name in properties and (text := text_beside(annotation)):
            properties[name] = {"description": text, **properties[name]}
    doc = cls.__doc__
    if not doc or doc.startswith(f"{cls.__name__}("):  # generated by `@dataclass`
        return result
    docstring = parse_docstring(doc)
    if result.get("description", doc) in (doc, inspect.cleandoc(doc)):
        result["description"] = docstring.summary
    for name, text in docstring.parameters.items():
        if name in properties:
            properties[name] = {"description": text, **properties[name]}
    return result


def _hints(cls: type[Any]) -> Mapping[str, Any]:
    try:
        return get_type_hints(cls, include_extras=True)
    except (
        AttributeError,
        NameError,
        TypeError,
    ):  # pydantic resolves more names than `get_type_hints`
        return {}


T = TypeVar("T")


def reason(error: Exception) -> str:
    """Return pydantic's message without its advice, which is for authors of models."""
    if isinstance(error, SchemaError):  # whose first line names a class of pydantic's own
        return str(error).rpartition("SchemaError: ")[2]
    return str(error).partition("\n")[0].partition(". Set `")[0]


_make: Any = typing_extensions.TypedDict


def arguments_of(
    parameters: Iterable[Parameter], texts: Mapping[str, str], place: str
) -> tuple[TypeAdapter[dict[str, Any]], JsonSchema]:
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
) -> TypeAdapter[dict[str, Any]]:
    """Return what reads a JSON object with *fields*, a mapping of names to annotations."""
    made: Any = _make("Arguments", fields)
    made.__pydantic_config__ = ConfigDict(extra=extra)
    return TypeAdapter(made)


def _field(parameter: Parameter, text: str | None, place: str) -> Any:
    """Return the annotation that makes pydantic treat a parameter as its tool should."""
    kind = Any if parameter.annotation is MISSING else parameter.annotation
    default = parameter.default
    _refuse_misplaced_mark(parameter, place)
    if isinstance(default, FieldInfo):
        kind, default = Annotated[kind, default], MISSING
    fields = [each for each in metadata_of(kind) if isinstance(each, FieldInfo)]
    descriptions = [each.description for each in fields if each.description]
    field = descriptions[-1] if descriptions else None
    if description := parameter.description or field or parameter.text or text:
        kind = Annotated[kind, Field(description=description)]
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
        return Annotated[kind, Field(default=default)]
    if default is not MISSING:
        return NotRequired[Annotated[kind, _ShownDefault(default)]]
    return Annotated[kind, Field(default=None)] if parameter.admits_none else kind


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


def validator_of(adapter: TypeAdapter[T]) -> Callable[[str], T]:
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
