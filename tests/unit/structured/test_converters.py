"""Converters from text to values, and their formats for the model."""

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
from pydantic import (
    AliasChoices,
    AliasPath,
    BaseModel,
    ConfigDict,
    Field,
    RootModel,
    field_validator,
)

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
from chatclient.structured.answer_cleaning import json_within
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


@pytest.mark.feature(
    "converter-bean-output-converter",
    "converter-required-rules-property-order",
    "converter-unknown-properties-ignored",
    "lc4j-entity-return-types-pojo-collection",
)
@pytest.mark.parametrize(
    ("kind", "text", "value"),
    READ,
    ids=lambda x: name_of_kind(x)[:30] if not isinstance(x, str) else x[:30],
)
def test_types(kind: Any, text: str, value: Any) -> None:
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


@pytest.mark.feature(
    "converter-thinking-tag-cleaner",
    "converter-text-around-json-fails",
    "lc4j-entity-json-extracted-surrounding-text",
)
@pytest.mark.parametrize("text", AROUND)
def test_cleaning(text: str) -> None:
    """Code fences, reasoning, prose and unambiguous errors are removed."""
    assert converter_of(Film).convert(text) == ALIEN


def test_fenced_json_wins() -> None:
    """JSON in a fence wins over JSON in prose, also before it."""
    later = '{"title": "Aliens", "year": 1986}'

    assert converter_of(Film).convert(f"```json\n{FILM}\n```\nIt is not {later}.") == ALIEN


def test_valid_json_is_not_cleaned() -> None:
    """Valid JSON is never changed, also with thinking tags in strings."""
    text = '{"title": "<think>x</think>", "year": 1}'

    assert converter_of(Film).convert(text).title == "<think>x</think>"


def test_optional_null() -> None:
    """Null of the strict form is a missing value."""
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
    (Film, '{"title": "A", "year": 1, "cast": [{"name": [3]}]}', "cast[0].name: should be a valid"),
    (Strict, '{"name": "a", "more": 1}', "more: unknown; known are name"),
    (list[Point], '{"value": [{"y": 1}]}', "[0].x: missing, but required"),
    (int, "The answer is 42.", "answer: should be a valid integer"),
    (Literal["good", "bad"], "fine", "answer: should be 'good' or 'bad'"),
]


@pytest.mark.feature(
    "converter-unknown-properties-ignored",
    "converter-failure-runtime-exception",
    "converter-empty-text-fails",
)
@pytest.mark.parametrize(("kind", "text", "line"), REFUSED)
def test_validation_error(kind: Any, text: str, line: str) -> None:
    """The error has the exact text and each problem with its path."""
    with pytest.raises(EntityError) as caught:
        converter_of(kind).convert(text)

    assert caught.value.text == text
    assert any(line in error for error in caught.value.errors), caught.value.errors
    assert name_of_kind(kind) in str(caught.value)


@pytest.mark.feature("converter-cut-off")
def test_truncated_answer() -> None:
    """Missing brackets are not added."""
    with pytest.raises(EntityError):
        converter_of(Node).convert('{"value": 1, "children": [{"value": 2}')


@pytest.mark.feature("converter-failure-runtime-exception")
def test_error_cause() -> None:
    """The pydantic error is the cause."""
    with pytest.raises(EntityError) as caught:
        converter_of(Film).convert("{}")

    assert type(caught.value.__cause__).__name__ == "ValidationError"


def test_long_answer_in_error() -> None:
    """The text is truncated in the message but complete in the attribute."""
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
def test_garbage(text: str) -> None:
    """No text takes quadratic time or exhausts the stack."""
    started = time.process_time()
    with pytest.raises(EntityError):
        converter_of(Film).convert(text)
    assert time.process_time() - started < 5


def test_candidate_limit() -> None:
    """The last candidates are tried, in a limited number."""
    films = [json.dumps({"title": str(number), "year": 1}) for number in range(1000)]
    fenced = "".join(f"```\n{film}\n```\n" for film in films)

    assert len(list(json_within(fenced))) <= 100
    assert converter_of(Film).convert(fenced).title == "999"


def test_unmatched_quote() -> None:
    """An unmatched quote, as for inches, hides no bracket."""
    film = converter_of(Film).convert("""Here: {'title': 'a 19" screen', 'year': 1}, fine?""")

    assert film == Film(title='a 19" screen', year=1)


# --- schemas --------------------------------------------------------------------------------


def closed(schema: Any) -> bool:
    """Return whether all objects of a schema are closed with all properties required."""
    if isinstance(schema, list):
        return all(map(closed, schema))
    if not isinstance(schema, Mapping):
        return True
    if "properties" in schema:
        names = set(schema["properties"])
        if set(schema.get("required", ())) != names or schema["additionalProperties"] is not False:
            return False
    return all(map(closed, schema.values()))


@pytest.mark.feature("converter-get-json-schema-map")
@pytest.mark.parametrize("kind", [Film, Node, Point, list[Node], Film | Point, int, list[str]])
def test_provider_schema(kind: Any) -> None:
    """Other types are wrapped in an object, with definitions at the root."""
    schema = converter_of(kind).json_schema
    assert schema is not None

    assert schema["type"] == "object"
    assert closed(schema)
    assert schema["title"] == name_of_kind(kind)


@pytest.mark.feature("converter-get-json-schema-map")
def test_schema_without_strict_form() -> None:
    """An object with arbitrary keys is sent unchanged."""
    schema = converter_of(dict[str, int]).json_schema

    assert schema == {
        "title": "dict[str, int]",
        "type": "object",
        "additionalProperties": {"type": "integer"},
    }


@pytest.mark.feature("converter-get-format", "converter-generate-schema-hook")
def test_format_has_the_unwrapped_schema() -> None:
    """A list is described as a list, with docstrings and recursion."""
    format_ = converter_of(Node).format
    schema = json.loads(format_[format_.index("{") :])

    assert schema["properties"]["value"] == {"type": "integer", "description": "What it holds."}
    assert schema["properties"]["children"]["items"] == {"$ref": "#/$defs/Node"}
    assert json.loads(converter_of(list[int]).format.partition("\n")[2])["type"] == "array"


@pytest.mark.feature("converter-bean-output-converter")
def test_converters_are_cached() -> None:
    """Schema and format are computed once per type."""
    assert converter_of(list[Film]) is converter_of(list[Film])
    assert converter_of(Film).json_schema is converter_of(Film).json_schema


def test_unhashable_types() -> None:
    """Types with unhashable annotations are supported."""
    kind = Annotated[int, Field(ge=1), ["unhashable"]]

    assert converter_of(kind).convert("1") == 1


@pytest.mark.parametrize("kind", [object(), type(lambda: None)])
def test_type_without_schema(kind: Any) -> None:
    """The error is raised before a request."""
    with pytest.raises(UsageError, match="no model can be asked for"):
        converter_of(kind)


def test_type_names() -> None:
    """Type names omit the module."""
    assert name_of_kind(Film) == "Film"
    assert name_of_kind(list[Film]) == "list[Film]"
    assert name_of_kind(Film | None) == "Film | None"
    assert name_of_kind(Annotated[int, Field(ge=1)]) == "int"
    assert repr(TypeOutputConverter(list[Film])) == "TypeOutputConverter(list[Film])"


@pytest.mark.feature("converter-composite-response-text-cleaner")
def test_custom_cleaners() -> None:
    """Cleaners can be replaced."""
    prefix = "ANSWER:"
    cleaners = [lambda text: text.removeprefix(prefix)]
    converter = TypeOutputConverter(int, cleaners=cleaners)

    assert converter.convert("ANSWER: 42") == 42


# --- cleaning -------------------------------------------------------------------------------


@pytest.mark.feature("converter-markdown-code-block-cleaner")
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
def test_code_fence(text: str, bare: str) -> None:
    """Only a fence around the complete text is removed."""
    assert without_fence(text) == bare


@pytest.mark.feature("converter-thinking-tag-cleaner")
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
def test_thinking_tags(text: str, bare: str) -> None:
    """Reasoning is removed, except without an end tag."""
    assert without_thoughts(text) == bare


# --- the other converters -------------------------------------------------------------------


@pytest.mark.feature("converter-list-output-converter")
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
def test_list_converter(text: str, values: list[str]) -> None:
    """Values are separated by commas and stripped; quotes have no meaning."""
    assert ListOutputConverter().convert(text) == values


@pytest.mark.feature("converter-map-output-converter")
def test_map_converter() -> None:
    """Any object is accepted, without a schema."""
    assert MapOutputConverter().convert('```json\n{"a": [1]}\n```') == {"a": [1]}
    with pytest.raises(EntityError):
        MapOutputConverter().convert("[1]")


def test_string_converter() -> None:
    """Text has no format instructions."""
    converter = converter_of(str)

    assert isinstance(converter, TextOutputConverter)
    assert (converter.format, converter.json_schema) == ("", None)


# --- partial values -------------------------------------------------------------------------


def parts(kind: Any, text: str) -> list[Any]:
    """Return the distinct values of all prefixes of *text*."""
    converter: Any = converter_of(kind)
    values: list[Any] = []
    for end in range(1, len(text) + 1):
        value = converter.partial(text[:end])
        if value is not NOTHING and (not values or value != values[-1]):
            values.append(value)
    return values


@pytest.mark.feature("entity-no-structured-output-streams")
def test_partial_model() -> None:
    """Missing fields have defaults or None; numbers appear when complete."""
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
    """A type alias without a name."""


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
    (set[Tag], '[{"count": 1}]', [set()]),  # a missing list is empty, which is not hashable
    (Points, '[{"y": 1, "x": 2}]', [Points([]), *(Points([each]) for each in (BARE, HALF, WHOLE))]),
    (Place, '["Rome"]', [Place(""), Place("R"), Place("Ro"), Place("Rom"), Place("Rome")]),
    (Annotated[list[Point], Field(max_length=3)], '[{"y": 1}]', [[], [Point(None)], [HALF]]),  # type: ignore[arg-type]
    (list[Annotated[int, {"unit": "m"}]], "[5, 6]", [[], [5], [5, 6]]),  # the type is not hashable
    (Film, "{no}", []),
    (Grid, '[{"y": 1}]', [[], [Point(None)], [HALF]]),  # type: ignore[arg-type]
    (list[Point] | int, '[{"y": 1}]', [[], [Point(None)], [HALF]]),  # type: ignore[arg-type]
    (Address, '{"number": 1}', [{"number": 1}]),
    (Place, '{"country": "I"}', [Place(None, ""), Place(None, "I")]),  # type: ignore[arg-type]
    (Short, '{"code": "abcd"}', [short(""), short("a"), short("ab"), short(None)]),
    (ListOutputConverter(), "a, b, c", [["a"], ["a", "b"]]),
    (MapOutputConverter(), '{"a": 1}', [{"a": 1}]),
]  # fmt: skip


@pytest.mark.feature("entity-no-structured-output-streams")
@pytest.mark.parametrize(("kind", "text", "values"), GROWING)
def test_partial_types(kind: Any, text: str, values: list[Any]) -> None:
    """A partial value fits the type, without values that do not fit yet."""
    assert parts(kind, text) == values


class Cat(BaseModel):
    kind: Literal["cat"]
    name: str
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str
    tricks: list[str]


def test_partial_union() -> None:
    """A union has no value before its member is known."""
    values = parts(Cat | Dog, '{"name": "Rex", "kind": "dog", "tricks": ["sit"]}')

    assert {type(value) for value in values} == {Dog}
    assert values[0].name == "Rex"
    assert values[-1].tricks == ["sit"]


def test_partial_defaults() -> None:
    """Missing fields have their default, or None if they are required."""

    class Rated(BaseModel):
        title: str
        stars: int = 5
        year: int

    value = parts(Rated, '{"title": "A"')[-1]

    assert (value.title, value.stars, value.year) == ("A", 5, None)


def test_partial_of_invalid_json() -> None:
    """Invalid JSON has no partial value, also where None is valid."""
    assert parts(Point | None, '{"x" 1')[-1:] == []


def test_partial_with_prose_and_fences() -> None:
    """Partial values start with the JSON."""
    text = '<think>{"title": "no"}</think>Here:\n```json\n{"title": "A"}\n```'

    assert [value.title for value in parts(Film, text)] == ["", "A"]


def test_partial_with_failing_validators() -> None:
    """A validator that fails on a partial value hides it."""

    class Code(BaseModel):
        code: str
        more: str = ""

        @field_validator("code")
        @classmethod
        def second_part(cls, value: str) -> str:
            return value.split("-")[1]

    assert parts(Code, '{"code": "a-b"}')[-1].code == "b"


def test_partial_aliases() -> None:
    """JSON uses the alias, Python the name."""

    class Row(BaseModel):
        row_id: int = Field(alias="rowId")
        kind: str = Field(validation_alias=AliasChoices("kind", "sort"))
        label: str

    values = parts(Row, '{"rowId": 7, "sort": "a", "label": "x"}')

    assert [(v.row_id, v.kind) for v in values][:2] == [(7, None), (7, "")]


def test_alias_paths() -> None:
    """The schema has the place that a field is read from, in the answer and in its beginning."""

    class Place(BaseModel):
        city: str = Field(validation_alias=AliasPath("address", "city"))
        code: int = Field(validation_alias=AliasPath("address", "codes", 0))

    text = '{"address": {"city": "Rome", "codes": [12]}}'
    address = converter_of(Place).json_schema["properties"]["address"]  # type: ignore[index]

    assert address["required"] == ["city", "codes"]
    assert address["properties"]["city"] == {"type": "string"}
    assert converter_of(Place).convert(text).code == 12
    assert [(v.city, v.code) for v in parts(Place, text)][-1] == ("Rome", 12)


def test_function_instead_of_type() -> None:
    """A function is rejected before a request."""
    with pytest.raises(UsageError, match="<lambda> is a function"):
        converter_of(lambda: 3)  # type: ignore[call-overload]  # checkers know, too


def test_incomplete_custom_converter() -> None:
    """The error names the missing attribute."""

    class YesOrNo:
        format = "Answer yes or no."

        def convert(self, text: str) -> bool:
            return text == "yes"

    message = r"YesOrNo has no json_schema; a converter has format, json_schema .* convert"
    with pytest.raises(UsageError, match=message):
        converter_of(YesOrNo())  # type: ignore[call-overload]  # the mistake
    with pytest.raises(
        UsageError, match=r"YesOrNo is a class; pass a converter: YesOrNo\(\.\.\.\)"
    ):
        converter_of(YesOrNo)


@pytest.mark.parametrize("kind", [Film, list[Film], dict[str, int], Literal["a", "b"]])
def test_pickle(kind: Any) -> None:
    """A pickled converter keeps cleaners and schema."""
    converter: TypeOutputConverter[Any] = TypeOutputConverter(kind, cleaners=[without_fence])
    again = pickle.loads(pickle.dumps(converter))

    assert (again.kind, again.format) == (kind, converter.format)
    assert again.json_schema == converter.json_schema
    value = {"title": "Alien", "year": 1979}
    given = {Film: value, list[Film]: [value], dict[str, int]: {"a": 1}}.get(kind, "a")
    text = f"```json\n{json.dumps(given)}\n```"
    assert again.convert(text) == converter.convert(text)
