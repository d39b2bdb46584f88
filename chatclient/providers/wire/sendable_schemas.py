"""Converts tool schemas, and names of their parameters, to a form that the provider accepts.

A provider rejects all requests that contain one unsupported schema. Schemas are changed only where
a provider is known to reject them.
"""

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count
from typing import Any
from urllib.parse import unquote

from chatclient._internal.frozen import EMPTY, FrozenDict
from chatclient._internal.json import dumps
from chatclient._internal.json_schema import distinct, map_subschemas
from chatclient.chat.tool import ToolDefinition
from chatclient.errors import ToolDefinitionError

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


@dataclass(frozen=True, slots=True, eq=False)
class SchemaRules:
    """Restrictions of a provider on tool schemas, in addition to those of all providers.

    All providers require the schema of one object, without a union or a reference at its top
    level, in JSON Schema 2020-12, where lists in `items` became `prefixItems`.

    Attributes:
        property_names: Pattern of parameter names. No provider checks names of nested objects.
        array_items: Whether every array needs an object as the schema of its items.
        boolean_schemas: Whether `true` and `false` are accepted as the schemas of properties.
        python_patterns: Whether a `pattern` that Python's `re` does not compile is refused.
        references_to_defs: Whether references have to point to an entry of `$defs`, and may be
            combined only with `description` and `default`.
    """

    property_names: re.Pattern[str] | None = None
    array_items: bool = False
    boolean_schemas: bool = True
    python_patterns: bool = False
    references_to_defs: bool = False


# "Property keys should match pattern", only at the top level: github.com/decocms/studio/pull/6874.
ANTHROPIC_RULES = SchemaRules(property_names=re.compile(r"[a-zA-Z0-9_.-]{1,64}"))
# "array schema missing items": github.com/digitalocean-labs/mcp-digitalocean/issues/265;
# "is not a 'regex'": github.com/Alishahryar1/free-claude-code/issues/1730.
OPENAI_RULES = SchemaRules(array_items=True, python_patterns=True)
# cloud.google.com/vertex-ai/generative-ai/docs/model-reference/function-calling says how parameters
# may begin; "set alongside unsupported fields": github.com/anomalyco/opencode/issues/12295;
# "reference to undefined schema": github.com/google-gemini/gemini-cli/issues/13326.
GEMINI_RULES = SchemaRules(
    property_names=re.compile(r"[a-zA-Z_][a-zA-Z0-9_.-]{0,63}"), references_to_defs=True
)
# "cannot unmarshal bool": github.com/can1357/oh-my-pi/pull/4491.
OLLAMA_RULES = SchemaRules(boolean_schemas=False)
COMPATIBLE_RULES = SchemaRules(
    property_names=ANTHROPIC_RULES.property_names,
    array_items=True,
    boolean_schemas=False,
    python_patterns=True,
)
"""For servers with OpenAI's API; a gateway may forward to any other provider."""


@dataclass(frozen=True, slots=True, eq=False)
class SendableTool:
    """A tool definition as it is sent.

    Attributes:
        definition: The definition that is sent.
        names: The sent names of renamed parameters, by their original names.
    """

    definition: ToolDefinition
    names: Mapping[str, str] = EMPTY


def sendable_tool(definition: ToolDefinition, rules: SchemaRules) -> SendableTool:
    """Return *definition* in a form that *rules* accept; the same object if it needs no change."""
    # The cached function returns None instead of *definition*, because equal definitions may
    # differ in the order of their keys, which is kept.
    return converted_tool(definition, rules) or SendableTool(definition)


@lru_cache(maxsize=4096)
def converted_tool(definition: ToolDefinition, rules: SchemaRules) -> SendableTool | None:
    """Return the converted tool, or None if *rules* accept it; see `sendable_tool`."""
    schema = definition.input_schema
    try:
        sent, names, unions = _sendable_schema(schema, rules)
    except (UnsendableSchemaError, AttributeError, TypeError, RecursionError) as error:
        reason = error if isinstance(error, UnsendableSchemaError) else "it is no JSON Schema"
        msg = (
            f"the input schema of the tool {definition.name!r} cannot be converted into one that "
            f"the provider accepts: {reason}. Change the schema, or leave the tool out"
        )
        raise ToolDefinitionError(msg) from error
    if sent == schema:
        return None
    words = [definition.description, *(union.described(names) for union in unions)]
    if "not" in schema:
        words.append(f"The arguments must not fit {dumps(schema['not']).decode()}.")
    changed = replace(
        definition,
        description="\n\n".join(filter(None, words)),
        input_schema=sent,
        # The merged schema has optional properties, which strict mode does not allow.
        strict=definition.strict if is_one_object(schema) else None,
    )
    return SendableTool(changed, FrozenDict(names) if names else EMPTY)


def _sendable_schema(
    schema: Mapping[str, Any], rules: SchemaRules
) -> tuple[dict[str, Any], dict[str, str], list[Alternatives]]:
    unions: list[Alternatives] = []
    result = dict(schema)
    if not is_one_object(schema):
        result, unions = one_object(schema)
    names: dict[str, str] = {}
    if rules.property_names is not None:
        names = accepted_names(tuple(result["properties"]), rules.property_names)
        result = with_names(result, names) if names else result
    if names or unions or rules.references_to_defs or not is_one_object(schema):
        result = _References(schema, only_defs=rules.references_to_defs).within(result)
    return _Accepted(rules)(result), names, unions


class _References:
    """Moves the targets of references to `$defs` if they moved, or only `$defs` is accepted."""

    def __init__(self, root: Mapping[str, Any], *, only_defs: bool) -> None:
        self._root = root
        self._only_defs = only_defs
        self._moved: dict[str, str] = {}  # names in `$defs`
        self._definitions: dict[str, Any] = dict(root.get("$defs") or {})
        self._numbers: defaultdict[str, Iterator[int]] = defaultdict(lambda: count(2))

    def within(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return *schema*, derived from the root schema, with valid references."""
        kept = {k: v for k, v in schema.items() if not (self._only_defs and k == "definitions")}
        result: dict[str, Any] = self._changed(kept)
        if self._moved:
            moved = {name: self._definitions[name] for name in self._moved.values()}
            result["$defs"] = {**result.get("$defs", {}), **moved}
        return result

    def _changed(self, schema: Any) -> Any:
        if not isinstance(schema, Mapping):
            return schema
        reference = schema.get("$ref")
        if isinstance(reference, str) and not self._holds(reference):
            schema = {**schema, "$ref": f"#/$defs/{self._name(reference)}"}
        return map_subschemas(schema, self._changed)

    def _holds(self, reference: str) -> bool:
        if not self._only_defs:
            # "#" is now the converted schema, with other names and merged alternatives.
            moves = reference == "#" or reference.startswith("#/")
            return not moves or reference.startswith(_KEPT)
        parent, _, name = reference.rpartition("/")
        return parent == "#/$defs" and name in self._definitions

    def _name(self, reference: str) -> str:
        """Return the name in `$defs` of the target of *reference*."""
        if reference not in self._moved:
            target = resolved(reference, self._root)
            if target is self._root:
                target = {k: v for k, v in target.items() if k not in _DEFINITIONS}
            plain = re.sub(r"\W+", "_", reference.rpartition("/")[2]).strip("_") or "Arguments"
            name = plain
            while name in self._definitions:
                name = f"{plain}_{next(self._numbers[plain])}"
            self._moved[reference] = name
            self._definitions[name] = target  # reserves the name while references inside it move
            self._definitions[name] = self._changed(target)
        return self._moved[reference]


_KEPT = ("#/$defs/", "#/definitions/")


_BESIDE_REFERENCE = ("description", "default")
_PATTERNS_LENGTH = 5_000  # characters of a tool: compiling a pattern takes time


class _Accepted:
    """Converts schemas, including nested ones, to a form that *rules* accept."""

    def __init__(self, rules: SchemaRules) -> None:
        self._rules = rules
        self._room = _PATTERNS_LENGTH

    def __call__(self, schema: Any) -> Any:
        rules = self._rules
        if isinstance(schema, bool):
            return schema if rules.boolean_schemas else ({} if schema else {"not": {}})
        if not isinstance(schema, Mapping):
            return schema
        result = dict(schema)
        if isinstance(result.get("items"), list | tuple):
            result["prefixItems"] = list(result.pop("items"))
            if "additionalItems" in result:
                result["items"] = result.pop("additionalItems")
        if rules.array_items and _lacks_items(result):
            unique = distinct(result.get("prefixItems") or ())
            if not unique or not all(isinstance(each, Mapping) for each in unique):
                result["items"] = {}
            else:
                result["items"] = dict(unique[0]) if len(unique) == 1 else {"anyOf": unique}
        if rules.python_patterns and isinstance(pattern := result.get("pattern"), str):
            self._room -= len(pattern)
            if self._room < 0 or not _compiles(pattern):
                del result["pattern"]
        if rules.references_to_defs and "$ref" in result:
            result = {k: v for k, v in result.items() if k[:1] == "$" or k in _BESIDE_REFERENCE}
        return map_subschemas(result, self)


def _lacks_items(schema: Mapping[str, Any]) -> bool:
    kind = schema.get("type")
    is_array = kind == "array" or (isinstance(kind, list) and "array" in kind)
    return (is_array or "prefixItems" in schema) and not isinstance(schema.get("items"), Mapping)


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return False
    return True


_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_.-]+")
_MAX_LENGTH = 64
_DIGEST = 8  # hexadecimal digits
# Keywords whose subschemas describe the same object.
_SAME_OBJECT = ("if", "then", "else", "not")


def accepted_names(names: Collection[str], accepted: re.Pattern[str]) -> dict[str, str]:
    """Return a new name for each of *names* that *accepted* does not match.

    The result is deterministic, so that all requests use the same names.
    """
    taken = {name for name in names if accepted.fullmatch(name)}
    result: dict[str, str] = {}
    for name in names:
        if name not in taken:
            plain = _NOT_IN_NAMES.sub("_", name).strip("_") or "property"
            if accepted.fullmatch(plain) is None and accepted.fullmatch(f"_{plain}"[:_MAX_LENGTH]):
                plain = f"_{plain}"
            if len(plain) <= _MAX_LENGTH and plain != "property" and plain not in taken:
                result[name] = plain
            else:
                digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:_DIGEST]
                result[name] = f"{plain[: _MAX_LENGTH - 1 - _DIGEST]}_{digest}"
            taken.add(result[name])
    return result


def with_names(schema: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return *schema* with its properties renamed by *names*.

    The description of a renamed property begins with its original name.
    """
    result = dict(schema)
    if isinstance(properties := schema.get("properties"), Mapping):
        result["properties"] = {
            names.get(name, name): _described(name, each) if name in names else each
            for name, each in properties.items()
        }
    if isinstance(required := schema.get("required"), list | tuple):
        result["required"] = [names.get(name, name) for name in required]
    for key in ("dependentRequired", "dependentSchemas"):
        if isinstance(dependent := schema.get(key), Mapping):
            result[key] = {names.get(n, n): _dependent(v, names) for n, v in dependent.items()}
    for key in _SAME_OBJECT:
        if isinstance(part := schema.get(key), Mapping):
            result[key] = with_names(part, names)
    return result


def _dependent(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return with_names(value, names)
    return [names.get(name, name) for name in value] if isinstance(value, list | tuple) else value


def _described(name: str, schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return {"description": name} if schema is True else schema
    description = schema.get("description")
    return {**schema, "description": f"{name}: {description}" if description else name}
