"""Turns that begin in one release of an application and continue in another one."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chatclient import ChatClient, tool
from chatclient.durable import DurableClient, Engine, TurnQueue, TurnStatus, durable, launch
from chatclient.durable.workflow import runners
from chatclient.errors import TurnVersionError
from chatclient.testing import ScriptedModel, call
from chatclient.tools import ToolApproval, ToolCallingManager, ToolInvocation
from tests.support.turn_databases import run_sql
from tests.support.waiting import settled


class Shop:
    """Tools that record their runs."""

    def __init__(self) -> None:
        self.refunds = 0
        self.begun, self.go_on = threading.Event(), threading.Event()

    @tool
    def refund(self) -> str:
        """Refund an order."""
        self.refunds += 1
        return "refunded"

    @tool(effect="read")
    async def look(self) -> str:
        """Look."""
        self.begun.set()
        while not self.go_on.is_set():  # noqa: ASYNC110 - set by another thread
            await asyncio.sleep(0.01)
        return "seen"


def release(name: str, model: ScriptedModel, *tools: Any, asks: bool = True) -> DurableClient:
    """Return the client of a release that has *tools*, instead of that of the release before."""

    def needed(_: ToolInvocation) -> bool:
        return asks

    runners.pop(name, None)
    manager = ToolCallingManager(interceptors=[ToolApproval(needed=needed)])
    builder = ChatClient.builder(model).tool_calling_manager(manager)
    return durable(builder.default_tools(*tools).build(), name=name)


def deploy(client: DurableClient) -> None:
    """Let the worker of this process have the release of *client*."""
    runners[client.name] = client._runner


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    with launch(f"sqlite:///{tmp_path / 'turns.db'}") as launched:
        yield launched


@pytest.mark.usefixtures("engine")
def test_without_a_tool_that_is_not_needed() -> None:
    """A turn that waits continues in a release without a tool that it has not called."""
    shop = Shop()
    model = ScriptedModel(call("refund"), "Done.")
    old = release("less", model, shop.refund, shop.look)
    turn = old.start("Refund")
    turn.result()
    new = release("less", model, shop.refund)

    new.turn(turn.id).decide("approve")

    assert turn.result().content() == "Done."


@pytest.mark.usefixtures("engine")
def test_without_a_tool_that_is_needed() -> None:
    """A decision that cannot be carried out here is refused before it is taken; a denial is not."""
    shop = Shop()
    model = ScriptedModel(call("refund"), "Done.")
    turn = release("needed", model, shop.refund, shop.look).start("Refund")
    turn.result()
    new = release("needed", model, shop.look)

    with pytest.raises(TurnVersionError, match="refund") as caught:
        new.turn(turn.id).decide("approve")
    assert caught.value.missing_tools == ("refund",)
    assert turn.status().state == "waiting"
    new.turn(turn.id).decide("deny")

    assert turn.result().content() == "Done."
    assert shop.refunds == 0


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("has_client", [True, False])
def test_worker_of_another_release(has_client: bool) -> None:
    """A turn that a worker cannot continue waits for one that can; its decision is not lost."""
    shop = Shop()
    old = release("worker", ScriptedModel(call("refund"), "Done."), shop.refund)
    turn = old.start("Refund")
    turn.result()
    if has_client:
        newer = release("worker", ScriptedModel(), shop.look)
        assert newer.name == "worker"
    else:
        del runners["worker"]
    turn.decide("approve")

    assert settled(lambda: turn.status().problem is not None)
    status = turn.status()
    assert status == TurnStatus("stuck", None, status.queue, status.problem)
    assert ("refund" if has_client else "'worker'") in (status.problem or "")
    deploy(old)

    assert turn.result(60).content() == "Done."
    assert turn.status().problem is None
    assert shop.refunds == 1


def test_recorded_call_of_a_missing_tool(tmp_path: Path) -> None:
    """After a restart, a turn waits for a release that has the tools that it has called."""
    url, shop = f"sqlite:///{tmp_path / 'turns.db'}", Shop()
    model = ScriptedModel(call("refund"), call("look"), "Done.")
    old = release("restart", model, shop.refund, shop.look, asks=False)
    with launch(url):
        turn = old.start("Refund")
        assert shop.begun.wait(30)

    new = release("restart", ScriptedModel(), shop.look)
    shop.go_on.set()
    with launch(url):
        turn = new.turn(turn.id)
        assert settled(lambda: turn.status().problem is not None)
        deploy(old)
        assert turn.result(60).content() == "Done."
    assert shop.refunds == 1


def test_version_of_new_turns(tmp_path: Path) -> None:
    """A new turn runs in the version that was launched last for the first time."""
    url, queue = f"sqlite:///{tmp_path / 'turns.db'}", TurnQueue("q", poll_seconds=0.02)
    client = durable(ChatClient.create(ScriptedModel("Hi.")), name="versions")
    for version in ("1", "2"):
        with launch(url, version=version, queues=[queue]):
            pass
        earlier = (
            "update {dbos}application_versions set version_timestamp = version_timestamp - :ms"
        )
        run_sql(url, earlier, ms=60_000)  # SQLite has seconds

    with launch(url, version="1", queues=[queue]):
        turn = client.start("Hello", queue="q")
        with pytest.raises(TimeoutError):
            turn.result(0.3)
    with launch(url, version="2", queues=[queue]):
        assert turn.result(30).content() == "Hi."
        assert turn.status().version == "2"
