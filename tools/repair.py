"""Mends what models get wrong in the arguments of a tool call, where only one thing can be meant.

Two kinds of damage: text that is not quite JSON (`repair_json`), and JSON that is not quite what
the schema asks for (`repair_value`). Whatever is ambiguous stays as it is; the model is told.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from chatclient.json import loads

Schema = Mapping[str, Any]

# --- text -----------------------------------------------------------------------------------

_FENCE = "```"
_TOKEN = re.compile(
    r"""
    \s*(?:
        (?P<double>"(?:[^"\\]|\\.)*(?P<double_end>")?)
      | (?P<single>'(?:[^'\\]|\\.)*(?P<single_end>')?)
      | (?P<open>[{\[])
      | (?P<close>[}\]])
      | (?P<comma>,)
      | (?P<colon>:)
      | (?P<word>[\w.+-]+)
    )
    """,
    re.VERBOSE | re.DOTALL,
)
_CLOSER = {"{": "}", "[": "]"}
_WORDS = {"True": "true", "False": "false", "None": "null"}


def repair_json(text: str) -> str | None:
    """Return the JSON that *text* was meant to be, or None when that is not certain.

    Mends code fences around it, a trailing comma, brackets, braces and a quote missing at the end
    or too many of them, single quotes, Python's `True`, `False` and `None`, line breaks inside
    strings, and JSON that was encoded twice. JSON without damage comes back as it is.
    """
    text = whole_text(text).strip().removeprefix("\ufeff")
    if text.startswith(_FENCE):
        text = re.sub(r"^[a-zA-Z0-9]*", "", text[len(_FENCE) :]).removesuffix(_FENCE).strip()
    for candidate in (text, _rewritten(text)):
        if candidate is None:
            continue
        try:
            value = loads(candidate)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, str):
            return repair_json(value) if value.lstrip()[:1] in ("{", "[", '"') else candidate
        return candidate
    return None


def _rewritten(text: str) -> str | None:
    """Return *text* with its tokens as JSON writes them and what is open closed."""
    result: list[str] = []
    closers: list[str] = []
    at = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            return None
        at = token.end()
        piece = token[0].lstrip()
        match token.lastgroup:
            case "open":
                closers.append(_CLOSER[piece])
            case "close":
                if not closers:
                    return "".join(result) if not text[at:].strip("}] \t\r\n") else None
                if closers.pop() != piece:
                    return None
                _drop_comma(result)
            case "word":
                piece = _WORDS.get(piece, piece)
            case "double" | "double_end" | "single" | "single_end":
                piece = _string(piece, ended=bool(token["double_end"] or token["single_end"]))
            case _:
                pass
        result.append(piece)
    _drop_comma(result)
    return "".join([*result, *reversed(closers)])


def _drop_comma(pieces: list[str]) -> None:
    if pieces and pieces[-1] == ",":
        pieces.pop()


def _string(written: str, *, ended: bool) -> str:
    """Return a string as it was *written*, with JSON's quotes and escapes."""
    inside = written[1:-1] if ended else written[1:]
    inside = inside.replace("\\'", "'")
    if written[0] == "'":
        inside = re.sub(r'(\\.)|"', lambda match: match[1] or '\\"', inside)
    return '"' + re.sub(r"[\x00-\x1f]", lambda match: json.dumps(match[0])[1:-1], inside) + '"'


# --- values ---------------------------------------------------------------------------------

# Between these, some versions of pydantic do not take an integer for a float.
_EXACT, _LARGEST = 2**53, 10**300


def repair_value(value: Any, schema: Schema) -> Any:
    """Return *value* with what cannot be meant as it stands put right, by the JSON *schema*.

    Servers write schemas too; of a keyword that is null nothing is understood.

    - Null for an optional property that cannot be null is left out: the strict form of a schema
      has no other way to leave it out.
    - An object or array that was written as a string of JSON is taken for what it says.
    - A number without a fraction is an integer where only integers are asked for.
    - Half a surrogate pair becomes U+FFFD, the replacement character.
    - A text that is none of the admitted values, but is like exactly one of them when case and
      blanks around it do not count, is that one.
    """
    # Older dialects call them definitions.
    defs = {**(schema.get("definitions") or {}), **(schema.get("$defs") or {})}
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
    properties = schema.get("properties") or {}
    required = schema.get("required") or ()
    others = schema.get("additionalProperties", True)
    others = others if isinstance(others, Mapping) else {}
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
    items = array.get("items", {})
    items = items if isinstance(items, Mapping) else {}
    first = array.get("prefixItems") or ()
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


def _meant_value(value: str, schema: Any, defs: Schema) -> str:
    """Return the one admitted value that *value* spells in another case; else *value* itself."""
    admitted: list[Any] = []
    for branch in _branches(schema, defs):
        if "string" in _types(branch) and "enum" not in branch and "const" not in branch:
            return value  # any text will do
        admitted.extend(branch.get("enum") or [branch.get("const")])
    like = {
        each
        for each in admitted
        if isinstance(each, str) and each.strip().casefold() == value.strip().casefold()
    }
    return like.pop() if len(like) == 1 and value not in admitted else value


def whole_text(text: str) -> str:
    """Return *text* with each half of a surrogate pair replaced by U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


# --- what a schema admits -------------------------------------------------------------------

_KINDS = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})


def _branches(schema: Any, defs: Schema, seen: tuple[str, ...] = ()) -> Iterator[Schema]:
    """Yield the alternatives of *schema*, references followed, each *seen* once on the way."""
    if not isinstance(schema, Mapping):  # true, which anything fits, or false, which nothing does
        if schema is True:
            yield {}
    elif "$ref" in schema:
        ref = str(schema["$ref"])
        if ref not in seen:
            named = defs.get(ref.removeprefix("#/$defs/").removeprefix("#/definitions/"), {})
            yield from _branches(named, defs, (*seen, ref))
    elif "anyOf" in schema or "oneOf" in schema:
        for branch in schema.get("anyOf") or schema.get("oneOf") or ():
            yield from _branches(branch, defs, seen)
    else:
        yield schema


def _types(schema: Schema) -> frozenset[str]:
    """Return the JSON types that an alternative admits; all of them when it does not say."""
    if "const" in schema or schema.get("enum"):
        return frozenset(map(_kind, schema.get("enum") or [schema.get("const")]))
    said = schema.get("type") or _KINDS
    return frozenset({said} if isinstance(said, str) else said)


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
    properties: Schema = schema.get("properties") or {}
    return (
        schema.get("additionalProperties") is not False or value.keys() <= properties.keys()
    ) and all(
        wanted["const"] == value.get(key, wanted["const"])
        for key, wanted in properties.items()
        if isinstance(wanted, Mapping) and "const" in wanted
    )
