"""A flow of Prefect with a turn that books a train; `test_prefect.py` runs it in processes.

    python tests/durable/prefect_app.py DIRECTORY [crash=WHERE] [deadline=SECONDS] [resume=JSON]
                                        [storage=PATH]

Writes what runs to `DIRECTORY/log`, and prints the outcome as JSON.
"""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from prefect import flow  # pyright: ignore[reportMissingImports]

from chatclient import AssistantMessage, ChatClient, Prompt, ToolContext, tool
from chatclient.advisors import MessageChatMemoryAdvisor
from chatclient.durable import PrefectRecorder
from chatclient.memory import MessageWindowChatMemory, SqlChatMemoryRepository
from chatclient.testing import Answer, ScriptedModel, call
from chatclient.tools import Decision

DIRECTORY = Path(sys.argv[1])
SETTINGS = dict(setting.split("=", 1) for setting in sys.argv[2:])
SCRIPT: list[Answer] = [
    [call("price", {"number": "IC 1"}, id="a"), call("price", {"number": "{IC} 2"}, id="b")],
    call("hold", {"number": "IC 1"}, id="c"),
    call("book", {"number": "IC 1"}, id="d"),
    "Booked.",
]


def run(what: str) -> None:
    """Log *what*, and end the process if it must crash there."""
    with (DIRECTORY / "log").open("a") as log:
        log.write(f"{what}\n")
    if SETTINGS.get("crash") == what.partition(" key=")[0]:
        os.kill(os.getpid(), signal.SIGKILL)


def answer(prompt: Prompt) -> Answer:
    round = sum(isinstance(message, AssistantMessage) for message in prompt.messages)
    run(f"model {round}")
    return SCRIPT[round]


@tool(effect="read")
async def price(number: str) -> dict[str, str]:
    """Return a price, in a form that the JSON of Prefect itself would take for a class."""
    run(f"price {number}")
    await asyncio.sleep(0)
    return {"__class__": "decimal.Decimal", "data": "39"}


@tool(effect="idempotent")
async def hold(number: str, context: ToolContext) -> str:
    """Hold a seat."""
    run(f"hold {number} key={context.idempotency_key}")
    return "held"


@tool
async def book(number: str) -> str:
    """Book a seat."""
    run(f"book {number}")
    return "booked"


repository = SqlChatMemoryRepository(f"sqlite:///{DIRECTORY}/memory.db")
client = (
    ChatClient.builder(ScriptedModel(answer))
    .default_tools(price, hold, book)
    .default_advisors(MessageChatMemoryAdvisor(MessageWindowChatMemory(repository)))
    .build()
)


@flow
async def travel(turn: str, resume: dict[str, Any] | None) -> dict[str, Any]:
    """Run a turn until its answer, or until it waits for decisions."""
    if resume is None:
        request = client.prompt("Book IC 1").conversation("c")
        segment = PrefectRecorder(
            turn, storage=SETTINGS.get("storage") and Path(SETTINGS["storage"])
        )
    else:
        decisions = {id: Decision.answered(text) for id, text in resume["decisions"].items()}
        request = client.resume(resume["pending"], decisions)
        segment = PrefectRecorder(turn, segment=2)
    if "deadline" in SETTINGS:
        request = request.deadline(float(SETTINGS["deadline"]))
    response = (await segment.recorded(request)).acall()
    pending = await response.pending_turn()
    return {
        "text": await response.content(),
        "pending": pending and pending.to_json(),
        "interrupted": segment.interrupted,
    }


if __name__ == "__main__":
    resume = json.loads(SETTINGS["resume"]) if "resume" in SETTINGS else None
    outcome = asyncio.run(travel("trip/1", resume))
    stored = repository.find_by_conversation_id("c")
    print(json.dumps({**outcome, "stored": [message.role for message in stored]}))  # noqa: T201
