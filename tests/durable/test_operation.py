"""What an operator sees of durable turns, and does with them."""

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint

from chatclient.__main__ import main
from chatclient.durable import DurableClient, Engine, TurnHandle, TurnState, connect, launch
from chatclient.durable.health import TurnMetrics
from chatclient.durable.workflow import runners, running
from chatclient.errors import AuthenticationError, TurnCancelledError, TurnVersionError, UsageError
from tests.support.turn_databases import KINDS, run_sql, turn_database
from tests.support.turn_records import Shop, shop_client
from tests.support.waiting import settled


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with turn_database(request.param, tmp_path) as found:
        yield found


@pytest.fixture
def shop() -> Shop:
    made = Shop()
    made.go_on.set()
    return made


def states(engine: Engine) -> dict[str, str]:
    """Return the states of all turns, by id."""
    return {each.id: each.state for each in engine.turns(*ALL)}


ALL: tuple[TurnState, ...] = (
    "queued",
    "running",
    "waiting",
    "stuck",
    "cancelling",
    "done",
    "failed",
    "cancelled",
)


def stuck_turn(client: DurableClient, key: str) -> TurnHandle:
    """Return a turn that waits for a process that has its client."""
    turn = client.start("refund tea", key=key)
    turn.result(60)
    runner = runners.pop(client.name)
    turn.decide("approve")
    assert settled(lambda: turn.status().state == "stuck")
    runners[client.name] = runner
    return turn


def test_states(url: str, shop: Shop) -> None:
    """Each turn is listed once, in its state; turns that wait are not those that are done."""
    client = shop_client(shop)
    with launch(url) as engine:
        client.call("look tea", key="done")
        for key in ("waiting", "waiting##2", "decided#2", "denied"):
            client.start("refund tea", key=key).result(60)
        for key in ("decided#2", "denied"):
            client.turn(key=key).decide("approve" if key == "decided#2" else "deny")
            client.turn(key=key).result(60)
        with pytest.raises(AuthenticationError):
            client.call("fail key", key="failed")
        queued = client.start("look tea", key="queued", delay=3600)
        cancelled = client.start("look tea", key="cancelled", delay=3600)
        cancelled.cancel()
        undone = client.start("reserve tea, refund tea", key="undone")
        undone.result(60)
        undone.cancel()
        with pytest.raises(TurnCancelledError):
            undone.result(60)
        stuck = stuck_turn(client, "stuck")

        assert {id.removeprefix("shop/"): state for id, state in states(engine).items()} == {
            "done": "done",
            "waiting": "waiting",
            "waiting####2": "waiting",
            "decided##2": "done",
            "denied": "done",
            "failed": "failed",
            "queued": "queued",
            "cancelled": "cancelled",
            "undone": "cancelled",
            "stuck": "stuck",
        }
        health = engine.health()
        assert dict(health.turns) == {
            **dict.fromkeys(("queued", "stuck"), 1),
            "waiting": 2,
            "running": 0,
            "cancelling": 0,
        }
        assert (health.workers, health.stuck) == (1, 1)
        assert 0 < health.oldest["waiting"] < 120
        (info,) = engine.turns("stuck")
        assert (info.id, info.version) == (stuck.id, None)
        assert "'shop'" in (info.problem or "")
        assert [each.id for each in engine.turns("queued", "stuck")] == [queued.id, stuck.id]
        assert engine.turns(older_than=timedelta(hours=1)) == []
        with pytest.raises(UsageError, match="a state of turns"):
            engine.turns("SUCCESS")  # type: ignore[arg-type]


def test_deletes_ended_turns_only(url: str, shop: Shop) -> None:
    """Turns that wait are never deleted by state."""
    client = shop_client(shop)
    with launch(url) as engine:
        client.call("look tea")
        waiting = client.start("refund tea")
        waiting.result(60)
        with pytest.raises(UsageError, match="that have ended"):
            engine.delete("waiting", older_than=timedelta())  # type: ignore[arg-type]

        assert engine.delete("failed", older_than=timedelta()) == 0
        assert engine.delete("done", older_than=timedelta(hours=1)) == 0
        assert engine.delete(older_than=timedelta()) == 1

        assert states(engine) == {waiting.id: "waiting"}


def test_without_a_worker(url: str, shop: Shop) -> None:
    """A turn that no living process may run is stuck; with another version it continues."""
    client = shop_client(shop)
    with launch(url, version="1"):
        client.call("look tea")
    with connect(url) as engine:
        turn = client.start("look tea")

        (info,) = engine.turns()
        assert (info.id, info.state) == (turn.id, "stuck")
        assert "no process" in (info.problem or "")
        engine.resume(turn.id, version="2")
    with launch(url, version="2"):
        assert client.turn(turn.id).result(60).content() == "Done."


def test_resumes_stuck_turn(url: str, shop: Shop) -> None:
    """A stuck turn is tried again at once, and not after its pause."""
    client = shop_client(shop)
    with launch(url) as engine:
        turn = stuck_turn(client, "a")
        later = "update {dbos}workflow_status set delay_until_epoch_ms = delay_until_epoch_ms * 2"
        run_sql(url, later + " where status = 'DELAYED'")

        assert engine.resume(turn.id)

        assert turn.result(60).content() == "Done."
        assert not engine.resume(turn.id)


def test_ends_turns(url: str, shop: Shop) -> None:
    """A stuck turn ends with the reason; others are cancelled, which undoes their calls."""
    client = shop_client(shop)
    with launch(url) as engine:
        stuck = stuck_turn(client, "a")
        waiting = client.start("reserve tea, refund tea")
        waiting.result(60)

        engine.end(stuck.id, "not needed any more")
        engine.end(waiting.id, "not needed any more")

        with pytest.raises(TurnVersionError, match="not needed any more"):
            stuck.result(60)
        with pytest.raises(TurnCancelledError):
            waiting.result(60)
        assert states(engine) == {stuck.id: "failed", waiting.id: "cancelled"}
    assert shop.log == ["reserved tea", "released"]


def test_command(url: str, shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    """The command lists turns with the reason why they are stuck, and continues or ends them."""
    client = shop_client(shop)
    with launch(url):
        first, second = (stuck_turn(client, key).id for key in ("a", "b"))
    where = ["turns", "--database", url]
    runners.pop("shop")

    assert main([*where, "--state", "stuck"]) == 1
    listed = capsys.readouterr().out
    assert re.search(r"stuck +2, the oldest for \d+ s\n", listed)
    assert re.search(rf"stuck +\d+ s  {first}  \(.*\): this process has no durable", listed)
    assert main([*where, "--end", second, "--reason", "too late"]) == 0
    assert main([*where, "--continue", first, second]) == 1
    assert f"{first} continues\n{second} runs" in capsys.readouterr().out
    assert main([*where, "--continue", "shop/none"]) == 2
    assert main([*where, "--state", "bad"]) == 2
    runners["shop"] = client._runner
    with launch(url):
        assert client.turn(first).result(60).content() == "Done."
        with pytest.raises(TurnVersionError, match="too late"):
            client.turn(second).result(60)


def test_metrics(url: str, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Open turns are measured by state, with the age of the oldest; ends are counted."""
    reader = InMemoryMetricReader()
    client = shop_client(shop)
    with launch(url) as engine:
        measured = TurnMetrics(engine.health, MeterProvider([reader], shutdown_on_exit=False))
        monkeypatch.setattr(running, "metrics", measured)
        client.call("look tea")
        client.start("refund tea").result(60)
        measured.count_takeovers(2)
        assert settled(lambda: values(reader)["ended", "waiting"] == 1)
        found = values(reader)
    assert found["ended", "done"] == 1
    assert found["turns", "waiting"] == 1
    assert found["turns", "stuck"] == 0
    assert 0 < found["oldest", "waiting"] < 120
    assert found["taken_over", None] == 2


def values(reader: InMemoryMetricReader) -> dict[tuple[str, object], float]:
    """Return the measured values by the last part of the name, and by state."""
    data = reader.get_metrics_data()
    assert data is not None
    return {
        (metric.name.rpartition(".")[2], (point.attributes or {}).get("state")): point.value
        for metric in data.resource_metrics[0].scope_metrics[0].metrics
        for point in metric.data.data_points
        if isinstance(point, NumberDataPoint)
    }
