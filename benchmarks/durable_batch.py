"""A batch of durable turns that is killed in the middle and run again.

    python benchmarks/durable_batch.py [--requests 2000] [--workers 2] [--concurrency 50]

A program runs `DurableClient.map` over the requests, and workers run the turns; a model call takes
0.2 seconds. When half of the model calls have finished, the program and all workers get SIGKILL,
and are started again. In the end there must be one result for each request. A model call that has
finished is repeated only if its result was not recorded yet; these are counted.

Needs the PostgreSQL server of the tests; the database `durable_batch` is created anew.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psycopg

from chatclient import ChatClient, ChatModel, ChatResponse, Prompt
from chatclient.durable import TurnQueue, connect, durable
from chatclient.runtime.runtime import Runtime

SERVER = os.environ.get("CRASH_SERVER", "postgresql://postgres@127.0.0.1:5432")
DATABASE = f"{SERVER}/durable_batch"
HERE = Path(__file__).parent
CALL_SECONDS = 0.2
TAKEOVER_SECONDS = 3.0
FOLDER = Path(os.environ.get("BATCH_FOLDER", tempfile.gettempdir()))


def note(file: str, text: str) -> None:
    """Append a line to *file*."""
    with (FOLDER / file).open("a") as lines:
        lines.write(f"{text}\n")


def noted(file: str) -> list[str]:
    """Return the complete lines of *file*."""
    path = FOLDER / file
    return path.read_text().split("\n")[:-1] if path.exists() else []


class Extractor(ChatModel):
    """A model that takes a while, and notes which calls have finished."""

    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:  # noqa: ARG002
        """Answer with the number of the invoice."""
        number = prompt.messages[-1].text.rpartition(" ")[2]
        await asyncio.sleep(CALL_SECONDS)
        note("calls", number)
        return ChatResponse.of(f"Invoice {number}: {int(number) * 10} EUR")


extractor = durable(ChatClient.create(Extractor()), name="extractor")
queue = TurnQueue(
    "batch", worker_concurrency=int(os.environ.get("BATCH_CONCURRENCY", "50")), poll_seconds=0.1
)
clients = [extractor, queue]


def run_program(count: int) -> None:
    """Run the batch, and note each result."""
    texts = {str(number): f"Read invoice {number}" for number in range(count)}
    with connect(DATABASE):
        began = time.monotonic()
        turns = extractor.map(texts, key="invoices", queue="batch")
        note("started", f"{time.monotonic() - began:.1f}")
        for each in turns:
            expected = f"Invoice {each.key}: {int(each.key) * 10} EUR"
            assert each.unwrap().content() == expected, (each.key, each.error)
            note("results", each.key)


class Processes:
    """The program and its workers.

    Args:
        count: The number of requests.
        workers: The number of workers.
    """

    def __init__(self, count: int, workers: int) -> None:
        environment = {**os.environ, "PYTHONPATH": f"{HERE.parent}:{HERE}"}
        command = [sys.executable, "-m", "chatclient", "worker", "durable_batch:clients"]
        command += ["--database", DATABASE, "--takeover-seconds", str(TAKEOVER_SECONDS)]
        with (FOLDER / "log").open("wb") as log:
            self.all = [
                subprocess.Popen(command, env=environment, stdout=log, stderr=log)
                for _ in range(workers)
            ]
        self._wait_for_workers()
        self.began = time.monotonic()
        program = [sys.executable, str(HERE / "durable_batch.py"), "--program", str(count)]
        self.program = subprocess.Popen(program, env=environment)
        self.all.append(self.program)

    def _wait_for_workers(self) -> None:
        while (FOLDER / "log").read_text().count("running turns") < len(self.all):
            assert all(process.poll() is None for process in self.all)
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill all of them."""
        for process in self.all:
            process.kill()
        for process in self.all:
            process.wait()


def run(count: int, workers: int) -> None:
    """Run the batch twice: until it is killed, and to its end."""
    first = Processes(count, workers)
    while len(noted("calls")) < count // 2:
        assert first.program.poll() is None
        time.sleep(0.05)
    first.kill()
    killed = time.monotonic() - first.began
    finished = len(noted("calls"))
    (FOLDER / "results").unlink(missing_ok=True)

    second = Processes(count, workers)
    assert second.program.wait() == 0
    seconds = time.monotonic() - second.began
    second.kill()

    calls = Counter(noted("calls"))
    assert sorted(map(int, noted("results"))) == list(range(count))
    assert set(calls) == {str(number) for number in range(count)}
    repeated = [number for number, times in calls.items() if times > 1]
    print(f"{count} requests, {workers} workers with {queue.worker_concurrency} at once each")
    print(f"killed after {killed:.1f} s with {finished} finished model calls")
    print(f"the second run took {seconds:.1f} s, of which {noted('started')[-1]} s to start turns")
    print(f"{count} results, one for each request; {calls.total()} model calls")
    print(f"model calls that had finished and were repeated: {len(repeated)}")


def main() -> None:
    """Run the benchmark, or the program that it kills."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--concurrency", type=int, default=50)
    parser.add_argument("--program", type=int, help="for the benchmark itself")
    arguments = parser.parse_args()
    if arguments.program is not None:
        run_program(arguments.program)
        return
    with psycopg.connect(f"{SERVER}/postgres", autocommit=True) as connection:
        connection.execute("drop database if exists durable_batch with (force)")
        connection.execute("create database durable_batch")
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(BATCH_FOLDER=folder, BATCH_CONCURRENCY=str(arguments.concurrency))
        global FOLDER  # noqa: PLW0603 - the processes have it in their environment
        FOLDER = Path(folder)
        run(arguments.requests, arguments.workers)


if __name__ == "__main__":
    main()
