"""What durable turns read from their database: JSON only."""

import base64
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from chatclient import ChatClient, tool
from chatclient.durable import DurableClient, TurnQueue, connect, durable, launch
from chatclient.errors import AuthenticationError, DurableTurnError
from chatclient.testing import ScriptedModel, call
from chatclient.tools import ToolApproval, ToolCallingManager
from tests.support.turn_databases import KINDS, run_sql, turn_database
from tests.support.waiting import settled


@tool
def refund(order: int) -> str:
    """Refund an order."""
    return f"refunded {order}"


class _Trap:
    """A value that creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self.path,)


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """Return a file that exists when the pickle in `trap.with_suffix(".pickle")` was loaded."""
    path = tmp_path / "executed"
    pickled = base64.b64encode(pickle.dumps(_Trap(path))).decode()
    path.with_suffix(".pickle").write_text(pickled)
    return path


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with turn_database(request.param, tmp_path) as found:
        yield found


def forge(url: str, trap: Path, table: str, column: str) -> None:
    """Replace *column* of all rows in *table* by a pickle."""
    values = {"pickle": trap.with_suffix(".pickle").read_text()}
    marked = "workflow_status" if table in ("workflow_input", "workflow_output") else table
    run_sql(url, f"update {{dbos}}{marked} set serialization = 'py_pickle'")
    run_sql(url, f"update {{dbos}}{table} set {column} = :pickle", **values)


def make(*answers: Any) -> DurableClient:
    manager = ToolCallingManager(interceptors=[ToolApproval()])
    builder = ChatClient.builder(ScriptedModel(*answers)).tool_calling_manager(manager)
    return durable(builder.default_tools(refund).build(), name=uuid4().hex)


def test_reads_no_pickles(url: str, trap: Path) -> None:
    """Code in a forged row is not run by a process that reads results and events."""
    client = make("Hi.", AuthenticationError("no key"))
    with launch(url):
        turn = client.start("Hello", streaming=True)
        turn.result()
        failed = client.start("Hello")
        with pytest.raises(AuthenticationError):
            failed.result()
        for column in ("output", "error"):
            forge(url, trap, "workflow_output", column)
        forge(url, trap, "streams", "value")

        for read in (turn.result, failed.result, lambda: list(turn.events())):
            with pytest.raises(DurableTurnError, match="not read here"):
                read()
        assert turn.status().state == "failed"
    with connect(url), pytest.raises(DurableTurnError, match="not read here"):
        client.turn(turn.id).result()
    assert not trap.exists()


def test_runs_no_pickles(url: str, trap: Path) -> None:
    """Nor in a worker, which reads what a turn was started with and its recorded steps."""
    client = make(call("refund", {"order": 1}), "Done.", "Hi.")
    with launch(url, queues=[TurnQueue("any", poll_seconds=0.02)]):
        turn = client.start("Refund", key="a", queue="any")
        turn.result()
        run_sql(
            url,
            "insert into {dbos}operation_outputs (workflow_uuid, function_id, function_name, output"
            ", serialization, retention_timestamp) values (:id, 1, 'model 0', :pickle, 'py_pickle'"
            ", 0)",
            id=f"{turn.id}#2",
            pickle=trap.with_suffix(".pickle").read_text(),
        )
        turn.decide("approve")
        with pytest.raises(DurableTurnError, match="model 0"):
            turn.result()

        queued = client.start("Hello", delay=0.3)
        forge(url, trap, "workflow_input", "inputs")
        assert settled(lambda: queued.status().state != "queued")
        with pytest.raises(DurableTurnError, match="not read here"):
            queued.record()
    assert not trap.exists()
