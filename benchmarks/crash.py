"""Durable turns while workers are killed and database connections are terminated.

    python benchmarks/crash.py [--turns 200] [--workers 4] [--seconds 300] [--every 1]

Turns of 1 to 8 rounds, with tools that read, are idempotent or write, run on several workers. Every
second, or less often, a random worker gets SIGKILL and is replaced; every second, a random
connection to the database of the turns is terminated. In the end, each turn must have completed
once or wait for a decision about a tool that was interrupted; each tool that writes must have run
once, or its turn waits; and each conversation must be stored once and be valid. The waiting turns
are then decided, by what the tools have really done, and must complete as well.

Needs the PostgreSQL server of the tests; the databases `crash_turns` and `crash_effects` are
created anew.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psycopg

from chatclient import AssistantMessage, ToolResponseMessage
from chatclient.durable import TurnHandle, TurnState, connect
from chatclient.durable.handle import states_of
from chatclient.tools import Decision

SERVER = os.environ.get("CRASH_SERVER", "postgresql://postgres@127.0.0.1:5432")
TURNS, EFFECTS = f"{SERVER}/crash_turns", f"{SERVER}/crash_effects"
HERE = Path(__file__).parent
LOG = Path(tempfile.gettempdir()) / "crash_workers.log"
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


create_databases()
import crash_app as app  # noqa: E402 - creates tables


class Workers:
    """The worker processes."""

    def __init__(self, count: int) -> None:
        self.log = LOG.open("wb")
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

    def wait_for_first(self) -> None:
        """Wait until a worker is running, which has created the tables and the queue."""
        while b"running turns" not in LOG.read_bytes():
            time.sleep(0.1)

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


def wait_for_end(handles: list[TurnHandle], seconds: float) -> Counter[TurnState]:
    """Wait until no turn is queued or running, and return the number of turns in each state."""
    end = time.monotonic() + seconds
    while True:
        states = Counter(states_of(handles).values())
        if not (states["queued"] or states["running"]) or time.monotonic() > end:
            return states
        time.sleep(1)


def effects() -> Counter[tuple[str, int, str]]:
    """Return how often each tool took effect: by kind, turn and step."""
    with psycopg.connect(EFFECTS) as connection:
        rows = connection.execute("select kind, turn, step, key from effects").fetchall()
    keys: dict[tuple[str, int, str], str] = {}
    for kind, turn, step, key in rows:
        assert keys.setdefault((kind, turn, step), key) == key, "another idempotency key"
    return Counter((kind, turn, step) for kind, turn, step, _ in rows)


def calls_of(number: int) -> list[list[str]]:
    """Return the tools that turn *number* calls in each round."""
    return [app.calls_in(number, round) for round in range(app.rounds_of(number) - 1)]


def check_completed(number: int, ran: Counter[tuple[str, int, str]]) -> None:
    """Check the effects of a completed turn, and that its conversation is stored once."""
    expected = calls_of(number)
    for round, names in enumerate(expected):
        for at, name in enumerate(names):
            count = ran[name, number, f"{round}.{at}"]
            assert count == 1 if name == "write" else count >= 1, (number, round, at, count)
    messages = app.repository.find_by_conversation_id(f"c{number}")
    roles = [message.role for message in messages]
    assert roles == ["user", *["assistant", "tool"] * len(expected), "assistant"], (number, roles)
    assert len({message.id for message in messages}) == len(messages)
    for round, names in enumerate(expected):
        asked, answered = messages[1 + 2 * round], messages[2 + 2 * round]
        assert isinstance(asked, AssistantMessage)
        assert isinstance(answered, ToolResponseMessage)
        assert [call.name for call in asked.tool_calls] == names
        assert [each.id for each in answered.responses] == [call.id for call in asked.tool_calls]
        assert not any(each.is_error for each in answered.responses), (number, answered)
    assert messages[-1].text == f"turn {number} is done"


def check(handles: list[TurnHandle]) -> None:
    """Check all turns, of which some may wait, and print numbers."""
    ran, states = effects(), states_of(handles)
    assert set(states.values()) <= {"done", "waiting"}, Counter(states.values())
    waiting = 0
    for number, handle in enumerate(handles):
        if states[handle.id] == "done":
            check_completed(number, ran)
            continue
        result = handle.result()
        assert result.pending_turn is not None
        assert set(result.interrupted) == set(result.pending_turn.to_decide())
        assert app.repository.find_by_conversation_id(f"c{number}") == []
        waiting += len(result.interrupted)
    twice = [call for call, count in ran.items() if call[0] == "write" and count > 1]
    assert not twice, twice
    repeated = sum(count - 1 for call, count in ran.items() if call[0] != "write")
    writes = sum(call[0] == "write" for call in ran)
    print(f"{ran.total()} tool runs: {writes} writes, each once; of the others, {repeated} repeats")
    print(f"{waiting} interrupted writes wait for a decision")


def decide(handles: list[TurnHandle]) -> int:
    """Decide about all interrupted calls, by whether they took effect; return their number."""
    ran, states, decided = effects(), states_of(handles), 0
    for handle in handles:
        if states[handle.id] != "waiting":
            continue
        pending, decisions = handle.result().pending_turn, dict[str, Decision | bool]()
        assert pending is not None
        for id, call in pending.to_decide().items():
            given = json.loads(call.arguments)
            took_effect = ran["write", given["turn"], given["step"]]
            answer = Decision.answered(f"booked {given['step']}")
            decisions[id] = answer if took_effect else True
        handle.decide(decisions)
        decided += len(decisions)
    return decided


def start_turns(count: int, seconds: float) -> list[TurnHandle]:
    """Start the turns, spread over most of the time."""
    return [
        app.shop.start(
            app.shop.prompt(f"Run turn {number}").conversation(f"c{number}"),
            key=str(number),
            queue="shop",
            delay=0.01 + number * seconds * 0.8 / count,
        )
        for number in range(count)
    ]


def main() -> None:
    """Run the test and print the numbers."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--every", type=float, default=1, help="seconds between two kills")
    arguments = parser.parse_args()
    workers = Workers(arguments.workers)
    workers.wait_for_first()
    engine = connect(TURNS)
    handles = start_turns(arguments.turns, arguments.seconds)
    began, terminated = time.monotonic(), 0
    next_kill = began + arguments.every
    while time.monotonic() < began + arguments.seconds:
        time.sleep(1)
        if time.monotonic() >= next_kill:
            workers.kill_one()
            next_kill += arguments.every
        terminated += terminate_connection()
    print(f"{workers.killed} workers killed, {terminated} connections terminated")

    states = wait_for_end(handles, 120)
    print(f"after {time.monotonic() - began:.0f} s: {dict(states)}")
    check(handles)
    decided = 0
    while states["waiting"]:
        decided += decide(handles)
        states = wait_for_end(handles, 120)
    print(f"{decided} decisions later: {dict(states)}")
    assert states["done"] == arguments.turns
    check(handles)
    print("each turn completed once, each write ran once, each conversation is valid")
    engine.close()
    workers.stop()
    app.repository.close()


if __name__ == "__main__":
    main()
