"""Conversion of a call's arguments to the values for a function."""

import dataclasses
import enum
import functools
import json
from datetime import date
from typing import Annotated, Any, Literal

import pytest
from pydantic import AfterValidator, BaseModel, Field, field_validator

from chatclient.chat.tool import CONVERSATION_ID, ToolContext
from chatclient.errors import ToolArgumentError, ToolDefinitionError, UsageError
from chatclient.tools.function.schema import (
    ToolMemoryId,
    ToolParam,
    signature_of,
    signature_of_model,
    signature_of_schema,
)
from tests.support.parameters import named

CONTEXT = ToolContext({CONVERSATION_ID: "c1"})
NOWHERE = ToolContext()


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Line(BaseModel):
    points: list[Point]
    colour: Colour = Colour.RED

    @field_validator("points")
    @classmethod
    def two(cls, points: list[Point]) -> list[Point]:
        if len(points) < 2:
            msg = "a line needs two points"
            raise ValueError(msg)
        return points


def weather(city: str, days: int = 3) -> str:
    """Look up the weather."""
    return f"{city} {days}"


def draw(line: Line, on: date | None, scale: float | Literal["auto"] = "auto") -> None:
    """Draw a line."""


UNPARSABLE = "unable to parse string"
OR_AUTO = "or should be 'auto'; got \"b\""


def details(function: Any, arguments: str) -> tuple[str, ...]:
    """Return the problems with the arguments."""
    with pytest.raises(ToolArgumentError) as caught:
        signature_of(function).bind(arguments, NOWHERE)
    assert caught.value.tool_name == function.__name__
    assert all(f"- {line}" in str(caught.value) for line in caught.value.details)
    return caught.value.details


# --- valid arguments ------------------------------------------------------------------------


@pytest.mark.feature(
    "function-arguments-parameter-name",
    "function-generic-types-keep-their",
    "lc4j-tool-enum-argument-exact-upper",
)
def test_values_of_the_declared_types() -> None:
    """JSON is converted to the declared types at any depth."""
    bound = signature_of(draw).bind(
        '{"line": {"points": [{"x": 1}, {"x": 2, "y": 3}]}, "on": "2024-01-02"}', NOWHERE
    )

    assert bound == {
        "line": Line(points=[Point(1), Point(2, 3)]),
        "on": date(2024, 1, 2),
    }


@pytest.mark.feature(
    "lc4j-tool-default-value", "lc4j-tool-numeric-coercion", "lc4j-tool-big-numbers-exact"
)
@pytest.mark.parametrize(
    ("arguments", "bound"),
    [
        ('{"city": "Rome", "days": 2}', {"city": "Rome", "days": 2}),
        ('{"city": "Rome"}', {"city": "Rome"}),
        ('{"city": "Rome", "days": "2"}', {"city": "Rome", "days": 2}),
        ('{"city": "Rome", "days": 2.0}', {"city": "Rome", "days": 2}),
        ('{"city": "Rome", "days": 1e30}', {"city": "Rome", "days": int(1e30)}),
        ('{"city": "Rome", "days": null}', {"city": "Rome"}),
        ('{"city": "Rome", "days": 2,}', {"city": "Rome", "days": 2}),
        ("{'city': 'Rome'", {"city": "Rome"}),
        ('"{\\"city\\": \\"Rome\\"}"', {"city": "Rome"}),
        ('```json\n{"city": "Rome"}\n```', {"city": "Rome"}),
        ('{"city": "\\ud83d"}', {"city": "\ufffd"}),
        ('{"city": "\ud83d"}', {"city": "\ufffd"}),
    ],
)
def test_lenient_conversion(arguments: str, bound: dict[str, Any]) -> None:
    """Numbers as strings, nulls for missing values and damaged JSON are accepted."""
    assert signature_of(weather).bind(arguments, NOWHERE) == bound


@pytest.mark.feature("lc4j-tool-enum-argument-exact-upper")
@pytest.mark.parametrize("written", ["red", "RED", " Red "])
def test_enum_values_ignore_case(written: str) -> None:
    """A unique enum value or literal matches in any case."""

    def paint(colour: Colour, finish: Literal["Matt", "Gloss"] = "Matt") -> None: ...

    arguments = json.dumps({"colour": written, "finish": "gLOSS"})

    assert signature_of(paint).bind(arguments, NOWHERE) == {
        "colour": Colour.RED,
        "finish": "Gloss",
    }


@pytest.mark.feature(
    "function-blank-input-error", "function-json-null-aborts-turn", "manager-blank-arguments-become"
)
@pytest.mark.parametrize("arguments", ["", " \n", "{}", "null"])
def test_blank_arguments(arguments: str) -> None:
    """Blank arguments are an empty object."""

    def now(zone: str = "UTC") -> None: ...

    assert signature_of(now).bind(arguments, NOWHERE) == {}


@pytest.mark.feature(
    "lc4j-tool-default-value", "lc4j-tool-mutable-default-does-not", "lc4j-tool-optional-t"
)
def test_defaults_are_left_to_python() -> None:
    """Missing arguments are not passed, except for defaults in the schema."""
    third = Field(default=3)

    def function(
        a: list[int] = [],  # noqa: B006
        b: Annotated[int, Field(default=2)] = 1,
        c: int = third,
        d: list[int] = Field(default_factory=list),  # noqa: B008
        *,
        e: Annotated[int, Field(default=5)],
        f: int | None,
    ) -> None: ...

    assert signature_of(function).bind("{}", NOWHERE) == {
        "b": 1,
        "c": 3,
        "d": [],
        "e": 5,
        "f": None,
    }


@pytest.mark.feature(
    "function-arguments-parameter-name", "schema-json-property-names", "lc4j-tool-parameter-name"
)
def test_aliases() -> None:
    """The model uses the alias, the function its own name."""

    def function(sender: Annotated[str, Field(alias="from")]) -> None: ...

    signature = signature_of(function)

    assert signature.parameters == ("from",)
    assert signature.bind('{"from": "me"}', NOWHERE) == {"sender": "me"}


def test_nested_nulls() -> None:
    """Nested nulls of the strict form are missing values."""
    bound = signature_of(draw).bind(
        '{"line": {"points": [{"x": 1, "y": null}, {"x": 2, "y": 3}], "colour": null},'
        ' "on": null, "scale": null}',
        NOWHERE,
    )

    assert bound == {"line": Line(points=[Point(1), Point(2, 3)]), "on": None}


# --- injected parameters --------------------------------------------------------------------


@pytest.mark.feature("function-tool-context-parameter-empty", "lc4j-tool-memory-id")
def test_context_and_conversation_are_injected() -> None:
    """Context and conversation id are passed to parameters that declare them."""

    def function(
        a: int,
        context: ToolContext,
        conversation: Annotated[str, ToolMemoryId],
        again: ToolContext | None = None,
    ) -> None: ...

    assert signature_of(function).bind('{"a": 1}', CONTEXT) == {
        "a": 1,
        "context": CONTEXT,
        "conversation": "c1",
        "again": CONTEXT,
    }


@pytest.mark.feature("tool-options-model-makes-up-injected")
def test_injected_parameters_from_a_model() -> None:
    """Values of the model for injected parameters are dropped."""

    def function(a: int, context: ToolContext, user: Annotated[str, ToolMemoryId]) -> None: ...

    bound = signature_of(function).bind('{"a": 1, "context": {}, "user": "root"}', CONTEXT)

    assert bound == {"a": 1, "context": CONTEXT, "user": "c1"}


@pytest.mark.feature("lc4j-tool-memory-id")
def test_missing_conversation() -> None:
    """The default is used, or None, or an error is raised."""

    def default(user: Annotated[str, ToolMemoryId] = "nobody") -> None: ...
    def optional(user: Annotated[str | None, ToolMemoryId]) -> None: ...
    def required(user: Annotated[str, ToolMemoryId]) -> None: ...

    assert signature_of(default).bind("{}", NOWHERE) == {}
    assert signature_of(optional).bind("{}", NOWHERE) == {"user": None}
    with pytest.raises(UsageError, match="'required' needs the conversation's id for 'user'"):
        signature_of(required).bind("{}", NOWHERE)


# --- invalid arguments ----------------------------------------------------------------------


@pytest.mark.feature(
    "function-missing-argument-becomes-null",
    "function-failed-conversion-told",
    "lc4j-tool-missing-primitive-aborts",
    "lc4j-tool-default-value",
    "lc4j-tool-enum-argument-exact-upper",
    "lc4j-tool-unknown-top-level-arguments",
)
@pytest.mark.parametrize(
    ("function", "arguments", "lines"),
    [
        (weather, "{}", ("city: missing, but required",)),
        (
            weather,
            '{"city": [1], "days": "soon"}',
            (
                "city: should be a valid string; got [1]",
                'days: should be a valid integer, unable to parse string as an integer; got "soon"',
            ),
        ),
        (weather, '{"city": "a", "town": 1}', ("town: unknown; known are city, days",)),
        (weather, "[1, 2]", ("should be a JSON object; got [1, 2]",)),
        (weather, "12", ("should be a JSON object; got 12",)),
        (weather, '"city"', ('should be a JSON object; got "city"',)),
        (
            weather,
            "city=Rome",
            ("not valid JSON: Expecting value: line 1 column 1 (char 0); got city=Rome",),
        ),
        (weather, "[" * 100_000, (f"not valid JSON: nested too deeply; got {'[' * 79}…",)),
        (
            draw,
            '{"line": {"points": [{"x": 1}, {"x": "a", "z": 1}], "colour": "blue"}, "scale": "b"}',
            (
                f'line.points[1].x: should be a valid integer, {UNPARSABLE} as an integer; got "a"',
                "line.colour: should be 'red'; got \"blue\"",
                f"scale: should be a valid number, {UNPARSABLE} as a number, {OR_AUTO}",
            ),
        ),
        (draw, '{"line": {"points": []}}', ("line.points: a line needs two points; got []",)),
        (
            draw,
            '{"line": {"points": [{}, {}]}}',
            ("line.points[0].x: missing, but required", "line.points[1].x: missing, but required"),
        ),
    ],
    ids=named,
)
def test_error_lines(function: Any, arguments: str, lines: Any) -> None:
    """Each problem is a line with path, problem and value."""
    assert details(function, arguments) == lines


def test_equal_problems_are_merged() -> None:
    """Alternatives that fail equally give one line."""

    def add(numbers: list[int] | tuple[int, ...]) -> None: ...

    assert details(add, '{"numbers": [[]]}') == ("numbers[0]: should be a valid integer; got []",)


def test_abbreviations_keep_their_case() -> None:
    """A line starts in lower case except for abbreviations."""

    def checked(isbn: str) -> str:
        msg = "ISBN numbers have 13 digits"
        raise ValueError(msg)

    def find_book(isbn: Annotated[str, AfterValidator(checked)]) -> None: ...

    assert details(find_book, '{"isbn": "1"}') == ('isbn: ISBN numbers have 13 digits; got "1"',)


def test_unexpected_argument_without_parameters() -> None:
    """The error explains that the tool has no parameters."""

    def now() -> None: ...

    assert details(now, '{"zone": 1}') == ("zone: unknown; known are none",)


def test_long_values_are_truncated() -> None:
    """Long values are truncated in the error."""
    (line,) = details(weather, f'{{"city": ["{"x" * 1000}"]}}')

    assert line.endswith("xxx…")
    assert len(line) < 130


@pytest.mark.feature("function-failed-conversion-told")
def test_many_problems() -> None:
    """Ten lines are shown, and the rest is counted."""

    def add(numbers: list[int]) -> None: ...

    lines = details(add, str({"numbers": ["x"] * 25}))

    assert len(lines) == 11
    assert lines[-1] == "and 15 more of the kind"


@pytest.mark.feature("lc4j-tool-unknown-top-level-arguments")
def test_unknown_nested_field() -> None:
    """An unknown field of a closed model is named with its path."""

    class Closed(BaseModel, extra="forbid"):
        a: int = 0

    def function(value: Any) -> None: ...

    function.__annotations__["value"] = Closed

    assert details(function, '{"value": {"b": 1}}') == ("value.b: unknown",)


def test_deep_nesting() -> None:
    """Deeply nested arguments raise an ordinary error."""

    def function(value: Any) -> None: ...

    lines = details(function, '{"value": ' + "[" * 900 + "]" * 900 + "}")

    assert lines[0].startswith("not valid JSON: nested too deeply")


# --- other kinds of signatures --------------------------------------------------------------


@pytest.mark.feature("function-input-type", "function-bi-function-tool-context")
def test_single_input() -> None:
    """A model value is passed to the first parameter of any name."""
    signature = signature_of_model(Point, lambda where, context: None)

    assert signature.bind('{"x": "1"}', CONTEXT) == {"where": Point(1), "context": CONTEXT}
    with pytest.raises(ToolArgumentError, match="<lambda> do not fit:\n- x: missing"):
        signature.bind("", NOWHERE)


@pytest.mark.feature("function-scalars-input")
@pytest.mark.parametrize(
    ("kind", "arguments", "value"),
    [
        (str, '{"input": "a"}', "a"),
        (str, '"a"', "a"),
        (str, '""', ""),
        (str, '"{}"', "{}"),
        (list[int], "[1, 2]", [1, 2]),
        (list[int], '{"input": "[1, 2]"}', [1, 2]),
        (Point | Colour, '{"x": 1}', Point(1)),
        (Colour, '"red"', Colour.RED),
        (int | None, "null", None),
        (int | None, "{}", None),
        (dict[str, int], '{"a": 1}', {"a": 1}),
    ],
    ids=named,
)
def test_bare_input(kind: Any, arguments: str, value: Any) -> None:
    """A bare value is equivalent to a wrapped one."""
    assert signature_of_model(kind).bind(arguments, NOWHERE) == {"input": value}


@pytest.mark.feature("function-malformed-input-functions-aborts")
def test_missing_input() -> None:
    """Missing input raises with its name."""
    with pytest.raises(ToolArgumentError, match="The arguments for sum_up do not fit:\n- input"):
        signature_of_model(list[int], name="sum_up").bind("", NOWHERE)


SCHEMA = {
    "type": "object",
    "properties": {"a-b": {"type": "string"}, "c": {}, "n": {"type": "integer"}},
    "required": ["a-b", "c"],
    "additionalProperties": False,
}


@pytest.mark.feature("function-input-schema")
def test_values_for_a_given_schema() -> None:
    """Values are passed by name, without optional nulls."""

    def function(context: ToolContext, **values: Any) -> None: ...

    signature = signature_of_schema(SCHEMA, function)

    assert signature.bind('{"a-b": "1", "n": null, "c": {"d": 1.5}}', CONTEXT) == {
        "a-b": "1",
        "c": {"d": 1.5},
        "context": CONTEXT,
    }


@pytest.mark.feature(
    "function-unknown-keys-ignored",
    "function-arguments-not-validated-against",
    "schema-allow-additional-properties-default",
)
def test_names_for_a_given_schema() -> None:
    """Required names must be present, unknown ones absent."""
    with pytest.raises(ToolArgumentError) as caught:
        signature_of_schema(SCHEMA, name="other").bind('{"z": 1, "c": 1}', NOWHERE)

    assert caught.value.details == (
        "a-b: missing, but required",
        "z: unknown; known are a-b, c, n",
    )


def test_open_given_schema() -> None:
    """Without `additionalProperties: false` any name is accepted."""
    assert signature_of_schema({}).bind('{"z": 1}', NOWHERE) == {"z": 1}


def note(text: str, count: int = 1, /, *, owner: Annotated[str, ToolMemoryId] = "nobody") -> str:
    """Take a note."""
    return f"{count} x {text} by {owner}"


def test_injected_names_in_open_schema() -> None:
    """Injected parameters are protected also with an open given schema."""
    signature = signature_of_schema({"properties": {"text": {}}}, note)
    given = '{"text": "tea", "owner": "somebody"}'
    conversation = ToolContext({CONVERSATION_ID: "c"})

    assert signature.prepare(note, given, NOWHERE)() == "1 x tea by nobody"
    assert signature.prepare(note, given, conversation)() == "1 x tea by c"


def test_partial_arguments_are_protected() -> None:
    """Bound arguments cannot be changed unless the schema has them."""

    def function(**values: Any) -> None: ...

    settled = functools.partial(function, tenant="acme", unit="C")
    signature = signature_of_schema({"properties": {"unit": {}}}, settled)

    assert signature.bind('{"tenant": "other", "unit": "F", "z": 1}', NOWHERE) == {
        "unit": "F",
        "z": 1,
    }


@pytest.mark.feature("function-unknown-keys-ignored")
def test_names_unknown_to_the_function() -> None:
    """The error names arguments that the function does not accept."""
    signature = signature_of_schema({"properties": {"text": {}}}, note)

    assert signature.bind('{"text": "tea", "count": 2}', NOWHERE) == {"text": "tea", "count": 2}
    with pytest.raises(ToolArgumentError) as caught:
        signature.bind('{"text": "tea", "color": "red"}', NOWHERE)
    assert caught.value.details == ("color: unknown; known are text",)


@pytest.mark.feature("function-input-schema")
def test_schema_must_match_the_function() -> None:
    """A schema with other required names is rejected."""
    with pytest.raises(ToolDefinitionError, match=r"has \['size'\], which .*note\(\).* not take"):
        signature_of_schema({"properties": {"text": {}, "size": {}, "owner": {}}}, note)


# --- the call -------------------------------------------------------------------------------


def test_prepare() -> None:
    """`prepare` returns the bound call."""
    call = signature_of(weather).prepare(weather, '{"city": "Rome"}', NOWHERE)

    assert call() == "Rome 3"


def positional(
    a: int, b: int = 2, context: ToolContext = NOWHERE, c: int = 3, /, d: int = 4
) -> tuple[Any, ...]:
    return a, b, context, c, d


@pytest.mark.feature("function-positional-parameters")
@pytest.mark.parametrize(
    ("arguments", "result"),
    [
        ('{"a": 1}', (1, 2, CONTEXT, 3, 4)),
        ('{"a": 1, "d": 5}', (1, 2, CONTEXT, 3, 5)),
        ('{"a": 1, "c": 5}', (1, 2, CONTEXT, 5, 4)),
    ],
)
def test_positional_only_parameters(arguments: str, result: Any) -> None:
    """Positional-only parameters are supported, with defaults."""
    assert signature_of(positional).prepare(positional, arguments, CONTEXT)() == result


def test_missing_positional_arguments() -> None:
    """Positional defaults are used if all of them apply."""

    def function(a: int = 1, /) -> int:
        return a

    assert signature_of(function).prepare(function, "{}", NOWHERE)() == 1
    assert signature_of_model(int, function).prepare(function, "7", NOWHERE)() == 7


def test_partial_keeps_its_arguments() -> None:
    """Bound arguments of a partial are passed."""
    partial = functools.partial(weather, days=1)

    assert signature_of(partial).prepare(partial, '{"city": "Rome"}', NOWHERE)() == "Rome 1"


def test_described_parameters() -> None:
    """A description does not affect conversion."""

    def function(a: Annotated[int, ToolParam("how many"), Field(ge=1)]) -> None: ...

    assert signature_of(function).bind('{"a": 1}', NOWHERE) == {"a": 1}
    assert details(function, '{"a": 0}') == ("a: should be greater than or equal to 1; got 0",)


def test_missing_tuple_item() -> None:
    """The path names the missing item."""

    def box(corner: tuple[int, int], others: list[tuple[int, int]]) -> None: ...

    with pytest.raises(ToolArgumentError) as caught:
        signature_of(box).bind('{"corner": [1], "others": [[1, 2], [3]]}', NOWHERE)

    assert caught.value.details == (
        "corner[1]: missing, but required",
        "others[1][1]: missing, but required",
    )
