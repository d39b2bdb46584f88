"""Turns that have ended are deleted after some time, and those that wait never."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from chatclient import ChatClient, tool
from chatclient.durable import durable, launch
from chatclient.durable.events import segment_id, segments_until, turn_id
from chatclient.errors import UsageError
from chatclient.testing import ScriptedModel, call
from chatclient.tools import ToolApproval, ToolCallingManager
from tests.support.turn_databases import KINDS, run_sql, turn_database
from tests.support.waiting import settled


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with turn_database(request.param, tmp_path) as found:
        yield found


@tool
def refund(order: int) -> str:
    """Refund an order."""
    return f"order {order} was refunded"


def test_ended_turns_are_deleted(url: str) -> None:
    """Ended turns go with all of their segments; recent ones and those that wait stay."""
    needs, fails = call("refund", {"order": 1}), OSError("away")
    model = ScriptedModel("Hi.", needs, "Done.", needs, fails, "Recent.")
    manager = ToolCallingManager(interceptors=[ToolApproval()])
    builder = ChatClient.builder(model).default_tools(refund).tool_calling_manager(manager)
    client = durable(builder.build(), name=uuid4().hex)
    with launch(url) as engine:
        answered = client.start("Hello")
        answered.result()
        decided = client.start("Refund", key="#2")
        decided.result()
        decided.decide("approve")
        decided.result()
        waiting = client.start("Refund")
        waiting.result()
        failed = client.start("Hello")
        with pytest.raises(OSError, match="away"):
            failed.result()
        old = "update {dbos}workflow_status set completed_at = completed_at - 86400000"
        run_sql(url, old)
        recent = client.start("Hello")
        recent.result()
    with launch(url, keep=timedelta(hours=1)) as engine:
        assert settled(lambda: len(engine.workflows()) == 2)

        assert {each.workflow_id for each in engine.workflows()} == {waiting.id, recent.id}
        turn = client.turn(waiting.id)
        assert turn.status().state == "waiting"


def test_deletion_that_fails_is_retried(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Turns that could not be deleted are deleted later."""
    url = f"sqlite:///{tmp_path / 'turns.db'}"
    client = durable(ChatClient.create(ScriptedModel("Hi.")), name=uuid4().hex)
    with launch(url):
        client.call("Hello")
    run_sql(
        url,
        "create trigger kept before delete on workflow_status"
        " begin select raise(abort, 'not now'); end",
    )
    with launch(url, keep=timedelta(seconds=0.1)) as engine:
        assert settled(lambda: "ended turns not deleted" in caplog.text)
        assert len(engine.workflows()) == 1
        run_sql(url, "drop trigger kept")

        assert settled(lambda: not engine.workflows())


def test_ids_of_segments() -> None:
    """The segments of a turn are found from the last one, whatever its key is."""
    for key in ("a", "a#2", "#", "2", "#2#"):
        id = turn_id("client", key)
        assert segments_until(segment_id(id, 1)) == [id]
        assert segments_until(segment_id(id, 3)) == [id, f"{id}#2", f"{id}#3"]


def test_invalid_time(tmp_path: Path) -> None:
    """Turns cannot be kept for a negative time."""
    with pytest.raises(UsageError, match="keep"):
        launch(f"sqlite:///{tmp_path / 'turns.db'}", keep=timedelta(days=-1))
