"""From callables, types and schemas to signatures: what is required, shown, hidden, refused."""

import dataclasses
import enum
import functools
import inspect
import math
import typing
from collections.abc import Awaitable, Callable
from datetime import date
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, Optional, TypeVar

import jsonschema
import pytest
from parameters import named
from pydantic import BaseModel, Field
from typing_extensions import TypeAliasType, TypedDict

from chatclient.errors import ToolDefinitionError
from chatclient.tool import ToolContext
from chatclient.tools.schema import (
    ToolMemoryId,
    ToolParam,
    ToolSignature,
    signature_of,
    signature_of_model,
    signature_of_schema,
)

F = TypeVar("F", bound=Callable[..., Any])


class Colour(enum.Enum):
    RED = "red"


class Odd(enum.Enum):
    PAIR = (1, 2)


@dataclasses.dataclass
class Bare:
    x: float


@dataclasses.dataclass
class Point:
    x: float


def descriptions_of(function: Callable[..., Any]) -> dict[str, str]:
    """Return how the parameters of a function are described."""
    properties = signature_of(function).input_schema["properties"]
    return {name: each["description"] for name, each in properties.items()}


def signature_with(annotation: Any, default: Any = inspect.Parameter.empty) -> ToolSignature:
    """Return the signature of a function of one parameter `x`."""

    def function(x: Any) -> None: ...

    function.__annotations__["x"] = annotation
    if default is not inspect.Parameter.empty:
        function.__defaults__ = (default,)
    return signature_of(function)


def property_of(annotation: Any, default: Any = inspect.Parameter.empty) -> Any:
    """Return the schema of one parameter."""
    return signature_with(annotation, default).input_schema["properties"]["x"]


# --- required, defaults, descriptions -------------------------------------------------------


def test_what_is_required() -> None:
    """`ToolParam` says first, then defaults, then whether the type admits None."""
    absent = Field(default=1)

    def function(  # noqa: PLR0913, PLR0917  # all cases side by side
        a: int,
        b: int | None,
        c: Annotated[int | None, "note"],
        d: Annotated[int | None, ToolParam(required=True)],
        e: Annotated[int, Field(default=1)],
        f: Annotated[int, ToolParam(required=True), Field(default=1)],
        g: Literal["x"] | None,
        h: None,
        i: Any,
        j,  # type: ignore[no-untyped-def]  # noqa: ANN001
        k: Optional[int],  # noqa: UP045
        l: int = absent,  # noqa: E741
        m: int = Field(),
        n: int = 1,
        o: Annotated[int, ToolParam(required=True)] = 1,
        p: Annotated[int, ToolParam(required=False)] = 1,
        q: Annotated[Annotated[int, ToolParam(required=True)], ToolParam(required=False)] = 1,
        r: int | None = 5,
    ) -> None: ...

    assert signature_of(function).input_schema["required"] == ["a", "d", "f", "i", "j", "m", "o"]


def test_not_required_needs_a_value() -> None:
    """A parameter that may be left out needs something to be when it is."""

    def function(x: Annotated[int, ToolParam(required=False)]) -> None: ...

    with pytest.raises(ToolDefinitionError, match=r"'x' of .*function\(\).*no default"):
        signature_of(function)


class Trip(BaseModel):
    to: str
    at: Annotated[int | None, ToolParam(required=False)]
    seats: Annotated[int, ToolParam(required=True)] = 1
    note: Annotated[str | None, Field(alias="why"), ToolParam(required=False)]


@dataclasses.dataclass
class Leg:
    to: str
    at: Annotated[int | None, ToolParam(required=False)]
    seats: Annotated[int, ToolParam(required=True)] = 1


class Stop(NamedTuple):
    to: str
    at: Annotated[int | None, ToolParam(required=False)]
    seats: Annotated[int, ToolParam(required=True)] = 1


class Change(TypedDict):
    to: str
    at: NotRequired[int | None]
    seats: NotRequired[Annotated[int, ToolParam(required=True)]]


@pytest.mark.parametrize("kind", [Trip, Leg, Stop, Change])
def test_what_is_required_of_fields(kind: Any) -> None:
    """`ToolParam` says it there as well, at any depth."""
    schema = signature_with(dict[str, list[kind]]).input_schema["$defs"][kind.__name__]

    assert schema["required"] == ["to", "seats"]
    assert "x-required" not in str(schema)


@pytest.mark.parametrize("kind", [Trip, Leg])
def test_what_a_field_has_that_is_left_out(kind: Any) -> None:
    """None where `ToolParam` does not want it; a default of its own counts all the same."""
    given = signature_with(kind).bind('{"x": {"to": "Rome"}}', ToolContext())["x"]

    assert (given.to, given.at, given.seats) == ("Rome", None, 1)


def test_a_default_of_the_function_counts_more_than_none() -> None:
    """What may be left out is left to Python."""
    signature = signature_with(Annotated[int | None, ToolParam(required=False)], 5)

    assert signature.bind("{}", ToolContext()) == {}
    assert signature.input_schema["properties"]["x"]["default"] == 5


class Unclear(BaseModel):
    at: Annotated[int, ToolParam(required=False)]


class UnclearKeys(TypedDict):
    at: Annotated[int | None, ToolParam(required=False)]


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (Unclear, r"'at' is not required, but has no default .* in a TypedDict, NotRequired\)"),
        (UnclearKeys, "'at': a required"),
    ],
)
def test_a_field_that_is_not_required_needs_a_value(kind: Any, told: str) -> None:
    """As a parameter does; keys are `NotRequired`."""
    with pytest.raises(ToolDefinitionError, match=rf"parameter 'x' of .*{told}"):
        signature_with(list[kind])


@pytest.mark.parametrize(
    ("annotation", "default"),
    [
        (int, ToolParam("how many")),
        (int, ToolParam),
        (ToolParam("how many"), 1),
        (ToolParam, 1),
        (Annotated[int, ToolParam], 1),
    ],
)
def test_a_description_in_another_place_is_refused(annotation: Any, default: Any) -> None:
    """It would be the value, or say nothing."""
    with pytest.raises(ToolDefinitionError, match=r"'x' .* x: Annotated\[str, ToolParam\("):
        property_of(annotation, default)


def test_where_a_description_comes_from() -> None:
    """`ToolParam` before `Field` before the docstring."""

    def function(
        a: Annotated[int, Field(description="field"), ToolParam("param")],
        b: Annotated[int, ToolParam("param"), Field(description="field")],
        c: Annotated[int, Field(description="field"), ToolParam()],
        d: Point,
        e: Annotated[int | None, ToolParam("param")],
        f: int = Field(description="field"),
    ) -> None:
        """Do it.

        Args:
            a: docstring
            b: docstring
            c: docstring
            d: docstring
            e: docstring
            f: docstring
        """

    assert descriptions_of(function) == {
        "a": "param",
        "b": "param",
        "c": "field",
        "d": "docstring",
        "e": "param",
        "f": "field",
    }


@pytest.mark.parametrize(
    ("annotation", "default", "mark"),
    [
        (ToolParam("text"), inspect.Parameter.empty, r"ToolParam\(\.\.\.\)"),
        (str, ToolParam("text"), r"ToolParam\(\.\.\.\)"),
        (ToolParam, inspect.Parameter.empty, r"ToolParam\(\.\.\.\)"),
        (ToolMemoryId, inspect.Parameter.empty, "ToolMemoryId"),
        (str, ToolMemoryId(), "ToolMemoryId"),
    ],
)
def test_what_describes_a_type_does_not_stand_in_its_place(
    annotation: Any, default: Any, mark: str
) -> None:
    """Nor in that of the default, where the function would be called with it."""
    with pytest.raises(ToolDefinitionError, match=rf"'x' of .*: Annotated\[str, {mark}\]"):
        property_of(annotation, default)


def test_a_bare_text_is_a_description() -> None:
    """As in other frameworks: after `ToolParam` and `Field`, before the docstring."""

    def function(
        a: Annotated[int, "text"],
        b: Annotated[int, ToolParam(), "text", Field(ge=1), ""],
        c: Annotated[int, ToolParam("param"), Field(description="field"), "text"],
        d: Annotated[int, Field(description="field"), "text"],
        e: Annotated[Annotated[int, "inner"], "text"],
        f: "Annotated[int, 'text']",
    ) -> None:
        """Do it.

        Args:
            a: docstring
            b: docstring
            c: docstring
            d: docstring
            e: docstring
            f: docstring
        """

    assert descriptions_of(function) == {
        "a": "text",
        "b": "text",
        "c": "param",
        "d": "field",
        "e": "text",
        "f": "text",
    }
    assert property_of(Annotated[int, ""]) == {"type": "integer"}


@pytest.mark.parametrize(
    ("default", "shown"),
    [
        (5, 5),
        ([1], [1]),
        (Colour.RED, "red"),
        (date(2024, 1, 2), "2024-01-02"),
        (Bare(1.0), {"x": 1.0}),
        (math.inf, "Infinity"),
    ],
)
def test_defaults_are_shown_as_json(default: Any, shown: Any) -> None:
    """A model sees what happens when it leaves something out."""
    assert property_of(Any, default) == {"default": shown}


def test_defaults_without_json_form_are_not_shown() -> None:
    """A default that cannot be written stays between the function and Python."""
    assert property_of(int, object()) == {"type": "integer"}


def test_null_is_offered_where_it_means_something() -> None:
    """Where null would say the same as leaving out, a model is not offered two ways."""
    assert property_of(int | None) == {"type": "integer"}
    assert property_of(int | None, None) == {"type": "integer"}
    assert property_of(int | str | None, None) == {
        "anyOf": [{"type": "integer"}, {"type": "string"}]
    }
    assert property_of(int | None, 5) == {
        "anyOf": [{"type": "integer"}, {"type": "null"}],
        "default": 5,
    }
    assert property_of(Annotated[int | None, ToolParam(required=True)]) == {
        "anyOf": [{"type": "integer"}, {"type": "null"}]
    }


# --- callables ------------------------------------------------------------------------------


class Station:
    """A weather station."""

    def read(self, metres: int) -> float:
        """Read the height."""
        return 0.0

    @staticmethod
    def name(short: int) -> str:
        """Tell the name."""
        return ""

    @classmethod
    def built(cls, year: int) -> None:
        """Tell the year."""

    def __call__(self, value: int) -> None:
        """Measure."""


class Silent:
    """Says nothing of its call."""

    def __call__(self, value: int) -> None: ...


def decorated(function: F) -> F:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return typing.cast("F", wrapper)


@decorated
def wrapped(a: int) -> None:
    """Wrap."""


@pytest.mark.parametrize(
    ("function", "parameters", "description"),
    [
        (Station().read, ("metres",), "Read the height."),
        (Station.name, ("short",), "Tell the name."),
        (Station.built, ("year",), "Tell the year."),
        (Station(), ("value",), "Measure."),
        (Silent(), ("value",), "Says nothing of its call."),
        (functools.partial(Station(), 3), (), "Measure."),
        (functools.partial(Station().read, metres=3), (), "Read the height."),
        (wrapped, ("a",), "Wrap."),
        (lambda a: None, ("a",), ""),
        (Bare, ("x",), "Bare(x: 'float')".replace("'", "")),
        (math.ceil, ("x",), math.ceil.__doc__.partition("\n")[0] if math.ceil.__doc__ else ""),
    ],
    ids=named,
)
def test_all_kinds_of_callables(
    function: Any, parameters: tuple[str, ...], description: str
) -> None:
    """Whatever can be called can be a tool, and what is settled already is not asked for."""
    signature = signature_of(function)

    assert signature.parameters == parameters
    assert signature.description.startswith(description)


def test_what_a_partial_settles_is_not_shown() -> None:
    """A secret in a partial does not reach the model, not even as a default."""

    def function(query: str, key: str) -> None: ...

    assert "secret" not in str(signature_of(functools.partial(function, key="secret")))


@pytest.mark.parametrize("keywords", [["query"], None])
def test_only_a_partial_settles_anything(keywords: Any) -> None:
    """An object may have an attribute that is called like one of a partial's."""

    class Search:
        def __init__(self) -> None:
            self.keywords = keywords

        def __call__(self, query: str) -> None: ...

    assert signature_of(Search()).parameters == ("query",)
    assert signature_of_schema({}, Search()).read('{"query": "x"}') == {"query": "x"}


@pytest.mark.parametrize(
    ("returns", "nothing"),
    [
        (None, True),
        ("None", True),
        (Awaitable[None], True),
        (int, False),
        (Awaitable[int], False),
        (int | None, False),
        ("Unknown", False),
        (inspect.Parameter.empty, False),
    ],
    ids=named,
)
def test_whether_anything_is_returned(returns: Any, nothing: object) -> None:
    """Only a declared None promises that there is no result; an unknown promise is none."""

    def function() -> Any: ...

    function.__annotations__["return"] = returns

    assert signature_of(function).returns_nothing is nothing


def test_the_constructor_of_a_class_returns_something() -> None:
    """The None of an `__init__` is not what calling the class returns."""
    assert signature_of(Bare).returns_nothing is False


ContextAlias = TypeAliasType("ContextAlias", ToolContext | None)


def test_injected_parameters_are_hidden() -> None:
    """What the library fills in is no business of the model."""

    def function(
        a: int,
        b: ToolContext,
        c: ToolContext | None,
        d: "ToolContext",
        e: "Optional[ToolContext]",  # noqa: UP045
        f: Annotated[ToolContext, "note"],
        g: ContextAlias,
        h: Annotated[str, ToolMemoryId],
        i: Annotated[str, ToolMemoryId()] | None,
        j: ToolContext = ToolContext(),  # noqa: B008
    ) -> None: ...

    assert signature_of(function).parameters == ("a",)


# --- refusals -------------------------------------------------------------------------------


def many(*values: int) -> None: ...
def keywords(**values: int) -> None: ...
def unresolvable(first: int, second: "list[Unknown]") -> None: ...  # type: ignore[name-defined]  # noqa: F821
def returns_callable() -> Callable[[], int]: ...
def returns_maybe_callable() -> Awaitable[Callable[[], int] | None]: ...
def takes_callable(first: int, second: Callable[[], int]) -> None: ...
def takes_object(first: int, second: Station) -> None: ...
def odd_enum(first: int, second: Odd) -> None: ...
def odd_literal(first: int, second: Literal[Colour.RED]) -> None: ...
def odd_key(first: int, second: dict[tuple[int, int], str]) -> None: ...
def odd_set(first: int, second: set[list[int]]) -> None: ...
def odd_members(first: int, second: frozenset[Point]) -> None: ...
def odd_pattern(first: int, second: Annotated[str, Field(pattern="(")]) -> None: ...


def local() -> Callable[..., Any]:
    @dataclasses.dataclass
    class Local:
        x: int

    def function(first: int, second: "Local") -> None: ...

    return function


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (many, r"takes \*values"),
        (keywords, r"takes \*\*values"),
        (unresolvable, "'second' of unresolvable.*Unknown"),
        (local(), "'second' of .*Local"),
        (returns_callable, "returns a function"),
        (returns_maybe_callable, "returns a function"),
        (takes_callable, "'second' of takes_callable"),
        (takes_object, "'second' of takes_object.*Station"),
        (odd_enum, "'second' of odd_enum.*strings or numbers"),
        (odd_literal, "'second' of odd_literal.*StrEnum"),
        (odd_key, "'second' of odd_key.*keys of a JSON object"),
        (odd_set, "'second' of odd_set.*hashed"),
        (odd_members, "'second' of odd_members.*hashed"),
        (odd_pattern, "'second' of odd_pattern"),
        (Station.read, r"Station.read\(\) .*bound"),
        (type, "does not say what it takes"),
    ],
)
def test_what_cannot_be_a_tool(function: Any, said: str) -> None:
    """A refusal names the function, its file, the parameter, and the reason."""
    with pytest.raises(ToolDefinitionError, match=f"(?s){said}") as caught:
        signature_of(function)

    assert (__file__ in str(caught.value)) is (function is not type)


# --- one value as the whole input -----------------------------------------------------------


class Order(BaseModel):
    """Place an order.

    Attributes:
        item: What to buy.
    """

    item: str
    count: int = 1


class Options(TypedDict):
    verbose: bool


def test_a_model_is_the_whole_input() -> None:
    """The fields of a model are the arguments, and its docstring the description."""

    def order(request: Order) -> None: ...

    signature = signature_of_model(Order, order)

    assert signature.description == "Place an order."
    assert signature.returns_nothing is True
    assert signature.input_schema == {
        "type": "object",
        "properties": {
            "item": {"type": "string", "description": "What to buy."},
            "count": {"type": "integer", "default": 1},
        },
        "required": ["item"],
        "additionalProperties": False,
    }


class Node(BaseModel):
    next: "Node | None" = None


@pytest.mark.parametrize(
    ("kind", "properties"),
    [(Bare, {"x"}), (Options, {"verbose"}), (Node, {"next"}), (dict[str, int], set[str]())],
)
def test_every_object_is_the_whole_input(kind: Any, properties: set[str]) -> None:
    """Dataclasses, typed dicts, recursive models and mappings are objects as they are."""
    schema = signature_of_model(kind).input_schema

    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["type"] == "object"
    assert schema["properties"].keys() == properties


@pytest.mark.parametrize("kind", [str, list[int], Order | Bare, Literal["a"], Colour])
def test_every_other_type_is_one_property(kind: Any) -> None:
    """A type that is no object is wrapped in one, under the name of the function's parameter."""

    def function(text: Any) -> str:
        """Do it.

        Args:
            text: What with.
        """
        return ""

    signature = signature_of_model(kind, function)

    assert signature.parameters == ("text",)
    assert signature.input_schema["required"] == ["text"]
    assert signature.input_schema["properties"]["text"]["description"] == "What with."
    assert signature_of_model(kind).parameters == ("input",)


def test_a_type_that_cannot_be_the_input() -> None:
    """A type without a schema is refused with the function's name."""
    with pytest.raises(ToolDefinitionError, match="Station"):
        signature_of_model(Station, lambda value: value)


@pytest.mark.parametrize(
    "function", [lambda: None, lambda a, b, c: None, lambda *a: None, lambda a, b: None], ids=named
)
def test_functions_that_do_not_take_one_value(function: Any) -> None:
    """A function gets one value, and the context if it wants it, and nothing else."""
    if function.__code__.co_argcount == 2:
        assert signature_of_model(Order, function).parameters == ("item", "count")
        return
    with pytest.raises(ToolDefinitionError, match="one parameter"):
        signature_of_model(Order, function)


# --- schemas as data ------------------------------------------------------------------------


def test_a_schema_as_data_stays_as_it_is() -> None:
    """A schema that is given is told to the model word for word."""
    schema = {
        "type": "object",
        "title": "Kept",
        "properties": {"a-b": {"type": "string", "x-own": [1]}},
        "required": ["a-b"],
    }

    assert signature_of_schema(schema).input_schema == schema


@pytest.mark.parametrize(
    "schema",
    [{}, {"type": "object"}, {"properties": {}}, {"properties": None, "required": None}],
)
def test_an_empty_schema_is_completed(schema: Any) -> None:
    """Providers want a type and properties, also when there are none."""
    assert signature_of_schema(schema).input_schema == {"type": "object", "properties": {}}


@pytest.mark.parametrize(
    "schema",
    [{"type": "string"}, {"properties": []}, {"required": 5}, {"required": [["a"]]}],
)
def test_a_schema_of_something_else_is_refused(schema: Any) -> None:
    """Arguments are an object."""
    with pytest.raises(ToolDefinitionError, match="JSON object"):
        signature_of_schema(schema)


def test_the_function_of_a_schema_is_described_too() -> None:
    """Docstring and return type count when the schema is given."""

    def function(**values: Any) -> None:
        """Do it."""

    signature = signature_of_schema({}, function)

    assert signature.description == "Do it."
    assert signature.returns_nothing is True
