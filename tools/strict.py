"""The strict form of a JSON Schema, which a provider can hold its model to."""

from collections.abc import Mapping
from typing import Any

from chatclient.tools.generation import changed_within

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
_INEXPRESSIBLE = frozenset({"allOf", "not", "if", "patternProperties", "dependentSchemas"})


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


def _strict(schema: Any) -> dict[str, Any]:
    # A boolean in place of a schema stands for anything, or nothing.
    if not isinstance(schema, Mapping) or not _INEXPRESSIBLE.isdisjoint(schema):
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


def _kinds(schema: Mapping[str, Any]) -> list[str]:
    said: str | list[str] = schema.get("type", [])
    return [said] if isinstance(said, str) else said


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
