"""Workers that end by SIGKILL, on PostgreSQL: other workers continue their turns."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
import sqlalchemy as sa

from chatclient import ApprovalNeeded, Done, ToolCallFinished
from chatclient.durable import DurableClient, Engine, TurnDecided, connect
from chatclient.durable.workflow import runners
from chatclient.errors import (
    ConversationBusyError,
    TurnCancelledError,
    TurnVersionError,
    UsageError,
)
from chatclient.memory import SqlChatMemoryRepository
from chatclient.tools import Decision
from tests.support.databases import SERVERS, need
from tests.support.waiting import settled

pytestmark = pytest.mark.process("durable worker")

ROOT = Path(__file__).parents[2]


class Place:
    """A database for turns, a folder for the effects of tools, and the workers of a test."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder
        self.memory = f"sqlite:///{folder / 'memory.db'}"
        self.workers: list[subprocess.Popen[bytes]] = []

    def start_worker(self, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "chatclient", "worker", "tests.support.durable_app:shop"]
        command += ["--database", self.url, "--takeover-seconds", "1", *arguments]
        places = {"CRASH_FOLDER": str(self.folder), "CRASH_MEMORY": self.memory}
        with (self.folder / "log").open("ab") as log:
            worker = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, **places, **environment, "PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert worker.stdout is not None
        assert b"running turns of shop" in worker.stdout.readline()
        self.workers.append(worker)
        return worker

    def reached(self) -> Counter[str]:
        file = self.folder / "reached"
        return Counter(file.read_text().split("\n")[:-1] if file.exists() else [])

    def wait_for(self, point: str) -> None:
        while not self.reached()[point]:
            time.sleep(0.02)

    def roles(self) -> list[str]:
        with SqlChatMemoryRepository(self.memory) as repository:
            return [message.role for message in repository.find_by_conversation_id("c")]


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    """Yield the URL of a database for all tests of this module."""
    need("postgresql")
    name = f"durable_{uuid4().hex[:12]}"
    server = sa.create_engine(SERVERS["postgresql"], isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.execute(sa.text(f"create database {name}"))
    try:
        yield sa.make_url(SERVERS["postgresql"]).set(database=name).render_as_string(False)
    finally:
        with server.connect() as connection:
            connection.execute(sa.text(f"drop database {name} with (force)"))
        server.dispose()


@pytest.fixture
def place(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    made = Place(database, tmp_path)
    monkeypatch.setenv("CRASH_FOLDER", str(tmp_path))
    monkeypatch.setenv("CRASH_MEMORY", made.memory)
    yield made
    for worker in made.workers:
        worker.kill()
        worker.wait()
        assert worker.stdout is not None
        worker.stdout.close()


@pytest.fixture
def engine(place: Place) -> Iterator[Engine]:
    place.start_worker().kill()  # creates the tables
    with connect(place.url) as connected:
        yield connected


ONCE = ("model 0", "look", "reserve", "model 1", "buy", "bought", "model 2")


@pytest.fixture
def client(place: Place, engine: Engine) -> Iterator[DurableClient]:
    """Return the durable client of the application, in this process, which runs no turns."""
    sys.modules.pop("tests.support.durable_app", None)
    runners.pop("shop", None)  # of another module's tests
    from tests.support import durable_app

    yield durable_app.shop
    durable_app.repository.close()
    runners.pop("shop", None)


@pytest.mark.parametrize(
    ("point", "repeats"),
    [("model 1", {"model 1"}), ("reserve", {"reserve"}), ("stored", set())],
)
def test_continues_after_crash(
    place: Place, client: DurableClient, point: str, repeats: set[str]
) -> None:
    """A turn whose worker was killed is completed by another one, and nothing finished repeats."""
    crashing = place.start_worker(CRASH_AT=point)
    request = client.prompt("Buy tea").conversation("c")
    turn = client.start(request, key=str(uuid4()), streaming=True)
    assert crashing.wait(30) == -signal.SIGKILL

    place.start_worker()

    assert turn.result(60).content() == "Bought."
    assert place.reached().keys() == {*ONCE, "stored"}
    repeated = {p for p, n in place.reached().items() if n > 1}
    assert repeated - {"stored", "look"} == repeats  # it looks while it reserves
    assert place.roles() == ["user", "assistant", "tool", "assistant", "tool", "assistant"]


def test_interrupted_write_waits(place: Place, client: DurableClient) -> None:
    """A tool that writes is not run again after a crash; the decision may name its result."""
    crashing = place.start_worker(CRASH_AT="bought")
    turn = client.start(client.prompt("Buy tea").conversation("c"), key=str(uuid4()))
    assert crashing.wait(30) == -signal.SIGKILL
    place.start_worker()

    result = turn.result(60)

    assert list(result.interrupted) == ["c"]
    with pytest.raises(UsageError):
        turn.decide({"x": True})
    turn.decide({"c": Decision.answered("tea bought")})
    assert turn.result(60).content() == "Bought."
    assert place.reached()["buy"] == 1


def test_decides_in_another_process(place: Place, client: DurableClient) -> None:
    """A turn waits without any worker; a crash while it continues loses nothing."""
    first = place.start_worker()
    turn = client.start(client.prompt("Buy with approval").conversation("c"), key=str(uuid4()))
    assert turn.result(60).pending_turn is not None
    first.kill()
    first.wait()

    turn.decide("approve")
    crashing = place.start_worker(CRASH_AT="model 2")
    assert crashing.wait(30) == -signal.SIGKILL
    place.start_worker()

    assert turn.result(60).content() == "Bought."
    assert place.reached()["buy"] == 1


async def test_follows_from_another_process(place: Place, client: DurableClient) -> None:
    """A process that runs no turns follows one of a conversation, across a crash and a decision."""
    crashing = place.start_worker(CRASH_AT="look")
    conversation = client.conversation(f"c-{uuid4()}")
    turn = await conversation.astart("Buy with approval", streaming=True)
    with pytest.raises(ConversationBusyError):
        await conversation.astart("Buy tea")
    assert await asyncio.to_thread(crashing.wait, 30) == -signal.SIGKILL
    await asyncio.to_thread(place.start_worker)

    events = [event async for event in turn.aevents()]
    assert isinstance(events[-2], ApprovalNeeded)
    last = await conversation.alast()
    assert last is not None
    await last.adecide("approve")
    later = [event async for event in last.aevents(after_decisions=True)]
    results = [each.response for each in later if isinstance(each, ToolCallFinished)]
    assert results[0].data == "gold bought"
    assert isinstance(later[-1], Done)
    assert [event async for event in turn.aevents()] == [
        *events[:-2],
        TurnDecided(events[-2].turn, {"c": Decision(approved=True)}),
        *later,
    ]


@pytest.mark.parametrize("point", ["before", "release"])
def test_undone_after_crash(place: Place, client: DurableClient, point: str) -> None:
    """A cancelled turn is undone by another worker if its own died before or while it undid it."""
    crashing = place.start_worker(CRASH_AT=point, BUY_SECONDS="60" if point == "before" else "1")
    conversation = client.conversation(f"c-{uuid4()}")
    turn = conversation.start("Buy tea")
    place.wait_for("buy")
    turn.cancel()
    if point == "before":
        crashing.kill()
    assert crashing.wait(30) == -signal.SIGKILL
    assert turn.status().state == "cancelling"
    with pytest.raises(ConversationBusyError):
        conversation.start("Extract")

    place.start_worker()

    with pytest.raises(TurnCancelledError, match="buy") as caught:
        turn.result(60)
    assert caught.value.interrupted == ("buy",)
    assert turn.status().state == "cancelled"
    assert place.reached()["release"] == (1 if point == "before" else 2)
    assert place.reached()["buy"] == 1
    assert place.reached()["model 2"] == 0
    assert conversation.start("Extract").result(60).content() == "EXTRACT"


def test_map_continues_after_crash(place: Place, client: DurableClient) -> None:
    """A map that is started again after a crash repeats no finished turn."""
    texts = {str(n): f"Extract {n}" for n in range(100)}
    requests = {n: client.prompt(text).conversation(f"c{n}") for n, text in texts.items()}
    crashing = place.start_worker(CRASH_AT="Extract 60")
    key = str(uuid4())
    client.map(requests, key=key)
    assert crashing.wait(60) == -signal.SIGKILL
    finished = {text for text in texts.values() if place.reached()[text]}
    place.start_worker()

    results = list(client.map(requests, key=key))

    assert {each.key: each.unwrap().content() for each in results} == {
        key: text.upper() for key, text in texts.items()
    }
    repeated = {text for text in texts.values() if place.reached()[text] > 1}
    assert len(finished) > 50
    assert len(repeated) < 20  # those that were running


def test_finishes_turns_before_it_stops(place: Place, client: DurableClient) -> None:
    """A worker that is terminated completes its turns first."""
    worker = place.start_worker(BUY_SECONDS="1")
    turn = client.start(client.prompt("Buy tea").conversation("c"), key=str(uuid4()))
    place.wait_for("buy")

    worker.send_signal(signal.SIGTERM)

    assert worker.wait(30) == 0
    assert turn.status().state == "done"


def test_worker_deletes_ended_turns(place: Place, client: DurableClient) -> None:
    """A worker with --keep deletes turns some time after their end."""
    place.start_worker("--keep", "0.000001")
    turn = client.start("Extract")

    def is_deleted() -> bool:
        return not turn.engine.existing([turn.id])

    assert settled(is_deleted)


def test_other_version(place: Place, client: DurableClient) -> None:
    """A turn continues in its version only; if no worker has it, it can end with an error."""
    crashing = place.start_worker("--version", "1", CRASH_AT="model 1")
    turn = client.start(client.prompt("Buy tea").conversation("c"), key=str(uuid4()))
    assert crashing.wait(30) == -signal.SIGKILL

    waiting = place.start_worker("--version", "2")
    with pytest.raises(TimeoutError):
        turn.result(3)
    assert turn.status().version == "1"
    waiting.kill()
    place.start_worker("--version", "2", "--reject-older")

    with pytest.raises(TurnVersionError, match="version '1'") as caught:
        turn.result(60)
    assert caught.value.version == "1"
