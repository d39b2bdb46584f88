"""Conversion of return values to tool results."""

import dataclasses
import enum
import json
import math
import os
import uuid
from collections import UserDict
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from pydantic import BaseModel, Field

from chatclient.chat.messages import Media
from chatclient.chat.tool import ToolResult
from chatclient.tools.function.result import to_tool_result
from tests.support.parameters import named

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


@pytest.mark.feature(
    "function-consumer-returns-null",
    "result-void-gives-done-quoted",
    "lc4j-tool-void-result-success",
)
def test_declared_none() -> None:
    """A tool declared to return nothing gives "Done"."""
    assert to_tool_result(None, returns_nothing=True) == ToolResult("Done")


@pytest.mark.feature("result-null-gives", "lc4j-tool-null-result")
def test_undeclared_none() -> None:
    """None of another tool is null."""
    assert to_tool_result(None) == ToolResult("null")


def test_value_despite_declared_none() -> None:
    """A value is used despite a declared None."""
    assert to_tool_result(3, returns_nothing=True) == ToolResult("3")


@pytest.mark.feature(
    "result-strings-quoted-unless-they", "result-empty-text-stays", "lc4j-blank-result-text-legal"
)
@pytest.mark.parametrize("text", ["", "sunny", '{"a": 1}', '"quoted"', "3 results", "\ud800", "é"])
def test_text(text: str) -> None:
    """Strings are unchanged."""
    assert to_tool_result(text) == ToolResult(text)


def test_string_enum() -> None:
    """A string enum member is its string."""
    assert to_tool_result(Unit.METRE) == ToolResult("m")
    assert type(to_tool_result(Unit.METRE).text) is str


@pytest.mark.feature("result-made-hand")
def test_tool_result() -> None:
    """A `ToolResult` is returned unchanged."""
    result = ToolResult("no", is_error=True)

    assert to_tool_result(result) is result


@pytest.mark.feature(
    "result-rendered-image-becomes-base64",
    "lc4j-tool-execution-result-message",
    "lc4j-tool-image-result",
    "lc4j-tool-text-contents-exclusively",
)
def test_media() -> None:
    """Media are separated from the text."""
    assert to_tool_result(IMAGE) == ToolResult("", (IMAGE,))
    assert to_tool_result(["a chart", IMAGE, {"x": 1}]) == ToolResult('a chart\n{"x":1}', (IMAGE,))
    assert to_tool_result((IMAGE, IMAGE)) == ToolResult("", (IMAGE, IMAGE))


@pytest.mark.feature("result-everything-else-compact-json")
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
def test_other_values(value: Any, text: str) -> None:
    """Other values are compact JSON by pydantic."""
    assert to_tool_result(value) == ToolResult(text)


def test_lone_surrogate() -> None:
    """A lone surrogate, as in file names, is escaped."""
    result = to_tool_result(["\udc80"])

    assert json.loads(result.text) == ["\udc80"]


def test_surrogate_beside_other_types() -> None:
    """Text that is not Unicode does not restrict the types of other values."""
    value = {"file": os.fsdecode(b"caf\xe9"), "changed": date(2024, 1, 2), "size": math.inf}

    assert json.loads(to_tool_result(value).text) == {
        "file": "caf\udce9",
        "changed": "2024-01-02",
        "size": "Infinity",
    }


class QuerySet:
    """A sized iterable without further methods, as of Django."""

    def __init__(self, *rows: Any) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (range(3), "[0,1,2]"),
        ({"a": 1}.keys(), '["a"]'),
        ({"a": 1}.items(), '[["a",1]]'),
        (MappingProxyType({"a": date(2024, 1, 2)}), '{"a":"2024-01-02"}'),
        (UserDict(a=1), '{"a":1}'),
        (QuerySet({"a": 1}, Point(1)), '[{"a":1},{"x":1,"y":null}]'),
        ([QuerySet("\udc80")], '[["\\udc80"]]'),
    ],
    ids=named,
)
def test_collections(value: Any, text: str) -> None:
    """Mappings and sized iterables that pydantic does not know."""
    assert to_tool_result(value).text == text


def test_numpy_values() -> None:
    """Arrays and numbers of numpy."""
    numpy = pytest.importorskip("numpy")
    value = {
        "scalar": numpy.float32(1.5),
        numpy.int64(1): numpy.bool_(True),
        "rows": numpy.array([[1, 2], [3, 4]]),
        "missing": numpy.array([numpy.nan]),
        "day": numpy.datetime64("2024-01-02"),
    }

    assert json.loads(to_tool_result(value).text) == {
        "scalar": 1.5,
        "1": True,
        "rows": [[1, 2], [3, 4]],
        "missing": ["NaN"],
        "day": "2024-01-02",
    }


class Unknown:
    pass


async def unawaited() -> None:
    """A substitute for a coroutine that is never awaited."""


@pytest.mark.feature("result-converter-called-outside-error")
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
def test_unserialisable_value(value: Any, name: str) -> None:
    """The error names the type and a fix."""
    with pytest.raises(TypeError, match=rf"(?s){name}.*Media.*result_converter"):
        to_tool_result(value)


def test_missing_await() -> None:
    """A coroutine as result raises."""
    coroutine = unawaited()
    try:
        with pytest.raises(TypeError, match="coroutine"):
            to_tool_result(coroutine)
    finally:
        coroutine.close()
