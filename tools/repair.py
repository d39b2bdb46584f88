"""Mends what models get wrong in the arguments of a tool call, where only one thing can be meant.

That is JSON which is not quite what the schema asks for; text that is not quite JSON is the
business of `chatclient.slips`. Whatever is ambiguous stays as it is; the model is told.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from chatclient.json import loads
from chatclient.slips import repair_json, whole_text

Schema = Mapping[str, Any]

# Between these, some versions of pydantic do not take an integer for a float.
_EXACT, _LARGEST = 2**53, 10**300
_ADMITTED = (str, bool, int, float)


def repair_value(value: Any, schema: Schema) -> Any:
    """Return *value* with what cannot be meant as it stands put right, by the JSON *schema*.

    Servers write schemas too; of a keyword whose value is not of its kind, nothing is understood.

    - Null for an optional property that cannot be null is left out: the strict form of a schema
      has no other way to leave it out.
    - An object or array that was written as a string of JSON is taken for what it says.
    - A number without a fraction is an integer where only integers are asked for.
    - Half a surrogate pair becomes U+FFFD, the replacement character.
    - A text that is none of the admitted values, but is like exactly one of them when case and
      blanks around it do not count, is that one; a number among them may be written as a text.
    """
    # Older dialects call them definitions.
    defs = {**_mapping(schema.get("definitions")), **_mapping(schema.get("$defs"))}
    return _repaired(value, schema, defs)


def _repaired(value: Any, schema: Any, defs: Schema) -> Any:
    match value:
        case dict():
            return _repaired_object(value, _branch_for(value, schema, defs), defs)
        case list():
            return _repaired_array(value, schema, defs)
        case str():
            return _repaired_string(value, schema, defs)
        case int() | float() if not isinstance(value, bool):
            return _repaired_number(value, schema, defs)
        case _:
            return value


def _repaired_number(value: Any, schema: Any, defs: Schema) -> Any:
    whole, real = _admits(schema, defs, "integer"), _admits(schema, defs, "number")
    if isinstance(value, float):
        return int(value) if whole and not real and value.is_integer() else value
    return float(value) if real and not whole and _EXACT < abs(value) < _LARGEST else value


def _repaired_object(value: dict[str, Any], schema: Schema, defs: Schema) -> dict[str, Any]:
    properties = _mapping(schema.get("properties"))
    required = _several(schema.get("required"))
    others = _mapping(schema.get("additionalProperties"))
    result: dict[str, Any] = {}
    for key, item in value.items():
        wanted = properties.get(key, others)
        optional = key in properties and key not in required
        if item is None and optional and not _admits(wanted, defs, "null"):
            continue
        result[whole_text(key)] = _repaired(item, wanted, defs)
    return result


def _repaired_array(value: list[Any], schema: Any, defs: Schema) -> list[Any]:
    arrays = (branch for branch in _branches(schema, defs) if "array" in _types(branch))
    array = next(arrays, {})
    items = _mapping(array.get("items"))
    first = _several(array.get("prefixItems"))
    return [
        _repaired(item, first[i] if i < len(first) else items, defs) for i, item in enumerate(value)
    ]


def _repaired_string(value: str, schema: Any, defs: Schema) -> Any:
    value = whole_text(value)
    kinds = {
        kind
        for kind, start in (("object", "{"), ("array", "["))
        if value.lstrip().startswith(start) and _admits(schema, defs, kind)
    }
    if not kinds or _admits(schema, defs, "string"):
        return _meant_value(value, schema, defs)
    mended = repair_json(value)
    return value if mended is None else _repaired(loads(mended), schema, defs)


def _meant_value(value: str, schema: Any, defs: Schema) -> Any:
    """Return the one admitted value that *value* spells in another case; else *value* itself."""
    admitted: list[Any] = []
    for branch in _branches(schema, defs):
        if "string" in _types(branch) and "enum" not in branch and "const" not in branch:
            return value  # any text will do
        admitted.extend(_several(branch.get("enum")) or [branch.get("const")])
    like = {
        each
        for each in admitted
        if isinstance(each, _ADMITTED) and str(each).strip().casefold() == value.strip().casefold()
    }
    return like.pop() if len(like) == 1 and value not in admitted else value


# --- what a schema admits -------------------------------------------------------------------

_KINDS = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})


def _branches(schema: Any, defs: Schema) -> Iterator[Schema]:
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
            choices = _several(schema.get("anyOf")) or _several(schema.get("oneOf"))
            left.extend(reversed(choices))
        else:
            yield schema


def _types(schema: Schema) -> frozenset[str]:
    """Return the JSON types that an alternative admits; all of them when it does not say."""
    values = _several(schema.get("enum"))
    if "const" in schema or values:
        return frozenset(map(_kind, values or [schema.get("const")]))
    said = schema.get("type")
    if isinstance(said, str):
        return frozenset({said})
    return frozenset(kind for kind in _several(said) if isinstance(kind, str)) or _KINDS


def _kind(value: Any) -> str:
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


def _admits(schema: Any, defs: Schema, kind: str) -> bool:
    return any(kind in _types(branch) for branch in _branches(schema, defs))


def _branch_for(value: dict[str, Any], schema: Any, defs: Schema) -> Schema:
    """Return the alternative that an object is meant for: the first whose properties it has."""
    objects = [branch for branch in _branches(schema, defs) if "object" in _types(branch)]
    fitting = (branch for branch in objects if _is_meant(value, branch))
    return next(fitting, objects[0] if objects else {})


def _is_meant(value: dict[str, Any], schema: Schema) -> bool:
    properties = _mapping(schema.get("properties"))
    return (
        schema.get("additionalProperties") is not False or value.keys() <= properties.keys()
    ) and all(
        wanted["const"] == value.get(key, wanted["const"])
        for key, wanted in properties.items()
        if isinstance(wanted, Mapping) and "const" in wanted
    )


def _mapping(value: Any) -> Schema:
    return value if isinstance(value, Mapping) else {}


def _several(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()
