"""Streams of many events take time in proportion to their number."""

import asyncio
import gc
import re
import time
from collections.abc import Callable

import pytest

from chatclient import ChatClient, ToolCall, tool
from chatclient.advisors import SafeGuardAdvisor
from chatclient.testing import ScriptedModel
from chatclient.tools import ToolCallingManager, ToolLimits

UNLIMITED = ToolLimits(max_calls_per_tool=None, max_total_calls=None, max_repeats=None)


@tool(effect="read")
async def look(item: str) -> str:
    """Look at an item.

    Args:
        item: Its name.
    """
    return item


@tool
async def put(item: str) -> str:
    """Put an item away.

    Args:
        item: Its name.
    """
    return item


def guarded_by(*forbidden: str | re.Pattern[str]) -> Callable[[int], None]:
    def stream(count: int) -> None:
        model = ScriptedModel("some words " * 200 * count, chunks=2200)
        client = ChatClient.builder(model).default_advisors(SafeGuardAdvisor(*forbidden)).build()
        for _ in client.prompt("x").stream().content():
            pass

    return stream


def eager_reads(count: int) -> None:
    calls = [ToolCall(f"c{at}", "put", f'{{"item": "{at}"}}') for at in range(3 * count)]
    manager = ToolCallingManager(eager_reads=True, blocking_concurrency=8, limits=UNLIMITED)
    builder = ChatClient.builder(ScriptedModel(calls, "Done")).default_tools(put, look)
    client = builder.tool_calling_manager(manager).build()

    # Without threads: coverage measurement makes switching between them slow.
    async def stream() -> None:
        async for _ in client.prompt("x").astream().content():
            pass

    asyncio.run(stream())


def seconds(work: Callable[[int], None], count: int) -> float:
    gc.collect()
    gc.disable()
    try:
        started = time.process_time()
        work(count)
        return time.process_time() - started
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "work",
    [guarded_by("forbidden"), guarded_by(re.compile("forbidden")), eager_reads],
    ids=["words", "pattern", "eager"],
)
def test_time_grows_linearly(work: Callable[[int], None]) -> None:
    """A stream with 16 times as many events takes far less than 256 times as long."""
    work(10)
    few = min(seconds(work, 250) for _ in range(3))

    assert seconds(work, 4000) < 32 * few
