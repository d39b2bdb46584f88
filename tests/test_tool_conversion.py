"""What tools return, as models are told it."""

import dataclasses
import enum
import json
import math
import uuid
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from parameters import named
from pydantic import BaseModel, Field

from chatclient.messages import Media
from chatclient.tool import ToolResult
from chatclient.tools.conversion import to_tool_result

IMAGE = Media("image/png", b"\x89PNG")


class Colour(enum.Enum):
    RED = "red"


class Unit(enum.StrEnum):
    METRE = "m"


class Item(BaseModel):
    name: str
    price: Decimal = Field(serialization_alias="cost")


@dataclasses.dataclass
class Point:
    x: int
    y: float | None = None


def test_nothing_is_done() -> None:
    """A tool that is declared to return nothing has done its work."""
    assert to_tool_result(None, returns_nothing=True) == ToolResult("Done")


def test_none_is_null() -> None:
    """None from a tool that could have returned something is an answer."""
    assert to_tool_result(None) == ToolResult("null")


def test_a_value_despite_the_declaration_is_told() -> None:
    """A tool that returns something after all is believed more than its annotation."""
    assert to_tool_result(3, returns_nothing=True) == ToolResult("3")


@pytest.mark.parametrize("text", ["", "sunny", '{"a": 1}', '"quoted"', "3 results", "\ud800", "é"])
def test_text_stays_as_it_is(text: str) -> None:
    """A string is never quoted, escaped or changed."""
    assert to_tool_result(text) == ToolResult(text)


def test_an_enum_of_text_is_text() -> None:
    """A string that is also an enum member is told as the string."""
    assert to_tool_result(Unit.METRE) == ToolResult("m")
    assert type(to_tool_result(Unit.METRE).text) is str


def test_a_result_stays_as_it_is() -> None:
    """A tool may make its result itself."""
    result = ToolResult("no", is_error=True)

    assert to_tool_result(result) is result


def test_media_go_beside_the_text() -> None:
    """Media alone, or among other things, are handed over as media; the rest is joined."""
    assert to_tool_result(IMAGE) == ToolResult("", (IMAGE,))
    assert to_tool_result(["a chart", IMAGE, {"x": 1}]) == ToolResult('a chart\n{"x":1}', (IMAGE,))
    assert to_tool_result((IMAGE, IMAGE)) == ToolResult("", (IMAGE, IMAGE))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (12, "12"),
        (1.5, "1.5"),
        (math.inf, '"Infinity"'),
        (math.nan, '"NaN"'),
        ([], "[]"),
        ({}, "{}"),
        ([1, "a", None], '[1,"a",null]'),
        ((1, 2), "[1,2]"),
        ({3}, "[3]"),
        (frozenset({3}), "[3]"),
        ({"a": {"b": [Point(1)]}}, '{"a":{"b":[{"x":1,"y":null}]}}'),
        (Item(name="tea", price=Decimal("1.10")), '{"name":"tea","cost":"1.10"}'),
        ([Item(name="tea", price=Decimal(2))], '[{"name":"tea","cost":"2"}]'),
        (Point(1, 2.5), '{"x":1,"y":2.5}'),
        (Colour.RED, '"red"'),
        ({Colour.RED: 1}, '{"red":1}'),
        (date(2024, 1, 2), '"2024-01-02"'),
        (datetime(2024, 1, 2, tzinfo=UTC), '"2024-01-02T00:00:00Z"'),
        (timedelta(hours=1), '"PT1H"'),
        (uuid.UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        (Decimal("1.10"), '"1.10"'),
        (Path("/tmp"), '"/tmp"'),
        ((n for n in range(2)), "[0,1]"),
        ("é" * 3, "ééé"),
        ({"a": "é"}, '{"a":"é"}'),
        (b"text", "text"),
        (bytearray(b"text"), "text"),
        ({"a": b"text"}, '{"a":"text"}'),
    ],
    ids=named,
)
def test_everything_else_is_compact_json(value: Any, text: str) -> None:
    """Whatever pydantic can write is told as JSON without spaces."""
    assert to_tool_result(value) == ToolResult(text)


def test_half_a_surrogate_pair_is_escaped() -> None:
    """Names of files that are no Unicode are JSON all the same."""
    result = to_tool_result(["\udc80"])

    assert json.loads(result.text) == ["\udc80"]


class Unknown:
    pass


async def forgotten() -> None:
    """Stand for a coroutine that was never awaited."""


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (Unknown(), "Unknown"),
        ([Unknown()], "Unknown"),
        ({"a": Unknown()}, "Unknown"),
        (Unknown, "type"),
        (b"\x89PNG", "bytes"),
        ({"image": IMAGE}, "dict"),
        ([IMAGE, Unknown()], "Unknown"),
        (object(), "object"),
        ({"a": [Unknown(), "\udc80"]}, "Unknown"),
    ],
    ids=named,
)
def test_what_has_no_json_form_is_refused(value: Any, name: str) -> None:
    """The error names the type and the way out."""
    with pytest.raises(TypeError, match=rf"(?s){name}.*Media.*result_converter"):
        to_tool_result(value)


def test_a_forgotten_await_is_named() -> None:
    """A coroutine is no result."""
    coroutine = forgotten()
    try:
        with pytest.raises(TypeError, match="coroutine"):
            to_tool_result(coroutine)
    finally:
        coroutine.close()
