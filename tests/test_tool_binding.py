"""From what a model wrote to the values a function is called with."""

import dataclasses
import enum
import functools
import json
from datetime import date
from decimal import Decimal
from typing import Annotated, Any, Literal

import pytest
from parameters import named
from pydantic import AfterValidator, BaseModel, Field, field_validator

from chatclient.errors import ToolArgumentError, ToolDefinitionError, UsageError
from chatclient.tool import CONVERSATION_ID, ToolContext
from chatclient.tools.schema import (
    ToolMemoryId,
    ToolParam,
    signature_of,
    signature_of_model,
    signature_of_schema,
)

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
    """Return what is wrong with the arguments."""
    with pytest.raises(ToolArgumentError) as caught:
        signature_of(function).bind(arguments, NOWHERE)
    assert caught.value.tool_name == function.__name__
    assert all(f"- {line}" in str(caught.value) for line in caught.value.details)
    return caught.value.details


# --- what fits ------------------------------------------------------------------------------


def test_values_of_the_declared_types() -> None:
    """JSON becomes what the function declares, at any depth."""
    bound = signature_of(draw).bind(
        '{"line": {"points": [{"x": 1}, {"x": 2, "y": 3}]}, "on": "2024-01-02"}', NOWHERE
    )

    assert bound == {
        "line": Line(points=[Point(1), Point(2, 3)]),
        "on": date(2024, 1, 2),
    }


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
def test_what_models_write_is_understood(arguments: str, bound: dict[str, Any]) -> None:
    """Numbers as text, nulls for what is left out, and damaged JSON still say what is meant."""
    assert signature_of(weather).bind(arguments, NOWHERE) == bound


def test_digits_of_decimals_are_kept() -> None:
    """As a number the 15 that are sure to be, as a text all of them."""

    def pay(euro: Decimal, exactly: Annotated[Decimal, Field(max_digits=30)]) -> None: ...

    few, many = "1234567890.12345", "12345678901234567890.12"
    bound = signature_of(pay).bind(f'{{"euro": {few}, "exactly": "{many}"}}', NOWHERE)

    assert bound == {"euro": Decimal(few), "exactly": Decimal(many)}


@pytest.mark.parametrize("written", ["red", "RED", " Red "])
def test_the_case_of_admitted_values_does_not_count(written: str) -> None:
    """An enum's value or a literal in other letters is taken for the one that it can only be."""

    def paint(colour: Colour, finish: Literal["Matt", "Gloss"] = "Matt") -> None: ...

    arguments = json.dumps({"colour": written, "finish": "gLOSS"})

    assert signature_of(paint).bind(arguments, NOWHERE) == {
        "colour": Colour.RED,
        "finish": "Gloss",
    }


@pytest.mark.parametrize("arguments", ["", " \n", "{}", "null"])
def test_blank_arguments_are_none(arguments: str) -> None:
    """A tool without required parameters can be called with nothing at all."""

    def now(zone: str = "UTC") -> None: ...

    assert signature_of(now).bind(arguments, NOWHERE) == {}


def test_defaults_are_left_to_python() -> None:
    """What a model leaves out is not passed, except where only the schema knows what it is."""
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


def test_aliases_are_the_model_s_names() -> None:
    """A model uses the alias of a parameter, the function its own name."""

    def function(sender: Annotated[str, Field(alias="from")]) -> None: ...

    signature = signature_of(function)

    assert signature.parameters == ("from",)
    assert signature.bind('{"from": "me"}', NOWHERE) == {"sender": "me"}


def test_nulls_inside_objects_mean_left_out() -> None:
    """The strict form's nulls are understood at any depth."""
    bound = signature_of(draw).bind(
        '{"line": {"points": [{"x": 1, "y": null}, {"x": 2, "y": 3}], "colour": null},'
        ' "on": null, "scale": null}',
        NOWHERE,
    )

    assert bound == {"line": Line(points=[Point(1), Point(2, 3)]), "on": None}


# --- what is injected -----------------------------------------------------------------------


def test_context_and_conversation_are_injected() -> None:
    """The library fills in what a function asks it for."""

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


def test_a_model_cannot_inject() -> None:
    """Values that a model makes up for injected parameters are dropped."""

    def function(a: int, context: ToolContext, user: Annotated[str, ToolMemoryId]) -> None: ...

    bound = signature_of(function).bind('{"a": 1, "context": {}, "user": "root"}', CONTEXT)

    assert bound == {"a": 1, "context": CONTEXT, "user": "c1"}


def test_outside_of_a_conversation() -> None:
    """Without a conversation a parameter has its default, or None, or there is an error."""

    def default(user: Annotated[str, ToolMemoryId] = "nobody") -> None: ...
    def optional(user: Annotated[str | None, ToolMemoryId]) -> None: ...
    def required(user: Annotated[str, ToolMemoryId]) -> None: ...

    assert signature_of(default).bind("{}", NOWHERE) == {}
    assert signature_of(optional).bind("{}", NOWHERE) == {"user": None}
    with pytest.raises(UsageError, match="'required' needs the conversation's id for 'user'"):
        signature_of(required).bind("{}", NOWHERE)


# --- what does not fit ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "arguments", "lines"),
    [
        (weather, "{}", ("city: missing, but required",)),
        (
            weather,
            '{"city": 1, "days": "soon"}',
            (
                "city: should be a valid string; got 1",
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
def test_the_model_is_told_what_is_wrong(function: Any, arguments: str, lines: Any) -> None:
    """Each problem is one line: where it is, what it is, and what was given."""
    assert details(function, arguments) == lines


def test_one_problem_is_told_once() -> None:
    """Alternatives that fail in the same way are one problem."""

    def add(numbers: list[int] | tuple[int, ...]) -> None: ...

    assert details(add, '{"numbers": [[]]}') == ("numbers[0]: should be a valid integer; got []",)


def test_an_abbreviation_keeps_its_capitals() -> None:
    """A problem begins like the middle of a sentence, but not as `iSBN`."""

    def checked(isbn: str) -> str:
        msg = "ISBN numbers have 13 digits"
        raise ValueError(msg)

    def find_book(isbn: Annotated[str, AfterValidator(checked)]) -> None: ...

    assert details(find_book, '{"isbn": "1"}') == ('isbn: ISBN numbers have 13 digits; got "1"',)


def test_known_parameters_are_none() -> None:
    """A tool without parameters says so when it is given one."""

    def now() -> None: ...

    assert details(now, '{"zone": 1}') == ("zone: unknown; known are none",)


def test_long_values_are_cut() -> None:
    """A problem is shown, not repeated in full."""
    (line,) = details(weather, f'{{"city": ["{"x" * 1000}"]}}')

    assert line.endswith("xxx…")
    assert len(line) < 130


def test_many_problems_are_counted() -> None:
    """Ten lines are enough to see what is wrong."""

    def add(numbers: list[int]) -> None: ...

    lines = details(add, str({"numbers": ["x"] * 25}))

    assert len(lines) == 11
    assert lines[-1] == "and 15 more of the kind"


def test_unknown_fields_inside_are_named() -> None:
    """A field that a closed model does not know is named with its place."""

    class Closed(BaseModel, extra="forbid"):
        a: int = 0

    def function(value: Any) -> None: ...

    function.__annotations__["value"] = Closed

    assert details(function, '{"value": {"b": 1}}') == ("value.b: unknown",)


def test_deep_nesting_is_refused() -> None:
    """Arguments nested without end do not end the program."""

    def function(value: Any) -> None: ...

    lines = details(function, '{"value": ' + "[" * 900 + "]" * 900 + "}")

    assert lines == ("nested too deeply",)


# --- other kinds of signatures --------------------------------------------------------------


def test_one_value_is_the_input() -> None:
    """The value of a model goes to the function's first parameter, whatever it is called."""
    signature = signature_of_model(Point, lambda where, context: None)

    assert signature.bind('{"x": "1"}', CONTEXT) == {"where": Point(1), "context": CONTEXT}
    with pytest.raises(ToolArgumentError, match="<lambda> do not fit:\n- x: missing"):
        signature.bind("", NOWHERE)


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
def test_an_input_that_is_no_object(kind: Any, arguments: str, value: Any) -> None:
    """A bare value is read like one that is wrapped."""
    assert signature_of_model(kind).bind(arguments, NOWHERE) == {"input": value}


def test_a_missing_input_is_named() -> None:
    """Nothing at all is not an input."""
    with pytest.raises(ToolArgumentError, match="The arguments for sum_up do not fit:\n- input"):
        signature_of_model(list[int], name="sum_up").bind("", NOWHERE)


SCHEMA = {
    "type": "object",
    "properties": {"a-b": {"type": "string"}, "n": {"type": "integer"}},
    "required": ["a-b", "c"],
    "additionalProperties": False,
}


def test_values_for_a_schema_as_data() -> None:
    """Values are passed as they come, by name; nulls for what is left out are dropped."""

    def function(context: ToolContext, **values: Any) -> None: ...

    signature = signature_of_schema(SCHEMA, function)

    assert signature.bind('{"a-b": [1], "n": null, "c": {"d": 1.5}}', CONTEXT) == {
        "a-b": [1],
        "c": {"d": 1.5},
        "context": CONTEXT,
    }


def test_names_are_checked_for_a_schema_as_data() -> None:
    """What is required must be there, and what is not known must not."""
    with pytest.raises(ToolArgumentError) as caught:
        signature_of_schema(SCHEMA, name="other").bind('{"z": 1, "c": 1}', NOWHERE)

    assert caught.value.details == (
        "a-b: missing, but required",
        "z: unknown; known are a-b, n",
    )


def test_an_open_schema_as_data_takes_anything() -> None:
    """Without `additionalProperties: false` there is no unknown name."""
    assert signature_of_schema({}).bind('{"z": 1}', NOWHERE) == {"z": 1}


def note(text: str, count: int = 1, /, *, owner: Annotated[str, ToolMemoryId] = "nobody") -> str:
    """Take a note."""
    return f"{count} x {text} by {owner}"


def test_no_model_chooses_what_the_library_fills_in() -> None:
    """Not for a schema as data either, open as it may be: an id is a key to a conversation."""
    signature = signature_of_schema({"properties": {"text": {}}}, note)
    given = '{"text": "tea", "owner": "somebody"}'
    conversation = ToolContext({CONVERSATION_ID: "c"})

    assert signature.prepare(note, given, NOWHERE)() == "1 x tea by nobody"
    assert signature.prepare(note, given, conversation)() == "1 x tea by c"


def test_no_model_changes_what_a_partial_settles() -> None:
    """Unless the schema says that it may."""

    def function(**values: Any) -> None: ...

    settled = functools.partial(function, tenant="acme", unit="C")
    signature = signature_of_schema({"properties": {"unit": {}}}, settled)

    assert signature.bind('{"tenant": "other", "unit": "F", "z": 1}', NOWHERE) == {
        "unit": "F",
        "z": 1,
    }


def test_names_that_a_function_does_not_take() -> None:
    """A model is told them, whatever the schema leaves open."""
    signature = signature_of_schema({"properties": {"text": {}}}, note)

    assert signature.bind('{"text": "tea", "count": 2}', NOWHERE) == {"text": "tea", "count": 2}
    with pytest.raises(ToolArgumentError) as caught:
        signature.bind('{"text": "tea", "color": "red"}', NOWHERE)
    assert caught.value.details == ("color: unknown; known are text",)


def test_a_schema_asks_for_what_its_function_takes() -> None:
    """Otherwise every call that follows the schema would fail."""
    with pytest.raises(ToolDefinitionError, match=r"has \['size'\], which .*note\(\).* not take"):
        signature_of_schema({"properties": {"text": {}, "size": {}, "owner": {}}}, note)


# --- the call -------------------------------------------------------------------------------


def test_a_prepared_call() -> None:
    """`prepare` makes the call that `bind` is for."""
    call = signature_of(weather).prepare(weather, '{"city": "Rome"}', NOWHERE)

    assert call() == "Rome 3"


def positional(
    a: int, b: int = 2, context: ToolContext = NOWHERE, c: int = 3, /, d: int = 4
) -> tuple[Any, ...]:
    return a, b, context, c, d


@pytest.mark.parametrize(
    ("arguments", "result"),
    [
        ('{"a": 1}', (1, 2, CONTEXT, 3, 4)),
        ('{"a": 1, "d": 5}', (1, 2, CONTEXT, 3, 5)),
        ('{"a": 1, "c": 5}', (1, 2, CONTEXT, 5, 4)),
    ],
)
def test_parameters_by_position_only(arguments: str, result: Any) -> None:
    """Functions that take parameters by position can be tools, defaults and all."""
    assert signature_of(positional).prepare(positional, arguments, CONTEXT)() == result


def test_positions_that_nobody_fills() -> None:
    """Defaults by position are left to Python when all of them apply."""

    def function(a: int = 1, /) -> int:
        return a

    assert signature_of(function).prepare(function, "{}", NOWHERE)() == 1
    assert signature_of_model(int, function).prepare(function, "7", NOWHERE)() == 7


def test_a_partial_keeps_what_it_settles() -> None:
    """A partial brings its own values along."""
    partial = functools.partial(weather, days=1)

    assert signature_of(partial).prepare(partial, '{"city": "Rome"}', NOWHERE)() == "Rome 1"


def test_described_parameters_bind_like_others() -> None:
    """A description changes nothing in how a value is read."""

    def function(a: Annotated[int, ToolParam("how many"), Field(ge=1)]) -> None: ...

    assert signature_of(function).bind('{"a": 1}', NOWHERE) == {"a": 1}
    assert details(function, '{"a": 0}') == ("a: should be greater than or equal to 1; got 0",)


def test_what_a_tuple_lacks_has_a_place() -> None:
    """The tuple itself is there."""

    def box(corner: tuple[int, int], others: list[tuple[int, int]]) -> None: ...

    with pytest.raises(ToolArgumentError) as caught:
        signature_of(box).bind('{"corner": [1], "others": [[1, 2], [3]]}', NOWHERE)

    assert caught.value.details == (
        "corner[1]: missing, but required",
        "others[1][1]: missing, but required",
    )
