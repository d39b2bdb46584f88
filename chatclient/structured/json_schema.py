"""Types made from JSON Schemas that are known at run time only.

pydantic checks what it has a type for: types, required and unknown properties, enumerations,
bounds, lengths and patterns, unions and references, and all of these together. What it has none for
(`not`, `if`, formats), and what a reference repeats inside itself, is not checked.
"""

import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, Literal, NotRequired, Union

import typing_extensions
from pydantic import AfterValidator, ConfigDict, Field, GetCoreSchemaHandler, TypeAdapter
from pydantic_core import PydanticKnownError, SchemaError, core_schema

from chatclient.errors import UsageError

Schema = Mapping[str, Any]

_MAKE: Any = typing_extensions.TypedDict
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

_OF_TYPES = frozenset(("type", "properties", "required"))  # the last two say it is an object

# What a schema may say about a value; one that says none of it may still be annotated.
_WORDS = frozenset(
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
_NOTES = frozenset(
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
    if _WORDS.isdisjoint(schema) and not _NOTES.issuperset(schema):
        msg = (
            f"{_refusal(schema)}: the fields of an object are under 'properties', "
            "as in {'type': 'object', 'properties': {'year': {'type': 'integer'}}}"
        )
        raise UsageError(msg)
    return _Types(schema).of(schema)


class _Types:
    """Makes the types of one schema, and of what it refers to."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._within: list[str] = []  # the references that are being followed
        self._makers: Mapping[str, Callable[[Schema], Any]] = {
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
            raise UsageError(_refusal(schema))
        return _all_of([*self._conditions(schema)])

    def _conditions(self, schema: Schema) -> Iterator[Any]:
        """Yield the types that *schema* describes; a value has to be of all of them."""
        if "enum" in schema:
            yield _one_of(_several(schema, "enum"))
        elif "const" in schema:
            yield _one_of([schema["const"]])
        elif not _OF_TYPES.isdisjoint(schema):
            yield self._of_type(schema)
        if "$ref" in schema:
            yield self._referred(schema["$ref"])
        for word in "anyOf", "oneOf":
            if word in schema:
                yield _UNION[tuple(self.of(each) for each in _several(schema, word))]
        if "allOf" in schema:
            yield from (self.of(each) for each in _several(schema, "allOf"))

    def _of_type(self, schema: Schema) -> Any:
        names = schema.get("type", "object")
        if isinstance(names, list | tuple):
            return _UNION[tuple(self._made(schema, name) for name in names)]
        return self._made(schema, names)

    def _made(self, schema: Schema, name: Any) -> Any:
        make = self._makers.get(name) if isinstance(name, str) else None
        if make is None:
            msg = f"{name!r} is not a type of JSON Schema; known are {', '.join(self._makers)}"
            raise UsageError(msg)
        return make(schema)

    def _object(self, schema: Schema) -> Any:
        properties, further = schema.get("properties", {}), schema.get("additionalProperties")
        required = schema.get("required", ())
        if not isinstance(properties, Mapping):
            raise UsageError(_refusal(schema))
        if not properties and not required and further is not False:
            return _DICT[str, self.of(further) if isinstance(further, Mapping) else Any]
        fields = {
            name: self.of(each) if name in required else NotRequired[self.of(each)]
            for name, each in properties.items()
        }
        fields.update((name, Any) for name in required if name not in fields)
        made = _MAKE(str(schema.get("title", "answer")), fields)
        made.__pydantic_config__ = ConfigDict(extra="forbid" if further is False else "allow")
        return made

    def _array(self, schema: Schema) -> Any:
        return _bounded(_LIST[self.of(schema.get("items", True))], schema, _ARRAY_BOUNDS)

    def _referred(self, reference: Any) -> Any:
        if reference in self._within:
            return Any
        found: Any = self._root
        for step in str(reference).removeprefix("#").split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")  # as JSON Pointers write them
            found = found.get(name) if isinstance(found, Mapping) else None
        if not isinstance(found, Mapping) or not str(reference).startswith("#"):
            msg = f"the schema refers to {reference!r}, which is not in it"
            raise UsageError(msg)
        self._within.append(reference)
        try:
            return self.of(found)
        finally:
            self._within.pop()


@dataclass(frozen=True, slots=True)
class Also:
    """Says in an `Annotated` that a value is of other types, too.

    Attributes:
        kinds: Those types.
    """

    kinds: tuple[Any, ...]

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        """Return the schema of one type after the other."""
        others = map(handler.generate_schema, self.kinds)
        return core_schema.chain_schema([handler(source), *others])


def _all_of(kinds: Sequence[Any]) -> Any:
    """Return the type of values that are of all *kinds*."""
    if not kinds:
        return Any
    first, *others = kinds
    return Annotated[first, Also(tuple(others))] if others else first


def _several(schema: Schema, word: str) -> Sequence[Any]:
    given = schema[word]
    if not isinstance(given, list | tuple) or not given:
        raise UsageError(_refusal(schema))
    return given


def _refusal(schema: object) -> str:
    return f"{schema!r} is not a JSON Schema"


def _bounded(kind: Any, schema: Schema, names: Mapping[str, str]) -> Any:
    """Return *kind* within the bounds that *schema* sets."""
    bounds = {ours: schema[theirs] for theirs, ours in names.items() if theirs in schema}
    return Annotated[kind, Field(**bounds)] if bounds else kind


def _number(kind: Any, schema: Schema) -> Any:
    if not all(_is_number(schema[name]) for name in _NUMBER_BOUNDS if name in schema):
        raise UsageError(_refusal(schema))
    bounded = _bounded(kind, schema, _NUMBER_BOUNDS)
    if "multipleOf" not in schema:
        return bounded
    step = schema["multipleOf"]
    if not _is_number(step) or not 0 < step < math.inf:
        raise UsageError(_refusal(schema))
    return Annotated[bounded, AfterValidator(functools.partial(_of_step, step))]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _of_step(step: float, value: float) -> float:
    # As they are written: no float is exactly 0.1, and none tells large whole numbers apart.
    if Fraction(str(value)) % Fraction(str(step)):
        raise PydanticKnownError("multiple_of", {"multiple_of": step})
    return value


def _string(schema: Schema) -> Any:
    bounded = _bounded(str, schema, _STRING_BOUNDS)
    if "pattern" not in schema:
        return bounded
    pattern = schema["pattern"]
    matching = _matching(bounded, Field(pattern=pattern))
    try:
        TypeAdapter(matching)
    except SchemaError:  # pydantic's engine has no look-around
        check = functools.partial(_of_pattern, _compiled(pattern))
        return _matching(bounded, AfterValidator(check))
    return matching


def _matching(text: Any, condition: Any) -> Any:
    return Annotated[text, condition]


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except (re.error, TypeError) as error:
        msg = f"{pattern!r} is not a valid pattern of a JSON Schema: {error}"
        raise UsageError(msg) from error


def _of_pattern(pattern: re.Pattern[str], value: str) -> str:
    if pattern.search(value) is None:
        raise PydanticKnownError("string_pattern_mismatch", {"pattern": pattern.pattern})
    return value


def _one_of(values: Any) -> Any:
    """Return the type of certain values; those that no `Literal` admits are not told apart."""
    plain = all(value is None or isinstance(value, str | int) for value in values)
    return Literal[tuple(values)] if plain else Any
