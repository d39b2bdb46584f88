"""The example of a chat service in a process of its own, with a scripted model.

    uvicorn --factory tests.support.chat_service:create_app

The database is in the environment variable CHAT_DATABASE, and the seconds after which the turns of
a silent process are taken over in CHAT_TAKEOVER. When the file CHAT_GATE exists, the model
says the second half of its answer to "Trains?", and a train with the number `slow` is booked.
"""

import asyncio
import os
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from chat_service import app as example
from fastapi import FastAPI

from chatclient import AssistantMessage, ChatResponse, Prompt, ToolResponseMessage, tool
from chatclient.chat.response import Generation
from chatclient.errors import OverloadedError
from chatclient.runtime.runtime import Runtime
from chatclient.testing import Answer, ScriptedModel, call

GATE = Path(os.environ.get("CHAT_GATE", "gate"))


def travel(prompt: Prompt) -> Answer:
    """Book a train, fail, or count the questions."""
    last = prompt.messages[-1]
    if isinstance(last, ToolResponseMessage):
        return f"Well: {last.responses[0].data}"
    if "Book" in last.text:
        number = "slow" if "slowly" in last.text else "IC 1"
        return call("book_train", {"number": number})
    if "fail" in last.text:
        return OverloadedError("no room")
    return f"{sum(message.role == 'user' for message in prompt.messages)} questions."


class SlowModel(ScriptedModel):
    """Pauses in the middle of an answer."""

    async def generate_stream(
        self, prompt: Prompt, runtime: Runtime
    ) -> AsyncGenerator[ChatResponse | str, None]:
        if prompt.messages[-1].text != "Trains?":
            async for piece in super().generate_stream(prompt, runtime):
                yield piece
            return
        yield "There are "
        while not GATE.exists():  # noqa: ASYNC110, ASYNC240 - made by another process
            await asyncio.sleep(0.01)
        yield "two trains."
        yield ChatResponse((Generation(AssistantMessage(), "stop"),))


@tool
async def book_train(number: str) -> str:
    """Book a seat on a train."""
    if number == "slow":
        GATE.with_name("booking").touch()
        while not GATE.exists():  # noqa: ASYNC110, ASYNC240 - made by another process
            await asyncio.sleep(0.01)
    return f"Booked a seat on {number}."


def create_app() -> FastAPI:
    """Return the service."""
    module: Any = example
    module.book_train = book_train
    return example.create_app(
        SlowModel(travel),
        database=os.environ["CHAT_DATABASE"],
        takeover_seconds=float(os.environ["CHAT_TAKEOVER"]),
    )
