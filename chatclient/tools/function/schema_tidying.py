"""Removes from the schemas of pydantic what says nothing, and adds what providers need."""

from collections.abc import Mapping

from pydantic.errors import PydanticInvalidForJsonSchema

from chatclient._internal.json_schema import JsonSchema, map_subschemas

REQUIRED = "x-required"
"""Marks, until a schema is done, a property of which `ToolParam` says whether it is required."""

READS_TEXT = "x-reads-text"
"""Marks an enum of numbers that takes them as text, as keys are."""

BASE64URL = r"^([A-Za-z0-9_-]{4})*([A-Za-z0-9_-]{2}==|[A-Za-z0-9_-]{3}=)?$"
"""The pattern of Base64 with the letters for addresses."""


def tidied(schema: JsonSchema) -> JsonSchema:
    """Return a schema of pydantic without titles and marks, and with an object at its root."""
    definitions = schema.get("$defs", {})
    _require_tags(schema, definitions)
    return _tidied(_at_root(schema, definitions))


def _at_root(schema: JsonSchema, definitions: JsonSchema) -> JsonSchema:
    """Return *schema* with what its root refers to spelled out there; providers want an object."""
    rest = {key: value for key, value in schema.items() if key != "$ref"}
    return {**_target(schema, definitions), **rest}


def _target(schema: JsonSchema, definitions: JsonSchema) -> JsonSchema:
    """Return the definition that *schema* refers to, or else itself."""
    return definitions[schema["$ref"].removeprefix("#/$defs/")] if "$ref" in schema else schema


# Formats that are pydantic's own, and what their strings must look like.
_PATTERNS: Mapping[str, str | None] = {
    **dict.fromkeys(["binary", "path", "file-path", "directory-path", "password"]),
    "base64": r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
    "base64url": BASE64URL,
}
_NULL = {"type": "null"}


def _require_tags(schema: JsonSchema, definitions: JsonSchema) -> JsonSchema:
    """Require the discriminator in each variant of a tagged union, also with a default."""
    if "discriminator" in schema:
        for branch in schema["oneOf"]:
            _require(schema["discriminator"]["propertyName"], branch, definitions)
    map_subschemas(schema, lambda inner: _require_tags(inner, definitions))
    return schema


def _require(name: str, schema: JsonSchema, definitions: JsonSchema) -> None:
    schema = _target(schema, definitions)
    for branch in schema.get("oneOf", ()):
        _require(name, branch, definitions)
    properties = schema.get("properties", {})
    if name in properties:
        required = {name, *schema.get("required", ())}
        schema["required"] = [each for each in properties if each in required]


def _tidied(schema: JsonSchema) -> JsonSchema:
    if "properties" in schema:
        _require_as_marked(schema)
    schema = map_subschemas(schema, _tidied)
    for name in ("title", READS_TEXT, REQUIRED):
        schema.pop(name, None)
    if schema.pop("discriminator", None):
        schema = {"anyOf": schema.pop("oneOf"), **schema}
    if str(schema.get("format")).startswith("uuid"):  # the version is in the pattern
        schema["format"] = "uuid"
    if schema.get("format") in _PATTERNS:
        pattern = _PATTERNS[schema.pop("format")]
        if pattern:
            schema["pattern"] = pattern
    if "properties" in schema:
        _tidy_properties(schema)
    return schema


def _require_as_marked(schema: JsonSchema) -> None:
    """Require what `ToolParam` wants to be given; what it does not has to have a value."""
    properties = schema["properties"]
    marks = {
        name: each[REQUIRED]
        for name, each in properties.items()
        if isinstance(each, dict) and REQUIRED in each
    }
    if not marks:
        return
    required = {*schema.get("required", ()), *(name for name, mark in marks.items() if mark)}
    for name in required:
        if marks.get(name) is False:
            msg = (
                f"{name!r} is not required, but has no default and its type does not admit None;"
                " give it one or the other (or, in a TypedDict, NotRequired)"
            )
            raise PydanticInvalidForJsonSchema(msg)
    schema["required"] = [name for name in properties if name in required]


def _tidy_properties(schema: JsonSchema) -> None:
    schema.setdefault("additionalProperties", False)
    required = schema.get("required", ())
    if not required:
        schema.pop("required", None)
    for name, property in schema["properties"].items():
        if name not in required and property.get("default") is None:
            schema["properties"][name] = _without_null(property)


def _without_null(schema: JsonSchema) -> JsonSchema:
    """Return *schema* without null, for optional properties."""
    rest = {key: value for key, value in schema.items() if key not in ("anyOf", "default")}
    branches = [branch for branch in schema.get("anyOf", ()) if branch != _NULL]
    if len(branches) == 1:
        return {**branches[0], **rest}
    return {"anyOf": branches, **rest} if branches else rest
