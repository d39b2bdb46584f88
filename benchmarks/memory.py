"""Time and traffic of memory per turn, for conversations of 10, 1,000 and 10,000 messages.

    python benchmarks/memory.py [--repeat 200] [--sizes 10 1000 10000] [--only memory sqlite]

For each repository whose server answers: the wall time of `get` with a window of 20 messages, and
of `add` of a turn of two, on a conversation of that size. It is the first decile of many runs, so
that a busy machine disturbs it little. The servers are those of
the tests: PostgreSQL, MariaDB and Redis on their standard loopback ports.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from uuid import uuid4

from chatclient import AssistantMessage, Message, UserMessage
from chatclient.memory import (
    ChatMemoryRepository,
    InMemoryChatMemoryRepository,
    MessageWindowChatMemory,
    RedisChatMemoryRepository,
    SqlChatMemoryRepository,
)

POSTGRESQL = os.environ.get(
    "CHATCLIENT_TEST_POSTGRES", "postgresql+psycopg://postgres@127.0.0.1:5432/test"
)
MARIADB = os.environ.get("CHATCLIENT_TEST_MARIADB", "mariadb+pymysql://root@127.0.0.1:3306/test")
REDIS = os.environ.get("CHATCLIENT_TEST_REDIS", "redis://127.0.0.1:6379/0")


def turns(count: int) -> list[Message]:
    """Return *count* turns of a question and an answer."""
    return [
        message
        for number in range(count)
        for message in (
            UserMessage(f"Question number {number}: what is {number} plus {number}, please?"),
            AssistantMessage(f"The sum of {number} and {number} is {2 * number}, as one sees."),
        )
    ]


def repositories(folder: str) -> dict[str, Callable[[], ChatMemoryRepository]]:
    """Return a factory for each repository."""
    return {
        "memory": InMemoryChatMemoryRepository,
        "sqlite": lambda: SqlChatMemoryRepository(f"sqlite:///{Path(folder, 'memory.db')}"),
        "postgresql": lambda: SqlChatMemoryRepository(POSTGRESQL),
        "mariadb": lambda: SqlChatMemoryRepository(MARIADB),
        "redis": lambda: RedisChatMemoryRepository(REDIS),
    }


def seconds(function: Callable[[], object], repeat: int) -> float:
    """Return the seconds that a call of *function* takes."""
    taken = []
    for _ in range(repeat):
        started = time.perf_counter()
        function()
        taken.append(time.perf_counter() - started)
    return statistics.quantiles(taken, n=10)[0]


@contextmanager
def conversation(repository: ChatMemoryRepository, size: int) -> Iterator[str]:
    """Create a conversation of *size* messages and delete it afterwards."""
    name = f"benchmark-{uuid4()}"
    repository.save_all(name, turns(size // 2))
    try:
        yield name
    finally:
        repository.delete_by_conversation_id(name)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeat", type=int, default=200)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 1000, 10_000])
    parser.add_argument("--only", nargs="+")
    arguments = parser.parse_args()
    print(f"{'repository':12} {'messages':>9} {'get':>10} {'add':>10}   microseconds")
    with tempfile.TemporaryDirectory() as folder:
        for kind, make in repositories(folder).items():
            if arguments.only and kind not in arguments.only:
                continue
            try:
                with make() as repository:
                    measure(kind, repository, arguments.sizes, arguments.repeat)
            except Exception as error:  # noqa: BLE001 - a server that is not there is no failure
                print(f"{kind:12} {type(error).__name__}: {error}".partition("\n")[0])


def measure(kind: str, repository: ChatMemoryRepository, sizes: list[int], repeat: int) -> None:
    """Print the lines of one repository."""
    memory = MessageWindowChatMemory(repository, max_messages=20, keep=20)
    turn = turns(1)
    for size in sizes:
        with conversation(repository, size) as name:
            get = seconds(partial(memory.get, name), repeat)
            add = seconds(partial(memory.add, name, turn), repeat)
        print(f"{kind:12} {size:9,} {get * 1e6:10,.1f} {add * 1e6:10,.1f}")


if __name__ == "__main__":
    main()
