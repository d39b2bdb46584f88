"""What of a JSON Schema Anthropic's Messages API can enforce."""

from collections.abc import Mapping
from typing import Any

from chatclient.json import dumps
from chatclient.schemas import has_open_object, is_recursive

# What the API can hold a model to, "JSON Schema limitations" in
# https://platform.claude.com/docs/en/build-with-claude/structured-outputs
_KEYWORDS = frozenset(
    {
        *("type", "title", "description", "default", "enum", "const", "anyOf", "allOf"),
        *("$defs", "properties", "required", "additionalProperties", "items"),
    }
)
_FORMATS = frozenset(
    {
        *("date-time", "time", "date", "duration"),
        *("email", "hostname", "uri", "ipv4", "ipv6", "uuid"),
    }
)


def is_enforceable(schema: Mapping[str, Any]) -> bool:
    """Return whether the API can hold a model to *schema* at all.

    It refuses objects with arbitrary keys and schemas that contain themselves.
    """
    return not has_open_object(schema) and not is_recursive(schema)


def enforceable(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return *schema* as far as the API can enforce it; the rest is told in descriptions.

    Objects are closed unless they say otherwise.
    """
    result = {key: _within(key, value) for key, value in schema.items() if _is_known(key, value)}
    if "oneOf" in schema:
        result["anyOf"] = _within("anyOf", schema["oneOf"])
    if "$ref" in schema:
        return {"$ref": schema["$ref"], **{k: result[k] for k in ("$defs",) if k in result}}
    if schema.get("type") == "object" or "properties" in schema:
        result.setdefault("additionalProperties", False)
    told = {k: v for k, v in schema.items() if k not in result and k[0] != "$" and k != "oneOf"}
    if told:
        words = [schema.get("description"), f"Constraints: {dumps(told).decode()}"]
        result["description"] = "\n\n".join(filter(None, words))
    return result


def _is_known(key: str, value: Any) -> bool:
    match key:
        case "format":
            return value in _FORMATS
        case "minItems":
            return value in (0, 1)
        case _:
            return key in _KEYWORDS


def _within(key: str, value: Any) -> Any:
    """Return the value of a keyword with the schemas in it made enforceable."""
    match key, value:
        case ("properties" | "$defs", Mapping()):
            return {name: _within("items", each) for name, each in value.items()}
        case ("anyOf" | "allOf", list() | tuple()):
            return [_within("items", each) for each in value]
        case ("items", Mapping()):
            return enforceable(value)
        case _:
            return value
