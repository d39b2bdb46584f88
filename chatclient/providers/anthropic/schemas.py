"""JSON Schemas that Anthropic's Messages API can enforce."""

from collections.abc import Mapping
from typing import Any

from chatclient._internal.json import dumps
from chatclient._internal.json_schema import has_open_object, is_recursive

# "JSON Schema limitations" in
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
    """Return whether *schema* has neither objects with arbitrary keys nor recursion."""
    return not has_open_object(schema) and not is_recursive(schema)


def enforceable(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return *schema* with unsupported keywords moved to descriptions.

    Objects are closed unless they have `additionalProperties`.
    """
    result = {k: _nested(k, value) for k, value in schema.items() if _is_supported(k, value)}
    if "oneOf" in schema:
        result["anyOf"] = _nested("anyOf", schema["oneOf"])
    if "$ref" in schema:
        return {"$ref": schema["$ref"], **{k: result[k] for k in ("$defs",) if k in result}}
    if schema.get("type") == "object" or "properties" in schema:
        result.setdefault("additionalProperties", False)
    moved = {k: v for k, v in schema.items() if k not in result and k[0] != "$" and k != "oneOf"}
    if moved:
        texts = [schema.get("description"), f"Constraints: {dumps(moved).decode()}"]
        result["description"] = "\n\n".join(filter(None, texts))
    return result


def _is_supported(key: str, value: Any) -> bool:
    match key:
        case "format":
            return value in _FORMATS
        case "minItems":
            return value in (0, 1)
        case _:
            return key in _KEYWORDS


def _nested(key: str, value: Any) -> Any:
    """Return the value of a keyword with the schemas in it converted."""
    match key, value:
        case ("properties" | "$defs", Mapping()):
            return {name: _nested("items", schema) for name, schema in value.items()}
        case ("anyOf" | "allOf", list() | tuple()):
            return [_nested("items", schema) for schema in value]
        case ("items", Mapping()):
            return enforceable(value)
        case _:
            return value
