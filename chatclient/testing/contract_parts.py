"""What the contracts of stores and models share: difficult messages, and a check of event loops."""

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import FrameType
from typing import Any

from chatclient.chat.messages import (
    AssistantMessage,
    Media,
    Message,
    ProviderPart,
    Reasoning,
    SystemMessage,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
)

EVERY_KIND: tuple[Message, ...] = (
    SystemMessage("Be brief.", {"source": "policy", "revision": 3}),
    UserMessage(
        ["Look: ", Media("image/png", b"\x89PNG\x00\xff", name="a.png"), "what is it?"],
        metadata={"user": {"id": 7, "tags": ["a", "b"]}, "score": 0.25, "none": None},
    ),
    AssistantMessage(
        [
            Reasoning("I shall look.", "c2lnbmF0dXJl", "anthropic", {"type": "thinking"}),
            "I will look it up.",
            ToolCall("call_1", "look_up", '{"q": "png"', {"thought_signature": "xyz"}),
            ToolCall("call_2", "look_up", "{}"),
        ],
        metadata={"id": "msg_1"},
    ),
    ToolResponseMessage(
        [
            ToolResponse(
                "call_1",
                "look_up",
                '{"a": "cat"}',
                media=(Media("image/jpeg", "https://example.com/cat.jpg", id="file-1"),),
                metadata={"ms": 12},
            ),
            ToolResponse("call_2", "look_up", "no such thing", is_error=True),
        ],
        {"round": 1},
    ),
    AssistantMessage(
        [ProviderPart("openai", {"type": "web_search", "n": [1, 2]}, "A cat"), ".", ""],
    ),
    UserMessage(
        "Ünïcödé 猫 🐈 \U0001f468\u200d\U0001f469, '\"\\ % _ `; --\r\n\t\x00 \x7f \ud800 end"
    ),
    AssistantMessage("x" * 100_000),
)
"""Messages of every kind, with all fields, special characters and a long text."""

AWKWARD_IDS = (
    "a",
    "A",
    "a ",
    " a",
    "á",
    "a%",
    "a_",
    "a*",
    "a:b",
    "a/b/../c",
    "{a}",
    "'; DROP TABLE a; --",
    "猫🐈",
    '"a"',
    "\0",
    "\ud800",
    "long" * 250,
    "long" * 250 + "!",
)
"""Conversation ids that a store may confuse with each other."""


def turn(number: object, rounds: int = 1) -> tuple[Message, ...]:
    """Return a turn with the given number of rounds; all but the last have a tool call."""
    tool_rounds: list[Message] = []
    for at in range(rounds - 1):
        call = ToolCall(f"call_{number}_{at}", "look_up", "{}")
        tool_rounds += [
            AssistantMessage([call]),
            ToolResponseMessage([ToolResponse(call.id, call.name, f"{at}")]),
        ]
    return (UserMessage(f"question {number}"), *tool_rounds, AssistantMessage(f"answer {number}"))


_LONGEST = 0.05  # seconds that a coroutine may keep its loop
_ATTEMPTS = 3  # a busy machine stops the loop, too, but not every time
_TICK = 0.005
_DRIVERS = ("sqlite3", "psycopg_binary", "psycopg2")  # whose functions in C wait
_WAITING = {"time.sleep", "io.open", "_io.open"}


def check_loop_is_free(start: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Check that the coroutine of *start* waits without blocking its event loop.

    It is run several times. It must not call functions that are known to wait, such as
    `time.sleep`, the methods of blocking sockets, `open` and those of database drivers, and it
    must not keep the loop for more than 50 ms each time. Errors of this library are ignored.

    Raises:
        AssertionError: It blocks the loop.
    """
    paused: list[float] = []
    for _ in range(_ATTEMPTS):
        pause, calls = asyncio.run(_watched(start))
        assert not calls, f"the event loop is blocked by {', '.join(sorted(calls))}"
        paused.append(pause)
    least = min(paused)
    assert least < _LONGEST, f"the event loop is blocked for {1000 * least:.0f} ms"


async def _watched(start: Callable[[], Coroutine[Any, Any, object]]) -> tuple[float, set[str]]:
    """Return the longest pause of the loop while the coroutine runs, and its waiting calls."""
    longest, calls = 0.0, set[str]()

    async def tick() -> None:
        nonlocal longest
        before = time.perf_counter()
        while True:
            await asyncio.sleep(_TICK)
            now = time.perf_counter()
            longest = max(longest, now - before - _TICK)
            before = now

    def on_call(frame: FrameType, event: str, called: Any) -> None:
        if event == "c_call" and (name := _waits(called)) and not _is_import(frame):
            calls.add(name)

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0)
    before = sys.getprofile()
    sys.setprofile(on_call)
    try:
        await start()
    finally:
        sys.setprofile(before)
        await asyncio.sleep(2 * _TICK)
        ticking.cancel()
        with suppress(asyncio.CancelledError):
            await ticking
    return longest, calls


def _waits(called: Any) -> str:
    """Return the name of a function in C if it may wait, otherwise an empty text."""
    owner = getattr(called, "__self__", None)
    module = getattr(called, "__module__", None) or type(owner).__module__
    name = f"{module}.{called.__name__}"
    if name in _WAITING:
        return name
    if module.partition(".")[0] in _DRIVERS:
        return name
    # asyncio's own sockets do not block, and close or have options set without waiting.
    timeout = getattr(owner, "gettimeout", None)
    waiting = called.__name__ in ("connect", "recv", "recv_into", "send", "sendall", "accept")
    return name if timeout is not None and waiting and timeout() != 0 else ""


def _is_import(frame: FrameType | None) -> bool:
    """Return whether *frame* imports a module, which happens once."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
