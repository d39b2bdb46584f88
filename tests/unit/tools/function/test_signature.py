"""Signatures of callables, types and schemas: required, shown and hidden parameters."""

import dataclasses
import enum
import functools
import inspect
import math
import re
import typing
from collections.abc import Awaitable, Callable, Iterable
from datetime import date
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, Optional, TypeVar

import jsonschema
import pydantic
import pytest
from pydantic import AfterValidator, BaseModel, Field, model_validator
from typing_extensions import TypeAliasType, TypedDict

from chatclient.chat.messages import UserMessage
from chatclient.chat.tool import CONVERSATION_ID, ToolContext
from chatclient.errors import ToolArgumentError, ToolDefinitionError
from chatclient.services import MemoryId
from chatclient.tools.function import adapters
from chatclient.tools.function.schema import (
    ToolMemoryId,
    ToolParam,
    ToolSignature,
    signature_of,
    signature_of_model,
    signature_of_schema,
)
from tests.support.parameters import named

F = TypeVar("F", bound=Callable[..., Any])


class Colour(enum.Enum):
    RED = "red"


T = TypeVar("T")
Maybe = TypeAliasType("Maybe", Optional[T], type_params=(T,))  # noqa: UP045


class Owned(BaseModel):
    owner: Annotated[str, MemoryId]


class Odd(enum.Enum):
    PAIR = (1, 2)


@dataclasses.dataclass
class Bare:
    x: float


@dataclasses.dataclass
class Point:
    x: float


def descriptions_of(function: Callable[..., Any]) -> dict[str, str]:
    """Return the parameter descriptions of a function."""
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


@pytest.mark.feature("tool-param-required", "schema-required-unless-annotated-otherwise")
def test_required_parameters() -> None:
    """`ToolParam`, then defaults, then optional types decide."""
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


@pytest.mark.feature("tool-param-required", "lc4j-tool-optional-primitive-without-default")
def test_not_required_without_default() -> None:
    """A parameter that is not required needs a default."""

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


@pytest.mark.feature("tool-param-record-components")
@pytest.mark.parametrize("kind", [Trip, Leg, Stop, Change])
def test_required_fields(kind: Any) -> None:
    """`ToolParam` applies to nested fields as well."""
    schema = signature_with(dict[str, list[kind]]).input_schema["$defs"][kind.__name__]

    assert schema["required"] == ["to", "seats"]
    assert "x-required" not in str(schema)


@pytest.mark.feature("tool-param-record-components")
@pytest.mark.parametrize("kind", [Trip, Leg])
def test_missing_field_value(kind: Any) -> None:
    """A missing field has its default or None."""
    given = signature_with(kind).bind('{"x": {"to": "Rome"}}', ToolContext())["x"]

    assert (given.to, given.at, given.seats) == ("Rome", None, 1)


def test_default_wins_over_none() -> None:
    """A default of the function is used instead of None."""
    signature = signature_with(Annotated[int | None, ToolParam(required=False)], 5)

    assert signature.bind("{}", ToolContext()) == {}
    assert signature.input_schema["properties"]["x"]["default"] == 5


class Unclear(BaseModel):
    at: Annotated[int, ToolParam(required=False)]


class UnclearKeys(TypedDict):
    at: Annotated[int | None, ToolParam(required=False)]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Unclear, r"'at' is not required, but has no default .* in a TypedDict, NotRequired\)"),
        (UnclearKeys, "'at': a required"),
    ],
)
def test_not_required_field_without_default(kind: Any, message: str) -> None:
    """Fields need a default, keys `NotRequired`."""
    with pytest.raises(ToolDefinitionError, match=rf"parameter 'x' of .*{message}"):
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
def test_misplaced_description(annotation: Any, default: Any) -> None:
    """A description as default or nested in a type is rejected."""
    with pytest.raises(ToolDefinitionError, match=r"'x' .* x: Annotated\[str, ToolParam\("):
        property_of(annotation, default)


@pytest.mark.feature(
    "tool-param", "schema-order-description-sources", "lc4j-tool-p-value-description"
)
def test_description_precedence() -> None:
    """`ToolParam`, then `Field`, then the docstring."""

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
        (str, MemoryId, "MemoryId"),
        (MemoryId | None, None, "MemoryId"),
    ],
)
def test_description_instead_of_type(annotation: Any, default: Any, mark: str) -> None:
    """`ToolParam` as annotation or default is rejected."""
    with pytest.raises(ToolDefinitionError, match=rf"'x' of .*: Annotated\[str, {mark}\]"):
        property_of(annotation, default)


@pytest.mark.feature("schema-order-description-sources")
def test_string_annotation_description() -> None:
    """A string in `Annotated` ranks after `Field`, before the docstring."""

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


@pytest.mark.feature("schema-defaults-not-shown")
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
    """Defaults are in the schema as JSON."""
    assert property_of(Any, default) == {"default": shown}


@pytest.mark.feature("lc4j-tool-bad-default-refused-build")
def test_unserialisable_defaults() -> None:
    """Defaults without a JSON form are not in the schema."""
    assert property_of(int, object()) == {"type": "integer"}


@pytest.mark.feature("lc4j-tool-optional-t")
def test_null_in_schema() -> None:
    """Null is omitted where it equals a missing value."""
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
    """Has no annotation of its call."""

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
        (Silent(), ("value",), "Has no annotation of its call."),
        (functools.partial(Station(), 3), (), "Measure."),
        (functools.partial(Station().read, metres=3), (), "Read the height."),
        (wrapped, ("a",), "Wrap."),
        (lambda a: None, ("a",), ""),
        (Bare, ("x",), "Bare(x: 'float')".replace("'", "")),
        (math.ceil, ("x",), math.ceil.__doc__.partition("\n")[0] if math.ceil.__doc__ else ""),
    ],
    ids=named,
)
def test_callables(function: Any, parameters: tuple[str, ...], description: str) -> None:
    """All callables are supported, without bound arguments."""
    signature = signature_of(function)

    assert signature.parameters == parameters
    assert signature.description.startswith(description)


@pytest.mark.feature("function-partials-callable-objects")
def test_partial_arguments_are_hidden() -> None:
    """Bound arguments are hidden, also as defaults."""

    def function(query: str, key: str) -> None: ...

    assert "secret" not in str(signature_of(functools.partial(function, key="secret")))


@pytest.mark.parametrize("keywords", [["query"], None])
def test_attributes_named_like_partial(keywords: Any) -> None:
    """Attributes of other objects are not bound arguments."""

    class Search:
        def __init__(self) -> None:
            self.keywords = keywords

        def __call__(self, query: str) -> None: ...

    assert signature_of(Search()).parameters == ("query",)
    assert signature_of_schema({}, Search()).read('{"query": "x"}') == {"query": "x"}


@pytest.mark.feature("function-consumer-returns-null")
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
def test_returns_nothing(returns: Any, nothing: object) -> None:
    """Only a declared None means no result."""

    def function() -> Any: ...

    function.__annotations__["return"] = returns

    assert signature_of(function).returns_nothing is nothing


def test_class_returns_an_object() -> None:
    """Calling a class has a result."""
    assert signature_of(Bare).returns_nothing is False


ContextAlias = TypeAliasType("ContextAlias", ToolContext | None)


@pytest.mark.feature("schema-excluded-tool-context")
def test_injected_parameters_are_hidden() -> None:
    """Injected parameters are not in the schema."""

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

    def ids(
        a: int,
        b: Annotated[str, MemoryId] | Annotated[int, MemoryId],
        c: Maybe[Annotated[str, MemoryId]],  # type: ignore[valid-type]
    ) -> None: ...

    assert signature_of(function).parameters == ("a",)
    assert signature_of(ids).parameters == ("a",)


# --- invalid functions ----------------------------------------------------------------------


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


@pytest.mark.feature("refused-objects-not-tools", "schema-cannot-described")
@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        (list[Annotated[str, MemoryId]], "MemoryId belongs beside the type of a parameter"),
        (Annotated[str, ToolMemoryId] | int, "ToolMemoryId belongs beside"),
        (Owned, "MemoryId belongs beside"),
        (Annotated[list[int], MemoryId], "a text, which cannot become a .*list"),
        (Annotated[type[int] | None, MemoryId], "a text, which cannot become"),
        (Annotated[Station, MemoryId], "a text, which cannot become"),
        (Annotated[dict[str, Any], ToolContext], "in a parameter of this type: context"),
        (Annotated[str, UserMessage], "UserMessage; that marks a parameter of a service"),
        (BaseModel, "BaseModel has no fields"),
    ],
)
def test_misplaced_marks(annotation: Any, message: str) -> None:
    """A value of the library never becomes an argument of the model, and has its declared type."""
    with pytest.raises(ToolDefinitionError, match=message):
        signature_with(annotation)


def test_conversation_id_is_converted() -> None:
    """Constraints count; a type whose validator is the application's is tried at the call."""

    def lookup(text: str) -> str:
        return {"c-7": "seven"}[text]

    def function(a: Annotated[str, AfterValidator(lookup), MemoryId]) -> None: ...

    signature = signature_of(function)
    assert signature.bind("{}", ToolContext({CONVERSATION_ID: "c-7"})) == {"a": "seven"}


@pytest.mark.parametrize(
    ("function", "message"),
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
def test_invalid_functions(function: Any, message: str) -> None:
    """The error names function, file, parameter and reason."""
    with pytest.raises(ToolDefinitionError, match=f"(?s){message}") as caught:
        signature_of(function)

    assert (__file__ in str(caught.value)) is (function is not type)


# --- one value as input ---------------------------------------------------------------------


class Order(BaseModel):
    """Place an order.

    Attributes:
        item: What to buy.
    """

    item: str
    count: int = 1


class Options(TypedDict):
    verbose: bool


@pytest.mark.feature("function-input-type")
def test_model_as_input() -> None:
    """Fields are the arguments, the docstring the description."""

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


@pytest.mark.feature("function-input-type")
@pytest.mark.parametrize(
    ("kind", "properties"),
    [(Bare, {"x"}), (Options, {"verbose"}), (Node, {"next"}), (dict[str, int], set[str]())],
)
def test_object_types_as_input(kind: Any, properties: set[str]) -> None:
    """Dataclasses, typed dicts, recursive models and mappings are objects."""
    schema = signature_of_model(kind).input_schema

    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["type"] == "object"
    assert schema["properties"].keys() == properties


@pytest.mark.feature("function-scalars-input")
@pytest.mark.parametrize("kind", [str, list[int], Order | Bare, Literal["a"], Colour])
def test_other_types_as_input(kind: Any) -> None:
    """Other types are wrapped under the parameter name."""

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


def test_input_type_without_schema() -> None:
    """The error names the function."""
    with pytest.raises(ToolDefinitionError, match="Station"):
        signature_of_model(Station, lambda value: value)


@pytest.mark.parametrize(
    "function", [lambda: None, lambda a, b, c: None, lambda *a: None, lambda a, b: None], ids=named
)
def test_invalid_functions_for_one_input(function: Any) -> None:
    """Only one value and the context are allowed."""
    if function.__code__.co_argcount == 2:
        assert signature_of_model(Order, function).parameters == ("item", "count")
        return
    with pytest.raises(ToolDefinitionError, match="one parameter"):
        signature_of_model(Order, function)


# --- given schemas --------------------------------------------------------------------------


@pytest.mark.feature("function-input-schema")
def test_given_schema_is_unchanged() -> None:
    """A given schema is sent unchanged."""
    schema = {
        "type": "object",
        "title": "Kept",
        "properties": {"a-b": {"type": "string", "x-own": [1]}},
        "required": ["a-b"],
    }

    assert signature_of_schema(schema).input_schema == schema


@pytest.mark.feature("schema-ensure-valid-input-schema")
@pytest.mark.parametrize(
    "schema",
    [{}, {"type": "object"}, {"properties": {}}, {"properties": None, "required": None}],
)
def test_an_empty_schema_is_completed(schema: Any) -> None:
    """Type and properties are added, as providers require."""
    assert signature_of_schema(schema).input_schema == {"type": "object", "properties": {}}


@pytest.mark.feature("schema-ensure-valid-input-schema")
@pytest.mark.parametrize(
    "schema",
    [{"type": "string"}, {"properties": []}, {"required": 5}, {"required": [["a"]]}],
)
def test_non_object_schema(schema: Any) -> None:
    """Schemas of other types are rejected."""
    with pytest.raises(ToolDefinitionError, match="JSON object"):
        signature_of_schema(schema)


def test_description_with_given_schema() -> None:
    """Docstring and return type are used with a given schema."""

    def function(**values: Any) -> None:
        """Do it."""

    signature = signature_of_schema({}, function)

    assert signature.description == "Do it."
    assert signature.returns_nothing is True


class Batch(BaseModel):
    numbers: Iterable[int]


@dataclasses.dataclass
class Rows:
    rows: list[Iterable[int]]


def add_all(numbers: Iterable[int]) -> None: ...
def add_batch(batch: Batch) -> None: ...
def add_rows(rows: Rows) -> None: ...


@dataclasses.dataclass(slots=True, frozen=True)
class Slots:
    default: Iterable[int]


class Checked(BaseModel):
    kind: dict[str, str] = {"type": "generator"}
    numbers: Iterable[int]

    @model_validator(mode="after")
    def _uses_them(self) -> "Checked":
        assert sum(self.numbers) > 0
        return self


def add_slots(slots: Slots) -> None: ...
def add_checked(checked: dict[str, Checked]) -> None: ...
def add_batches(batches: list[Batch], named: dict[str, Batch]) -> None: ...


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (add_all, '{"numbers": [1, %s]}'),
        (add_batch, '{"batch": {"numbers": [1, %s]}}'),
        (add_rows, '{"rows": {"rows": [[1], [%s]]}}'),
    ],
)
def test_items_of_iterables_are_validated_before_the_call(
    function: Callable[..., None], arguments: str
) -> None:
    """Pydantic alone validates them when the function uses them."""
    signature = signature_of(function)

    [value] = signature.read(arguments % "2").values()
    assert value in ([1, 2], Batch.model_construct(numbers=[1, 2]), Rows([[1], [2]]))
    with pytest.raises(ToolArgumentError, match="integer"):
        signature.read(arguments % '"two"')


@pytest.mark.parametrize(
    ("function", "arguments", "place"),
    [
        (add_all, '{"numbers": [1, %s]}', "numbers[1]"),
        pytest.param(
            add_batch,
            '{"batch": {"numbers": [1, %s]}}',
            "batch.numbers[1]",
            marks=pytest.mark.skipif(
                pydantic.VERSION.startswith(("2.11", "2.12")),
                reason="keeps the validators of inner models, which are lazy",
            ),
        ),
        (add_slots, '{"slots": {"default": [1, %s]}}', "slots.default[1]"),
        (add_checked, '{"checked": {"a": {"numbers": [1, %s]}}}', "checked.a.numbers[1]"),
    ],
)
def test_invalid_items_of_iterables_are_named(
    function: Callable[..., None], arguments: str, place: str
) -> None:
    """The error has the position of the item."""
    signature = signature_of(function)

    signature.read(arguments % "2")
    with pytest.raises(ToolArgumentError, match=re.escape(f"{place}: ")):
        signature.read(arguments % '"two"')


def test_a_default_that_looks_like_a_schema_is_kept() -> None:
    """Only the schemas of iterables change."""
    [value] = signature_of(add_checked).read('{"checked": {"a": {"numbers": [1]}}}').values()

    assert value["a"].kind == {"type": "generator"}


def test_items_of_inner_models_in_older_versions_of_pydantic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Versions that use the validator of an inner model validate its items up front, too."""
    monkeypatch.setattr(adapters, "_CAN_REBUILD_MODELS", False)
    signature = signature_of(add_batches)
    arguments = '{"batches": [{"numbers": [1]}], "named": {"a": {"numbers": [%s]}}}'

    values = signature.read(arguments % "2")
    assert [values["batches"][0].numbers, values["named"]["a"].numbers] == [[1], [2]]
    with pytest.raises(ToolArgumentError, match="integer"):
        signature.read(arguments % '"two"')
