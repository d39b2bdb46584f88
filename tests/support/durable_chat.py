"""The example of a durable chat service in a process of its own, with a scripted model.

    uvicorn --factory tests.support.durable_chat:create_app

The database is in the environment variable CHAT_DATABASE. The model says the second half of its
answer to "Trains?" when the file CHAT_GATE exists.
"""

import asyncio
import os
from collections.abc import AsyncGenerator
from pathlib import Path

from durable_chat import app as example
from fastapi import FastAPI

from chatclient import AssistantMessage, ChatResponse, Prompt, ToolResponseMessage
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
        return call("book_train", '{"number": "IC 1"}')
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


def create_app() -> FastAPI:
    """Return the service."""
    return example.create_app(
        SlowModel(travel), database=os.environ["CHAT_DATABASE"], takeover_seconds=2
    )
