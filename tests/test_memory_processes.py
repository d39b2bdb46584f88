"""Several processes on the same conversations, some of them killed."""

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from databases import KINDS, redis_place, sql_place
from memory_worker import open_repository

from chatclient.driving import drive
from chatclient.memory import ChatMemoryRepository
from chatclient.messages import Message, UserMessage
from chatclient.runtime import BLOCKING
from chatclient.testing.memory import check_turns, turn

WORKER = Path(__file__).with_name("memory_worker.py")
PROCESSES, TURNS, CONVERSATIONS = 8, 50, 400


@dataclass
class Place:
    """Where the processes meet; the test has a repository of its own there."""

    kind: str
    url: str
    prefix: str
    repository: ChatMemoryRepository

    def start(self, worker: int, **task: Any) -> "subprocess.Popen[str]":
        """Start a process, which waits for the word to begin."""
        process = subprocess.Popen(
            [sys.executable, str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        where = {"kind": self.kind, "url": self.url, "prefix": self.prefix}
        say(process, json.dumps({**where, "worker": worker, **task}))
        return process

    def run(self, **task: Any) -> list[str]:
        """Have all processes do the same at once, to their end; return what they told."""
        told: list[str] = []
        with crew([self.start(worker, **task) for worker in range(PROCESSES)]) as processes:
            for process in processes:
                told += hear_all(process)
                assert process.wait() == 0
        return told

    def messages(self, name: str) -> tuple[Message, ...]:
        return drive(self.repository.load(name, BLOCKING)).messages


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    kind = request.param
    with (
        redis_place() if kind == "redis" else sql_place(kind, tmp_path) as (url, prefix),
        open_repository(kind, url, prefix) as repository,
    ):
        yield Place(kind, url, prefix, repository)


def say(process: "subprocess.Popen[str]", line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def hear(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def hear_all(process: "subprocess.Popen[str]") -> list[str]:
    """Return the whole lines that a process says until its end."""
    assert process.stdout is not None
    return process.stdout.read().split("\n")[:-1]


@contextmanager
def crew(processes: list["subprocess.Popen[str]"]) -> Iterator[list["subprocess.Popen[str]"]]:
    """Let processes begin at once; none is left behind."""
    try:
        assert [hear(process) for process in processes] == ["ready"] * len(processes)
        for process in processes:
            say(process, "go")
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None and not pipe.closed:
                    pipe.close()


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
        workers = [wave * 10 + number for number in range(4)]
        processes = [place.start(worker, do="endless") for worker in workers]
        processes.append(place.start(99, do="rewrite"))
        with crew(processes):
            hear(processes[0])  # they are at it
            for process in random.sample(processes, len(processes)):
                time.sleep(random.uniform(0, 0.1))
                process.send_signal(signal.SIGKILL)
            for worker, process in zip(workers, processes, strict=False):
                told[worker] = hear_all(process)
        told[workers[0]].insert(0, f"{workers[0]}.0")

    messages = place.messages("shared")
    labels = [m.text.split()[1] for m in messages if isinstance(m, UserMessage)]
    assert messages == tuple(m for label in labels for m in turn(label, 2))
    for worker, acknowledged in told.items():
        kept = [label for label in labels if label.split(".")[0] == str(worker)]
        assert kept == [f"{worker}.{number}" for number in range(len(kept))]
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
