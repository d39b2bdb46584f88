"""From text to values: what is read, mended and refused, and what goes to the model."""

import dataclasses
import datetime as dt
import enum
import json
import pickle
import time
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar

import pytest
import typing_extensions
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, RootModel, field_validator

from chatclient.errors import EntityError, UsageError
from chatclient.structured import (
    NOTHING,
    ListOutputConverter,
    MapOutputConverter,
    TextOutputConverter,
    TypeOutputConverter,
    without_fence,
    without_thoughts,
)
from chatclient.structured.cleaning import json_within
from chatclient.structured.converters import converter_of
from chatclient.structured.type_converter import name_of_kind

T = TypeVar("T")


class Actor(BaseModel):
    name: str
    born: int | None = None


class Film(BaseModel):
    title: str
    year: int
    cast: list[Actor] = []


class Node(BaseModel):
    """A node of a tree.

    Attributes:
        value: What it holds.
    """

    value: int
    children: list["Node"] = []


@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    y: int = 0


class Place(NamedTuple):
    city: str
    country: str = "IT"


class Address(typing_extensions.TypedDict, total=False):
    street: typing_extensions.Required[str]
    number: int


class Mood(enum.Enum):
    GOOD = "good"
    BAD = "bad"


class Page(BaseModel, Generic[T]):
    items: list[T]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str


FILM = '{"title": "Alien", "year": 1979, "cast": [{"name": "Weaver", "born": 1949}]}'
ALIEN = Film(title="Alien", year=1979, cast=[Actor(name="Weaver", born=1949)])

READ: list[tuple[Any, str, Any]] = [
    (Film, FILM, ALIEN),
    (Film, '{"title": "Alien", "year": 1979, "director": "Scott"}', Film(title="Alien", year=1979)),
    (Point, '{"x": 1}', Point(1)),
    (Place, '{"city": "Rome"}', Place("Rome")),
    (Address, '{"street": "Via"}', {"street": "Via"}),
    (Page[Point], '{"items": [{"x": 1}]}', Page[Point](items=[Point(1)])),
    (list[Point], '[{"x": 1}, {"x": 2}]', [Point(1), Point(2)]),
    (list[Point], '{"value": [{"x": 1}]}', [Point(1)]),
    (list[str], "[]", []),
    (dict[str, int], '{"a": 1}', {"a": 1}),
    (dict[str, Any], '{"value": 1}', {"value": 1}),
    (dict, '{"a": null}', {"a": None}),
    (tuple[int, str], '[1, "a"]', (1, "a")),
    (set[int], "[1, 2]", {1, 2}),
    (Point | Place, '{"city": "Rome"}', Place("Rome")),
    (Point | None, "null", None),
    (Point | None, '{"value": {"x": 1}}', Point(1)),
    (int, "42", 42),
    (int, '{"value": 42}', 42),
    (bool, "true", True),
    (float, "1.5", 1.5),
    (Decimal, "1.10", Decimal("1.10")),
    (str, " plain words\n", "plain words"),
    (Literal["good", "bad"], '"good"', "good"),
    (Literal["good", "bad"], "good", "good"),
    (Mood, "bad", Mood.BAD),
    (dt.date, "2026-11-21", dt.date(2026, 11, 21)),
    (Annotated[int, Field(ge=1)], "1", 1),
]


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    READ,
    ids=lambda x: name_of_kind(x)[:30] if not isinstance(x, str) else x[:30],
)
def test_every_kind_of_type_is_read(kind: Any, text: str, value: Any) -> None:
    """Models, dataclasses, typed dicts, named tuples, unions, collections and scalars."""
    assert converter_of(kind).convert(text) == value


AROUND = [
    FILM,
    f"```json\n{FILM}\n```",
    f"```\n{FILM}\n```",
    f"```{FILM}```",
    f"Sure! Here is the film you asked for:\n\n{FILM}\n\nAnything else?",
    f"Here you are:\n```json\n{FILM}\n```\nIt has {{no}} sequel [1].",
    f"<think>Is it {{'title': 1}}?\nNo.</think>\n{FILM}",
    f"<THINKING>[1]</THINKING> {FILM}",
    f"<reasoning>hm</reasoning>{FILM}",
    f"the template began the thought {{}}</think>{FILM}",
    f"```thinking\n[1, 2]\n```\n{FILM}",
    f"<!-- thinking: {{}} -->{FILM}",
    f'First I thought {{"title": "Aliens", "year": 1986}}, but it is {FILM}',
    FILM.replace("]}", "],}"),
    FILM.replace('"', "'"),
    FILM.replace("1979", '"1979"'),
    FILM.replace("1979", "1979.0"),
    '{"title": "Alien", "year": 1979, "cast": "[{\\"name\\": \\"Weaver\\", \\"born\\": 1949}]"}',
    f"\ufeff{FILM}",
    f'The 6" film: {FILM}',
]


@pytest.mark.parametrize("text", AROUND)
def test_what_stands_around_the_answer_does_no_harm(text: str) -> None:
    """Fences, thoughts, prose and slips that can only mean one thing."""
    assert converter_of(Film).convert(text) == ALIEN


def test_what_is_fenced_goes_before_what_stands_between_words() -> None:
    """Also where that comes last."""
    later = '{"title": "Aliens", "year": 1986}'

    assert converter_of(Film).convert(f"```json\n{FILM}\n```\nIt is not {later}.") == ALIEN


def test_thoughts_inside_of_a_string_are_part_of_it() -> None:
    """JSON that is right as it stands is never cleaned."""
    text = '{"title": "<think>x</think>", "year": 1}'

    assert converter_of(Film).convert(text).title == "<think>x</think>"


def test_null_for_what_is_optional_is_left_out() -> None:
    """The strict form of a schema knows no other way of leaving out."""
    text = '{"title": "Alien", "year": 1979, "cast": null}'

    assert converter_of(Film).convert(text) == Film(title="Alien", year=1979)


REFUSED = [
    (Film, "", "the answer is empty"),
    (Film, " \n", "the answer is empty"),
    (Film, "<think>hm</think>", "the answer is empty"),
    (Film, "I cannot tell.", "answer: should be an object; got"),
    (Film, '{"title": "Alien"', "not valid JSON: "),
    (Film, '{"title": "Alien", "year": 1979, "cast": [{"name": "W"}]', "not valid JSON"),
    (Film, '{"title": "Alien"}', "year: missing, but required"),
    (Film, 'So: {"title": "Alien", "year": "soon"}', "year: should be a valid integer"),
    (Film, '{"title": "A", "year": 1, "cast": [{"name": 3}]}', "cast[0].name: should be a valid"),
    (Strict, '{"name": "a", "more": 1}', "more: unknown; known are name"),
    (list[Point], '{"value": [{"y": 1}]}', "[0].x: missing, but required"),
    (int, "The answer is 42.", "answer: should be a valid integer"),
    (Literal["good", "bad"], "fine", "answer: should be 'good' or 'bad'"),
]


@pytest.mark.parametrize(("kind", "text", "line"), REFUSED)
def test_what_does_not_fit_is_told_in_full(kind: Any, text: str, line: str) -> None:
    """The error keeps the text exactly, and says what is wrong and where."""
    with pytest.raises(EntityError) as caught:
        converter_of(kind).convert(text)

    assert caught.value.text == text
    assert any(line in error for error in caught.value.errors), caught.value.errors
    assert name_of_kind(kind) in str(caught.value)


def test_an_answer_that_was_cut_off_never_passes_for_a_whole_one() -> None:
    """Missing brackets are not filled in, even when the rest would do."""
    with pytest.raises(EntityError):
        converter_of(Node).convert('{"value": 1, "children": [{"value": 2}')


def test_the_cause_is_kept() -> None:
    """Whoever wants pydantic's own view of it finds it."""
    with pytest.raises(EntityError) as caught:
        converter_of(Film).convert("{}")

    assert type(caught.value.__cause__).__name__ == "ValidationError"


def test_a_long_answer_is_shortened_in_the_message_only() -> None:
    """The message stays readable, the attribute whole."""
    text = "x" * 10_000
    with pytest.raises(EntityError) as caught:
        converter_of(int).convert(text)

    assert len(str(caught.value)) < 2000
    assert caught.value.text == text


@pytest.mark.parametrize(
    "text",
    [
        *("[" * 100_000, "{" * 50_000, "<think>" * 30_000 + "</x>", '{"a":' * 3000, "`" * 30_000),
        *('{"title": "' + r"\"" * 40_000, r'Here: {"title": "' + r"\"" * 40_000 + "}"),
    ],
    ids=lambda text: text[:20],
)
def test_garbage_is_refused_quickly(text: str) -> None:
    """No text makes reading it quadratic or runs out of stack."""
    begun = time.process_time()
    with pytest.raises(EntityError):
        converter_of(Film).convert(text)
    assert time.process_time() - begun < 5


def test_only_so_many_answers_are_looked_for_in_one() -> None:
    """The last of them: a model that repeats itself does not keep anybody."""
    films = [json.dumps({"title": str(number), "year": 1}) for number in range(1000)]
    fenced = "".join(f"```\n{film}\n```\n" for film in films)

    assert len(list(json_within(fenced))) <= 100
    assert converter_of(Film).convert(fenced).title == "999"


def test_a_quote_that_never_ends_hides_no_bracket() -> None:
    """Such as that of an inch, in what is only meant to be JSON."""
    film = converter_of(Film).convert("""Here: {'title': 'a 19" screen', 'year': 1}, fine?""")

    assert film == Film(title='a 19" screen', year=1)


# --- schemas --------------------------------------------------------------------------------


def closed(schema: Any) -> bool:
    """Return whether all objects of a schema are closed and require all they have."""
    if isinstance(schema, list):
        return all(map(closed, schema))
    if not isinstance(schema, Mapping):
        return True
    if "properties" in schema:
        names = set(schema["properties"])
        if set(schema.get("required", ())) != names or schema["additionalProperties"] is not False:
            return False
    return all(map(closed, schema.values()))


@pytest.mark.parametrize("kind", [Film, Node, Point, list[Node], Film | Point, int, list[str]])
def test_the_schema_for_providers_is_strict_and_of_an_object(kind: Any) -> None:
    """What is no object itself is wrapped in one, definitions at the root."""
    schema = converter_of(kind).json_schema
    assert schema is not None

    assert schema["type"] == "object"
    assert closed(schema)
    assert schema["title"] == name_of_kind(kind)


def test_what_has_no_strict_form_is_sent_as_it_is() -> None:
    """An object with arbitrary keys cannot be closed."""
    schema = converter_of(dict[str, int]).json_schema

    assert schema == {
        "title": "dict[str, int]",
        "type": "object",
        "additionalProperties": {"type": "integer"},
    }


def test_the_format_holds_the_schema_of_the_type_itself() -> None:
    """In words, a list is a list; docstrings and recursion come along."""
    told = converter_of(Node).format
    schema = json.loads(told[told.index("{") :])

    assert schema["properties"]["value"] == {"type": "integer", "description": "What it holds."}
    assert schema["properties"]["children"]["items"] == {"$ref": "#/$defs/Node"}
    assert json.loads(converter_of(list[int]).format.partition("\n")[2])["type"] == "array"


def test_a_converter_is_made_once_for_each_type() -> None:
    """Schema and format are not computed again with every call."""
    assert converter_of(list[Film]) is converter_of(list[Film])
    assert converter_of(Film).json_schema is converter_of(Film).json_schema


def test_types_that_cannot_be_hashed_are_read_as_well() -> None:
    """What is said about a type may be a list."""
    kind = Annotated[int, Field(ge=1), ["unhashable"]]

    assert converter_of(kind).convert("1") == 1


@pytest.mark.parametrize("kind", [object(), type(lambda: None)])
def test_a_type_without_schema_is_refused(kind: Any) -> None:
    """The error comes before anything is sent."""
    with pytest.raises(UsageError, match="no model can be asked for"):
        converter_of(kind)


def test_names_of_types_have_no_modules() -> None:
    """They are shown to models and people."""
    assert name_of_kind(Film) == "Film"
    assert name_of_kind(list[Film]) == "list[Film]"
    assert name_of_kind(Film | None) == "Film | None"
    assert name_of_kind(Annotated[int, Field(ge=1)]) == "int"
    assert repr(TypeOutputConverter(list[Film])) == "TypeOutputConverter(list[Film])"


def test_cleaners_can_be_replaced() -> None:
    """An application knows its model's quirks best."""
    prefix = "ANSWER:"
    cleaners = [lambda text: text.removeprefix(prefix)]
    converter = TypeOutputConverter(int, cleaners=cleaners)

    assert converter.convert("ANSWER: 42") == 42


# --- cleaning -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("```", "```"),
        ("``````", "``````"),
        ("```````", "`"),
        ("plain", "plain"),
        ("```json\n{}\n```", "{}"),
        ("```{}```", "{}"),
        ("text ```{}``` text", "text ```{}``` text"),
        ("text ```{}```", "text ```{}```"),
        ("```{}``` text", "```{}``` text"),
    ],
)
def test_a_fence_around_everything_is_taken_away(text: str, bare: str) -> None:
    """Only one that is around all of the text, and never more than it."""
    assert without_fence(text) == bare


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("<think>a</think> b", "b"),
        ("<think>a</think><think>b</think>c", "c"),
        ("<think>a</thinking>", ""),
        ("<think>never ends", "<think>never ends"),
        ("Well, <think>a</think>b", "Well, b"),
        ("a <think>b</think>c <reasoning>d</reasoning>e", "a c e"),
        ("```thinking\na\n```\nb", "b"),
        ("a <!-- thinking: b --> c", "a c"),
        ("<think>a <!-- thinking: b", "<think>a <!-- thinking: b"),
        ("a < b", "a < b"),
        ("plain", "plain"),
    ],
)
def test_thoughts_are_taken_away(text: str, bare: str) -> None:
    """Thoughts without an end stay: nobody knows where the answer begins."""
    assert without_thoughts(text) == bare


# --- the other converters -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("", []),
        ("A, , C", ["A", "", "C"]),
        (",,", ["", "", ""]),
        ("A, B,", ["A", "B", ""]),
        ("   \t\n  ", [""]),
        ('"A, B"', ['"A', 'B"']),
        ("<think>x, y</think>a,b", ["a", "b"]),
    ],
)
def test_lists_stand_between_commas(text: str, values: list[str]) -> None:
    """Quotes mean nothing, and space around a value is dropped."""
    assert ListOutputConverter().convert(text) == values


def test_maps_take_any_object() -> None:
    """No schema is told; what is no object is refused."""
    assert MapOutputConverter().convert('```json\n{"a": [1]}\n```') == {"a": [1]}
    with pytest.raises(EntityError):
        MapOutputConverter().convert("[1]")


def test_text_needs_no_format() -> None:
    """A model answers with text anyway."""
    converter = converter_of(str)

    assert isinstance(converter, TextOutputConverter)
    assert (converter.format, converter.json_schema) == ("", None)


# --- partial values -------------------------------------------------------------------------


def parts(kind: Any, text: str) -> list[Any]:
    """Return the different values of all beginnings of *text*."""
    converter: Any = converter_of(kind)
    values: list[Any] = []
    for end in range(1, len(text) + 1):
        value = converter.partial(text[:end])
        if value is not NOTHING and (not values or value != values[-1]):
            values.append(value)
    return values


def test_a_model_grows_field_by_field() -> None:
    """Fields to come are their defaults or None; numbers appear when they are whole."""
    values = parts(Film, '{"title": "Al", "year": 1979, "cast": [{"name": "W", "born": 1949}]}')

    assert [(v.title, v.year, [(a.name, a.born) for a in v.cast]) for v in values] == [
        ("", None, []),
        ("A", None, []),
        ("Al", None, []),
        ("Al", 1979, []),
        ("Al", 1979, [(None, None)]),
        ("Al", 1979, [("", None)]),
        ("Al", 1979, [("W", None)]),
        ("Al", 1979, [("W", 1949)]),
    ]
    assert all(isinstance(value, Film) for value in values)
    assert values[0].model_fields_set == {"title"}


ADDRESS: Any = {"street": "V", "number": 1}
NODES = [
    Node(value=1),
    Node(value=1, children=[Node.model_construct(value=None)]),
    Node(value=1, children=[Node(value=2)]),
]


@dataclasses.dataclass
class Basket:
    name: str
    count: int
    items: list[str] = dataclasses.field(default_factory=list)


class Tag(BaseModel, frozen=True):
    names: list[str]
    count: int


class Points(RootModel[list[Point]]):
    """Points, without a name for them."""


class Short(BaseModel):
    code: Annotated[str, Field(max_length=2)]
    count: int


def short(code: str | None) -> Short:
    return Short.model_construct(code=code, count=None)


Grid = typing_extensions.TypeAliasType("Grid", list[Point])
WHOLE = Point(2, 1)
BARE = Point(None)  # type: ignore[arg-type]
HALF = Point(None, 1)  # type: ignore[arg-type]
GROWING: list[tuple[Any, str, list[Any]]] = [
    (Point, '{"x": 1, "y": 2}', [Point(1), Point(1, 2)]),
    (Place, '{"city": "R"}', [Place(""), Place("R")]),
    (Address, '{"street": "V", "number": 1}', [{"street": ""}, {"street": "V"}, ADDRESS]),
    (list[int], "[1, 20]", [[], [1], [1, 20]]),
    (list[int], '{"value": [1]}', [[], [1]]),
    (tuple[int, ...], "[1, 2]", [(), (1,), (1, 2)]),
    (tuple[int, str], '[1, "a"]', [(1, ""), (1, "a")]),
    (set[str], '["a"]', [set(), {""}, {"a"}]),
    (dict[str, Point], '{"a": {"x": 1}}', [{"a": Point(None)}, {"a": Point(1)}]),  # type: ignore[arg-type]
    (dict[int, str], '{"1": "a"}', [{1: ""}, {1: "a"}]),
    (Mood, '"good"', []),
    (list[Mood], '["good"]', [[], [Mood.GOOD]]),
    (int, "42", []),
    (str, "<think>no</think>yes", ["y", "ye", "yes"]),
    (Node, '{"value": 1, "children": [{"value": 2}]}', NODES),
    (Sequence[int], "[1, 2]", [[], [1], [1, 2]]),
    (list[Point | None], '[null, {"y": 1, "x": 2}]', [[], [None], [None, HALF], [None, WHOLE]]),
    (Basket, '{"name": "", "count": 1}', [Basket("", None), Basket("", 1)]),  # type: ignore[arg-type]
    (set[Tag], '[{"count": 1}]', [set()]),  # a list that has not come is empty, and has no hash
    (Points, '[{"y": 1, "x": 2}]', [Points([]), *(Points([each]) for each in (BARE, HALF, WHOLE))]),
    (Place, '["Rome"]', [Place(""), Place("R"), Place("Ro"), Place("Rom"), Place("Rome")]),
    (Annotated[list[Point], Field(max_length=3)], '[{"y": 1}]', [[], [Point(None)], [HALF]]),  # type: ignore[arg-type]
    (Film, "{no}", []),
    (Grid, '[{"y": 1}]', [[], [Point(None)], [HALF]]),  # type: ignore[arg-type]
    (list[Point] | int, '[{"y": 1}]', [[], [Point(None)], [HALF]]),  # type: ignore[arg-type]
    (Address, '{"number": 1}', [{"number": 1}]),
    (Place, '{"country": "I"}', [Place(None, ""), Place(None, "I")]),  # type: ignore[arg-type]
    (Short, '{"code": "abcd"}', [short(""), short("a"), short("ab"), short(None)]),
    (ListOutputConverter(), "a, b, c", [["a"], ["a", "b"]]),
    (MapOutputConverter(), '{"a": 1}', [{"a": 1}]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text", "values"), GROWING)
def test_every_kind_of_type_grows(kind: Any, text: str, values: list[Any]) -> None:
    """What is there fits the type, and what does not fit yet is left out."""
    assert parts(kind, text) == values


class Cat(BaseModel):
    kind: Literal["cat"]
    name: str
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str
    tricks: list[str]


def test_a_union_shows_nothing_before_its_branch_is_known() -> None:
    """A value never turns from one type into another."""
    values = parts(Cat | Dog, '{"name": "Rex", "kind": "dog", "tricks": ["sit"]}')

    assert {type(value) for value in values} == {Dog}
    assert values[0].name == "Rex"
    assert values[-1].tricks == ["sit"]


def test_fields_to_come_are_their_defaults() -> None:
    """What a field holds where it is left out, and None only where it may not be."""

    class Rated(BaseModel):
        title: str
        stars: int = 5
        year: int

    value = parts(Rated, '{"title": "A"')[-1]

    assert (value.title, value.stars, value.year) == ("A", 5, None)


def test_what_is_no_json_shows_nothing() -> None:
    """Not even where a type may be None."""
    assert parts(Point | None, '{"x" 1')[-1:] == []


def test_words_and_fences_before_the_json_show_nothing() -> None:
    """Partial values begin with the answer."""
    text = '<think>{"title": "no"}</think>Here:\n```json\n{"title": "A"}\n```'

    assert [value.title for value in parts(Film, text)] == ["", "A"]


def test_validators_that_stumble_over_half_a_value_hide_it() -> None:
    """A type's own code never breaks the stream; the whole value is validated in the end."""

    class Code(BaseModel):
        code: str
        more: str = ""

        @field_validator("code")
        @classmethod
        def second_part(cls, value: str) -> str:
            return value.split("-")[1]

    assert parts(Code, '{"code": "a-b"}')[-1].code == "b"


def test_fields_are_found_by_their_aliases() -> None:
    """JSON has the alias, Python the name."""

    class Row(BaseModel):
        row_id: int = Field(alias="rowId")
        kind: str = Field(validation_alias=AliasChoices("kind", "sort"))
        label: str

    values = parts(Row, '{"rowId": 7, "sort": "a", "label": "x"}')

    assert [(v.row_id, v.kind) for v in values][:2] == [(7, None), (7, "")]


def test_a_function_is_no_type() -> None:
    """It is refused before anything is sent."""
    with pytest.raises(UsageError, match="<lambda> is a function"):
        converter_of(lambda: 3)  # type: ignore[call-overload]  # checkers know, too


def test_what_a_converter_lacks_is_told() -> None:
    """Most easily forgotten is that there is no schema."""

    class YesOrNo:
        format = "Answer yes or no."

        def convert(self, text: str) -> bool:
            return text == "yes"

    said = r"YesOrNo has no json_schema; a converter has format, json_schema .* convert"
    with pytest.raises(UsageError, match=said):
        converter_of(YesOrNo())  # type: ignore[call-overload]  # the slip
    with pytest.raises(
        UsageError, match=r"YesOrNo is a class; pass a converter: YesOrNo\(\.\.\.\)"
    ):
        converter_of(YesOrNo)


@pytest.mark.parametrize("kind", [Film, list[Film], dict[str, int], Literal["a", "b"]])
def test_converters_pickle(kind: Any) -> None:
    """So that a response that was asked for as a value does; cleaners and schema stay."""
    converter: TypeOutputConverter[Any] = TypeOutputConverter(kind, cleaners=[without_fence])
    again = pickle.loads(pickle.dumps(converter))

    assert (again.kind, again.format) == (kind, converter.format)
    assert again.json_schema == converter.json_schema
    value = {"title": "Alien", "year": 1979}
    given = {Film: value, list[Film]: [value], dict[str, int]: {"a": 1}}.get(kind, "a")
    text = f"```json\n{json.dumps(given)}\n```"
    assert again.convert(text) == converter.convert(text)
