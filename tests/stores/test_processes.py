"""Concurrent processes on the same conversations, some of them killed."""

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

import pytest

from chatclient.chat.messages import Message, UserMessage
from chatclient.memory import ChatMemoryRepository
from chatclient.runtime.blocking import drive
from chatclient.runtime.runtime import BLOCKING
from chatclient.testing.contract_parts import turn
from chatclient.testing.repository_contract import check_turns
from tests.support import memory_worker
from tests.support.databases import KINDS, redis_place, sql_place

pytestmark = pytest.mark.exhaustive

PROCESSES, TURNS, CONVERSATIONS = 8, 50, 400
LOADED = [
    "chatclient.memory.redis",
    "chatclient.memory.sql.repository",
    "psycopg",
    "pymysql",
    "sqlalchemy",
]


class Worker(NamedTuple):
    """A process and its pipe."""

    process: BaseProcess
    peer: "Connection[str, str]"

    def read_all(self) -> list[str]:
        """Return all messages up to its end, without a partial last one."""
        received = []
        with suppress(EOFError, OSError):
            while True:
                received.append(self.peer.recv())
        return received


@dataclass
class Store:
    """The shared database, with a repository for the test."""

    kind: str
    url: str
    prefix: str
    repository: ChatMemoryRepository

    def start(self, **task: Any) -> Worker:
        """Start a process, which waits for a signal."""
        # Forked from a server with loaded modules: imports take longer than the work.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(LOADED)
        peer, theirs = context.Pipe()
        where = (theirs, self.kind, self.url, self.prefix)
        process = context.Process(target=memory_worker.main, args=where, kwargs=task, daemon=True)
        process.start()
        theirs.close()
        return Worker(process, peer)

    def run(self, **task: Any) -> list[str]:
        """Run all processes concurrently to their end and return their messages."""
        received: list[str] = []
        with running([self.start(worker=worker, **task) for worker in range(PROCESSES)]) as workers:
            for worker in workers:
                received += worker.read_all()
                worker.process.join()
                assert worker.process.exitcode == 0
        return received

    def messages(self, name: str) -> tuple[Message, ...]:
        return drive(self.repository.load(name, BLOCKING)).messages


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    kind = request.param
    with (
        redis_place() if kind == "redis" else sql_place(kind, tmp_path) as (url, prefix),
        memory_worker.open_repository(kind, url, prefix) as repository,
    ):
        yield Store(kind, url, prefix, repository)


@contextmanager
def running(workers: list[Worker]) -> Iterator[list[Worker]]:
    """Start processes together and end them after the block."""
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


@pytest.mark.feature("memory-no-locking-between-processes")
def test_one_conversation(store: Store) -> None:
    """Every turn of every process is stored once, complete, and in order.

    The tables do not exist before, so that the processes create them concurrently.
    """
    store.run(do="one", turns=TURNS)

    check_turns(store.messages("shared"), workers=PROCESSES, turns=TURNS)


@pytest.mark.feature("memory-no-locking-between-processes")
def test_many_conversations(store: Store) -> None:
    """Processes append to hundreds of conversations at random."""
    received = store.run(do="many", conversations=CONVERSATIONS, turns=TURNS)

    kept = []
    for name in store.repository.find_conversation_ids():
        messages = store.messages(name)
        labels = [m.text.split()[1] for m in messages if isinstance(m, UserMessage)]
        assert messages == tuple(m for label in labels for m in turn(label, 2))
        assert {f"conversation {label.split('.')[1]}" for label in labels} == {name}
        kept += labels
    assert len(received) == PROCESSES * TURNS
    assert sorted(kept) == sorted(received)


@pytest.mark.feature("memory-no-locking-between-processes")
def test_killed_processes(store: Store) -> None:
    """`kill -9` leaves complete turns, including all acknowledged ones.

    One process rewrites the conversation continuously.
    """
    received: dict[int, list[str]] = {}
    for wave in range(3):
        numbers = [wave * 10 + number for number in range(4)]
        workers = [store.start(worker=number, do="endless") for number in numbers]
        workers.append(store.start(worker=99, do="rewrite"))
        with running(workers):
            workers[0].peer.recv()  # while they write
            for worker in random.sample(workers, len(workers)):
                time.sleep(random.uniform(0, 0.1))
                worker.process.kill()
            for number, worker in zip(numbers, workers, strict=False):
                received[number] = worker.read_all()
        received[numbers[0]].insert(0, f"{numbers[0]}.0")

    messages = store.messages("shared")
    labels = [m.text.split()[1] for m in messages if isinstance(m, UserMessage)]
    assert messages == tuple(m for label in labels for m in turn(label, 2))
    for number, acknowledged in received.items():
        kept = [label for label in labels if label.split(".")[0] == str(number)]
        assert kept == [f"{number}.{at}" for at in range(len(kept))]
        assert acknowledged == kept[: len(acknowledged)]
        assert len(kept) - len(acknowledged) <= 1
    assert sum(map(len, received.values())) > 0


@pytest.mark.feature("memory-no-locking-between-processes")
def test_forked_process_uses_its_own_connections(
    store: Store, exit_status_of_fork: Callable[[Callable[[], None]], int]
) -> None:
    """Parent and child use a repository that was open before the fork."""
    for label in ("0.0", "0.1"):
        drive(store.repository.append("shared", turn(label, 2), BLOCKING))

    def add() -> None:
        for number in range(10):
            drive(store.repository.append("shared", turn(f"1.{number}", 2), BLOCKING))

    status = exit_status_of_fork(add)
    for number in range(2, 10):
        drive(store.repository.append("shared", turn(f"0.{number}", 2), BLOCKING))

    assert status == 0
    check_turns(store.messages("shared"), workers=2, turns=10)


@pytest.fixture
def exit_status_of_fork() -> Callable[[Callable[[], None]], int]:
    """Return a function that runs another in a forked process."""
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
