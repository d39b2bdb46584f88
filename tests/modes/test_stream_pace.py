"""Async streams run no tool and call no model before their consumer has received earlier events."""

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from chatclient import ChatClient, TextDelta, ToolCallFinished, tool
from chatclient.testing import ScriptedModel, call


class Recorder:
    """Counts calls of a tool that writes."""

    def __init__(self) -> None:
        self.written: list[int] = []

    @tool
    async def write(self, number: int) -> str:
        """Write a number."""
        self.written.append(number)
        return "written"


def script() -> ScriptedModel:
    rounds: list[Any] = [["text ", call("write", {"number": number})] for number in range(4)]
    return ScriptedModel(*rounds, "done")


async def test_no_tool_runs_before_the_text_is_received() -> None:
    """A consumer that stops at the first text starts neither the tool nor another round."""
    recorder, model = Recorder(), script()
    client = ChatClient.builder(model).default_tools(recorder).build()
    async with aclosing(client.prompt("x").astream().events()) as events:
        async for event in events:
            if isinstance(event, TextDelta):
                break
        await asyncio.sleep(0.05)

        assert recorder.written == []
        assert len(model.prompts) == 1


async def test_the_next_round_waits_for_the_consumer() -> None:
    """A consumer that stops at the result of a tool starts no further model call."""
    recorder, model = Recorder(), script()
    client = ChatClient.builder(model).default_tools(recorder).build()
    async with aclosing(client.prompt("x").astream().events()) as events:
        async for event in events:
            if isinstance(event, ToolCallFinished):
                break
        await asyncio.sleep(0.05)

        assert recorder.written == [0]
        assert len(model.prompts) <= 2


async def test_a_slow_consumer_receives_everything() -> None:
    """The request continues when the consumer does."""
    recorder, model = Recorder(), script()
    client = ChatClient.builder(model).default_tools(recorder).build()
    texts: list[str] = []
    async for text in client.prompt("x").astream():
        texts.append(text)
        await asyncio.sleep(0.01)

    assert texts[-1] == "\n\ndone"
    assert recorder.written == [0, 1, 2, 3]


@pytest.mark.parametrize("leave", ["aclose", "cancel"])
async def test_leaving_a_stream_that_waits(leave: str) -> None:
    """A request that waits for its consumer ends with the stream."""
    recorder, model = Recorder(), script()
    client = ChatClient.builder(model).default_tools(recorder).build()

    async def consume(events: Any) -> None:
        async for _ in events:
            await asyncio.sleep(3600 if leave == "cancel" else 0.05)

    events = client.prompt("x").astream().events()
    task = asyncio.create_task(consume(events))
    await asyncio.sleep(0.02)
    task.cancel()
    await asyncio.wait([task])
    await events.aclose()

    assert recorder.written == []
    assert asyncio.all_tasks() == {asyncio.current_task()}
