"""JSON Schemas for OpenAI's strict mode."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from chatclient._internal.json_schema import strict_form
from chatclient.chat.tool_definition import ToolDefinition


def json_schema_format(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return *schema* as the `json_schema` response format of both OpenAI APIs."""
    # The API rejects names such as `list[Film]`.
    name = re.sub(r"[^a-zA-Z0-9_-]+", "_", str(schema.get("title") or "")).strip("_")[:64]
    strict_schema = enforceable(schema)
    return {
        "name": name or "answer",
        "schema": strict_schema or schema,
        "strict": strict_schema is not None,
    }


def enforceable(schema: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return *schema* in the form that strict mode requires, or None.

    Open objects and optional properties have no equivalent in strict mode. Unsupported keywords,
    such as lengths, are removed.
    """
    return strict_form(schema) if _is_closed(schema) else None


def with_own_strict(
    definition: ToolDefinition, provider_options: Mapping[str, Any]
) -> ToolDefinition:
    """Return *definition* as strict as *provider_options*, its options for the provider, say.

    A schema that has no strict form stays as it is, and is not enforced.
    """
    if "strict" not in provider_options or provider_options["strict"] == definition.strict:
        return definition
    strict_schema = strict_form(definition.input_schema) if provider_options["strict"] else None
    return replace(
        definition,
        strict=strict_schema is not None,
        input_schema=definition.input_schema if strict_schema is None else strict_schema,
    )


def _is_closed(schema: Any) -> bool:
    """Return whether all objects of a schema are closed, and all their properties required."""
    if isinstance(schema, list | tuple):
        return all(_is_closed(item) for item in schema)
    if not isinstance(schema, Mapping):
        return True
    properties = schema.get("properties")
    if isinstance(properties, Mapping) or schema.get("type") == "object":
        named = properties if isinstance(properties, Mapping) else {}
        if schema.get("additionalProperties") is not False:
            return False
        if set(named) != set(schema.get("required") or ()):
            return False
        return all(_is_closed(value) for value in (*named.values(), *_definitions(schema)))
    return all(_is_closed(value) for value in schema.values())


def _definitions(schema: Mapping[str, Any]) -> Iterator[Any]:
    for key in ("$defs", "definitions"):
        yield from (schema.get(key) or {}).values()
