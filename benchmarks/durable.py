"""What durable turns cost: per step, per turn, and with many turns that wait.

    python benchmarks/durable.py [--database URL] [--turns 200] [--waiting 10000]

Measured with a scripted model, which answers at once, on SQLite and on the PostgreSQL server of the
tests, in a database that is created anew:

- the time that recording adds to a model call and to a tool call, from turns of 1 and of 11 model
  calls with a tool call each;
- short turns per second, of one model call, started by one thread and run in the same process;
- the time of a short turn, and of decisions, while many turns wait.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import psycopg

from chatclient import AssistantMessage, ChatClient, Prompt, tool
from chatclient.durable import TurnQueue, durable, launch
from chatclient.testing import Answer, ScriptedModel, call
from chatclient.tools import ToolApproval, ToolCallingManager

SERVER = os.environ.get("CRASH_SERVER", "postgresql://postgres@127.0.0.1:5432")
ROUNDS = 10


@tool(effect="read")
def look(number: int) -> str:
    """Look something up."""
    return str(number)


@tool
def write(number: int) -> str:
    """Write something."""
    return str(number)


def answer(prompt: Prompt) -> Answer:
    """Call the tool that the user names, in each round until the last."""
    text = prompt.messages[0].text
    round = sum(isinstance(each, AssistantMessage) for each in prompt.messages)
    name, _, rounds = text.partition(" ")
    return call(name, {"number": round}) if round < int(rounds or 0) else "Done."


def new_client(*, approval: bool) -> ChatClient:
    """Return a client of the scripted model."""
    manager = ToolCallingManager(interceptors=[ToolApproval()] if approval else [])
    builder = ChatClient.builder(ScriptedModel(answer)).default_tools(look, write)
    return builder.tool_calling_manager(manager).build()


plain = new_client(approval=False)
fast = durable(plain, name="fast")
asking = durable(new_client(approval=True), name="asking")


def milliseconds(text: str, repeat: int, *, recorded: bool) -> float:
    """Return the median duration of a turn."""
    times = []
    for _ in range(repeat):
        began = time.perf_counter()
        if recorded:
            fast.call(text)
        else:
            plain.prompt(text).call().content()
        times.append((time.perf_counter() - began) * 1000)
    return statistics.median(times)


def measure_steps(repeat: int) -> None:
    """Print what steps add, without what a turn adds itself."""
    empty = milliseconds("none", repeat, recorded=True)
    print(f"  turn of one model call: {empty:.1f} ms")
    for name, steps in (("look", 2), ("write", 3)):
        text = f"{name} {ROUNDS}"
        added = milliseconds(text, repeat, recorded=True) - empty
        own = milliseconds(text, repeat, recorded=False)
        per_step = (added - own) / (ROUNDS * steps)
        print(f"  round with {name}: {(added - own) / ROUNDS:.1f} ms, {per_step:.1f} ms per step")


def measure_throughput(turns: int) -> None:
    """Print how many short turns a process starts and runs in a second."""
    began = time.perf_counter()
    for result in fast.map(["none"] * turns, key=f"m{began}", queue="many"):
        result.unwrap()
    print(f"  {turns / (time.perf_counter() - began):.0f} short turns per second from a queue")


def measure_waiting(count: int, repeat: int) -> None:
    """Print how turns behave while *count* turns wait for decisions."""
    began = time.perf_counter()
    turns = asking.map(["write 1"] * count, key=f"w{began}", queue="many")
    while turns.progress()["waiting"] < count:
        time.sleep(1)
    print(f"  {count} turns wait, after {time.perf_counter() - began:.0f} s;", end=" ")
    print(f"a turn of one model call: {milliseconds('none', repeat, recorded=True):.1f} ms")
    some = [*turns.turns.values()][:: max(1, count // repeat)]
    began = time.perf_counter()
    for turn in some:
        turn.decide("approve")
    decided = (time.perf_counter() - began) / len(some)
    for turn in some:
        turn.result()
    total = (time.perf_counter() - began) / len(some)
    print(f"  a decision takes {decided * 1000:.1f} ms, until the answer {total * 1000:.1f} ms")


def main() -> None:
    """Run the benchmark and print the numbers."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--database", help="a URL; default: SQLite and PostgreSQL")
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--waiting", type=int, default=10_000)
    parser.add_argument("--repeat", type=int, default=20)
    arguments = parser.parse_args()
    if arguments.database is None:
        with psycopg.connect(f"{SERVER}/postgres", autocommit=True) as connection:
            connection.execute("drop database if exists durable_benchmark with (force)")
            connection.execute("create database durable_benchmark")
        folder = tempfile.mkdtemp()
        urls = [f"sqlite:///{Path(folder, 'turns.db')}", f"{SERVER}/durable_benchmark"]
    else:
        urls = [arguments.database]
    for url in urls:
        print(url.partition(":")[0])
        queue = TurnQueue("many", worker_concurrency=50, poll_seconds=0.05)
        with launch(url, queues=[queue]):
            measure_steps(arguments.repeat)
            measure_throughput(arguments.turns)
            if arguments.waiting:
                measure_waiting(arguments.waiting, arguments.repeat)


if __name__ == "__main__":
    main()
