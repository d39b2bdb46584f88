"""A process that adds turns to conversations, started by `stores/test_processes.py`.

Reports that it is ready, waits for a message, and then reports each acknowledged turn.
"""

import random
from collections.abc import Callable
from itertools import count
from multiprocessing.connection import Connection
from typing import Any

from chatclient.memory import ChatMemoryRepository
from chatclient.runtime.blocking import drive
from chatclient.runtime.runtime import BLOCKING
from chatclient.testing.contract_parts import turn


def open_repository(kind: str, url: str, prefix: str) -> ChatMemoryRepository:
    """Return the repository of a store."""
    if kind == "redis":
        from chatclient.memory.redis import RedisChatMemoryRepository

        return RedisChatMemoryRepository(url, key_prefix=prefix)
    from chatclient.memory.sql.repository import SqlChatMemoryRepository

    return SqlChatMemoryRepository(url, table_prefix=prefix)


def work(repository: ChatMemoryRepository, report: Callable[[str], None], **task: Any) -> None:
    worker = task["worker"]

    def add(name: str, label: str) -> None:
        key = label if random.random() < 0.5 else None
        drive(repository.append(name, turn(label, 2), BLOCKING, key=key))
        report(label)

    match task["do"]:
        case "one":
            for number in range(task["turns"]):
                add("shared", f"{worker}.{number}")
        case "many":
            for number in random.sample(range(task["conversations"]), task["turns"]):
                add(f"conversation {number}", f"{worker}.{number}")
        case "endless":
            for number in count():
                add("shared", f"{worker}.{number}")
        case "rewrite":
            while True:
                drive(repository.rewrite("shared", tuple, BLOCKING))
                report("rewritten")


def main(peer: "Connection[str, str]", kind: str, url: str, prefix: str, **task: Any) -> None:
    with open_repository(kind, url, prefix) as repository:
        peer.send("ready")
        peer.recv()
        work(repository, peer.send, **task)
