"""The JSON Schema of what a function takes."""

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

from chatclient.tools.schema import ToolParam, signature_of


def schema_of(function: Callable[..., Any]) -> Any:
    """Return the schema of a function, known to be valid."""
    schema = signature_of(function).input_schema
    jsonschema.Draft202012Validator.check_schema(schema)
    return schema


def property_of(annotation: Any) -> Any:
    """Return the schema of one parameter."""

    def function(x: Any) -> None: ...

    function.__annotations__["x"] = annotation
    return schema_of(function)["properties"]["x"]


def definition_of(annotation: Any) -> Any:
    """Return the one definition in the schema of a parameter."""

    def function(x: Any) -> None: ...

    function.__annotations__["x"] = annotation
    (definition,) = schema_of(function)["$defs"].values()
    return definition


# --- the whole ------------------------------------------------------------------------------


def test_a_function_becomes_a_schema() -> None:
    """Names, types, defaults and descriptions are all there, and nothing that only costs tokens."""

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


def test_a_function_without_parameters() -> None:
    """A tool may take nothing, and nothing it is."""

    def now() -> str:
        return ""

    signature = signature_of(now)

    assert signature.input_schema == {
        "type": "object",
        "properties": {},
        "additionalProperties": False,
    }
    assert signature.description == ""


def test_the_schema_is_immutable() -> None:
    """A schema is shared by all requests, so nobody can change it."""

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
    """Types become the plainest schema that says what they accept."""
    described = property_of(annotation)

    assert described == schema
    assert "title" not in str(described)


@pytest.mark.parametrize("annotation", [Base64Bytes, Base64UrlBytes])
def test_formats_of_pydantic_become_patterns(annotation: Any) -> None:
    """A format that no validator knows is said as a pattern, which all of them do."""
    described = property_of(annotation)

    assert described.keys() == {"type", "pattern"}


@pytest.mark.parametrize("encoding", ["base64", "hex"])
def test_bytes_that_a_model_wants_encoded(encoding: Literal["base64", "hex"]) -> None:
    """A model that decodes its bytes has them described as encoded."""

    class File(BaseModel):
        model_config = ConfigDict(val_json_bytes=encoding)
        content: bytes

    content = definition_of(File)["properties"]["content"]

    assert content["contentEncoding"] == {"base64": "base64", "hex": "base16"}[encoding]


def test_enums_are_their_values() -> None:
    """A model chooses among the values, in the order of the members; numbers say what they mean."""
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
    """What the schema of pydantic calls with arguments."""

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


def test_a_dataclass_with_its_docstring() -> None:
    """Fields are described by the docstring, unless they are described themselves."""
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


@pytest.mark.parametrize(
    ("kind", "country"),
    [(Typed, "Where it is"), (Modelled, "The country"), (Described, "The country")],
)
def test_fields_are_described_by_bare_texts(kind: type[Any], country: str) -> None:
    """As parameters are, unless they are described by `ToolParam` or `Field`."""
    properties = definition_of(kind)["properties"]

    assert [each["description"] for each in properties.values()] == ["The city", country]


def test_a_dataclass_without_docstring() -> None:
    """The docstring that Python writes for a dataclass is nothing to tell a model."""
    assert "description" not in definition_of(Bare)


def test_a_typed_dict() -> None:
    """A `TypedDict` is closed like any class."""
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


def test_a_named_tuple_is_an_object() -> None:
    """A model names the fields, rather than counting them."""
    assert definition_of(Size) == {
        "type": "object",
        "properties": {"width": {"type": "integer"}, "height": {"type": "integer", "default": 1}},
        "required": ["width"],
        "additionalProperties": False,
    }


def test_a_class_that_is_called_is_an_object() -> None:
    """That is what a named tuple is before pydantic 2.14."""
    assert definition_of(Called) == definition_of(Size)


def test_a_recursive_model() -> None:
    """A model that contains itself is defined once, at the root; a field may be called title."""
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


def test_models_of_one_name_stay_apart() -> None:
    """Two classes of the same name are two definitions."""

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


def test_open_models_stay_open() -> None:
    """A model that takes more than its fields says so."""

    class Open(BaseModel):
        model_config = ConfigDict(extra="allow")
        a: int

    assert definition_of(Open)["additionalProperties"] is True


def test_what_a_model_says_of_itself_stays() -> None:
    """A description that a model gives its schema wins over its docstring."""

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


def test_a_tagged_union_requires_its_tags() -> None:
    """The field that tells alternatives apart must be given, also one with a default."""

    def function(pet: Any) -> None: ...

    function.__annotations__["pet"] = Annotated[Cat | Dogs, Field(discriminator="kind")]
    schema = schema_of(function)

    assert "discriminator" not in str(schema)
    assert "oneOf" not in str(schema)
    assert [schema["$defs"][name]["required"] for name in ("Cat", "Dog", "Hound")] == [["kind"]] * 3


def test_a_union_told_apart_by_code() -> None:
    """A discriminator that is a function has no tag to require."""

    def tell(value: Any) -> str:
        return "cat"

    pet = Annotated[Annotated[Cat, Tag("cat")] | Annotated[Dog, Tag("dog")], Discriminator(tell)]

    assert "oneOf" in property_of(pet)


Json = TypeAliasType("Json", "int | list[Json]")


def test_an_alias_may_be_recursive() -> None:
    """A `type` statement can refer to itself."""
    assert definition_of(Json)["anyOf"][1]["items"] == {"$ref": "#/$defs/Json"}


def test_schemas_of_the_users_own() -> None:
    """What a user says about a type stays as it is said, data that looks like a schema too."""
    own = {
        "type": "string",
        "enum": ["a"],
        "default": {"title": "kept"},
        "examples": [{"title": 1}],
    }

    assert property_of(Annotated[str, WithJsonSchema(own)]) == own
