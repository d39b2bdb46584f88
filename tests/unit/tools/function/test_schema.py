"""The JSON Schema of a function's parameters."""

import dataclasses
import enum
import typing
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NotRequired
from uuid import UUID

import jsonschema
import pytest
from pydantic import (
    AnyUrl,
    Base64Bytes,
    Base64UrlBytes,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    FilePath,
    HttpUrl,
    SecretStr,
    Tag,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, core_schema
from typing_extensions import TypeAliasType, TypedDict

from chatclient.tools.function.schema import ToolParam, signature_of


def schema_of(function: Callable[..., Any]) -> Any:
    """Return the schema of a function, which is validated."""
    schema = signature_of(function).input_schema
    jsonschema.Draft202012Validator.check_schema(schema)
    return schema


def property_of(annotation: Any) -> Any:
    """Return the schema of one parameter."""

    def function(x: Any) -> None: ...

    function.__annotations__["x"] = annotation
    return schema_of(function)["properties"]["x"]


def definition_of(annotation: Any) -> Any:
    """Return the single definition in the schema of a parameter."""

    def function(x: Any) -> None: ...

    function.__annotations__["x"] = annotation
    (definition,) = schema_of(function)["$defs"].values()
    return definition


# --- functions ------------------------------------------------------------------------------


@pytest.mark.feature(
    "tool-definition",
    "schema-object-properties-parameter-order",
    "schema-additional-properties-false-recursively",
    "schema-properties-sorted-alphabetically",
    "lc4j-tool-description",
)
def test_function_schema() -> None:
    """Names, types, defaults and descriptions, without redundant keywords."""

    def weather(city: str, days: int = 3, unit: Literal["C", "F"] = "C") -> str:
        """Look up the weather.

        Args:
            city: Where.
            days: How many days.
            unit: Celsius or Fahrenheit.
        """
        return ""

    signature = signature_of(weather)

    assert signature.description == "Look up the weather."
    assert signature.returns_nothing is False
    assert signature.parameters == ("city", "days", "unit")
    assert list(signature.input_schema["properties"]) == ["city", "days", "unit"]
    assert signature.input_schema == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Where."},
            "days": {"type": "integer", "description": "How many days.", "default": 3},
            "unit": {
                "type": "string",
                "enum": ["C", "F"],
                "description": "Celsius or Fahrenheit.",
                "default": "C",
            },
        },
        "required": ["city"],
        "additionalProperties": False,
    }


@pytest.mark.feature("function-supplier", "lc4j-tool-specification-name-description")
def test_function_without_parameters() -> None:
    """The schema is an empty closed object."""

    def now() -> str:
        return ""

    signature = signature_of(now)

    assert signature.input_schema == {
        "type": "object",
        "properties": {},
        "additionalProperties": False,
    }
    assert signature.description == ""


@pytest.mark.feature("tool-schema-text-can-changed")
def test_schema_is_immutable() -> None:
    """The shared schema cannot be changed."""

    def function(x: int) -> None: ...

    schema = signature_of(function).input_schema

    with pytest.raises(TypeError, match="immutable"):
        schema["properties"]["x"]["type"] = "string"


# --- types ----------------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@pytest.mark.feature(
    "function-object-parameters-get-came",
    "schema-format-removed-top-kept",
    "schema-maps",
    "schema-object",
    "schema-dates-times",
    "schema-unions",
    "lc4j-value-types-schema-string",
    "lc4j-maps-lose-their-value",
    "lc4j-dates-become-objects",
)
@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        (str, {"type": "string"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (Any, {}),
        (object, {}),
        (bytes, {"type": "string"}),
        (Decimal, {"type": "number"}),
        (Path, {"type": "string"}),
        (FilePath, {"type": "string"}),
        (SecretStr, {"type": "string", "writeOnly": True}),
        (date, {"type": "string", "format": "date"}),
        (time, {"type": "string", "format": "time"}),
        (datetime, {"type": "string", "format": "date-time"}),
        (timedelta, {"type": "string", "format": "duration"}),
        (UUID, {"type": "string", "format": "uuid"}),
        (list, {"type": "array", "items": {}}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (set[int], {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}),
        (tuple[int, ...], {"type": "array", "items": {"type": "integer"}}),
        (
            tuple[int, str],
            {
                "type": "array",
                "prefixItems": [{"type": "integer"}, {"type": "string"}],
                "minItems": 2,
                "maxItems": 2,
            },
        ),
        (dict, {"type": "object", "additionalProperties": True}),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (
            dict[int, bool],
            {
                "type": "object",
                "additionalProperties": {"type": "boolean"},
                "propertyNames": {"pattern": "^(0|-?[1-9]\\d*)$"},
            },
        ),
        (
            dict[Annotated[str, Field(pattern="^a")], int],
            {
                "type": "object",
                "additionalProperties": {"type": "integer"},
                "propertyNames": {"pattern": "^a"},
            },
        ),
        (
            typing.OrderedDict[date, int],
            {
                "type": "object",
                "additionalProperties": {"type": "integer"},
                "propertyNames": {"format": "date"},
            },
        ),
        (
            typing.Counter[Annotated[str, Field(pattern="^a")]],
            {
                "type": "object",
                "additionalProperties": {"type": "integer"},
                "propertyNames": {"pattern": "^a"},
            },
        ),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (int | str, {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        (Annotated[int, Field(ge=1, le=9)], {"type": "integer", "minimum": 1, "maximum": 9}),
        (
            Annotated[Decimal, Field(max_digits=4, decimal_places=2)],
            {
                "type": "number",
                "multipleOf": 0.01,
                "exclusiveMinimum": -100,
                "exclusiveMaximum": 100,
            },
        ),
        (Annotated[Decimal, Field(decimal_places=0)], {"type": "number", "multipleOf": 1}),
        (AnyUrl, {"type": "string", "format": "uri", "minLength": 1}),
        (
            HttpUrl,
            {
                "type": "string",
                "format": "uri",
                "minLength": 1,
                "maxLength": 2083,
                "pattern": "^(http|https)://[^/?#]",
            },
        ),
    ],
    ids=str,
)
def test_types(annotation: Any, schema: Any) -> None:
    """Types have the simplest schema that describes them."""
    described = property_of(annotation)

    assert described == schema
    assert "title" not in str(described)


@pytest.mark.feature("schema-format-removed-top-kept")
@pytest.mark.parametrize("annotation", [Base64Bytes, Base64UrlBytes])
def test_pydantic_formats_become_patterns(annotation: Any) -> None:
    """Non-standard formats become patterns."""
    described = property_of(annotation)

    assert described.keys() == {"type", "pattern"}


@pytest.mark.parametrize("encoding", ["base64", "hex"])
def test_encoded_bytes(encoding: Literal["base64", "hex"]) -> None:
    """Bytes that a model decodes are described as encoded."""

    class File(BaseModel):
        model_config = ConfigDict(val_json_bytes=encoding)
        content: bytes

    content = definition_of(File)["properties"]["content"]

    assert content["contentEncoding"] == {"base64": "base64", "hex": "base16"}[encoding]


@pytest.mark.feature("schema-enums-declaration-order")
def test_enums() -> None:
    """Values in order of members; numbers are explained."""
    assert definition_of(Colour) == {"type": "string", "enum": ["red", "blue"]}
    assert definition_of(Level) == {
        "type": "integer",
        "enum": [1, 2],
        "description": "1 = LOW, 2 = HIGH",
    }


@dataclasses.dataclass
class Point:
    """A place on the map.

    Attributes:
        x: How far east.
        y: How far north.
    """

    x: float
    y: Annotated[float, Field(description="Northing.")] = 0.0
    z: Annotated[float, ToolParam("Altitude.")] = 0.0


@dataclasses.dataclass
class Bare:
    x: float


class Address(TypedDict):
    """Where someone lives.

    :param street: With its number.
    """

    street: str
    zip: NotRequired[int]


class Size(NamedTuple):
    width: int
    height: int = 1


class Called:
    """Pydantic calls its schema method with arguments."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> CoreSchema:
        height = core_schema.with_default_schema(core_schema.int_schema(), default=1)
        parameters = [
            core_schema.arguments_parameter("width", core_schema.int_schema()),
            core_schema.arguments_parameter("height", height),
        ]
        arguments = core_schema.arguments_schema(parameters)
        return core_schema.call_schema(arguments, Size, ref="Called")


class Tree(BaseModel):
    """A tree."""

    model_config = ConfigDict(title="Baum")
    value: int | None = Field(title="Wert", default=None)
    title: str = "Ash"
    children: list["Tree"] = Field(default=[], alias="kids")


@pytest.mark.feature("tool-param-record-components", "schema-class-level-descriptions")
def test_dataclass_with_docstring() -> None:
    """Fields are described by the docstring or by themselves."""
    assert definition_of(Point) == {
        "type": "object",
        "description": "A place on the map.",
        "properties": {
            "x": {"type": "number", "description": "How far east."},
            "y": {"type": "number", "description": "Northing.", "default": 0.0},
            "z": {"type": "number", "description": "Altitude.", "default": 0.0},
        },
        "required": ["x"],
        "additionalProperties": False,
    }


class Typed(TypedDict):
    """A place.

    Attributes:
        city: The docstring.
    """

    city: Annotated[str, "The city"]
    country: NotRequired[Annotated[str, "Where it is"]]


class Modelled(BaseModel):
    """A place."""

    city: Annotated[str, "The city"]
    country: Annotated[str, "Where it is"] = Field(default="", description="The country")


@dataclasses.dataclass
class Described:
    city: Annotated[str, "The city"]
    country: Annotated[str, ToolParam("The country"), "Where it is"] = ""


@pytest.mark.feature("schema-order-description-sources")
@pytest.mark.parametrize(
    ("kind", "country"),
    [(Typed, "Where it is"), (Modelled, "The country"), (Described, "The country")],
)
def test_field_descriptions_as_strings(kind: type[Any], country: str) -> None:
    """A string describes a field unless `ToolParam` or `Field` does."""
    properties = definition_of(kind)["properties"]

    assert [each["description"] for each in properties.values()] == ["The city", country]


def test_dataclass_without_docstring() -> None:
    """The generated docstring of a dataclass is ignored."""
    assert "description" not in definition_of(Bare)


@pytest.mark.feature("schema-additional-properties-false-recursively")
def test_typed_dict() -> None:
    """A `TypedDict` is closed."""
    assert definition_of(Address) == {
        "type": "object",
        "description": "Where someone lives.",
        "properties": {
            "street": {"type": "string", "description": "With its number."},
            "zip": {"type": "integer"},
        },
        "required": ["street"],
        "additionalProperties": False,
    }


def test_named_tuple() -> None:
    """A named tuple is an object with fields."""
    assert definition_of(Size) == {
        "type": "object",
        "properties": {"width": {"type": "integer"}, "height": {"type": "integer", "default": 1}},
        "required": ["width"],
        "additionalProperties": False,
    }


def test_call_schema() -> None:
    """A call schema, as pydantic before 2.14 has for named tuples, is an object."""
    assert definition_of(Called) == definition_of(Size)


@pytest.mark.feature(
    "schema-json-property-names",
    "schema-defs-hoisted-root",
    "schema-recursive-types",
    "lc4j-value-types-schema-string",
)
def test_recursive_model() -> None:
    """A recursive model is defined once at the root."""
    tree = definition_of(Tree)

    assert tree == {
        "type": "object",
        "description": "A tree.",
        "properties": {
            "value": {"type": "integer"},
            "title": {"type": "string", "default": "Ash"},
            "kids": {"type": "array", "items": {"$ref": "#/$defs/Tree"}, "default": []},
        },
        "additionalProperties": False,
    }


@pytest.mark.feature("schema-same-name-other-content")
def test_models_with_equal_names() -> None:
    """Two classes with one name are two definitions."""

    def one() -> Any:
        class Item(BaseModel):
            a: int

        return Item

    def two() -> Any:
        class Item(BaseModel):
            b: int

        return Item

    def function(x: Any, y: Any) -> None: ...

    function.__annotations__.update(x=one(), y=two())

    assert len(schema_of(function)["$defs"]) == 2


@pytest.mark.feature(
    "schema-additional-properties-false-recursively", "schema-allow-additional-properties-default"
)
def test_open_models() -> None:
    """A model with extra fields is open."""

    class Open(BaseModel):
        model_config = ConfigDict(extra="allow")
        a: int

    assert definition_of(Open)["additionalProperties"] is True


@pytest.mark.feature("schema-class-level-descriptions", "converter-generate-schema-hook")
def test_model_description() -> None:
    """A description in the model config wins over the docstring."""

    class Item(BaseModel):
        """Documented.

        Attributes:
            a: Known.
            b: Gone.
        """

        model_config = ConfigDict(json_schema_extra={"description": "Described."})
        a: int

    item = definition_of(Item)

    assert item["description"] == "Described."
    assert item["properties"] == {"a": {"type": "integer", "description": "Known."}}


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"


class Hound(BaseModel):
    kind: Literal["hound"] = "hound"


Dogs = TypeAliasType("Dogs", Annotated[Dog | Hound, Field(discriminator="kind")])


@pytest.mark.feature("schema-unions", "lc4j-tool-polymorphic-parameters")
def test_tagged_union() -> None:
    """Tags are required, also with a default."""

    def function(pet: Any) -> None: ...

    function.__annotations__["pet"] = Annotated[Cat | Dogs, Field(discriminator="kind")]
    schema = schema_of(function)

    assert "discriminator" not in str(schema)
    assert "oneOf" not in str(schema)
    assert [schema["$defs"][name]["required"] for name in ("Cat", "Dog", "Hound")] == [["kind"]] * 3


def test_callable_discriminator() -> None:
    """A callable discriminator has no required tag."""

    def kind_of(value: Any) -> str:
        return "cat"

    pet = Annotated[Annotated[Cat, Tag("cat")] | Annotated[Dog, Tag("dog")], Discriminator(kind_of)]

    assert "oneOf" in property_of(pet)


Json = TypeAliasType("Json", "int | list[Json]")


@pytest.mark.feature("schema-recursive-types")
def test_recursive_alias() -> None:
    """A `type` statement may be recursive."""
    assert definition_of(Json)["anyOf"][1]["items"] == {"$ref": "#/$defs/Json"}


@pytest.mark.feature("schema-own-schema-type", "converter-generate-schema-hook")
def test_custom_schemas() -> None:
    """Custom schemas are unchanged, also data that looks like a schema."""
    own = {
        "type": "string",
        "enum": ["a"],
        "default": {"title": "kept"},
        "examples": [{"title": 1}],
    }

    assert property_of(Annotated[str, WithJsonSchema(own)]) == own
