"""The load of durable turns on PostgreSQL, in numbers that depend on no machine.

    python benchmarks/durable_load.py [--server URL] [--turns 100]

Counts the transactions and written rows of the database, and what it stores: while a process is
idle, for short turns (one model call) and for turns of ten rounds, directly and from a queue. The
transactions of an idle process are subtracted. The database `durable_load` is created anew.
"""

import argparse
import time
from dataclasses import dataclass

import psycopg

from chatclient import AssistantMessage, ChatClient, Prompt, tool
from chatclient.durable import TurnQueue, durable, launch
from chatclient.testing import Answer, ScriptedModel, call

SERVER = "postgresql://postgres@127.0.0.1:5432"
NAME = "durable_load"
ROUNDS = 10
IDLE_SECONDS = 10.0
STATISTICS_SECONDS = 2.5  # until all connections have reported theirs

COUNTS = """
select xact_commit, tup_inserted + tup_updated + tup_deleted, pg_database_size(datname),
    (select count(*) from pg_stat_activity where datname = %(name)s)
from pg_stat_database where datname = %(name)s
"""


def answer(prompt: Prompt) -> Answer:
    """Call the tool in each round, if the user says so."""
    rounds = sum(isinstance(message, AssistantMessage) for message in prompt.messages)
    long = prompt.messages[0].text == "long" and rounds < ROUNDS
    return call("look", {"at": rounds}) if long else "Done."


@tool(effect="read")
def look(at: int) -> str:
    """Look something up."""
    return f"seen {at}"


client = durable(ChatClient.builder(ScriptedModel(answer)).default_tools(look).build(), name="load")


@dataclass(frozen=True)
class Counts:
    """The counters of the database, at a time."""

    at: float
    transactions: int
    rows: int
    size: int
    connections: int


class Database:
    """The database, observed through a connection to another one."""

    def __init__(self, server: str) -> None:
        self.url = f"{server}/{NAME}"
        self.connection = psycopg.connect(f"{server}/postgres", autocommit=True)
        self.connection.execute(f"drop database if exists {NAME} with (force)")
        self.connection.execute(f"create database {NAME}")

    def counts(self) -> Counts:
        """Return the counters, when all connections have reported."""
        time.sleep(STATISTICS_SECONDS)
        row = self.connection.execute(COUNTS, {"name": NAME}).fetchone()
        assert row is not None
        return Counts(time.monotonic(), *row)


def measure(database: Database, text: str, turns: int, queue: str | None, idle: float) -> None:
    """Print what each of *turns* turns costs; *idle*: transactions per second without turns."""
    before = database.counts()
    handles = [client.start(text, queue=queue) for _ in range(turns)]
    with psycopg.connect(database.url, autocommit=True) as connection:
        query = "select count(*) from dbos.workflow_status where status <> 'SUCCESS'"
        while connection.execute(query).fetchone() != (0,):
            time.sleep(1)
    after = database.counts()
    assert len(handles) == turns
    own = after.transactions - before.transactions - idle * (after.at - before.at)
    rows, kilobytes = after.rows - before.rows, (after.size - before.size) / 1000
    print(f"{text:5} {queue or 'directly':8}", end=" ")
    print(f"{own / turns:12.1f} {rows / turns:6.1f} {kilobytes / turns:9.1f}")


def main() -> None:
    """Print the numbers."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--server", default=SERVER)
    parser.add_argument("--turns", type=int, default=100)
    arguments = parser.parse_args()
    database = Database(arguments.server)
    with launch(database.url, queues=[TurnQueue("queue")]):
        before = database.counts()
        time.sleep(IDLE_SECONDS)
        after = database.counts()
        idle = (after.transactions - before.transactions) / (after.at - before.at)
        print(f"idle process with two queues: {idle:.1f} transactions per second")
        print(f"{'turn':14} transactions   rows kB stored")
        for text in ("short", "long"):
            for queue in (None, "queue"):
                measure(database, text, arguments.turns, queue, idle)
        print(f"{database.counts().connections} connections")


if __name__ == "__main__":
    main()
