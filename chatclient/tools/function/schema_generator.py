"""pydantic's generator of JSON Schemas, with exact schemas instead.

pydantic accepts less than its own schemas allow, and adds titles, which cost tokens without telling
the model anything. These schemas are exact: pydantic accepts every value that matches one,
including its formats. Exceptions are rules that JSON Schema cannot express: validators written in
Python, bounds of dates and durations, files that must exist, and numbers or years out of Python's
range.

A schema may contain marks for later steps: `READS_TEXT`, which `tidied` removes, and `DECIMAL` and
`ENUM_NAMES`, which repair arguments and which `public_schema` removes before the schema is sent.
"""

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any, get_type_hints

from pydantic import BaseModel, TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticUserError
from pydantic.json_schema import GenerateJsonSchema, JsonRef, JsonSchemaWarningKind

from chatclient._internal.json_schema import JsonSchema
from chatclient.tools.function.argument_repair import DECIMAL, ENUM_NAMES
from chatclient.tools.function.docstring import parse_docstring
from chatclient.tools.function.parameters import (
    insert_at,
    path_of,
    text_beside,
)
from chatclient.tools.function.schema_parts import BASE64URL, READS_TEXT, tidied


def exact_schema(adapter: TypeAdapter[Any]) -> JsonSchema:
    """Return the schema of the values that *adapter* accepts; see `schema_of`."""
    return tidied(adapter.json_schema(schema_generator=_Generator))


_SCALARS = (str, int, float, type(None))  # and so bool
_UNHASHABLE = frozenset({"dict", "list", "set", "typed-dict"})
_BOUNDS = ("ge", "gt", "le", "lt", "multiple_of")
# The property names from which pydantic reads the keys of a mapping, by the type of the keys.
_PROPERTY_NAMES: Mapping[str, JsonSchema] = {
    "any": {},
    "integer": {"pattern": r"^(0|-?[1-9]\d*)$"},
    "number": {"pattern": r"^-?(0|[1-9]\d*)(\.\d+)?$"},
    "boolean": {"enum": ["true", "false"]},
}
_STRING_KEYWORDS = frozenset({"pattern", "format", "minLength", "maxLength"})
_LEAP = r"(\d\d(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)-02-29"
_YEAR = r"(\d{3}[1-9]|\d\d[1-9]0|\d[1-9]00|[1-9]000)"
_DAY = (
    r"((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)"
    r"|02-(0[1-9]|1\d|2[0-8]))"
)
_TIME = r"([01]\d|2[0-3]):[0-5]\d(:[0-5]\d(\.\d{1,6})?)?"
_NAIVE = f"^({_YEAR}-{_DAY}|{_LEAP})T{_TIME}$"
_COMPLEX = r"^-?\d+(\.\d+)?([+-]\d+(\.\d+)?j)?$"


class _Generator(GenerateJsonSchema):
    """pydantic's generator, with stricter and more detailed schemas for some types."""

    def emit_warning(self, kind: JsonSchemaWarningKind, detail: str) -> None:
        """Log nothing: a value without a JSON form, such as some defaults, is left out."""

    def sort(self, value: JsonSchema, parent_key: str | None = None) -> JsonSchema:  # noqa: ARG002
        return value

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002
        return False

    # Scalars.

    def str_schema(self, schema: Any) -> JsonSchema:
        result = super().str_schema(schema)
        shortest = result.get("minLength", 0)
        if schema.get("strip_whitespace") and shortest and "pattern" not in result:
            result["pattern"] = r"\S" if shortest == 1 else rf"\S[\s\S]{{{shortest - 2},}}\S"
        return result

    def bytes_schema(self, schema: Any) -> JsonSchema:
        result: JsonSchema = {"type": "string"}
        encoding = self._config.val_json_bytes
        if encoding == "base64":
            return {**result, "contentEncoding": "base64", "pattern": BASE64URL}
        if encoding == "hex":
            return {**result, "contentEncoding": "base16", "pattern": "^([0-9a-fA-F]{2})*$"}
        self.update_with_validations(result, schema, self.ValidationsMapping.bytes)
        if len(result) > 1:  # a length in bytes is one in characters only in ASCII
            result["pattern"] = r"^[\x00-\x7f]*$"
        return result

    def decimal_schema(self, schema: Any) -> JsonSchema:
        """Return a number; with `max_digits` alone, which numbers cannot express, a string."""
        if schema.get("max_digits") is not None and schema.get("decimal_places") is None:
            most = schema["max_digits"]
            splits = [rf"\d{{1,{most}}}"]
            splits += [rf"\d{{1,{most - places}}}\.\d{{1,{places}}}" for places in range(1, most)]
            pattern = f"^-?({'|'.join(splits)})$"
            return {"type": "string", "pattern": pattern, DECIMAL: True}
        result: JsonSchema = {"type": "number", DECIMAL: True}
        bounds: Any = {key: float(schema[key]) for key in _BOUNDS if schema.get(key) is not None}
        self.update_with_validations(result, bounds, self.ValidationsMapping.numeric)
        if schema.get("decimal_places") is not None:
            places: int = schema["decimal_places"]
            result.setdefault("multipleOf", 1 if places == 0 else float(f"1e-{places}"))
            if schema.get("max_digits") is not None:
                limit = 10 ** (schema["max_digits"] - places)
                result.setdefault("exclusiveMaximum", limit)
                result.setdefault("exclusiveMinimum", -limit)
        return result

    def function_before_schema(self, schema: Any) -> JsonSchema:
        # The application's validator gets the JSON number, and not a `Decimal`.
        return _without_decimal_mark(super().function_before_schema(schema))

    def function_wrap_schema(self, schema: Any) -> JsonSchema:
        return _without_decimal_mark(super().function_wrap_schema(schema))

    def union_schema(self, schema: Any) -> JsonSchema:
        """Return the union, with one branch for a `Decimal` and a float with equal schemas."""
        result = super().union_schema(schema)
        branches = result.get("anyOf")
        if branches is None:
            return result
        kept = [
            each
            for each in branches
            if DECIMAL not in each or _without_decimal_mark(each) not in branches
        ]
        return {**result, "anyOf": kept} if len(kept) != 1 else kept[0]

    def complex_schema(self, schema: Any) -> JsonSchema:
        return {**super().complex_schema(schema), "pattern": _COMPLEX}

    def datetime_schema(self, schema: Any) -> JsonSchema:
        if schema.get("tz_constraint") == "naive":  # the format demands an offset
            return {"type": "string", "pattern": _NAIVE}
        return super().datetime_schema(schema)

    def uuid_schema(self, schema: Any) -> JsonSchema:
        result: JsonSchema = {"type": "string", "format": "uuid"}
        if schema.get("version") is not None:
            result["pattern"] = f"^.{{14}}{schema['version']}"
        return result

    def url_schema(self, schema: Any) -> JsonSchema:
        result = super().url_schema(schema)
        if schema.get("allowed_schemes"):
            schemes = "|".join(re.escape(scheme) for scheme in schema["allowed_schemes"])
            result["pattern"] = f"^({schemes})://[^/?#]"
        return result

    def enum_schema(self, schema: Any) -> JsonSchema:
        result = super().enum_schema(schema)
        members = schema["members"]
        for member in members:
            if not isinstance(member.value, _SCALARS):
                msg = f"{member!r} has no JSON value; give its members strings or numbers"
                raise PydanticInvalidForJsonSchema(msg)
        if not all(isinstance(member.value, str) for member in members):
            meaning = ", ".join(f"{member.value!r} = {member.name}" for member in members)
            result["description"] = _joined_texts(result.get("description"), meaning)
        if schema.get("sub_type") in ("int", "float"):
            result[READS_TEXT] = True
        result[ENUM_NAMES] = {member.name: member.value for member in members}
        return result

    def literal_schema(self, schema: Any) -> JsonSchema:
        for member in schema["expected"]:
            if not isinstance(member, _SCALARS):
                msg = f"Literal[{member!r}] cannot be written in JSON; use the value, or a StrEnum"
                raise PydanticInvalidForJsonSchema(msg)
        return super().literal_schema(schema)

    # Collections.

    def set_schema(self, schema: Any) -> JsonSchema:
        return _of_hashable(super().set_schema(schema), schema.get("items_schema", {}))

    def frozenset_schema(self, schema: Any) -> JsonSchema:
        return _of_hashable(super().frozenset_schema(schema), schema.get("items_schema", {}))

    def dict_schema(self, schema: Any) -> JsonSchema:
        return self._with_property_names(super().dict_schema(schema), schema)

    def ordered_dict_schema(self, schema: Any) -> JsonSchema:
        return self._with_property_names(super().ordered_dict_schema(schema), schema)

    def counter_schema(self, schema: Any) -> JsonSchema:
        return self._with_property_names(super().counter_schema(schema), schema)

    def _with_property_names(self, result: JsonSchema, schema: Any) -> JsonSchema:
        """Return *result*, the schema of a mapping, with property names that are valid keys."""
        result.pop("propertyNames", None)
        for values in result.pop("patternProperties", {}).values():
            result["additionalProperties"] = values
        names = self._property_names(
            self.generate_inner(schema.get("keys_schema", {"type": "any"}))
        )
        if names is None:
            msg = "the keys of a JSON object are strings; a mapping needs keys made from those"
            raise PydanticInvalidForJsonSchema(msg)
        result.setdefault("additionalProperties", True)
        return {**result, "propertyNames": names} if names else result

    def _property_names(self, schema: JsonSchema) -> JsonSchema | None:
        """Return the schema of the property names that are read as keys of *schema*.

        None if there are no such names.
        """
        if "$ref" in schema:
            schema = self.get_schema_from_definitions(JsonRef(schema["$ref"])) or {}
        branches = schema.get("anyOf") or schema.get("oneOf")
        if branches:
            names = [name for name in map(self._property_names, branches) if name is not None]
            if {} in names:
                return {}
            return {"anyOf": names} if len(names) > 1 else next(iter(names), None)
        if "enum" in schema or "const" in schema:
            values = schema.get("enum", [schema.get("const")])
            texts = [str(v) for v in values if isinstance(v, str) or READS_TEXT in schema]
            return {"enum": texts} if texts else None
        if schema.get("type") == "string":
            return {key: value for key, value in schema.items() if key in _STRING_KEYWORDS}
        return _PROPERTY_NAMES.get(schema.get("type", "any"))

    # Classes.

    def _named_required_fields_schema(
        self, named_required_fields: Sequence[tuple[str, bool, Any]]
    ) -> JsonSchema:
        """Put fields with an `AliasPath` at that path; pydantic puts them at the top level."""
        if self._config.populate_by_name or getattr(self._config, "validate_by_name", False):
            return super()._named_required_fields_schema(named_required_fields)
        paths = [path_of(each[2].get("validation_alias")) for each in named_required_fields]
        fields = list(zip(named_required_fields, paths, strict=True))
        result = super()._named_required_fields_schema([each for each, path in fields if not path])
        for each, path in sorted(fields, key=lambda field: not field[0][1]):
            if path:
                alone = super()._named_required_fields_schema([each])
                for value in alone["properties"].values():
                    insert_at(result, path, value, required=each[1])
        return result

    def named_tuple_schema(self, schema: Any) -> JsonSchema:
        """Return an object instead of an array, so that models name the fields."""
        array = super().named_tuple_schema(schema)
        names = [field.get("validation_alias", field["name"]) for field in schema["fields"]]
        return {
            "type": "object",
            "properties": dict(zip(names, array.get("prefixItems", ()), strict=True)),
            "required": names[: array.get("minItems", 0)],
        }

    def call_schema(self, schema: Any) -> JsonSchema:
        """Return the schema of a named tuple, which is a call of its class before pydantic 2.14."""
        return self.kw_arguments_schema(schema["arguments_schema"]["arguments_schema"], None)

    def model_schema(self, schema: Any) -> JsonSchema:
        if schema["cls"] is BaseModel:
            msg = "BaseModel has no fields; name a model of your own"
            raise PydanticUserError(msg, code="invalid-for-json-schema")
        return _documented(super().model_schema(schema), schema["cls"])

    def dataclass_schema(self, schema: Any) -> JsonSchema:
        return _documented(super().dataclass_schema(schema), schema["cls"])

    def typed_dict_schema(self, schema: Any) -> JsonSchema:
        return _documented(super().typed_dict_schema(schema), schema["cls"])


def _without_decimal_mark(schema: JsonSchema) -> JsonSchema:
    return {key: value for key, value in schema.items() if key != DECIMAL}


def _joined_texts(*texts: str | None) -> str:
    return "; ".join(text for text in texts if text)


def _of_hashable(result: JsonSchema, items: Mapping[str, Any]) -> JsonSchema:
    """Return *result*, the schema of a set, with items that can be hashed.

    Raises:
        PydanticInvalidForJsonSchema: Its items cannot be hashed.
    """
    if items.get("type") in _UNHASHABLE or getattr(items.get("cls"), "__hash__", True) is None:
        msg = "a set holds only what can be hashed; use a list, or a frozen class"
        raise PydanticInvalidForJsonSchema(msg)
    if not result["items"]:
        result["items"] = {"type": ["string", "number", "boolean", "null"]}
    return result


def _documented(result: JsonSchema, cls: type[Any]) -> JsonSchema:
    """Return *result* with descriptions of the class and its fields.

    Sources are the docstring of the class, and texts in the annotations of the fields.
    """
    properties = result.get("properties", {})
    for name, annotation in _hints(cls).items():
        if name in properties and (text := text_beside(annotation)):
            properties[name] = {"description": text, **properties[name]}
    doc = cls.__doc__
    if not doc or doc.startswith(f"{cls.__name__}("):  # generated by `@dataclass`
        return result
    docstring = parse_docstring(doc)
    if result.get("description", doc) in (doc, inspect.cleandoc(doc)):
        result["description"] = docstring.summary
    for name, text in docstring.parameters.items():
        if name in properties:
            properties[name] = {"description": text, **properties[name]}
    return result


def _hints(cls: type[Any]) -> Mapping[str, Any]:
    try:
        return get_type_hints(cls, include_extras=True)
    except (
        AttributeError,
        NameError,
        TypeError,
    ):  # pydantic resolves more names than `get_type_hints`
        return {}
