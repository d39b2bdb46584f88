"""Engines of durable turns: what they refuse, and how they end."""

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from dbos import DBOS

from chatclient import ChatClient, tool
from chatclient.durable import DurableClient, TurnQueue, connect, durable, launch
from chatclient.durable.workflow import runners
from chatclient.errors import TurnVersionError, UsageError
from chatclient.testing import ScriptedModel, call
from tests.support.waiting import settled


def test_needs_engine_and_database() -> None:
    """Without an engine, or with another database, durable turns are refused."""
    client = durable(ChatClient.create(ScriptedModel()), name="no-engine")

    with pytest.raises(UsageError, match="launch"):
        client.start("Hi")
    for opening in (launch, connect):
        with pytest.raises(UsageError, match="PostgreSQL or SQLite"):
            opening("mysql://localhost/x")


@pytest.mark.process("Python")
def test_names_extra() -> None:
    """Without DBOS, recording works, and durable clients name the extra that they need."""
    code = (
        "import sys; sys.modules['dbos'] = None\n"
        "from chatclient.durable import Recording, durable\n"
        "from chatclient import ChatClient\n"
        "from chatclient.testing import ScriptedModel\n"
        "durable(ChatClient.create(ScriptedModel()), name='x')"
    )

    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert "pip install 'chatclient[dbos]'" in run.stderr


class Slow:
    """A client whose tool takes some time."""

    def __init__(self, name: str, seconds: float) -> None:
        self.runs, self.begun = 0, threading.Event()

        @tool(effect="read")
        async def wait() -> str:
            """Wait."""
            self.runs += 1
            self.begun.set()
            await asyncio.sleep(seconds if self.runs == 1 else 0)
            return "waited"

        model = ScriptedModel(call("wait"), "Done.")
        client = ChatClient.builder(model).default_tools(wait).build()
        self.durable: DurableClient = durable(client, name=name)


def test_close_waits_for_turns(tmp_path: Path) -> None:
    """An engine that is closed lets running turns end."""
    url, slow = f"sqlite:///{tmp_path / 'turns.db'}", Slow("drained", 0.5)
    engine = launch(url, application="shop")
    turn = slow.durable.start("Wait")
    slow.begun.wait()

    engine.close(drain_seconds=20)

    with connect(url, application="shop"):
        assert slow.durable.turn(turn.id).status().state == "done"
    assert slow.runs == 1


def test_close_does_not_begin_turns(tmp_path: Path) -> None:
    """A turn that waits for its time in a process that ends is left to another one."""
    url, slow = f"sqlite:///{tmp_path / 'turns.db'}", Slow("paced", 60)
    queue = TurnQueue("q", worker_concurrency=2, worker_rate=(1, 600.0), poll_seconds=0.02)
    engine = launch(url, takeover_seconds=0.4, queues=[queue])
    other = durable(ChatClient.create(ScriptedModel("Hi.")), name="other")
    other.call("Hello", queue="q")
    turn = slow.durable.start("Wait", queue="q")
    assert settled(lambda: turn.status().state != "queued")

    engine.close(drain_seconds=1)

    assert slow.runs == 0
    slow.runs = 1  # so that the tool does not take its time
    with launch(url, takeover_seconds=0.4, queues=[queue]):
        assert slow.durable.turn(turn.id).result(30).content() == "Done."


def test_another_engine_continues(tmp_path: Path) -> None:
    """Turns of an engine that was closed are continued by another one."""
    url, slow = f"sqlite:///{tmp_path / 'turns.db'}", Slow("continued", 60)
    with launch(url, takeover_seconds=0.4):
        turn = slow.durable.start("Wait")
        slow.begun.wait()

    with launch(url, takeover_seconds=0.4, queues=[TurnQueue("q")]):
        assert slow.durable.turn(turn.id).result(30).content() == "Done."
        assert slow.runs == 2
        with pytest.raises(UsageError, match="no queue"):
            slow.durable.start("Hi", queue="other")
        with pytest.raises(UsageError, match="no limit per key"):
            slow.durable.start("Hi", queue="q", limit_key="ann")


def test_unknown_client(tmp_path: Path) -> None:
    """A turn of a client that this process does not have ends with an error that names it."""
    gone = durable(ChatClient.create(ScriptedModel()), name="gone")
    with launch(f"sqlite:///{tmp_path / 'turns.db'}"):
        del runners["gone"]

        with pytest.raises(TurnVersionError, match="'gone'"):
            gone.call("Hi")


def test_limits_are_those_of_dbos(tmp_path: Path) -> None:
    """DBOS gets the limits for the queue, the process and the key."""
    limits = TurnQueue("q", 9, 8, (7, 6.0), (1, 1.0), 5, 4, (3, 2.0))
    with launch(f"sqlite:///{tmp_path / 'turns.db'}", queues=[limits]):
        found: Any = DBOS.retrieve_queue("q")
        limits_of_queue = (found.global_concurrency, found.worker_concurrency, found.limiter)
        assert limits_of_queue == (9, 8, {"limit": 7, "period": 6.0})
        per_key = (found.partition_concurrency, found.partition_worker_concurrency)
        assert per_key == (5, 4)
        assert found.partition_limiter == {"limit": 3, "period": 2.0}


def test_process_that_listens_to_some_queues(tmp_path: Path) -> None:
    """It takes turns from these only; those of other queues wait for other processes."""
    client = durable(ChatClient.create(ScriptedModel(lambda _: "Hi.")), name=uuid4().hex)
    queues = [TurnQueue(name, poll_seconds=0.02) for name in ("heard", "other")]
    with launch(f"sqlite:///{tmp_path / 'turns.db'}", queues=queues, listen=["heard"]):
        other = client.start("Hello", queue="other")
        assert client.call("Hello", queue="heard").content() == "Hi."
        assert other.status().state == "queued"
    with launch(f"sqlite:///{tmp_path / 'turns.db'}", queues=queues):
        assert other.result().content() == "Hi."  # with a handle of the engine before


def test_handle_without_engine(tmp_path: Path) -> None:
    """A reader that waits when the engine is closed, and later ones, get an error."""
    begun = threading.Event()

    @tool
    async def wait() -> None:
        """Wait for ever."""
        begun.set()
        await asyncio.Event().wait()

    model = ScriptedModel(call("wait"))
    client = durable(ChatClient.builder(model).default_tools(wait).build(), name=uuid4().hex)
    with ThreadPoolExecutor() as threads:
        with launch(f"sqlite:///{tmp_path / 'turns.db'}"):
            turn = client.start("Hello")
            begun.wait()
            reading = threads.submit(turn.result)
        with pytest.raises(UsageError, match="need a database"):
            reading.result()
    with pytest.raises(UsageError, match="need a database"):
        turn.status()
