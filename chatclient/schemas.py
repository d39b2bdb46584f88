"""JSON Schemas as data: what lies inside them, and the strict form that providers can enforce."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from chatclient.checks import check_kind
from chatclient.errors import ToolDefinitionError

JsonSchema: TypeAlias = dict[str, Any]

# --- what a tool takes ----------------------------------------------------------------------

_MAY_BE_NULL = ("properties", "required")


def of_object(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the *schema* of an object with `type` and `properties`, which it may leave out.

    Providers refuse a tool whose schema leaves them out. One that is complete is not copied.

    Raises:
        ToolDefinitionError: It is the schema of something else.
        WrongTypeError: It is no mapping, such as a text of JSON.
    """
    hint = "such as json.loads(text) or Model.model_json_schema()"
    check_kind("an input schema", schema, Mapping, hint)
    # Null is how some servers write that there are none.
    said = {k: v for k, v in schema.items() if v is not None or k not in _MAY_BE_NULL}
    complete = {"type": "object", "properties": {}, **said}
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

_SCHEMAS_BY_NAME = frozenset({"$defs", "properties", "patternProperties", "dependentSchemas"})
_SCHEMAS_IN_LIST = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_SCHEMA = frozenset({"items", "additionalProperties", "propertyNames", "contains", "not"})


def changed_within(
    schema: Mapping[str, Any], change: Callable[[JsonSchema], JsonSchema]
) -> JsonSchema:
    """Return *schema* with every schema directly inside it changed; defaults and enums are data."""
    return {key: _changed(key, value, change) for key, value in schema.items()}


def _changed(key: str, value: Any, change: Callable[[JsonSchema], JsonSchema]) -> Any:
    if key in _SCHEMAS_BY_NAME:
        return {name: change(schema) for name, schema in value.items()}
    if key in _SCHEMAS_IN_LIST:
        return [change(schema) for schema in value]
    return change(value) if key in _SCHEMA and isinstance(value, dict) else value


def schemas_within(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield every schema directly inside *schema*; boolean schemas are left out."""
    for key, value in schema.items():
        if key in _SCHEMAS_BY_NAME:
            found: Iterable[Any] = value.values()
        elif key in _SCHEMAS_IN_LIST:
            found = value
        else:
            found = (value,) if key in _SCHEMA else ()
        yield from (each for each in found if isinstance(each, Mapping))


def has_open_object(schema: Mapping[str, Any]) -> bool:
    """Return whether some object in *schema* may have keys that it does not name.

    One that names some and does not say whether there may be others is not meant to have them.
    """
    named = "properties" in schema
    is_object = named or "object" in _kinds(schema)
    is_open = is_object and schema.get("additionalProperties", not named) is not False
    if is_open or "patternProperties" in schema:
        return True
    return any(map(has_open_object, schemas_within(schema)))


def is_recursive(schema: Mapping[str, Any]) -> bool:
    """Return whether *schema* contains itself, or one of its definitions does."""
    definitions: Mapping[str, Any] = schema.get("$defs", {})
    left = {f"#/$defs/{name}": _references(each) for name, each in definitions.items()}
    while finite := [name for name, named in left.items() if named.isdisjoint(left)]:
        for name in finite:
            del left[name]
    return bool(left) or "#" in _references(schema)


def _references(schema: Mapping[str, Any]) -> set[str]:
    """Return what *schema* refers to, at every depth."""
    found = {schema["$ref"]} if "$ref" in schema else set()
    return found.union(*map(_references, schemas_within(schema)))


def _kinds(schema: Mapping[str, Any]) -> list[str]:
    said: str | list[str] = schema.get("type", [])
    return [said] if isinstance(said, str) else said


# --- the strict form ------------------------------------------------------------------------

# What OpenAI's structured outputs know; anything else in a schema is refused there, so it is left
# out. https://platform.openai.com/docs/guides/structured-outputs#supported-schemas
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
# Without these a schema would say something else, not just less.
_INEXPRESSIBLE = frozenset(
    {"allOf", "not", "if", "patternProperties", "dependentSchemas", "definitions"}
)


class _NoStrictFormError(Exception):
    pass


def strict_form(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return *schema* in the form that OpenAI's `strict` takes, or None when it has none.

    Every object is closed and all its properties are required; those that were optional may be
    null instead, which a tool takes for "not given". Keywords that strict mode does not know are
    dropped. Objects with arbitrary keys, and places where anything goes, have no strict form.
    """
    whole = {"type": "object", **schema}
    if whole["type"] != "object" or not {"$ref", "anyOf", "oneOf"}.isdisjoint(whole):
        return None
    try:
        return _strict(whole)
    except _NoStrictFormError:
        return None


def _strict(schema: Mapping[str, Any] | bool) -> dict[str, Any]:  # noqa: FBT001 - as JSON has it
    if isinstance(schema, bool) or not _INEXPRESSIBLE.isdisjoint(schema):
        raise _NoStrictFormError
    result = changed_within(_alternatives(schema), _strict)
    result = {key: value for key, value in result.items() if key in _KEYWORDS}
    if result.get("format") not in _FORMATS:
        result.pop("format", None)
    if "object" in _kinds(result):
        _close(result, schema)
    elif _is_open(result):
        raise _NoStrictFormError
    return _apart(result)


def _alternatives(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy that says with `anyOf` and `items` what strict mode only takes from those."""
    result = dict(schema)
    if "oneOf" in result:
        result["anyOf"] = result.pop("oneOf")
    if "prefixItems" in result:
        places = result.pop("prefixItems")
        unique = [item for i, item in enumerate(places) if item not in places[:i]]
        result["items"] = unique[0] if len(unique) == 1 else {"anyOf": unique}
    return result


def _close(result: dict[str, Any], schema: Mapping[str, Any]) -> None:
    """Close an object and require all it may have."""
    if schema.get("additionalProperties", "properties" not in schema) is not False:
        raise _NoStrictFormError
    required = schema.get("required", ())
    result["properties"] = {
        name: each if name in required else _nullable(each)
        for name, each in result.get("properties", {}).items()
    }
    result["required"] = list(result["properties"])
    result["additionalProperties"] = False


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    branches = schema.get("anyOf", [schema])
    if any("null" in _kinds(each) or None in each.get("enum", ()) for each in branches):
        return schema
    described = {"description": schema["description"]} if "description" in schema else {}
    if "anyOf" not in schema:
        branches = [{key: value for key, value in schema.items() if key != "description"}]
    return {"anyOf": [*branches, {"type": "null"}], **described}


def _is_open(schema: Mapping[str, Any]) -> bool:
    """Whether anything goes at this place."""
    if "array" in _kinds(schema):
        return not isinstance(schema.get("items"), Mapping) and schema.get("maxItems") != 0
    return {"type", "$ref", "anyOf", "enum", "const"}.isdisjoint(schema)


def _apart(schema: dict[str, Any]) -> dict[str, Any]:
    """Return *schema* with a `$ref` on its own, as strict mode wants it."""
    if "$ref" not in schema or len(schema) == 1:
        return schema
    rest = {key: value for key, value in schema.items() if key != "$ref"}
    return {"anyOf": [{"$ref": schema["$ref"]}], **rest}
