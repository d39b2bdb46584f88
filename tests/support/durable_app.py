"""The application of workers in tests of crashes: it kills its own process at one point, once.

The environment has the point in `CRASH_AT`, and the folder in `CRASH_FOLDER` where effects of tools
are recorded, one line for each.
"""

import os
import signal
import time
from pathlib import Path
from typing import Any

from chatclient import AssistantMessage, ChatClient, Prompt, UserMessage, tool
from chatclient.advisors import MessageChatMemoryAdvisor
from chatclient.durable import durable
from chatclient.memory import MessageWindowChatMemory, SqlChatMemoryRepository
from chatclient.testing import Answer, ScriptedModel, call
from chatclient.tools import ToolApproval, ToolCallingManager, ToolInvocation

FOLDER = Path(os.environ["CRASH_FOLDER"])


def reach(point: str) -> None:
    """Record that *point* is reached, and end the process there if it is the point to crash at."""
    with (FOLDER / "reached").open("a") as file:
        file.write(f"{point}\n")
    crashed = FOLDER / "crashed"
    if os.environ.get("CRASH_AT") == point and not crashed.exists():
        crashed.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def answer(prompt: Prompt) -> Answer:
    """Return the answer to the last turn of *prompt*."""
    text = prompt.messages[-1].text
    if text.startswith("Extract"):
        reach(text)
        return text.upper()
    begin = max(at for at, each in enumerate(prompt.messages) if isinstance(each, UserMessage))
    round = sum(isinstance(each, AssistantMessage) for each in prompt.messages[begin:])
    reach(f"model {round}")
    script: list[Answer] = [
        [call("look", {"item": "tea"}, id="a"), call("reserve", {"item": "tea"}, id="b")],
        call("buy", {"item": "tea"}, id="c"),
        "Bought.",
    ]
    if "with approval" in prompt.messages[begin].text:
        script[1] = call("buy", {"item": "gold"}, id="c")
    return script[round]


@tool(effect="read")
def look(item: str) -> str:
    """Look something up."""
    reach("look")
    return f"{item} costs 10"


def release() -> None:
    """Undo a reservation."""
    reach("release")


@tool(effect="idempotent", compensation=release)
def reserve(item: str) -> str:
    """Reserve something."""
    reach("reserve")
    return f"{item} reserved"


@tool
def buy(item: str) -> str:
    """Buy something."""
    reach("buy")
    time.sleep(float(os.environ.get("BUY_SECONDS", "0")))
    reach("bought")
    return f"{item} bought"


class Repository(SqlChatMemoryRepository):
    """A memory that may crash after it has stored a turn."""

    async def append(self, *args: Any, **more: Any) -> bool:
        """Store messages."""
        stored = await super().append(*args, **more)
        reach("stored")
        return stored


def expensive(invocation: ToolInvocation) -> bool:
    """Return whether a call needs approval."""
    return "gold" in invocation.tool_call.arguments


repository = Repository(os.environ["CRASH_MEMORY"])
client = (
    ChatClient.builder(ScriptedModel(answer))
    .default_tools(look, reserve, buy)
    .tool_calling_manager(ToolCallingManager(interceptors=[ToolApproval(needed=expensive)]))
    .default_advisors(MessageChatMemoryAdvisor(MessageWindowChatMemory(repository)))
    .build()
)
shop = durable(client, name="shop")
