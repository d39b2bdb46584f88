"""Several processes on the same conversations, some of them killed."""

import multiprocessing
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import memory_worker
import pytest
from databases import KINDS, redis_place, sql_place

from chatclient.driving import drive
from chatclient.memory import ChatMemoryRepository
from chatclient.messages import Message, UserMessage
from chatclient.runtime import BLOCKING
from chatclient.testing.memory import check_turns, turn

pytestmark = pytest.mark.exhaustive

PROCESSES, TURNS, CONVERSATIONS = 8, 50, 400
LOADED = ["chatclient.memory.redis", "chatclient.memory.sql", "psycopg", "pymysql", "sqlalchemy"]


class Worker(NamedTuple):
    """A process, and what it can be told and tells."""

    process: BaseProcess
    peer: "Connection[str, str]"

    def hear_all(self) -> list[str]:
        """Return all that it says until its end; what it was killed in the midst of is nothing."""
        told = []
        with suppress(EOFError, OSError):
            while True:
                told.append(self.peer.recv())
        return told


@dataclass
class Place:
    """Where the processes meet; the test has a repository of its own there."""

    kind: str
    url: str
    prefix: str
    repository: ChatMemoryRepository

    def start(self, **task: Any) -> Worker:
        """Start a process, which waits for the word to begin."""
        # Forked where all is loaded and nothing is open: loading takes longer than what they do.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(LOADED)
        peer, theirs = context.Pipe()
        where = (theirs, self.kind, self.url, self.prefix)
        process = context.Process(target=memory_worker.main, args=where, kwargs=task, daemon=True)
        process.start()
        theirs.close()
        return Worker(process, peer)

    def run(self, **task: Any) -> list[str]:
        """Have all processes do the same at once, to their end; return what they told."""
        told: list[str] = []
        with crew([self.start(worker=worker, **task) for worker in range(PROCESSES)]) as workers:
            for worker in workers:
                told += worker.hear_all()
                worker.process.join()
                assert worker.process.exitcode == 0
        return told

    def messages(self, name: str) -> tuple[Message, ...]:
        return drive(self.repository.load(name, BLOCKING)).messages


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    kind = request.param
    with (
        redis_place() if kind == "redis" else sql_place(kind, tmp_path) as (url, prefix),
        memory_worker.open_repository(kind, url, prefix) as repository,
    ):
        yield Place(kind, url, prefix, repository)


@contextmanager
def crew(workers: list[Worker]) -> Iterator[list[Worker]]:
    """Let processes begin at once; none is left behind."""
    try:
        assert [worker.peer.recv() for worker in workers] == ["ready"] * len(workers)
        for worker in workers:
            worker.peer.send("go")
        yield workers
    finally:
        for process, peer in workers:
            process.kill()
            process.join()
            process.close()
            peer.close()


def test_one_conversation(place: Place) -> None:
    """Every turn of every process is there once, whole, and in the order of its process.

    The tables do not exist before, so that all processes create them at once.
    """
    place.run(do="one", turns=TURNS)

    check_turns(place.messages("shared"), workers=PROCESSES, turns=TURNS)


def test_many_conversations(place: Place) -> None:
    """Processes that meet at random in hundreds of conversations."""
    told = place.run(do="many", conversations=CONVERSATIONS, turns=TURNS)

    kept = []
    for name in place.repository.find_conversation_ids():
        messages = place.messages(name)
        labels = [m.text.split()[1] for m in messages if isinstance(m, UserMessage)]
        assert messages == tuple(m for label in labels for m in turn(label, 2))
        assert {f"conversation {label.split('.')[1]}" for label in labels} == {name}
        kept += labels
    assert len(told) == PROCESSES * TURNS
    assert sorted(kept) == sorted(told)


def test_killed_processes(place: Place) -> None:
    """`kill -9` at any moment leaves whole turns, and all that were acknowledged.

    One of the processes rewrites the whole conversation all the time.
    """
    told: dict[int, list[str]] = {}
    for wave in range(3):
        numbers = [wave * 10 + number for number in range(4)]
        workers = [place.start(worker=number, do="endless") for number in numbers]
        workers.append(place.start(worker=99, do="rewrite"))
        with crew(workers):
            workers[0].peer.recv()  # they are at it
            for worker in random.sample(workers, len(workers)):
                time.sleep(random.uniform(0, 0.1))
                worker.process.kill()
            for number, worker in zip(numbers, workers, strict=False):
                told[number] = worker.hear_all()
        told[numbers[0]].insert(0, f"{numbers[0]}.0")

    messages = place.messages("shared")
    labels = [m.text.split()[1] for m in messages if isinstance(m, UserMessage)]
    assert messages == tuple(m for label in labels for m in turn(label, 2))
    for number, acknowledged in told.items():
        kept = [label for label in labels if label.split(".")[0] == str(number)]
        assert kept == [f"{number}.{at}" for at in range(len(kept))]
        assert acknowledged == kept[: len(acknowledged)]
        assert len(kept) - len(acknowledged) <= 1
    assert sum(map(len, told.values())) > 0


def test_a_forked_process_leaves_the_connections_alone(
    place: Place, in_a_fork: Callable[[Callable[[], None]], int]
) -> None:
    """Parent and child go on with a repository that was in use before the fork."""
    for label in ("0.0", "0.1"):
        drive(place.repository.append("shared", turn(label, 2), BLOCKING))

    def add() -> None:
        for number in range(10):
            drive(place.repository.append("shared", turn(f"1.{number}", 2), BLOCKING))

    status = in_a_fork(add)
    for number in range(2, 10):
        drive(place.repository.append("shared", turn(f"0.{number}", 2), BLOCKING))

    assert status == 0
    check_turns(place.messages("shared"), workers=2, turns=10)


@pytest.fixture
def in_a_fork() -> Callable[[Callable[[], None]], int]:
    """Give what runs a function in a forked process and returns its exit status."""
    import os

    if not hasattr(os, "fork"):
        pytest.skip("this platform has no fork")

    def run(function: Callable[[], None]) -> int:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                function()
                status = 0
            finally:
                os._exit(status)
        _, result = os.waitpid(pid, 0)
        return os.waitstatus_to_exitcode(result)

    return run
