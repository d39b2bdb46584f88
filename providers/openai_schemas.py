"""JSON Schemas as OpenAI's APIs want them."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from chatclient.schemas import strict_form


def json_schema_format(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return *schema* as both of OpenAI's APIs want the form of an answer."""
    # A title such as `list[Film]` is no name that the API takes.
    name = re.sub(r"[^a-zA-Z0-9_-]+", "_", str(schema.get("title") or "")).strip("_")[:64]
    form = enforceable(schema)
    return {"name": name or "answer", "schema": form or schema, "strict": form is not None}


def enforceable(schema: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the form of *schema* in which `strict` is not refused, if there is one.

    There is none for objects that are open, or have optional properties: closing them would say
    something else. What strict mode does not know beside, such as a length, is left out.
    """
    return strict_form(schema) if _is_closed(schema) else None


def _is_closed(schema: Any) -> bool:
    """Return whether all objects of a schema have just the properties that it names."""
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
