"""What durable turns read from their database: JSON only, of each release until now."""

import base64
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from chatclient import ChatClient, Done, TextDelta, ToolCallFinished, tool
from chatclient.durable import (
    DurableClient,
    TurnDecided,
    TurnQueue,
    connect,
    durable,
    launch,
)
from chatclient.errors import AuthenticationError, DurableTurnError, TurnCancelledError
from chatclient.testing import ScriptedModel, call
from chatclient.tools import ToolApproval, ToolCallingManager
from tests.support.turn_databases import KINDS, run_sql, turn_database
from tests.support.turn_records import Shop, restore, shop_client
from tests.support.waiting import settled

FORMATS = sorted(Path(__file__).parent.joinpath("data").glob("format-*.json"))


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
        assert turn.status().state == "stuck"
        assert failed.status().state == "failed"
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
        assert settled(lambda: "model 0" in (turn.status().problem or ""))
        assert turn.status().state == "stuck"

        queued = client.start("Hello", delay=0.3)
        forge(url, trap, "workflow_input", "inputs")
        assert settled(lambda: queued.status().state != "queued")
        with pytest.raises(DurableTurnError, match="not read here"):
            queued.record()
    assert not trap.exists()


@pytest.fixture(params=FORMATS, ids=lambda it: it.stem)
def records(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of a database with the turns of a release that had a stored format."""
    url = f"sqlite:///{tmp_path / 'turns.db'}"
    with launch(url):
        pass
    restore(url, request.param)
    return url


def test_reads_each_format(records: str) -> None:
    """Results, events, errors and trails of turns are those of the release that ran them."""
    client = shop_client(Shop())
    with connect(records):
        answered, decided = client.turn(key="answered"), client.turn(key="decided")
        result, events = answered.result(), list(answered.events())
        states = {key: client.turn(key=key).status().state for key in ("waiting", "interrupted")}
        with pytest.raises(AuthenticationError, match="key"):
            client.turn(key="failed").result()
        with pytest.raises(TurnCancelledError) as cancelled:
            client.turn(key="cancelled").result()
        trail = client.trail(key="answered")

        assert (result.content(), decided.result().content()) == ("Done.", "Done.")
        assert [each.response.data for each in result.tool_executions] == ["tea costs 10"]
        assert isinstance(events[-1], Done)
        assert "".join(each.text for each in events if isinstance(each, TextDelta)) == "Done."
        assert any(isinstance(each, ToolCallFinished) for each in events)
        assert any(isinstance(each, TurnDecided) for each in decided.events())
        assert states == {"waiting": "waiting", "interrupted": "queued"}
        assert cancelled.value.interrupted == ()
        assert len(trail.rounds) == 2


def test_continues_each_format(records: str) -> None:
    """Turns that wait or were interrupted continue, and no recorded step is repeated."""
    shop = Shop()
    shop.go_on.set()
    client = shop_client(shop)
    with launch(records):
        client.turn(key="waiting").decide("approve")

        assert client.turn(key="waiting").result(60).content() == "Done."
        assert client.turn(key="interrupted").result(60).content() == "Done."
    assert sorted(shop.log) == ["looked tea", "refunded tea"]


@pytest.mark.parametrize(
    ("table", "column"), [("workflow_input", "inputs"), ("operation_outputs", "output")]
)
def test_newer_format_waits(tmp_path: Path, table: str, column: str) -> None:
    """A turn that a newer release has stored waits, with the reason, until it can be read."""
    url, shop = f"sqlite:///{tmp_path / 'turns.db'}", Shop()
    client = shop_client(shop)
    with launch(url):
        turn = client.start("look tea", key="a")
        assert shop.stopped.wait(30)
    change = f"update {{dbos}}{table} set {column} = replace({column}, :old, :new)"
    run_sql(url, change, old='"format":1', new='"format":2')
    shop.go_on.set()
    with launch(url):
        turn = client.turn(key="a")
        assert settled(lambda: turn.status().state == "stuck")
        assert "format 2" in (turn.status().problem or "")

        run_sql(url, change, old='"format":2', new='"format":1')

        assert turn.result(60).content() == "Done."


def test_newer_result_is_not_read(tmp_path: Path) -> None:
    """A result that a newer release has stored is neither taken for an answer nor deleted."""
    url, client = f"sqlite:///{tmp_path / 'turns.db'}", make("Hi.")
    with launch(url):
        turn = client.start("Hello")
        turn.result()
        change = "update workflow_output set output = replace(output, :old, :new)"
        run_sql(url, change, old='"format":1', new='"format":2')

        assert turn.status().state == "stuck"
        for act in (turn.result, turn.cancel, lambda: turn.decide("approve")):
            with pytest.raises(DurableTurnError, match="format 2"):
                act()
