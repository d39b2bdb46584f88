"""Fields that pydantic reads from inside other values, by an `AliasPath`."""

from collections.abc import Sequence
from typing import Any, TypeAlias

from chatclient._internal.json_schema import JsonSchema

Path: TypeAlias = Sequence[str | int]
"""The way to a value: names of properties and places in arrays."""


def path_of(alias: Any) -> Path | None:
    """Return where a field is read from by *alias*, as core schemas of pydantic have it.

    Of several choices, the first that is a plain name, else the first. None if *alias* is no path.
    """
    if not isinstance(alias, list):
        return None
    choices = alias if isinstance(alias[0], list) else [alias]
    return next((choice for choice in choices if len(choice) == 1), choices[0])


def insert_at(schema: JsonSchema, path: Path, value: JsonSchema, *, required: bool) -> None:
    """Add *value* to an object's *schema*, in the objects and arrays that *path* leads through.

    What another field says of the same place stays as it is. Insert required values first: what is
    on the way to an optional one only has to contain it, or pydantic would take it for unknown.
    """
    step, *rest = path
    place = _property(schema, step) if isinstance(step, str) else _item(schema, step)
    if required:
        _require(schema, step)
    required = required or step not in schema.get("required", ())
    if not rest:
        place.update({**value, **place})
    elif not place or place.get("type") == ("object" if isinstance(rest[0], str) else "array"):
        insert_at(place, rest, value, required=required)


def _property(schema: JsonSchema, name: str) -> JsonSchema:
    schema.setdefault("type", "object")
    place: JsonSchema = schema.setdefault("properties", {}).setdefault(name, {})
    return place


def _item(schema: JsonSchema, at: int) -> JsonSchema:
    schema.setdefault("type", "array")
    if at < 0:
        place: JsonSchema = schema.setdefault("items", {})
        return place
    items = schema.setdefault("prefixItems", [])
    items.extend({} for _ in range(at + 1 - len(items)))
    return items[at]  # type: ignore[no-any-return]


def _require(schema: JsonSchema, step: str | int) -> None:
    if isinstance(step, str):
        schema["required"] = list(dict.fromkeys([*schema.get("required", ()), step]))
    else:
        least = step + 1 if step >= 0 else -step
        schema["minItems"] = max(schema.get("minItems", 0), least)
