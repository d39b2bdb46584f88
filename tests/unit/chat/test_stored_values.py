"""The JSON form of what is stored."""

import json
import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel

from chatclient import AssistantMessage, Media, ToolCall, ToolResponse, Usage, UserMessage
from chatclient.chat import register_stored_type
from chatclient.chat.document import Document
from chatclient.chat.stored_values import _MODULES, equal_form, from_stored, to_stored
from chatclient.errors import UsageError
from tests.support.paths import ROOT

LOADED = ("chatclient.chat.stored_values", "chatclient.chat.serialization")
MOMENT = datetime(2026, 11, 28, 12, 30, tzinfo=UTC)


def as_json(value: Any) -> Any:
    """Return *value* after a round trip through JSON text."""
    return from_stored(json.loads(json.dumps(to_stored({"it": value}), allow_nan=False)))["it"]


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 1, 1.5, "text", [1, [2]], {"a": {"b": 1}}),
        *((1, (2, "x")), {1, 2}, frozenset({"a"}), b"\x00\xff"),
        *(MOMENT, date(2026, 11, 28), time(12, 30), timedelta(days=1, seconds=0.5)),
        *(Decimal("1.10"), UUID(int=5), {"$type": "tuple", "value": [1]}),
        *(ToolCall("1", "look", "{}"), ToolResponse("1", "look", "ok", metadata={"at": MOMENT})),
        *(UserMessage("hi", metadata={"price": Decimal(1)}), AssistantMessage("ho", id="7")),
        *(Media("image/png", b"png"), Usage(1, 2)),
        Document("text", {"tags": ("a",)}, "1", 0.5),
    ],
    ids=lambda value: type(value).__name__,
)
def test_reads_what_was_stored(value: Any) -> None:
    """A value is read as an equal one of the same type, also inside of others."""
    for stored in (value, [value], {"key": (value,)}):
        read = as_json(stored)
        assert read == stored
        assert type(read) is type(stored)
    assert from_stored(equal_form(value)) == value


def test_types_of_edges_are_found() -> None:
    """What a module registers when it is loaded is read before: the core names the module."""
    places = {}
    for file in (ROOT / "chatclient").rglob("*.py"):
        module = ".".join(file.relative_to(ROOT).with_suffix("").parts)
        for kind in re.findall(
            r'^register_stored_type\(\s*\w+,\s+"([^"]+)"', file.read_text("utf-8"), re.MULTILINE
        ):
            places[kind] = module
    late = {kind: module for kind, module in places.items() if module not in LOADED}

    assert len(late) > 5
    assert late == _MODULES


class Color(Enum):
    """An enum."""

    RED = "red"


@dataclass
class Point:
    """A dataclass."""

    x: int
    where: Any = None


class Model(BaseModel):
    """A pydantic model."""

    since: date


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Color.RED, "red"),
        (Point(1, [Point(2)]), {"x": 1, "where": [{"x": 2, "where": None}]}),
        (Model(since=date(2026, 1, 2)), {"since": "2026-01-02"}),
        (Path("/tmp/x"), "/tmp/x"),
        (float("nan"), None),
        ({1: "one"}, {"1": "one"}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_types_become_plain_values(value: Any, plain: Any) -> None:
    """A type that is not registered is read as what it consists of: nothing is made by name."""
    assert as_json(value) == plain
    assert equal_form(value) is None


@dataclass(frozen=True)
class Money:
    """A type of an application."""

    cents: int


def test_registered_type() -> None:
    """A type that the application registers is read as itself; without its class, as its parts."""
    register_stored_type(
        Money, "tests money", lambda it: {"cents": it.cents}, lambda it: Money(**it)
    )
    register_stored_type(
        Money, "tests money", lambda it: {"cents": it.cents}, lambda it: Money(**it)
    )

    assert as_json({"price": Money(5)}) == {"price": Money(5)}
    stored = json.loads(json.dumps(to_stored({"it": Money(5)})).replace("tests money", "gone"))
    assert from_stored(stored)["it"] == {"cents": 5}
    with pytest.raises(UsageError, match="tests money"):
        register_stored_type(Point, "tests money", vars, lambda it: Point(**it))


class Refuses:
    """A value whose attributes raise."""

    def __getattr__(self, name: str) -> Any:
        raise LookupError(name)


def test_values_without_a_form_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """They are named in the record, and logged once; everything else is stored."""
    loop: dict[str, Any] = {"kept": 1}
    loop["itself"] = loop
    record = {
        "metadata": {"connection": object(), "at": MOMENT, "rows": [1, Refuses(), iter([1])]},
        "point": Point(1, open),
        "loop": loop,
    }
    to_stored(record)
    stored = to_stored(record)

    read = from_stored(json.loads(json.dumps(stored)))
    assert read["metadata"] == {"at": MOMENT, "rows": [1, None, None]}
    assert read["point"] == {"x": 1}
    assert read["loop"]["itself"]["kept"] == 1
    named = {
        "metadata.connection": "builtins.object",
        "metadata.rows[1]": f"{__name__}.Refuses",
        "metadata.rows[2]": "builtins.list_iterator",
        "point.where": "builtins.builtin_function_or_method",
    }
    assert named.items() <= stored["left_out"].items()
    assert caplog.text.count("metadata.connection") == 1


@pytest.mark.parametrize(
    "value",
    [
        {"$type": "decimal", "value": "many"},
        {"$type": "uuid", "value": 5},
        {"$type": "document", "value": {"txt": "x"}},
        {"$type": "user message", "value": {"role": "user"}},
        {"$type": "tuple", "value": 5},
    ],
    ids=lambda value: value["$type"],
)
def test_invalid_values_are_refused(value: Any) -> None:
    """An invalid record raises a `ValueError`."""
    with pytest.raises(ValueError, match=r"."):
        from_stored({"it": value})
