"""Durable turns while workers are killed and database connections are terminated.

    python benchmarks/crash.py [--turns 200] [--workers 4] [--seconds 300]

Turns of 1 to 8 rounds, with tools that read, are idempotent or write, run on several workers. Every
second a random worker gets SIGKILL and is replaced, and a random connection to the database of the
turns is terminated. In the end, each turn must have completed once or wait for a decision about a
tool that was interrupted; each tool that writes must have run once, or its turn waits; and each
conversation must be stored once and be valid. The waiting turns are then decided, by what the tools
have really done, and must complete as well.

Needs the PostgreSQL server of the tests; the databases `crash_turns` and `crash_effects` are
created anew.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psycopg

SERVER = os.environ.get("CRASH_SERVER", "postgresql://postgres@127.0.0.1:5432")
TURNS, EFFECTS = f"{SERVER}/crash_turns", f"{SERVER}/crash_effects"
HERE = Path(__file__).parent
TAKEOVER_SECONDS = 3.0


def create_databases() -> None:
    """Create both databases anew."""
    with psycopg.connect(f"{SERVER}/postgres", autocommit=True) as connection:
        for name in ("crash_turns", "crash_effects"):
            connection.execute(f"drop database if exists {name} with (force)")
            connection.execute(f"create database {name}")
    with psycopg.connect(EFFECTS, autocommit=True) as connection:
        connection.execute(
            "create table effects (kind text, turn int, step text, key text,"
            " at timestamptz default clock_timestamp())"
        )


class Workers:
    """The worker processes."""

    def __init__(self, count: int) -> None:
        self.log = Path("/tmp/crash_workers.log").open("ab")  # noqa: SIM115 - for all processes
        self.killed = 0
        self.processes = [self.start() for _ in range(count)]

    def start(self) -> subprocess.Popen[bytes]:
        """Return a new worker."""
        command = [
            *(sys.executable, "-m", "chatclient", "worker", "crash_app:clients"),
            *("--database", TURNS, "--takeover-seconds", str(TAKEOVER_SECONDS)),
            *("--drain-seconds", "5"),
        ]
        environment = {**os.environ, "PYTHONPATH": f"{HERE.parent}:{HERE}"}
        return subprocess.Popen(command, env=environment, stdout=self.log, stderr=self.log)

    def kill_one(self) -> None:
        """Kill a random worker, and start another one."""
        at = random.randrange(len(self.processes))
        self.processes[at].kill()
        self.processes[at].wait()
        self.processes[at] = self.start()
        self.killed += 1

    def stop(self) -> None:
        """Stop all workers."""
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            process.wait(60)
        self.log.close()


def terminate_connection() -> int:
    """Terminate a random connection to the database of the turns, and return how many ended."""
    with psycopg.connect(f"{SERVER}/postgres", autocommit=True) as connection:
        query = (
            "select count(pg_terminate_backend(pid)) from (select pid from pg_stat_activity"
            " where datname = 'crash_turns' order by random() limit 1) as one"
        )
        row = connection.execute(query).fetchone()
    return row[0] if row else 0


def wait_for_end(handles: list, seconds: float) -> Counter:
    """Wait until no turn is queued or running, and return the number of turns in each state."""
    end = time.monotonic() + seconds
    while True:
        states = Counter(handle.status().state for handle in handles)
        if not states["queued"] and not states["running"]:
            return states
        if time.monotonic() > end:
            return states
        time.sleep(1)


def effects() -> Counter:
    """Return how often each tool took effect: by kind, turn and step."""
    with psycopg.connect(EFFECTS) as connection:
        rows = connection.execute("select kind, turn, step, key from effects").fetchall()
    keys = {}
    for kind, turn, step, key in rows:
        assert keys.setdefault((kind, turn, step), key) == key, "another idempotency key"
    return Counter((kind, turn, step) for kind, turn, step, _ in rows)


def check_conversation(number: int, messages: list, expected_calls: list[list[str]]) -> None:
    """Check that the conversation of a completed turn is stored once, and is complete."""
    roles = [message.role for message in messages]
    rounds = len(expected_calls)
    assert roles == ["user", *["assistant", "tool"] * rounds, "assistant"], (number, roles)
    assert len({message.id for message in messages}) == len(messages)
    for round, names in enumerate(expected_calls):
        calls, results = messages[1 + 2 * round], messages[2 + 2 * round]
        assert [call.name for call in calls.tool_calls] == names
        assert [r.id for r in results.responses] == [c.id for c in calls.tool_calls]
        assert not any(each.is_error for each in results.responses), (number, results)
    assert messages[-1].text == f"turn {number} is done"


def main() -> None:
    """Run the test and print the numbers."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=300)
    arguments = parser.parse_args()
    create_databases()
    sys.path.insert(0, str(HERE))
    workers = Workers(arguments.workers)
    from crash_app import calls_in, repository, rounds_of, shop

    from chatclient.durable import connect
    from chatclient.tools import Decision

    time.sleep(4)
    engine = connect(TURNS)
    spread = arguments.seconds * 0.8 / arguments.turns
    handles = [
        shop.start(
            shop.prompt(f"Run turn {number}").conversation(f"c{number}"),
            key=str(number),
            queue="shop",
            delay=0.01 + number * spread,
        )
        for number in range(arguments.turns)
    ]
    began, terminated = time.monotonic(), 0
    while time.monotonic() < began + arguments.seconds:
        time.sleep(1)
        workers.kill_one()
        terminated += terminate_connection()
    print(f"{workers.killed} workers killed, {terminated} connections terminated")

    states = wait_for_end(handles, 120)
    print(f"after {time.monotonic() - began:.0f} s: {dict(states)}")
    assert set(states) <= {"done", "waiting"}, states
    ran, waiting = effects(), []
    decided, state_of = 0, {}
    for number, handle in enumerate(handles):
        state_of[number] = handle.status().state
        if state_of[number] == "waiting":
            result = handle.result()
            assert set(result.interrupted) == set(result.pending_turn.to_decide())
            waiting += [(number, call.arguments) for call in result.pending_turn.pending]
    for (kind, turn, step), count in ran.items():
        if kind == "write":
            assert count == 1, f"turn {turn} wrote {count} times in {step}"
    for number, state in state_of.items():
        expected = [calls_in(number, round) for round in range(rounds_of(number) - 1)]
        stored = repository.find_by_conversation_id(f"c{number}")
        if state == "waiting":
            assert stored == [], f"turn {number} is stored and waits"
            continue
        for round, names in enumerate(expected):
            for at, name in enumerate(names):
                count = ran[name, number, f"{round}.{at}"]
                assert count == 1 if name == "write" else count >= 1
        check_conversation(number, stored, expected)
    repeated = sum(count - 1 for (kind, *_), count in ran.items() if kind != "write")
    print(f"{sum(ran.values())} tool runs, {repeated} of them repeated (read or idempotent);")
    print(f"{sum(kind == 'write' for kind, *_ in ran)} writes, each once")
    print(f"{len(waiting)} interrupted writes wait in {states['waiting']} turns")

    while states["waiting"]:
        for handle in handles:
            if handle.status().state != "waiting":
                continue
            pending = handle.result().pending_turn
            done = effects()
            decisions = {}
            for id, call in pending.to_decide().items():
                arguments_ = __import__("json").loads(call.arguments)
                wrote = done["write", arguments_["turn"], arguments_["step"]]
                decisions[id] = Decision.answered(f"booked {arguments_['step']}") if wrote else True
            handle.decide(decisions)
            decided += len(decisions)
        states = wait_for_end(handles, 120)
    print(f"{decided} decisions later: {dict(states)}")
    assert states["done"] == arguments.turns
    ran = effects()
    for number in range(arguments.turns):
        expected = [calls_in(number, round) for round in range(rounds_of(number) - 1)]
        check_conversation(number, repository.find_by_conversation_id(f"c{number}"), expected)
        for round, names in enumerate(expected):
            for at, name in enumerate(names):
                if name == "write":
                    assert ran["write", number, f"{round}.{at}"] == 1
    print("each turn completed once, each write ran once, each conversation is valid")
    engine.close()
    workers.stop()
    repository.close()


if __name__ == "__main__":
    main()
