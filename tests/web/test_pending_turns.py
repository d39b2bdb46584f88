"""The stores of turns that wait, each with the same contract."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from chatclient.testing import ScriptedModel, call
from chatclient.tools import PendingTurn
from chatclient.web import InMemoryPendingTurns, SqlPendingTurns
from tests.support.databases import SQL_KINDS, sql_place
from tests.support.web_app import travel_client


@pytest.fixture(params=["memory", *SQL_KINDS])
def turns(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "memory":
        yield InMemoryPendingTurns()
        return
    with sql_place(request.param, tmp_path) as (url, prefix):
        engine = sa.create_engine(url, poolclass=sa.NullPool)
        yield SqlPendingTurns(engine, f"{prefix}pending")
        engine.dispose()


def waiting_turn(number: str) -> PendingTurn:
    booking = call("book_train", {"number": number}, id="call_9")
    response = travel_client(ScriptedModel([booking])).prompt("Book " + "x" * 70_000).call()
    turn = response.pending_turn()
    assert turn is not None
    return turn


def test_contract(turns: Any) -> None:
    """A conversation has one turn, which one caller takes."""
    one, other = waiting_turn("IC 1"), waiting_turn("IC 3")

    assert turns.get("c1") is None
    assert turns.put("c1", one)
    assert turns.get("C1") is None
    assert turns.put("long" * 100, other)
    assert not turns.put("c1", other)
    assert turns.put("c2", other)
    assert turns.get("c1") == one
    assert not turns.take("c1", other)
    assert turns.take("c1", turns.get("c1"))
    assert not turns.take("c1", one)
    assert turns.get("c1") is None
    assert turns.get("c2") == other
    assert turns.put("c1", other)


def test_maximum_in_memory() -> None:
    """The oldest turn is dropped."""
    turns = InMemoryPendingTurns(maximum=1)
    turns.put("c1", waiting_turn("IC 1"))
    turns.put("c2", waiting_turn("IC 1"))

    assert turns.get("c1") is None
    assert turns.get("c2") is not None
