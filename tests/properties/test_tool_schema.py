"""Values valid by a tool's schema bind: random types and values."""

import dataclasses
import datetime as dt
import enum
import inspect
import ipaddress
import json
import math
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NotRequired

import jsonschema
import pytest
import typing_extensions
from hypothesis import HealthCheck, given, settings, strategies as st
from pydantic import (
    UUID4,
    AliasChoices,
    AliasPath,
    AwareDatetime,
    Base64Bytes,
    BaseModel,
    Field,
    HttpUrl,
    NaiveDatetime,
    StringConstraints,
    create_model,
)

from chatclient.chat.tool import ToolContext
from chatclient.tools.function.schema import ToolParam, ToolSignature, signature_of, strict_form
from tests.support.examples import examples

CONTEXT = ToolContext()
CHECKER = jsonschema.Draft202012Validator.FORMAT_CHECKER
SLOW = settings(
    max_examples=examples(100),
    deadline=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.filter_too_much,
    ],
)

# --- values from schemas --------------------------------------------------------------------

_ZONES = st.sampled_from(["Z", "+00:00", "-08:00", "+05:30"])
_TIMES = st.times().map(dt.time.isoformat)
_FORMATS: Mapping[str, st.SearchStrategy[str]] = {
    "date": st.dates().map(dt.date.isoformat),
    "time": st.builds("".join, st.tuples(_TIMES, _ZONES)),
    "date-time": st.builds(
        lambda day, time, zone: f"{day}T{time}{zone}",
        st.dates(dt.date(2, 1, 1), dt.date(9998, 1, 1)),
        _TIMES,
        _ZONES,
    ),
    "duration": st.builds(
        lambda days, hours, seconds: f"P{days}DT{hours}H{seconds}S",
        *([st.integers(0, 999)] * 3),
    )
    | st.sampled_from(["P1Y", "P2M", "P3W", "PT5M", "P1Y2M3DT4H5M6S"]),
    "uuid": st.uuids().map(str),
    "ipv4": st.ip_addresses(v=4).map(str),
    "ipv6": st.ip_addresses(v=6).map(str),
    "uri": st.sampled_from(["http://a", "https://example.org/x?y#z", "https://a.b:80/"]),
}
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
_ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | _TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_TEXT, inner, max_size=2),
    max_leaves=4,
)


class Values:
    """Makes strategies for the JSON values of a schema."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.defs = root.get("$defs", {})
        self.root = root

    def of(self, schema: Mapping[str, Any], depth: int = 0) -> st.SearchStrategy[Any]:
        if "$ref" in schema:
            return self.of(self.defs[schema["$ref"].removeprefix("#/$defs/")], depth + 1)
        if "const" in schema:
            return st.just(schema["const"])
        if "enum" in schema:
            return st.sampled_from(schema["enum"])
        if "anyOf" in schema:
            branches = schema["anyOf"]
            simple = [each for each in branches if "$ref" not in each]
            return st.one_of([self.of(each, depth) for each in (depth > 3 and simple) or branches])
        kind = schema.get("type")
        if isinstance(kind, list):
            return st.one_of([self.of({**schema, "type": each}, depth) for each in kind])
        if kind is None:
            return _ANY
        values = getattr(self, kind)(schema, depth)
        return (
            values.filter(validator(schema).is_valid) if kind in ("integer", "number") else values
        )

    def null(self, schema: Mapping[str, Any], depth: int) -> st.SearchStrategy[Any]:
        return st.none()

    def boolean(self, schema: Mapping[str, Any], depth: int) -> st.SearchStrategy[Any]:
        return st.booleans()

    def integer(self, schema: Mapping[str, Any], depth: int) -> st.SearchStrategy[Any]:
        step = schema.get("multipleOf", 1)
        normalized = st.integers(*bounds(schema)).map(lambda number: number * step)
        return normalized | normalized.filter(lambda number: abs(number) < 1e300).map(float)

    def number(self, schema: Mapping[str, Any], depth: int) -> st.SearchStrategy[Any]:
        low, high = bounds(schema)
        normalized = st.integers(
            None if low is None else math.ceil(low), None if high is None else math.floor(high)
        )
        if "multipleOf" in schema:
            step = Decimal(str(schema["multipleOf"]))
            return normalized.map(lambda number: float(number * step))
        return normalized | st.floats(low, high, allow_nan=False, allow_infinity=False)

    def string(self, schema: Mapping[str, Any], depth: int) -> st.SearchStrategy[str]:
        if "pattern" in schema:
            # ECMA-262, not Python: digits are ASCII, and `$` matches the very end only.
            pattern = re.compile(schema["pattern"].replace("$", r"\Z"), re.ASCII)
            texts = st.from_regex(pattern).filter(validator(schema).is_valid)
            return texts if "format" not in schema else self.string_of_both(pattern, schema)
        if "format" in schema:
            return _FORMATS[schema["format"]]
        return st.text(
            st.characters(exclude_categories=["Cs"]),
            min_size=schema.get("minLength", 0),
            max_size=schema.get("maxLength", 8),
        )

    def string_of_both(
        self, pattern: re.Pattern[str], schema: Mapping[str, Any]
    ) -> st.SearchStrategy[str]:
        if "4" in pattern.pattern and schema["format"] == "uuid":
            return st.uuids(version=4).map(str)
        return _FORMATS[schema["format"]].filter(lambda text: bool(pattern.search(text)))

    def array(self, schema: Mapping[str, Any], depth: int) -> st.SearchStrategy[Any]:
        if "prefixItems" in schema:
            return st.tuples(*(self.of(each, depth) for each in schema["prefixItems"])).map(list)
        smallest = schema.get("minItems", 0)
        largest = schema.get("maxItems", smallest + 3) if depth <= 3 else smallest
        if largest == 0:
            return st.just([])
        items = self.of(schema.get("items", {}), depth + 1)
        unique = (lambda item: json.dumps(normalized(item))) if schema.get("uniqueItems") else None
        return st.lists(items, min_size=smallest, max_size=largest, unique_by=unique)

    def object(self, schema: Mapping[str, Any], depth: int) -> st.SearchStrategy[Any]:
        properties = schema.get("properties", {})
        required = schema.get("required", ())
        fixed = {key: self.of(properties[key], depth + 1) for key in required}
        optional = (
            {}
            if depth > 3
            else {
                key: self.of(each, depth + 1)
                for key, each in properties.items()
                if key not in required
            }
        )
        known = st.fixed_dictionaries(fixed, optional=optional)
        others = schema.get("additionalProperties", True)
        if others is False or depth > 3:
            return known
        names = self.of({"type": "string", **schema.get("propertyNames", {})})
        more = st.dictionaries(
            names.filter(lambda name: name not in properties),
            self.of({} if others is True else others, depth + 1),
            max_size=2,
        )
        return st.builds(lambda one, two: {**two, **one}, known, more)


def normalized(value: Any) -> Any:
    """Return *value* with 1.0 as 1, which are equal in JSON Schema."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case list():
            return [normalized(item) for item in value]
        case dict():
            return {key: normalized(item) for key, item in value.items()}
        case _:
            return value


def bounds(schema: Mapping[str, Any]) -> tuple[Any, Any]:
    return (
        schema.get("minimum", schema.get("exclusiveMinimum")),
        schema.get("maximum", schema.get("exclusiveMaximum")),
    )


def validator(schema: Mapping[str, Any]) -> Any:
    return jsonschema.Draft202012Validator(schema, format_checker=CHECKER)


# --- types at random ------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Mixed(enum.Enum):
    ONE = 1
    TWO = "two"
    HALF = 0.5
    YES = True


class Place(NamedTuple):
    name: str
    height: float = 0.0


class Tree(BaseModel):
    value: int
    children: list["Tree"] = []
    parent: "Tree | None" = None


@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    y: float = 0.5


class Address(typing_extensions.TypedDict):
    street: str
    zip: NotRequired[int]


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int | None = None


class Dog(BaseModel):
    kind: Literal["dog", "hound"] = "dog"
    name: str = "Rex"


class Located(BaseModel):
    """Fields that are read from inside other values, and under several names."""

    city: str = Field(validation_alias=AliasPath("address", "city"))
    zip: int = Field(0, validation_alias=AliasPath("address", "zip", 0))
    last: bool = Field(validation_alias=AliasPath("flags", -1))
    name: str = Field(validation_alias=AliasChoices(AliasPath("who", "name"), "called"))
    first: str = Field(validation_alias=AliasChoices(AliasPath("points", 1), AliasPath("x")))
    known: Decimal = Field(validation_alias=AliasPath("notes", "known"))
    notes: dict[str, Decimal]
    model_config = {"extra": "forbid"}


class ByName(BaseModel):
    city: str = Field(validation_alias=AliasPath("address", "city"))
    model_config = {"populate_by_name": True}


class Nested(typing_extensions.TypedDict):
    x: NotRequired[Annotated[int, Field(validation_alias=AliasPath("at", "x"))]]
    y: Annotated[str, Field(alias="why")]


LEAVES: list[Any] = [
    *(int, float, bool, str, Any, None, bytes, Decimal, Path, uuid.UUID, UUID4, complex),
    *(dt.date, dt.time, dt.datetime, dt.timedelta, NaiveDatetime, AwareDatetime),
    *(ipaddress.IPv4Address, ipaddress.IPv6Address, HttpUrl, Base64Bytes),
    *(Colour, Level, Mixed, Place, Tree, Point, Address, list, dict, set, tuple),
    *(Located, ByName, Nested),
    *(Literal["a", "b"], Literal[1, 2], Literal["x", 3] | None, Literal[Level.LOW]),
    Annotated[int, Field(ge=0, le=9)],
    Annotated[int, Field(gt=0, multiple_of=3)],
    Annotated[float, Field(gt=-1, lt=1)],
    Annotated[str, Field(min_length=1, max_length=3)],
    Annotated[str, Field(pattern="^[ab]+$")],
    Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)],
    Annotated[str, StringConstraints(strip_whitespace=True, min_length=3)],
    Annotated[bytes, Field(max_length=4)],
    Annotated[Decimal, Field(ge=0)],
    Annotated[Decimal, Field(max_digits=5, decimal_places=2)],
    Annotated[Decimal, Field(max_digits=4)],
    Annotated[Decimal, Field(decimal_places=0)],
    Annotated[list[int], Field(min_length=1, max_length=2)],
    Annotated[Cat | Dog, Field(discriminator="kind")],
]
KEYS: list[Any] = [
    *(str, int, float, bool, Colour, Level, Mixed, uuid.UUID, dt.date, Any, str | int),
    *(Literal["a", "b"], int | None, Annotated[str, Field(pattern="^a")]),
    Annotated[str, Field(min_length=2)],
]
HASHABLE: list[Any] = [
    int,
    str,
    Colour,
    Point,
    uuid.UUID,
    tuple[int, ...],
    frozenset[int],
    Place,
    Any,
    bool,
]
_names = st.from_regex(r"\A[a-z]{1,4}\Z").map(lambda name: f"{name}_")


def _class_of(maker: Callable[..., Any]) -> Callable[..., Any]:
    def build(fields: dict[str, Any], defaults: int) -> Any:
        return maker(fields, list(fields)[defaults:])

    return build


def _dataclass(fields: Mapping[str, Any], optional: Sequence[str]) -> Any:
    return dataclasses.make_dataclass(
        "Made",
        [
            (name, kind, dataclasses.field(default=None)) if name in optional else (name, kind)
            for name, kind in fields.items()
        ],
        namespace={"__module__": __name__},
    )


def _model(fields: Mapping[str, Any], optional: Sequence[str]) -> Any:
    make: Any = create_model
    defaults = {name: None if name in optional else ... for name in fields}
    return make("Made", **{n: (kind or type(None), defaults[n]) for n, kind in fields.items()})


def _typed_dict(fields: Mapping[str, Any], optional: Sequence[str]) -> Any:
    make: Any = typing_extensions.TypedDict
    return make(
        "Made",
        {name: NotRequired[kind] if name in optional else kind for name, kind in fields.items()},
    )


def _is_class(kind: Any) -> bool:
    return kind not in (None, Any)


def _compound(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    fields = st.dictionaries(_names, inner, max_size=3)
    return st.one_of(
        inner.map(lambda kind: list[kind]),
        inner.map(lambda kind: tuple[kind, ...]),
        st.tuples(inner, inner).map(lambda kinds: tuple[kinds]),
        st.builds(lambda key, kind: dict[key, kind], st.sampled_from(KEYS), inner),
        st.builds(lambda one, two: one | two, inner.filter(_is_class), inner.filter(_is_class)),
        inner.filter(_is_class).map(lambda kind: kind | None),
        inner.map(lambda kind: Annotated[kind, Field(description="described")]),
        st.sampled_from(HASHABLE).map(lambda kind: set[kind]),
        st.sampled_from(HASHABLE).map(lambda kind: frozenset[kind]),
        *(
            st.builds(_class_of(maker), fields, st.integers(0, 3))
            for maker in (_dataclass, _model, _typed_dict)
        ),
    )


TYPES = st.recursive(st.sampled_from(LEAVES), _compound, max_leaves=4)
_KINDS = [inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY]


@st.composite
def functions(draw: st.DrawFn) -> Callable[..., Any]:
    """A function with a random signature."""
    kinds = draw(st.dictionaries(_names, TYPES, max_size=3))
    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=draw(st.sampled_from([kind, Annotated[kind, ToolParam("what it is")]])),
            default=draw(st.sampled_from([inspect.Parameter.empty, None, 5, object()])),
        )
        for name, kind in kinds.items()
    ]

    def function(**given: Any) -> dict[str, Any]:
        return given

    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return function


def check(signature: ToolSignature, schema: Mapping[str, Any], data: st.DataObject) -> None:
    """Draw arguments valid by *schema* and bind them."""
    arguments = data.draw(Values(schema).of(schema))
    error = next(validator(schema).iter_errors(arguments), None)
    assert error is None, f"the generator of this test is wrong: {error}"

    bound = signature.bind(json.dumps(arguments), CONTEXT)

    assert bound.keys() <= set(signature.parameters)


# --- properties -----------------------------------------------------------------------------


@pytest.mark.feature(
    "function-object-parameters-get-came", "function-arguments-not-validated-against"
)
@SLOW
@given(functions(), st.data())
def test_valid_arguments_bind(function: Any, data: st.DataObject) -> None:
    """Arguments valid by the schema of a function bind."""
    signature = signature_of(function)
    jsonschema.Draft202012Validator.check_schema(signature.input_schema)

    check(signature, signature.input_schema, data)


@pytest.mark.feature("schema-strict-form-providers")
@SLOW
@given(functions(), st.data())
def test_valid_strict_arguments_bind(function: Any, data: st.DataObject) -> None:
    """Arguments valid by the strict form, with nulls, bind as well."""
    signature = signature_of(function)
    strict = strict_form(signature.input_schema)
    if strict is None or "prefixItems" in str(signature.input_schema) or is_lossy(signature):
        return
    jsonschema.Draft202012Validator.check_schema(strict)

    check(signature, strict, data)


def is_lossy(signature: ToolSignature) -> bool:
    """Return whether the strict form loses information of the schema."""
    return bool(re.search("minLength|maxLength|uniqueItems|'format': 'uri'", str(signature)))


ALONE = [*LEAVES, *(dict[key, int] for key in KEYS), *(set[item] for item in HASHABLE)]


@pytest.mark.parametrize("kind", ALONE, ids=str)
@settings(max_examples=examples(10), deadline=None)
@given(data=st.data())
def test_each_type(kind: Any, data: st.DataObject) -> None:
    """Each type is tested separately."""

    def function(value: Any) -> Any:
        return value

    function.__annotations__["value"] = kind
    signature = signature_of(function)
    jsonschema.Draft202012Validator.check_schema(signature.input_schema)

    check(signature, signature.input_schema, data)
