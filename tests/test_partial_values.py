"""Values of unfinished answers: what is there from the first one on, and whose code may fail."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

import pytest
from conftest import Ask
from pydantic import BaseModel, Field, PrivateAttr, RootModel
from test_entities import entities
from test_structured_converters import Point, parts

from chatclient import ChatClient
from chatclient.structured.converters import converter_of
from chatclient.testing import ScriptedModel

T = TypeVar("T")


class Collections(BaseModel):
    ready: bool
    lists: list[int]
    sequences: Sequence[int]
    tuples: tuple[int, ...]
    sets: set[int]
    mappings: Annotated[Mapping[str, int], Field(max_length=3)]
    pair: tuple[int, int]
    some: list[int] | None
    word: str


@dataclasses.dataclass
class Basketful(Generic[T]):
    ready: bool
    lists: list[T]
    other: T
    by_name: dict[str, list[T | None]]


class Row(NamedTuple):
    ready: bool
    lists: list[int]


def test_collections_that_are_still_to_come_are_empty() -> None:
    """Where the type says list, a loop over it works from the first value on."""
    [*_, value] = parts(Collections, '{"ready": true')
    empty = (value.lists, value.sequences, value.tuples, value.sets, value.mappings)
    assert empty == ([], [], (), set(), {})
    assert (value.pair, value.some, value.word) == (None, None, None)
    assert parts(Basketful[int], '{"ready": true') == [Basketful(True, [], None, {})]
    assert parts(Row, '{"ready": true') == [Row(True, [])]


def test_each_value_has_empty_collections_of_its_own() -> None:
    """Whoever fills one finds the next one empty."""
    converter: Any = converter_of(Collections)
    converter.partial('{"ready": true').lists.append(1)

    assert converter.partial('{"ready": true').lists == []


def test_items_of_a_generic_dataclass_are_what_its_argument_says() -> None:
    """Also before the whole is valid."""
    text = '{"ready": true, "lists": [{"y": 1}, {"y": 2}], "by_name": {"a": [{"y": 3}, null]}'
    text += ', "other": {"y": 4}'
    value = parts(Basketful[Point], text)[-1]

    assert value.lists == [Point(None, 1), Point(None, 2)]  # type: ignore[arg-type]
    assert value.by_name == {"a": [Point(None, 3), None]}  # type: ignore[arg-type]
    assert value.other == Point(None, 4)  # type: ignore[arg-type]


class Way(RootModel[Annotated[list[Point], Field(min_length=2)]]):
    pass


class Walk(BaseModel):
    ready: bool
    way: Way


def test_a_root_model_grows_with_what_it_holds() -> None:
    """Also as a part of something else; what was there does not go away again."""
    items = '[{"x": 1, "y": 2}, {"x": 3'
    ways = [[Point(None, 0)], [Point(1, 0)], [Point(1, 2)]]  # type: ignore[arg-type]
    ways.append([Point(1, 2), Point(None, 0)])  # type: ignore[arg-type]

    assert [way.root for way in parts(Way, items)] == [[], *ways]
    assert [
        walk.way and walk.way.root for walk in parts(Walk, f'{{"ready": true, "way": {items}')
    ] == [None, [], *ways]


@dataclasses.dataclass
class Noted:
    ready: bool
    word: str
    note: str = dataclasses.field(default_factory=lambda: "no note")


def test_what_makes_the_default_of_a_dataclass_is_asked() -> None:
    """As for any other default: the field is not None while it is still to come."""
    assert parts(Noted, '{"ready": true') == [Noted(True, None, "no note")]  # type: ignore[arg-type]


def test_what_is_no_json_is_no_value_yet() -> None:
    """Nor is it None, where that would be one."""
    assert parts(Point | None, "{oops") == []


class Slugged(BaseModel):
    word: str
    title: str
    _slug: str = PrivateAttr("")

    def model_post_init(self, context: Any) -> None:
        self._slug = self.title.lower()


class Derived(BaseModel):
    word: str
    title: str
    slug: str = Field(default_factory=lambda values: values["title"].lower())


class Choosy(BaseModel, frozen=True):
    word: str
    title: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Choosy) and self.title.lower() == other.title.lower()

    def __hash__(self) -> int:
        return hash(self.title.lower())


def _with_local_names() -> type[BaseModel]:
    @dataclasses.dataclass
    class Inner:
        number: int

    @dataclasses.dataclass
    class Outer:
        inner: "Inner"

    class Whole(BaseModel):
        word: str
        outer: Outer
        title: str

    return Whole


@pytest.mark.parametrize("kind", [Slugged, Derived, Choosy, set[Choosy]])
def test_code_that_wants_whole_values_does_not_break_a_stream(ask: Ask, kind: Any) -> None:
    """What fails on half a value hides it, whatever it is; the last value comes."""
    text = '{"word": "x", "title": "Alien"}'
    text = text if isinstance(kind, type) and issubclass(kind, BaseModel) else f"[{text}]"
    request = ChatClient.create(ScriptedModel(text, chunks=5)).prompt("?")
    value = entities(ask, request, kind)[-1]

    assert [each.title for each in (value if isinstance(value, set) else [value])] == ["Alien"]


def test_types_whose_names_are_local_do_not_break_a_stream(ask: Ask) -> None:
    """Their parts come as soon as pydantic can make them."""
    text = '{"word": "x", "outer": {"inner": {"number": 2}}, "title": "Alien"}'
    request = ChatClient.create(ScriptedModel(text, chunks=5)).prompt("?")
    value = entities(ask, request, _with_local_names())[-1]

    assert (value.outer.inner.number, value.title) == (2, "Alien")


def test_no_value_comes_twice(ask: Ask) -> None:
    """Where a piece adds nothing to it, nor at the end."""
    request = ChatClient.create(ScriptedModel('{ "x": 1,   "y"  :  2  }  ', chunks=1)).prompt("?")
    found = entities(ask, request, Point)

    assert found == ([Point(1), Point(1, 2)] if ask.streaming else [Point(1, 2)])


def test_a_long_answer_is_not_read_anew_for_every_piece() -> None:
    """Values come for one per cent more of it, and nothing of its beginning is held back."""
    points = [{"x": number, "y": 1949} for number in range(500)]
    text = json.dumps(points)
    stream = ChatClient.create(ScriptedModel(text, chunks=4)).prompt("?").stream()
    values = [len(value) for value in stream.entity(list[Point])]

    assert values[-1] == 500
    assert set(values) >= set(range(1, 20))
    assert len(values) < len(text) / 4 / 5
