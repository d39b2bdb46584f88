"""What durability costs here and in pydantic-ai, both on DBOS and the same database.

    python benchmarks/durable_peers.py [--database URL] [--repeat 5]

Both are installed in one environment, kept like those of `compare.py`, with the same release of
DBOS. In turn, each of them runs in a process of its own: turns of 20 rounds, with and without
durability, in which a model that answers at once calls a tool that does nothing; then short turns,
which call the model once, 20 at a time. In pydantic-ai the tool is a `@DBOS.step()`, as its
documentation recommends, and here it has `effect="read"`: in both, each call of the model and of the
tool is one step.

The database is created anew; default: `durable_peers` on the PostgreSQL server of the tests.
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
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from compare import python_of

ROOT = Path(__file__).parents[1]
DATABASE = "postgresql://postgres@127.0.0.1:5432/durable_peers"
PACKAGES = ["--editable", f"{ROOT}[dbos,postgres]", "pydantic-ai-slim[dbos]"]
ROUNDS, TURNS, SHORT_TURNS, AT_ONCE = 20, 12, 400, 20

Turn = Callable[[str], Awaitable[Any]]


def chatclient_turns(database: str) -> tuple[Turn, Turn, Callable[[], None]]:
    """Return a turn without and with durability, and what ends the engine."""
    from chatclient import AssistantMessage, ChatClient, Prompt, tool
    from chatclient.durable import durable, launch
    from chatclient.testing import Answer, ScriptedModel, call

    def answer(prompt: Prompt) -> Answer:
        rounds = sum(isinstance(message, AssistantMessage) for message in prompt.messages)
        if prompt.messages[0].text == "short" or rounds == ROUNDS:
            return "done"
        return call("look", {"at": rounds}, id=f"call-{rounds}")

    @tool(effect="read")
    async def look(at: int) -> str:
        """Do nothing."""
        return f"seen {at}"

    client = ChatClient.builder(ScriptedModel(answer)).default_tools(look).build()
    made = durable(client, name="peer")
    engine = launch(database)

    async def plain(text: str) -> Any:
        return await client.prompt(text).acall().content()

    return plain, made.acall, engine.close


def pydantic_ai_turns(database: str) -> tuple[Turn, Turn, Callable[[], None]]:
    """Return a turn without and with durability, and what ends the engine."""
    from dbos import DBOS
    from pydantic_ai import Agent, ModelMessage, ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.durable_exec.dbos import DBOSDurability
    from pydantic_ai.models.function import AgentInfo, FunctionModel

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        rounds = sum(isinstance(message, ModelResponse) for message in messages)
        if messages[0].parts[0].content == "short" or rounds == ROUNDS:
            return ModelResponse([TextPart("done")])
        return ModelResponse([ToolCallPart("look", {"at": rounds}, f"call-{rounds}")])

    agent = Agent(FunctionModel(answer), name="peer", capabilities=[DBOSDurability()])

    @agent.tool_plain
    @DBOS.step()
    async def look(at: int) -> str:
        """Do nothing."""
        return f"seen {at}"

    @DBOS.workflow()
    async def turn(text: str) -> str:
        return (await agent.run(text)).output

    DBOS(config={"name": "peer", "system_database_url": database, "log_level": "WARNING"})
    DBOS.launch()
    return agent.run, turn, DBOS.destroy


SIDES = {"chatclient": chatclient_turns, "pydantic_ai": pydantic_ai_turns}


def milliseconds_of_workflows() -> list[tuple[int, int]]:
    """Return the duration in milliseconds and the number of steps of each long turn."""
    from dbos import DBOS

    found = []
    for status in DBOS.list_workflows(status="SUCCESS", load_input=False, load_output=False):
        steps = len(DBOS.list_workflow_steps(status.workflow_id))
        if steps > 1:
            found.append((status.updated_at - status.created_at, steps))
    return found


async def times_of(turn: Turn) -> list[float]:
    """Return the seconds of each of several long turns."""
    times = []
    for _ in range(TURNS):
        began = time.perf_counter()
        await turn("long")
        times.append(time.perf_counter() - began)
    return times


async def short_turns_per_second(turn: Turn) -> float:
    """Return how many short turns end in a second, with several at once."""
    free = asyncio.Semaphore(AT_ONCE)

    async def one() -> None:
        async with free:
            await turn("short")

    began = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(SHORT_TURNS)))
    return SHORT_TURNS / (time.perf_counter() - began)


def measure(side: str, database: str) -> dict[str, float]:
    """Return what one side costs, in a process of its own."""
    logging.disable(logging.WARNING)
    plain, turn, close = SIDES[side](database)

    async def run() -> dict[str, float]:
        without = statistics.median(await times_of(plain)) * 1000
        await turn("long")
        await times_of(turn)
        ran = await asyncio.to_thread(milliseconds_of_workflows)
        steps = ran[0][1]
        assert all(each == steps for _, each in ran), ran
        with_durability = statistics.median(time for time, _ in ran)
        return {
            "steps": steps,
            "plain_ms": without,
            "ms_per_step": (with_durability - without) / steps,
            "short_turns": await short_turns_per_second(turn),
        }

    measured = asyncio.run(run())
    close()
    return measured


def create_database(url: str) -> None:
    """Create the database anew, for each process: tables that grow cost more."""
    import psycopg

    server, _, name = url.rpartition("/")
    with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
        connection.execute(f'drop database if exists "{name}" with (force)')
        connection.execute(f'create database "{name}"')


def run_side(side: str, database: str) -> dict[str, float]:
    """Measure one side in the environment of both."""
    create_database(database)
    command = [str(python_of("durable_peers", PACKAGES)), __file__]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{Path(__file__).parent}"}
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
    parser.add_argument("--side", choices=list(SIDES), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        print(json.dumps(measure(arguments.side, arguments.database)))
        return
    rows: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    for _ in range(arguments.repeat):
        for side, measured in rows.items():
            measured.append(run_side(side, arguments.database))
    print(f"{'':12} {'steps of a turn':>16} {'ms per step':>12} {'short turns/s':>14}")
    for side, measured in rows.items():
        each = {name: statistics.median(row[name] for row in measured) for name in measured[0]}
        print(
            f"{side:12} {each['steps']:16.0f} {each['ms_per_step']:12.2f}"
            f" {each['short_turns']:14.0f}"
        )


if __name__ == "__main__":
    main()
