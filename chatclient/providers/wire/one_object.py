"""Merges a tool schema whose top level is a union or a reference into the schema of one object.

Providers reject `anyOf`, `oneOf`, `allOf`, `enum` and `not` at the top level, or ignore `$ref`
there. The merged schema accepts at least the same arguments, and the tool still validates them with
the original one. The alternatives are added to the tool's description as text.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from chatclient._internal.json import dumps
from chatclient._internal.json_schema import distinct

_MERGED = ("$ref", "allOf", "anyOf", "oneOf", "enum", "const", "not")
_DEFINITIONS = ("$defs", "definitions")

Schema = Mapping[str, Any]


class UnsendableSchemaError(ValueError):
    """A schema has no form that the provider accepts."""


@dataclass(frozen=True, slots=True)
class Alternatives:
    """The alternatives of a union that was merged.

    Attributes:
        keyword: `anyOf` or `oneOf`.
        branches: The schema of each alternative, an object.
    """

    keyword: str
    branches: Sequence[Schema]

    def described(self, names: Mapping[str, str]) -> str:
        """Return the alternatives as text, empty if one of them requires no arguments."""
        texts = list(dict.fromkeys(_branch_text(branch, names) for branch in self.branches))
        if not all(texts) or len(texts) == 1:
            return ""
        count = "exactly" if self.keyword == "oneOf" else "at least"
        return f"Give {count} one of these sets of arguments: {'; or '.join(texts)}."


def is_one_object(schema: Schema) -> bool:
    """Return whether the top level of *schema* is neither a union nor a reference."""
    return not any(key in schema for key in _MERGED)


def one_object(schema: Schema) -> tuple[dict[str, Any], list[Alternatives]]:
    """Return *schema* as the schema of one object, and the alternatives that were merged."""
    merger = _Merger(schema)
    merged = merger.merged(schema)
    kept = {key: schema[key] for key in _DEFINITIONS if key in schema}
    return {"type": "object", "properties": {}, **merged, **kept}, merger.unions


def resolved(reference: str, root: Schema) -> Any:
    """Return the target of *reference*, such as `#/$defs/Film`, in *root*."""
    target: Any = root
    path = unquote(reference.removeprefix("#"))
    if not reference.startswith("#") or (path and not path.startswith("/")):
        msg = f"it refers to {reference!r}, which is not part of it"
        raise UnsendableSchemaError(msg)
    for step in path.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        try:
            target = target[int(key)] if isinstance(target, list) else target[key]
        except (KeyError, IndexError, TypeError, ValueError):
            msg = f"it refers to {reference!r}, which it does not define"
            raise UnsendableSchemaError(msg) from None
    return target


class _Merger:
    """Merges the parts of a schema; the target of each reference is merged once.

    Attributes:
        unions: The alternatives that were merged.
    """

    def __init__(self, root: Schema) -> None:
        self.unions: list[Alternatives] = []
        self._root = root
        self._targets: dict[str, dict[str, Any] | None] = {}  # None while being merged

    def merged(self, schema: Any) -> dict[str, Any]:
        """Return *schema*, a part of the root, as one object."""
        if schema is True:
            return {}
        parts = [{k: v for k, v in schema.items() if k not in (*_MERGED, *_DEFINITIONS)}]
        if isinstance(reference := schema.get("$ref"), str):
            parts.append(self._target(reference))
        for part in schema.get("allOf") or ():
            if not _may_be_object(part, self._root):
                msg = "a part of its 'allOf' is not an object"
                raise UnsendableSchemaError(msg)
            parts.append(self.merged(part))
        for keyword, branches in _unions(schema):
            objects = [branch for branch in branches if _may_be_object(branch, self._root)]
            if not objects:
                msg = f"none of the alternatives of its {keyword!r} is an object"
                raise UnsendableSchemaError(msg)
            plain = [self.merged(branch) for branch in objects]
            self.unions.append(Alternatives("anyOf" if keyword == "anyOf" else "oneOf", plain))
            parts.append(_union(plain))
        return _intersection(parts) if len(parts) > 1 else parts[0]

    def _target(self, reference: str) -> dict[str, Any]:
        if reference in self._targets:
            found = self._targets[reference]
            if found is None:
                msg = f"its top level refers to itself, by {reference!r}"
                raise UnsendableSchemaError(msg)
            return found
        target = resolved(reference, self._root)
        if not _may_be_object(target, self._root):
            msg = f"it refers to {reference!r}, which is not an object"
            raise UnsendableSchemaError(msg)
        self._targets[reference] = None
        self._targets[reference] = result = self.merged(target)
        return result


def _unions(schema: Schema) -> Iterable[tuple[str, Sequence[Any]]]:
    for keyword in ("anyOf", "oneOf"):
        if schema.get(keyword):
            yield keyword, schema[keyword]
    if "const" in schema:
        yield "const", [_of_value(schema["const"])]
    if schema.get("enum"):
        yield "enum", [_of_value(value) for value in schema["enum"]]


def _of_value(value: Any) -> Any:
    """Return a schema that accepts only *value*, or False if it is not an object."""
    if not isinstance(value, Mapping):
        return False
    return {"properties": {k: {"const": v} for k, v in value.items()}, "required": list(value)}


def _may_be_object(schema: Any, root: Schema, seen: frozenset[str] = frozenset()) -> bool:
    if not isinstance(schema, Mapping):
        return schema is True
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference not in seen:
        target = resolved(reference, root)
        return _may_be_object(target, root, seen | {reference})
    kind = schema.get("type", "object")
    return kind == "object" or (isinstance(kind, list) and "object" in kind)


def _intersection(parts: Sequence[Schema]) -> dict[str, Any]:
    """Return the schema of objects that match all *parts*; of other keywords, the first counts."""
    result: dict[str, Any] = {}
    properties: dict[str, Any] = {}
    required: dict[str, None] = {}
    for part in parts:
        for key, value in part.items():
            result.setdefault(key, value)
        for name, value in _properties(part).items():
            known = name in properties
            properties[name] = _intersection_of_values(properties[name], value) if known else value
        required |= dict.fromkeys(_required(part))
    result["properties"] = properties
    if required:
        result["required"] = list(required)
    else:
        result.pop("required", None)
    if any(part.get("additionalProperties") is False for part in parts):
        result["additionalProperties"] = False
    if result.get("type") != "object":
        result["type"] = "object"
    return result


def _union(branches: Sequence[Schema]) -> dict[str, Any]:
    """Return a schema without unions that accepts all objects that match one of *branches*."""
    schemas: defaultdict[str, list[Any]] = defaultdict(list)
    required = Counter[str]()
    for branch in branches:
        for name, schema in _properties(branch).items():
            schemas[name].append(schema)
        required.update(set(_required(branch)))
    result: dict[str, Any] = {
        "properties": {name: _any_value_of(each) for name, each in schemas.items()},
        "required": [n for n in _required(branches[0]) if required[n] == len(branches)],
    }
    if all(branch.get("additionalProperties") is False for branch in branches):
        result["additionalProperties"] = False
    return result


def _any_value_of(schemas: Sequence[Any]) -> Any:
    """Return a schema that accepts the values of all *schemas*; constants become one `enum`."""
    unique = distinct(schemas)
    if len(unique) == 1:
        return unique[0]
    if all(isinstance(each, Mapping) and {"const", "enum"} & each.keys() for each in unique):
        values = [v for each in unique for v in each.get("enum", [each.get("const")])]
        kept = {k: v for k, v in unique[0].items() if k not in ("const", "enum", "title")}
        shared = {k: v for k, v in kept.items() if all(e.get(k) == v for e in unique)}
        return {**shared, "enum": distinct(values)}
    return {"anyOf": unique}


def _intersection_of_values(schema: Any, other: Any) -> Any:
    """Return one schema for the values of a property that two schemas define."""
    if not isinstance(schema, Mapping) or not isinstance(other, Mapping):
        return schema if isinstance(schema, Mapping) else other
    if "$ref" in schema or "$ref" in other:
        return other or schema
    return {**schema, **other}


def _properties(schema: Schema) -> Mapping[str, Any]:
    found = schema.get("properties")
    return found if isinstance(found, Mapping) else {}


def _required(schema: Schema) -> Sequence[str]:
    return schema.get("required") or ()


def _branch_text(branch: Schema, names: Mapping[str, str]) -> str:
    properties, required = _properties(branch), dict.fromkeys(_required(branch))
    needed = [_argument(name, properties.get(name), names) for name in required]
    optional = [names.get(name, name) for name in properties if name not in required]
    if not needed:
        return ""
    also = f" (optional: {', '.join(optional)})" if optional else ""
    return ", ".join(needed) + also


def _argument(name: str, schema: Any, names: Mapping[str, str]) -> str:
    sent = names.get(name, name)
    if isinstance(schema, Mapping) and "const" in schema:
        return f"{sent}={dumps(schema['const']).decode()}"
    return sent
