"""JSON Schemas in parts: their alternatives, what is removed from them, and checks of values."""

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from typing import Any

from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic_core import SchemaError, SchemaValidator, core_schema

from chatclient._internal.json_schema import JsonSchema, map_subschemas
from chatclient._internal.text import shortened

Schema = Mapping[str, Any]

_KINDS = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})


def branches(schema: Any, defs: Schema) -> Iterator[Schema]:
    """Yield the alternatives of *schema*, references followed, each once."""
    left, seen = [schema], set[str]()
    while left:
        schema = left.pop()
        if not isinstance(schema, Mapping):  # true or false: anything fits, or nothing
            if schema is True:
                yield {}
        elif "$ref" in schema:
            ref = str(schema["$ref"])
            if ref not in seen:
                seen.add(ref)
                name = ref.removeprefix("#/$defs/").removeprefix("#/definitions/")
                left.append(defs.get(name, {}))
        elif "anyOf" in schema or "oneOf" in schema:
            choices = as_list(schema.get("anyOf")) or as_list(schema.get("oneOf"))
            left.extend(reversed(choices))
        else:
            yield schema


def types_of(schema: Schema) -> frozenset[str]:
    """Return the JSON types that an alternative admits; all of them if it is unrestricted."""
    values = as_list(schema.get("enum"))
    if "const" in schema or values:
        return frozenset(map(kind_of, values or [schema.get("const")]))
    said = schema.get("type")
    if isinstance(said, str):
        return frozenset({said})
    return frozenset(kind for kind in as_list(said) if isinstance(kind, str)) or _KINDS


def kind_of(value: Any) -> str:
    """Return the JSON type of *value*."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def admits(schema: Any, defs: Schema, kind: str) -> bool:
    """Return whether *schema* admits values of a JSON type."""
    return any(kind in types_of(branch) for branch in branches(schema, defs))


def branch_for(value: dict[str, Any], schema: Any, defs: Schema) -> Schema:
    """Return the alternative that an object is meant for: the first whose properties it has."""
    objects = [branch for branch in branches(schema, defs) if "object" in types_of(branch)]
    fitting = (branch for branch in objects if _is_meant(value, branch))
    return next(fitting, objects[0] if objects else {})


def _is_meant(value: dict[str, Any], schema: Schema) -> bool:
    properties = as_mapping(schema.get("properties"))
    return (
        schema.get("additionalProperties") is not False or value.keys() <= properties.keys()
    ) and all(
        property["const"] == value.get(key, property["const"])
        for key, property in properties.items()
        if isinstance(property, Mapping) and "const" in property
    )


def as_mapping(value: Any) -> Schema:
    """Return *value* if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def as_list(value: Any) -> Sequence[Any]:
    """Return *value* if it is a list or tuple, else an empty one."""
    return value if isinstance(value, list | tuple) else ()


def definitions_of(schema: Schema) -> Schema:
    """Return the definitions of *schema* by name; older dialects have them in `definitions`."""
    return {**as_mapping(schema.get("definitions")), **as_mapping(schema.get("$defs"))}


def property_schema(schema: Schema, name: str) -> Any:
    """Return the schema of the property *name* of an object."""
    others = as_mapping(schema.get("additionalProperties"))
    return as_mapping(schema.get("properties")).get(name, others)


def item_schemas(schema: Any, defs: Schema) -> Iterator[Any]:
    """Yield the schema of each item of an array, without end."""
    arrays = (branch for branch in branches(schema, defs) if "array" in types_of(branch))
    array = next(arrays, {})
    yield from as_list(array.get("prefixItems"))
    yield from repeat(as_mapping(array.get("items")))


REQUIRED = "x-required"
"""Marks, until a schema is done, a property of which `ToolParam` says whether it is required."""

READS_TEXT = "x-reads-text"
"""Marks an enum of numbers that takes them as text, as keys are."""

BASE64URL = r"^([A-Za-z0-9_-]{4})*([A-Za-z0-9_-]{2}==|[A-Za-z0-9_-]{3}=)?$"
"""The pattern of Base64 with the letters for addresses."""


def tidied(schema: JsonSchema) -> JsonSchema:
    """Return a schema of pydantic without titles and marks, and with an object at its root."""
    definitions = schema.get("$defs", {})
    _require_tags(schema, definitions)
    rest = {key: value for key, value in schema.items() if key != "$ref"}
    return _tidied({**_target(schema, definitions), **rest})


def _target(schema: JsonSchema, definitions: JsonSchema) -> JsonSchema:
    """Return the definition that *schema* refers to, or else itself."""
    return definitions[schema["$ref"].removeprefix("#/$defs/")] if "$ref" in schema else schema


# Formats that are pydantic's own, and what their strings must look like.
_PATTERNS: Mapping[str, str | None] = {
    **dict.fromkeys(["binary", "path", "file-path", "directory-path", "password"]),
    "base64": r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
    "base64url": BASE64URL,
}
_NULL = {"type": "null"}


def _require_tags(schema: JsonSchema, definitions: JsonSchema) -> JsonSchema:
    """Require the discriminator in each variant of a tagged union, also with a default."""
    if "discriminator" in schema:
        for branch in schema["oneOf"]:
            _require(schema["discriminator"]["propertyName"], branch, definitions)
    map_subschemas(schema, lambda inner: _require_tags(inner, definitions))
    return schema


def _require(name: str, schema: JsonSchema, definitions: JsonSchema) -> None:
    schema = _target(schema, definitions)
    for branch in schema.get("oneOf", ()):
        _require(name, branch, definitions)
    properties = schema.get("properties", {})
    if name in properties:
        required = {name, *schema.get("required", ())}
        schema["required"] = [each for each in properties if each in required]


def _tidied(schema: JsonSchema) -> JsonSchema:
    if "properties" in schema:
        _require_as_marked(schema)
    schema = map_subschemas(schema, _tidied)
    for name in ("title", READS_TEXT, REQUIRED):
        schema.pop(name, None)
    if schema.pop("discriminator", None):
        schema = {"anyOf": schema.pop("oneOf"), **schema}
    if str(schema.get("format")).startswith("uuid"):  # the version is in the pattern
        schema["format"] = "uuid"
    if schema.get("format") in _PATTERNS:
        pattern = _PATTERNS[schema.pop("format")]
        if pattern:
            schema["pattern"] = pattern
    if "properties" in schema:
        schema.setdefault("additionalProperties", False)
        required = schema.get("required", ())
        if not required:
            schema.pop("required", None)
        for name, property in schema["properties"].items():
            if name not in required and property.get("default") is None:
                schema["properties"][name] = _without_null(property)
    return schema


def _require_as_marked(schema: JsonSchema) -> None:
    """Require what `ToolParam` wants to be given; what it does not has to have a value."""
    properties = schema["properties"]
    marks = {
        name: each[REQUIRED]
        for name, each in properties.items()
        if isinstance(each, dict) and REQUIRED in each
    }
    if not marks:
        return
    required = {*schema.get("required", ()), *(name for name, mark in marks.items() if mark)}
    for name in required:
        if marks.get(name) is False:
            msg = (
                f"{name!r} is not required, but has no default and its type does not admit None;"
                " give it one or the other (or, in a TypedDict, NotRequired)"
            )
            raise PydanticInvalidForJsonSchema(msg)
    schema["required"] = [name for name in properties if name in required]


def _without_null(schema: JsonSchema) -> JsonSchema:
    """Return *schema* without null, for optional properties."""
    rest = {key: value for key, value in schema.items() if key not in ("anyOf", "default")}
    branches = [branch for branch in schema.get("anyOf", ()) if branch != _NULL]
    if len(branches) == 1:
        return {**branches[0], **rest}
    return {"anyOf": branches, **rest} if branches else rest


_MAX_STEPS = 20_000  # for one value: references of a schema may multiply
_MAX_SHOWN = 80  # characters of a value
_BOUNDS: Mapping[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "minimum": ("at least", operator.ge),
    "maximum": ("at most", operator.le),
    "exclusiveMinimum": ("greater than", operator.gt),
    "exclusiveMaximum": ("less than", operator.lt),
}


class _TooComplexError(Exception):
    """The check takes too many steps."""


def misfits(value: Any, schema: Schema) -> list[str]:
    """Return what in *value* does not fit *schema*, one line for each place.

    Returns:
        An empty list if everything fits, or if the schema is too complex to tell.
    """
    check = _Check(definitions_of(schema))
    try:
        return list(check.errors(value, schema, ""))
    except (_TooComplexError, RecursionError):
        return []


class _Check:
    def __init__(self, defs: Schema) -> None:
        self._defs = defs
        self._steps = 0

    def errors(self, value: Any, schema: Any, place: str) -> Iterator[str]:
        """Yield the errors of *value* in the alternative that it fits best."""
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise _TooComplexError
        found: list[tuple[bool, list[str]]] = []
        for branch in branches(schema, self._defs):
            errors = list(self._branch_errors(value, branch, place))
            if not errors:
                return
            found.append((not _has_type(value, branch), errors))
        if not found:
            yield f"{place or 'arguments'}: not allowed"
            return
        yield from min(found, key=lambda each: (each[0], len(each[1])))[1]

    def _branch_errors(self, value: Any, schema: Schema, place: str) -> Iterator[str]:
        if "enum" in schema or "const" in schema:
            admitted = as_list(schema.get("enum")) or [schema.get("const")]
            if not any(_equal(value, each) for each in admitted):
                options = ", ".join(repr(each) for each in admitted[:20])
                yield _line(place, f"should be {options}", value)
        elif not _has_type(value, schema):
            yield _line(place, f"should be {' or '.join(sorted(types_of(schema)))}", value)
        else:
            for part in as_list(schema.get("allOf")):
                yield from self.errors(value, part, place)
            yield from self._value_errors(value, schema, place)

    def _value_errors(self, value: Any, schema: Schema, place: str) -> Iterator[str]:
        match value:
            case dict():
                yield from self._object_errors(value, schema, place)
            case list():
                schemas = item_schemas(schema, self._defs)
                for at, item in enumerate(value):
                    yield from self.errors(item, next(schemas), f"{place}[{at}]")
                yield from _size_errors(len(value), schema, place, "Items", "items")
            case str():
                yield from _size_errors(len(value), schema, place, "Length", "characters")
                pattern = schema.get("pattern")
                validator = _pattern_validator(pattern) if isinstance(pattern, str) else None
                if not (validator is None or validator.isinstance_python(value)):
                    yield _line(place, f"should match {schema['pattern']}", value)
            case int() | float() if not isinstance(value, bool):
                for name, (words, fits) in _BOUNDS.items():
                    bound = schema.get(name)
                    is_number = isinstance(bound, int | float) and not isinstance(bound, bool)
                    if is_number and not fits(value, bound):
                        yield _line(place, f"should be {words} {bound}", value)

    def _object_errors(self, value: dict[str, Any], schema: Schema, place: str) -> Iterator[str]:
        properties = as_mapping(schema.get("properties"))
        for name in as_list(schema.get("required")):
            if name not in value:
                yield f"{_below(place, name)}: missing, but required"
        closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
        for name, item in value.items():
            if name in properties or not closed:
                yield from self.errors(item, property_schema(schema, name), _below(place, name))
            else:
                known = ", ".join(properties) or "none"
                yield f"{_below(place, name)}: unknown; known are {known}"


def _has_type(value: Any, schema: Schema) -> bool:
    kinds, kind = types_of(schema), kind_of(value)
    if kind == "integer":
        return bool(kinds & {"integer", "number"})
    return kind in kinds or (kind == "number" and "integer" in kinds and value.is_integer())


def _equal(value: Any, admitted: Any) -> bool:
    """Return whether two values of JSON are equal; true is not 1."""
    return bool(value == admitted) and isinstance(value, bool) == isinstance(admitted, bool)


def _size_errors(size: int, schema: Schema, place: str, suffix: str, unit: str) -> Iterator[str]:
    least, most = schema.get(f"min{suffix}"), schema.get(f"max{suffix}")
    if isinstance(least, int) and size < least:
        yield f"{place}: should have at least {least} {unit}"
    if isinstance(most, int) and size > most:
        yield f"{place}: should have at most {most} {unit}"


@lru_cache(maxsize=256)
def _pattern_validator(pattern: str) -> SchemaValidator | None:
    """Return a validator of texts that match *pattern*, in linear time; None if it is invalid."""
    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except SchemaError:
        return None


def _line(place: str, problem: str, value: Any) -> str:
    return f"{place or 'arguments'}: {problem}; got {shortened(repr(value), _MAX_SHOWN)}"


def _below(place: str, name: object) -> str:
    return f"{place}.{name}" if place else str(name)
