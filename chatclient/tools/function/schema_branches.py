"""The alternatives that a JSON Schema admits, their types, and the schemas of parts.

Schemas may come from servers. A keyword whose value has the wrong type is ignored.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any

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
