"""Partial values of unfinished answers."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

import pytest
from pydantic import BaseModel, Field, PrivateAttr, RootModel

from chatclient import ChatClient
from chatclient.structured.converters import converter_of
from chatclient.testing import Ask, ScriptedModel
from tests.modes.test_entity import entities
from tests.unit.structured.test_converters import Point, parts

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


@pytest.mark.feature("entity-no-structured-output-streams")
def test_missing_collections_are_empty() -> None:
    """A missing list is empty, so that loops work."""
    [*_, value] = parts(Collections, '{"ready": true')
    empty = (value.lists, value.sequences, value.tuples, value.sets, value.mappings)
    assert empty == ([], [], (), set(), {})
    assert (value.pair, value.some, value.word) == (None, None, None)
    assert parts(Basketful[int], '{"ready": true') == [Basketful(True, [], None, {})]
    assert parts(Row, '{"ready": true') == [Row(True, [])]


def test_empty_collections_are_not_shared() -> None:
    """Each partial value has its own empty collections."""
    converter: Any = converter_of(Collections)
    converter.partial('{"ready": true').lists.append(1)

    assert converter.partial('{"ready": true').lists == []


def test_generic_dataclass() -> None:
    """Items have the type argument also in partial values."""
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


def test_root_model() -> None:
    """A root model has partial values, also nested."""
    items = '[{"x": 1, "y": 2}, {"x": 3'
    ways = [[Point(None, 0)], [Point(1, 0)], [Point(1, 2)]]  # type: ignore[arg-type]
    ways.append([Point(1, 2), Point(None, 0)])  # type: ignore[arg-type]

    assert [way.root for way in parts(Way, items)] == [[], *ways]
    assert [
        walk.way and walk.way.root for walk in parts(Walk, f'{{"ready": true, "way": {items}')
    ] == [None, [], *ways]


@dataclasses.dataclass
class WithFactory:
    ready: bool
    word: str
    note: str = dataclasses.field(default_factory=lambda: "no note")


def test_dataclass_default_factory() -> None:
    """The default factory supplies missing fields."""
    assert parts(WithFactory, '{"ready": true') == [WithFactory(True, None, "no note")]  # type: ignore[arg-type]


def test_invalid_json_has_no_value() -> None:
    """Text without JSON gives no value, not None."""
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
def test_validators_that_need_complete_values(ask: Ask, kind: Any) -> None:
    """A failing validator hides partial values; the last value is given."""
    text = '{"word": "x", "title": "Alien"}'
    text = text if isinstance(kind, type) and issubclass(kind, BaseModel) else f"[{text}]"
    request = ChatClient.create(ScriptedModel(text, chunks=5)).prompt("?")
    value = entities(ask, request, kind)[-1]

    assert [each.title for each in (value if isinstance(value, set) else [value])] == ["Alien"]


def test_local_types(ask: Ask) -> None:
    """Values of local types appear when pydantic can make them."""
    text = '{"word": "x", "outer": {"inner": {"number": 2}}, "title": "Alien"}'
    request = ChatClient.create(ScriptedModel(text, chunks=5)).prompt("?")
    value = entities(ask, request, _with_local_names())[-1]

    assert (value.outer.inner.number, value.title) == (2, "Alien")


def test_values_are_distinct(ask: Ask) -> None:
    """A fragment without effect gives no value."""
    request = ChatClient.create(ScriptedModel('{ "x": 1,   "y"  :  2  }  ', chunks=1)).prompt("?")
    found = entities(ask, request, Point)

    assert found == ([Point(1), Point(1, 2)] if ask.streaming else [Point(1, 2)])


@pytest.mark.feature("entity-no-structured-output-streams")
def test_parsing_effort_is_limited() -> None:
    """A long answer is parsed for each percent of growth, with immediate first values."""
    points = [{"x": number, "y": 1949} for number in range(500)]
    text = json.dumps(points)
    stream = ChatClient.create(ScriptedModel(text, chunks=4)).prompt("?").stream()
    values = [len(value) for value in stream.entity(list[Point])]

    assert values[-1] == 500
    assert set(values) >= set(range(1, 20))
    assert len(values) < len(text) / 4 / 5
