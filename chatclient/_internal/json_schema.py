"""Walks JSON Schemas, completes object schemas, and derives the strict form of OpenAI."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any, TypeAlias

from chatclient._internal.checks import check_type
from chatclient._internal.json import dumps
from chatclient.errors import ToolDefinitionError

JsonSchema: TypeAlias = dict[str, Any]

# --- object schemas -------------------------------------------------------------------------

_MAY_BE_NULL = ("properties", "required")


def complete_object_schema(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the *schema* of an object with `type` and `properties` added if they are missing.

    Providers refuse a tool without them. A complete schema is returned as it is.

    Raises:
        ToolDefinitionError: It is not the schema of an object.
        WrongTypeError: It is not a mapping, but JSON text for example.
    """
    hint = "such as json.loads(text) or Model.model_json_schema()"
    check_type("an input schema", schema, Mapping, hint)
    # Some MCP servers send null instead of leaving the key out.
    given = {k: v for k, v in schema.items() if v is not None or k not in _MAY_BE_NULL}
    complete = {"type": "object", "properties": {}, **given}
    required = complete.get("required", [])
    if (
        complete["type"] != "object"
        or not isinstance(complete["properties"], Mapping)
        or not isinstance(required, list | tuple)
        or not all(isinstance(each, str) for each in required)
    ):
        msg = f"a tool takes a JSON object, but its input schema says {dict(schema)!r}"
        raise ToolDefinitionError(msg)
    return schema if complete == schema else complete


# --- walking --------------------------------------------------------------------------------

_SCHEMAS_BY_NAME = frozenset(
    {"$defs", "definitions", "properties", "patternProperties", "dependentSchemas"}
)
_SCHEMAS_IN_LIST = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_SCHEMA = frozenset(
    {
        *("items", "additionalProperties", "propertyNames", "contains", "not", "if", "then"),
        *("else", "unevaluatedItems", "unevaluatedProperties"),
    }
)


def map_subschemas(
    schema: Mapping[str, Any], change: Callable[[JsonSchema], JsonSchema]
) -> JsonSchema:
    """Return *schema* with *change* applied to each of its direct subschemas."""
    return {key: _changed(key, value, change) for key, value in schema.items()}


def _changed(key: str, value: Any, change: Callable[[JsonSchema], JsonSchema]) -> Any:
    if key in _SCHEMAS_BY_NAME and isinstance(value, Mapping):
        return {name: change(schema) for name, schema in value.items()}
    if key in _SCHEMAS_IN_LIST and isinstance(value, list | tuple):
        return [change(schema) for schema in value]
    return change(value) if key in _SCHEMA and isinstance(value, dict) else value


def subschemas(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the direct subschemas of *schema*, without boolean schemas."""
    for key, value in schema.items():
        if key in _SCHEMAS_BY_NAME:
            found: Iterable[Any] = value.values()
        elif key in _SCHEMAS_IN_LIST:
            found = value
        else:
            found = (value,) if key in _SCHEMA else ()
        yield from (each for each in found if isinstance(each, Mapping))


def distinct(values: Iterable[Any]) -> list[Any]:
    """Return JSON *values* without duplicates; 1 and true differ."""
    return list({dumps(value): value for value in values}.values())


def has_open_object(schema: Mapping[str, Any]) -> bool:
    """Return whether some object in *schema* allows keys that are not among its properties.

    An object with properties and without `additionalProperties` is taken for closed.
    """
    named = "properties" in schema
    is_object = named or "object" in _kinds(schema)
    is_open = is_object and schema.get("additionalProperties", not named) is not False
    if is_open or "patternProperties" in schema:
        return True
    return any(map(has_open_object, subschemas(schema)))


def is_recursive(schema: Mapping[str, Any]) -> bool:
    """Return whether *schema* contains itself, or one of its definitions does."""
    definitions: Mapping[str, Any] = schema.get("$defs", {})
    references = {f"#/$defs/{name}": _references(each) for name, each in definitions.items()}
    try:
        tuple(TopologicalSorter(references).static_order())
    except CycleError:
        return True
    return "#" in _references(schema)


def _references(schema: Mapping[str, Any]) -> set[str]:
    """Return all values of `$ref` in *schema*, at every depth."""
    found = {schema["$ref"]} if "$ref" in schema else set()
    return found.union(*map(_references, subschemas(schema)))


def _kinds(schema: Mapping[str, Any]) -> list[str]:
    kinds: str | list[str] = schema.get("type", [])
    return [kinds] if isinstance(kinds, str) else kinds


# --- the strict form ------------------------------------------------------------------------

# Keywords of OpenAI's structured outputs; others are refused there, and therefore dropped.
# https://platform.openai.com/docs/guides/structured-outputs#supported-schemas
_KEYWORDS = frozenset(
    {
        *("type", "description", "enum", "const", "anyOf", "$ref", "$defs"),
        *("properties", "required", "additionalProperties", "items", "minItems", "maxItems"),
        *("pattern", "format", "multipleOf"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    }
)
_FORMATS = frozenset(
    {
        *("date-time", "time", "date", "duration"),
        *("email", "hostname", "ipv4", "ipv6", "uuid"),
    }
)
# Dropping these would change the meaning of a schema.
_INEXPRESSIBLE = frozenset(
    {"allOf", "not", "if", "patternProperties", "dependentSchemas", "definitions"}
)


class _NoStrictFormError(Exception):
    pass


def strict_form(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return *schema* in the form that OpenAI's `strict` mode requires, or None if it has none.

    Every object is closed and all its properties are required; optional ones become nullable, and
    tools treat null as "not given". Keywords that strict mode does not support are dropped. Objects
    with arbitrary keys, and values of any type, have no strict form.
    """
    complete = {"type": "object", **schema}
    if complete["type"] != "object" or not {"$ref", "anyOf", "oneOf"}.isdisjoint(complete):
        return None
    try:
        return _strict(complete)
    except _NoStrictFormError:
        return None


def _strict(schema: Mapping[str, Any] | bool) -> dict[str, Any]:  # noqa: FBT001 - as JSON has it
    if isinstance(schema, bool) or not _INEXPRESSIBLE.isdisjoint(schema):
        raise _NoStrictFormError
    result = map_subschemas(_with_supported_keywords(schema), _strict)
    result = {key: value for key, value in result.items() if key in _KEYWORDS}
    if result.get("format") not in _FORMATS:
        result.pop("format", None)
    if "object" in _kinds(result):
        # Forbid additional properties and require all others.
        if schema.get("additionalProperties", "properties" not in schema) is not False:
            raise _NoStrictFormError
        required = {name for name in schema.get("required", ()) if isinstance(name, str)}
        result["properties"] = {
            name: each if name in required else _nullable(each)
            for name, each in result.get("properties", {}).items()
        }
        result["required"] = list(result["properties"])
        result["additionalProperties"] = False
    elif _accepts_anything(result):
        raise _NoStrictFormError
    # Strict mode allows no sibling keys of `$ref`.
    if "$ref" not in result or len(result) == 1:
        return result
    rest = {key: value for key, value in result.items() if key != "$ref"}
    return {"anyOf": [{"$ref": result["$ref"]}], **rest}


def _with_supported_keywords(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy with `oneOf` replaced by `anyOf`, and `prefixItems` by `items`."""
    result = dict(schema)
    if "oneOf" in result:
        result["anyOf"] = result.pop("oneOf")
    if "prefixItems" in result:
        items = result.pop("prefixItems")
        unique = distinct(items)
        result["items"] = unique[0] if len(unique) == 1 else {"anyOf": unique}
    return result


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    branches = schema.get("anyOf", [schema])
    if any("null" in _kinds(each) or None in each.get("enum", ()) for each in branches):
        return schema
    described = {"description": schema["description"]} if "description" in schema else {}
    if "anyOf" not in schema:
        branches = [{key: value for key, value in schema.items() if key != "description"}]
    return {"anyOf": [*branches, {"type": "null"}], **described}


def _accepts_anything(schema: Mapping[str, Any]) -> bool:
    """Return whether *schema*, or the items of the array that it describes, may have any type."""
    if "array" in _kinds(schema):
        return not isinstance(schema.get("items"), Mapping) and schema.get("maxItems") != 0
    return {"type", "$ref", "anyOf", "enum", "const"}.isdisjoint(schema)
