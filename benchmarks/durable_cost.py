"""What durability costs in CPU time, beside plain DBOS with the same steps in the same process.

    python benchmarks/durable_cost.py [--database URL] [--waiters 1000] [--streams 50]

The model answers at once. Blocks of turns of the library and of plain functions of DBOS take turns,
so that both see the same machine; the CPU time is that of the process, without the share that the
engine takes while it is idle, and without the database server. Then:

- many turns are awaited that do not end, while others end in a second process: the CPU and the
  transactions of waiting, and how long after it was stored an end is noticed;
- many frontends stream a turn of some seconds each, with and without durability.

Default: the database `durable_cost` on the PostgreSQL server of the tests, which is created anew.
"""

import argparse
import asyncio
import json
import logging
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

import psycopg
from dbos import DBOS
from durable_peers import create_database
from starlette.applications import Starlette
from starlette.routing import Route

from chatclient import AssistantMessage, ChatClient, ChatModel, ChatResponse, Prompt, tool
from chatclient.durable import TurnHandle, TurnQueue, connect, durable, launch
from chatclient.runtime.runtime import Runtime
from chatclient.testing import Answer, ScriptedModel, call
from chatclient.web import WebChat

DATABASE = "postgresql://postgres@127.0.0.1:5432/durable_cost"
ROUNDS, SHORT_TURNS, LONG_TURNS, BLOCKS = 10, 25, 3, 8
IDLE_SECONDS, ENDS, DELTAS, DELTA_SECONDS = 5.0, 40, 150, 0.02
REPORT_SECONDS = 1.5  # until connections have reported their statistics

Turn = Callable[[str], Awaitable[Any]]


def answer(prompt: Prompt) -> Answer:
    """Call the tool in each round, if the user says so."""
    rounds = sum(isinstance(message, AssistantMessage) for message in prompt.messages)
    long = prompt.messages[0].text == "long" and rounds < ROUNDS
    return call("look", {"at": rounds}) if long else "Done."


@tool(effect="read")
async def look(at: int) -> str:
    """Look something up."""
    return f"seen {at}"


class Talker(ChatModel):
    """Streams an answer of some seconds."""

    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        """Answer without a stream."""
        raise NotImplementedError

    async def generate_stream(
        self,
        prompt: Prompt,  # noqa: ARG002
        runtime: Runtime,  # noqa: ARG002
    ) -> AsyncGenerator[ChatResponse | str, None]:
        """Stream the answer."""
        for number in range(DELTAS):
            await asyncio.sleep(DELTA_SECONDS)
            yield f"word {number} "


plain_client = ChatClient.builder(ScriptedModel(answer)).default_tools(look).build()
client = durable(plain_client, name="cost")
talker = ChatClient.create(Talker())
durable_talker = durable(talker, name="talker")
clients = [client, durable_talker, TurnQueue("ends", poll_seconds=0.05)]


@DBOS.step()
async def plain_step(at: int) -> dict[str, Any]:
    """Return what a model or a tool would."""
    return {"seen": at}


@DBOS.workflow()
async def plain_turn(text: str) -> str:
    """Run the steps that a turn of the library has."""
    for at in range(2 * ROUNDS + 1 if text == "long" else 1):
        await plain_step(at)
    return "Done."


async def plain(text: str) -> None:
    """Run a turn of plain DBOS."""
    handle = await DBOS.start_workflow_async(plain_turn, text)
    await handle.get_result()


async def unrecorded(text: str) -> None:
    """Run a turn without durability."""
    await plain_client.prompt(text).acall().content()


async def idle_share() -> float:
    """Return the CPU seconds that the engine takes in a second without turns."""
    await asyncio.sleep(1)
    began = time.process_time()
    await asyncio.sleep(IDLE_SECONDS)
    return (time.process_time() - began) / IDLE_SECONDS


async def block(turn: Turn, text: str, count: int, idle: float) -> float:
    """Return the CPU milliseconds of a turn, of *count* that follow each other."""
    began, cpu = time.perf_counter(), time.process_time()
    for _ in range(count):
        await turn(text)
    own = time.process_time() - cpu - idle * (time.perf_counter() - began)
    return own * 1000 / count


async def measure_turns() -> None:
    """Print the CPU time of a short turn and of a step, beside plain DBOS."""
    sides: dict[str, Turn] = {
        "library": client.acall,
        "plain DBOS": plain,
        "unrecorded": unrecorded,
    }
    for turn in sides.values():
        await turn("long")
    idle = await idle_share()
    print(f"idle process: {idle:.1%} of a core")
    costs: dict[tuple[str, str], list[float]] = {}
    for _ in range(BLOCKS):
        for text, count in (("short", SHORT_TURNS), ("long", LONG_TURNS)):
            for side, turn in sides.items():
                found = await block(turn, text, count, 0 if side == "unrecorded" else idle)
                costs.setdefault((side, text), []).append(found)
    median = {key: statistics.median(values) for key, values in costs.items()}
    steps = {side: (median[side, "long"] - median[side, "short"]) / (2 * ROUNDS) for side in sides}
    steps["library"] -= steps.pop("unrecorded")  # what the turn costs without a record
    print(f"{'':12}{'short turn':>14}{'step':>10}   CPU ms")
    for side, step in steps.items():
        print(f"{side:12}{median[side, 'short']:14.2f}{step:10.2f}")
    short = median["library", "short"] / median["plain DBOS", "short"]
    step = steps["library"] / steps["plain DBOS"]
    print(f"{'ratio':12}{short:14.2f}{step:10.2f}   (a short turn unrecorded takes", end=" ")
    print(f"{median['unrecorded', 'short']:.2f})")


def transactions(url: str) -> int:
    """Return the number of transactions of the database, when connections have reported theirs."""
    time.sleep(REPORT_SECONDS)
    server, _, name = url.rpartition("/")
    query = "select xact_commit from pg_stat_database where datname = %s"
    with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
        row = connection.execute(query, [name]).fetchone()
    assert row is not None
    return int(row[0])


async def ends(turns: list[TurnHandle], url: str) -> list[float]:
    """Return the seconds between the stored end of each turn, and its notice."""
    noticed: dict[str, float] = {}

    async def follow(turn: TurnHandle) -> None:
        await turn.aresult()
        noticed[turn.id] = time.time()

    await asyncio.gather(*map(follow, turns))
    query = "select workflow_uuid, completed_at / 1000.0 from dbos.workflow_status"
    with psycopg.connect(url) as connection:
        stored = {id: float(at) for id, at in connection.execute(query) if id in noticed}
    return [noticed[id] - stored[id] for id in noticed]


async def measure_waiters(url: str, count: int) -> None:
    """Print what waiting for *count* turns costs, and how soon ends are noticed."""
    is_server = url.startswith("postgresql")
    turns = await client.amap(["short"] * count, key="waiters", queue="ends", delay=3600.0)
    quiet = (await asyncio.to_thread(transactions, url)) if is_server else 0
    await asyncio.sleep(IDLE_SECONDS)
    if is_server:
        quiet = await asyncio.to_thread(transactions, url) - quiet
    waiting = [asyncio.create_task(turn.aresult()) for turn in turns.turns.values()]
    await asyncio.sleep(5)  # until their pauses have become longer
    before = await asyncio.to_thread(transactions, url) if is_server else 0
    cpu = time.process_time()
    await asyncio.sleep(IDLE_SECONDS)
    cpu = time.process_time() - cpu
    own = (await asyncio.to_thread(transactions, url) - before - quiet) if is_server else 0
    seconds = IDLE_SECONDS + (REPORT_SECONDS if is_server else 0)
    print(f"{count} waiters: {cpu / IDLE_SECONDS:.0%} of a core,", end=" ")
    print(f"{own / seconds:.0f} transactions per second")
    some = [await client.astart("short", queue="ends") for _ in range(ENDS)]
    delays = await ends(some, url)
    print(
        f"an end is noticed after {statistics.median(delays):.3f} s, the latest {max(delays):.3f}"
    )
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def stream(app: Starlette, number: int) -> int:
    """Run a request of a frontend, and return the bytes of the answer."""
    message = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Talk."}]}
    body = json.dumps({"id": f"chat-{number}", "messages": [message]}).encode()
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "method": "POST",
        "path": "/chat",
        "raw_path": b"/chat",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
        "http_version": "1.1",
    }
    size, parts = 0, [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        if not parts:
            await asyncio.Event().wait()
        return parts.pop()

    async def send(part: Any) -> None:
        nonlocal size
        size += len(part.get("body", b""))

    await app(scope, receive, send)
    return size


async def measure_streams(count: int) -> None:
    """Print the CPU time of *count* streams, with and without durability."""
    seconds = []
    for served in (durable_talker, talker):
        app = Starlette(routes=[Route("/chat", WebChat(served).ai_sdk, methods=["POST"])])
        await stream(app, -1)
        cpu, began = time.process_time(), time.perf_counter()
        sizes = await asyncio.gather(*(stream(app, number) for number in range(count)))
        seconds.append(time.process_time() - cpu)
        wall = time.perf_counter() - began
        print(
            f"  {count} streams of {min(sizes)} bytes or more: {seconds[-1]:.2f} s of CPU", end=""
        )
        print(f" in {wall:.1f} s")
    print(f"ratio of streams: {seconds[0] / seconds[1]:.1f}")


def main() -> None:
    """Print all figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--database", default=DATABASE)
    parser.add_argument("--waiters", type=int, default=1000)
    parser.add_argument("--streams", type=int, default=50)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    if arguments.database.startswith("postgresql"):
        create_database(arguments.database)
    with launch(arguments.database):
        asyncio.run(measure_turns())
        if arguments.streams:
            asyncio.run(measure_streams(arguments.streams))
    if not arguments.waiters:
        return
    command = [sys.executable, "-m", "chatclient", "worker", "durable_cost:clients"]
    here = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": f"{here.parent}:{here}"}
    worker = subprocess.Popen(
        [*command, "--database", arguments.database], env=environment, stdout=subprocess.PIPE
    )
    assert worker.stdout is not None
    worker.stdout.readline()
    try:
        with connect(arguments.database):
            asyncio.run(measure_waiters(arguments.database, arguments.waiters))
    finally:
        worker.terminate()
        worker.wait()


if __name__ == "__main__":
    main()
