"""The cost of durability here and in pydantic-ai, both on DBOS and the same database.

    python benchmarks/durable_peers.py [--database URL] [--repeat 5]

Both are installed in one environment, kept like those of `compare.py`, with the same release of
DBOS. In turn, each of them runs in a process of its own: turns of 20 rounds, with and without
durability, in which a model that answers at once calls a tool that does nothing; then short turns,
which call the model once, 20 at a time. In both, each call of the model and of the tool is one
step: the tool has `effect="read"` here, and in pydantic-ai it is a `@DBOS.step()`, which it has to
be if it must not run again. CPU time is that of the process, without the database server.

The database is created anew; default: `durable_peers` on the PostgreSQL server of the tests.
"""

import argparse
import asyncio
import json
import logging
import os
import statistics
import subprocess
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import psycopg
from compare import python_of
from psycopg import sql

HERE = Path(__file__).parent
ROOT = HERE.parent
DATABASE = "postgresql://postgres@127.0.0.1:5432/durable_peers"
PACKAGES = ["--editable", f"{ROOT}[dbos,postgres]", "pydantic-ai-slim[dbos]"]
COLUMNS = ("steps", "ms/step", "CPU ms/step", "short turns/s", "CPU ms/turn")
TURNS, SHORT_TURNS, AT_ONCE = 12, 400, 20

Turn = Callable[[str], Awaitable[Any]]


SIDES = ("chatclient", "pydantic_ai")


@dataclass
class Clock:
    """Seconds, and CPU seconds of this process, since it was made."""

    began: float = field(default_factory=time.perf_counter)
    cpu_began: float = field(default_factory=time.process_time)

    def milliseconds(self, count: int) -> tuple[float, float]:
        """Return the milliseconds, and CPU milliseconds, of each of *count* parts."""
        wall, cpu = time.perf_counter() - self.began, time.process_time() - self.cpu_began
        return wall * 1000 / count, cpu * 1000 / count


async def long_turns(turn: Turn) -> tuple[float, float]:
    """Return the median milliseconds, and CPU milliseconds, of several long turns."""
    await turn("long")
    measured = []
    for _ in range(TURNS):
        clock = Clock()
        await turn("long")
        measured.append(clock.milliseconds(1))
    wall, cpu = zip(*measured, strict=True)
    return statistics.median(wall), statistics.median(cpu)


async def short_turns(turn: Turn) -> tuple[float, float]:
    """Return the milliseconds, and CPU milliseconds, for each of many short turns at once."""
    free = asyncio.Semaphore(AT_ONCE)

    async def one() -> None:
        async with free:
            await turn("short")

    await one()
    clock = Clock()
    await asyncio.gather(*(one() for _ in range(SHORT_TURNS)))
    return clock.milliseconds(SHORT_TURNS)


def steps_of_long_turns() -> int:
    """Return the number of steps of a long turn."""
    from dbos import DBOS

    workflows = DBOS.list_workflows(load_input=False, load_output=False)
    counts = {len(DBOS.list_workflow_steps(each.workflow_id)) for each in workflows}
    (steps,) = counts
    return steps


def measure(side: str, database: str) -> dict[str, float]:
    """Return what one side costs, in this process."""
    logging.disable(logging.WARNING)
    plain, turn, close = import_module(f"{side}_durable").turns(database)

    async def run() -> dict[str, float]:
        own, own_cpu = await long_turns(plain)
        wall, cpu = await long_turns(turn)
        steps = await asyncio.to_thread(steps_of_long_turns)
        short, short_cpu = await short_turns(turn)
        return {
            "steps": steps,
            "ms_per_step": (wall - own) / steps,
            "cpu_per_step": (cpu - own_cpu) / steps,
            "turns_per_second": 1000 / short,
            "cpu_per_turn": short_cpu,
        }

    measured = asyncio.run(run())
    close()
    return measured


def create_database(url: str) -> None:
    """Create the database anew, for each process: tables that grow cost more."""
    server, _, name = url.rpartition("/")
    with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
        identifier = sql.Identifier(name)
        connection.execute(sql.SQL("drop database if exists {} with (force)").format(identifier))
        connection.execute(sql.SQL("create database {}").format(identifier))


def run_side(side: str, database: str) -> dict[str, float]:
    """Measure one side in the environment of both."""
    create_database(database)
    command = [str(python_of("durable_peers", PACKAGES)), __file__]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{HERE}:{HERE / 'frameworks'}"}
    ran = subprocess.run(
        [*command, "--database", database, "--side", side],
        env=environment,
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, float] = json.loads(ran.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Print a row for each side: the median of all repetitions."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--database", default=DATABASE)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        print(json.dumps(measure(arguments.side, arguments.database)))
        return
    rows: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    for _ in range(arguments.repeat):
        for side, measured in rows.items():
            measured.append(run_side(side, arguments.database))
    print(" " * 12, *(f"{title:>15}" for title in COLUMNS))
    for side, measured in rows.items():
        medians = [statistics.median(row[name] for row in measured) for name in measured[0]]
        print(f"{side:12}", *(f"{median:15.1f}" for median in medians))


if __name__ == "__main__":
    main()
