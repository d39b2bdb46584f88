"""Creates types from JSON Schemas, for validation by pydantic.

Types, required and unknown properties, enumerations, bounds, lengths, patterns, unions, `allOf` and
references are checked. Keywords without a Python type (`not`, `if`, formats), and the inner levels
of recursive references, are not.
"""

import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, Literal, NotRequired, Union

import pydantic
import typing_extensions
from pydantic.annotated_handlers import GetCoreSchemaHandler
from pydantic_core import PydanticKnownError, SchemaError, core_schema

from chatclient.errors import UsageError

Schema = Mapping[str, Any]

_TYPED_DICT: Any = typing_extensions.TypedDict
_UNION: Any = Union
_DICT: Any = dict
_LIST: Any = list
_NUMBER_BOUNDS = {
    "minimum": "ge",
    "maximum": "le",
    "exclusiveMinimum": "gt",
    "exclusiveMaximum": "lt",
}
_STRING_BOUNDS = {"minLength": "min_length", "maxLength": "max_length"}
_ARRAY_BOUNDS = {"minItems": "min_length", "maxItems": "max_length"}

_OF_TYPES = frozenset(("type", "properties", "required"))  # the last two imply an object

# Keywords that constrain a value; a valid schema has one of these or only annotations.
_CONSTRAINTS = frozenset(
    (
        *("type", "enum", "const", "properties", "required", "items", "prefixItems", "contains"),
        *("anyOf", "oneOf", "allOf", "not", "if", "then", "else", "$ref", "$dynamicRef"),
        *("additionalProperties", "patternProperties", "propertyNames", "minProperties"),
        *("maxProperties", "dependentRequired", "dependentSchemas", "unevaluatedProperties"),
        *("unevaluatedItems", "uniqueItems", "pattern", "format", "multipleOf"),
        *_NUMBER_BOUNDS,
        *_STRING_BOUNDS,
        *_ARRAY_BOUNDS,
    )
)
_ANNOTATIONS = frozenset(
    (
        *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"),
        *("$schema", "$id", "$anchor", "$comment", "$defs", "definitions"),
    )
)


def type_of_schema(schema: Schema) -> Any:
    """Return the type of the plain JSON data that *schema* describes.

    Raises:
        UsageError: It is not a JSON Schema.
    """
    if _CONSTRAINTS.isdisjoint(schema) and not _ANNOTATIONS.issuperset(schema):
        msg = (
            f"{_error_text(schema)}: the fields of an object are under 'properties', "
            "as in {'type': 'object', 'properties': {'year': {'type': 'integer'}}}"
        )
        raise UsageError(msg)
    return _Types(schema).of(schema)


class _Types:
    """Creates the types of one schema and its references."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._resolving: list[str] = []  # references that are being resolved
        self._factories: Mapping[str, Callable[[Schema], Any]] = {
            "object": self._object,
            "array": self._array,
            "string": _string,
            "integer": functools.partial(_number, int),
            "number": functools.partial(_number, int | float),
            "boolean": lambda _: bool,
            "null": lambda _: None,
        }

    def of(self, schema: Any) -> Any:
        """Return the type that *schema* describes."""
        if isinstance(schema, bool):
            return Any
        if not isinstance(schema, Mapping):
            raise UsageError(_error_text(schema))
        kinds = [*self._conditions(schema)]
        if not kinds:
            return Any
        first, *others = kinds
        return Annotated[first, AllOf(tuple(others))] if others else first

    def _conditions(self, schema: Schema) -> Iterator[Any]:
        """Yield the types that *schema* requires together."""
        if "enum" in schema:
            yield _one_of(_several(schema, "enum"))
        elif "const" in schema:
            yield _one_of([schema["const"]])
        elif not _OF_TYPES.isdisjoint(schema):
            yield self._of_type(schema)
        if "$ref" in schema:
            yield self._resolve(schema["$ref"])
        for keyword in "anyOf", "oneOf":
            if keyword in schema:
                yield _UNION[tuple(self.of(each) for each in _several(schema, keyword))]
        if "allOf" in schema:
            yield from (self.of(each) for each in _several(schema, "allOf"))

    def _of_type(self, schema: Schema) -> Any:
        names = schema.get("type", "object")
        if isinstance(names, list | tuple):
            return _UNION[tuple(self._named_type(schema, name) for name in names)]
        return self._named_type(schema, names)

    def _named_type(self, schema: Schema, name: Any) -> Any:
        factory = self._factories.get(name) if isinstance(name, str) else None
        if factory is None:
            msg = f"{name!r} is not a type of JSON Schema; known are {', '.join(self._factories)}"
            raise UsageError(msg)
        return factory(schema)

    def _object(self, schema: Schema) -> Any:
        properties, additional = schema.get("properties", {}), schema.get("additionalProperties")
        required = schema.get("required", ())
        if not isinstance(properties, Mapping):
            raise UsageError(_error_text(schema))
        if not properties and not required and additional is not False:
            return _DICT[str, self.of(additional) if isinstance(additional, Mapping) else Any]
        fields = {
            name: self.of(each) if name in required else NotRequired[self.of(each)]
            for name, each in properties.items()
        }
        fields.update((name, Any) for name in required if name not in fields)
        result = _TYPED_DICT(str(schema.get("title", "answer")), fields)
        extra: Any = "forbid" if additional is False else "allow"
        result.__pydantic_config__ = pydantic.ConfigDict(extra=extra)
        return result

    def _array(self, schema: Schema) -> Any:
        return _bounded(_LIST[self.of(schema.get("items", True))], schema, _ARRAY_BOUNDS)

    def _resolve(self, reference: Any) -> Any:
        if reference in self._resolving:
            return Any
        target: Any = self._root
        for step in str(reference).removeprefix("#").split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")  # escapes of JSON Pointer
            target = target.get(name) if isinstance(target, Mapping) else None
        if not isinstance(target, Mapping) or not str(reference).startswith("#"):
            msg = f"the schema refers to {reference!r}, which is not in it"
            raise UsageError(msg)
        self._resolving.append(reference)
        try:
            return self.of(target)
        finally:
            self._resolving.pop()


@dataclass(slots=True, eq=False)
class AllOf:
    """Metadata of an `Annotated`: a value must also be valid for other types.

    Attributes:
        kinds: The other types.
    """

    kinds: tuple[Any, ...]

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        """Return a schema that validates all types in order."""
        others = map(handler.generate_schema, self.kinds)
        return core_schema.chain_schema([handler(source), *others])


def _several(schema: Schema, keyword: str) -> Sequence[Any]:
    given = schema[keyword]
    if not isinstance(given, list | tuple) or not given:
        raise UsageError(_error_text(schema))
    return given


def _error_text(schema: object) -> str:
    return f"{schema!r} is not a JSON Schema"


def _bounded(kind: Any, schema: Schema, names: Mapping[str, str]) -> Any:
    """Return *kind* annotated with the bounds in *schema*."""
    bounds = {ours: schema[theirs] for theirs, ours in names.items() if theirs in schema}
    return Annotated[kind, pydantic.Field(**bounds)] if bounds else kind


def _number(kind: Any, schema: Schema) -> Any:
    if not all(_is_number(schema[name]) for name in _NUMBER_BOUNDS if name in schema):
        raise UsageError(_error_text(schema))
    bounded = _bounded(kind, schema, _NUMBER_BOUNDS)
    if "multipleOf" not in schema:
        return bounded
    step = schema["multipleOf"]
    if not _is_number(step) or not 0 < step < math.inf:
        raise UsageError(_error_text(schema))
    return Annotated[bounded, pydantic.AfterValidator(functools.partial(_check_multiple, step))]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_multiple(step: float, value: float) -> float:
    # Decimal notation as exact fractions: floats cannot represent 0.1 and large integers.
    if Fraction(str(value)) % Fraction(str(step)):
        raise PydanticKnownError("multiple_of", {"multiple_of": step})
    return value


def _string(schema: Schema) -> Any:
    bounded = _bounded(str, schema, _STRING_BOUNDS)
    if "pattern" not in schema:
        return bounded
    pattern = schema["pattern"]
    matching = _matching(bounded, pydantic.Field(pattern=pattern))
    try:
        pydantic.TypeAdapter(matching)
    except SchemaError:  # pydantic's regex engine does not support look-around
        check = functools.partial(_check_pattern, _compiled(pattern))
        return _matching(bounded, pydantic.AfterValidator(check))
    return matching


def _matching(text: Any, condition: Any) -> Any:
    return Annotated[text, condition]


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except (re.error, TypeError) as error:
        msg = f"{pattern!r} is not a valid pattern of a JSON Schema: {error}"
        raise UsageError(msg) from error


def _check_pattern(pattern: re.Pattern[str], value: str) -> str:
    if pattern.search(value) is None:
        raise PydanticKnownError("string_pattern_mismatch", {"pattern": pattern.pattern})
    return value


def _one_of(values: Any) -> Any:
    """Return the type of the given values; `Any` if `Literal` does not support one of them."""
    plain = all(value is None or isinstance(value, str | int) for value in values)
    return Literal[tuple(values)] if plain else Any
