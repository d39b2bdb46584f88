"""A process that adds turns to conversations, started by `test_memory_processes.py`.

Reads its task as one line of JSON, says when it is ready, waits for another line, and then tells
each turn that the store has acknowledged, as a line of its own.
"""

import json
import random
import sys
from itertools import count
from typing import Any

from chatclient.driving import drive
from chatclient.memory import ChatMemoryRepository
from chatclient.runtime import BLOCKING
from chatclient.testing.memory import turn


def open_repository(kind: str, url: str, prefix: str) -> ChatMemoryRepository:
    """Return the repository of a store."""
    if kind == "redis":
        from chatclient.memory.redis import RedisChatMemoryRepository

        return RedisChatMemoryRepository(url, key_prefix=prefix)
    from chatclient.memory.sql import SqlChatMemoryRepository

    return SqlChatMemoryRepository(url, table_prefix=prefix)


def tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def add(repository: ChatMemoryRepository, name: str, label: str) -> None:
    key = label if random.random() < 0.5 else None
    drive(repository.append(name, turn(label, 2), BLOCKING, key=key))
    tell(label)


def work(repository: ChatMemoryRepository, task: dict[str, Any]) -> None:
    worker = task["worker"]
    match task["do"]:
        case "one":
            for number in range(task["turns"]):
                add(repository, "shared", f"{worker}.{number}")
        case "many":
            for number in random.sample(range(task["conversations"]), task["turns"]):
                add(repository, f"conversation {number}", f"{worker}.{number}")
        case "endless":
            for number in count():
                add(repository, "shared", f"{worker}.{number}")
        case "rewrite":
            while True:
                drive(repository.rewrite("shared", tuple, BLOCKING))
                tell("rewritten")


def main() -> None:
    task = json.loads(sys.stdin.readline())
    with open_repository(task["kind"], task["url"], task["prefix"]) as repository:
        tell("ready")
        sys.stdin.readline()
        work(repository, task)


if __name__ == "__main__":
    main()
