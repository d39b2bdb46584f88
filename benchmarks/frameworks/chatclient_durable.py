"""Durable turns of chatclient, for `durable_peers.py`."""

from collections.abc import Awaitable, Callable
from typing import Any

from chatclient import AssistantMessage, ChatClient, Prompt, tool
from chatclient.durable import durable, launch
from chatclient.testing import Answer, ScriptedModel, call

ROUNDS = 20

Turn = Callable[[str], Awaitable[Any]]


def answer(prompt: Prompt) -> Answer:
    """Call the tool in each round."""
    rounds = sum(isinstance(message, AssistantMessage) for message in prompt.messages)
    if prompt.messages[0].text == "short" or rounds == ROUNDS:
        return "done"
    return call("look", {"at": rounds}, id=f"call-{rounds}")


@tool(effect="read")
async def look(at: int) -> str:
    """Do nothing."""
    return f"seen {at}"


def turns(database: str) -> tuple[Turn, Turn, Callable[[], None]]:
    """Return a turn without and with durability, and what ends the engine."""
    client = ChatClient.builder(ScriptedModel(answer)).default_tools(look).build()
    made = durable(client, name="peer")
    engine = launch(database)

    async def plain(text: str) -> Any:
        return await client.prompt(text).acall().content()

    return plain, made.acall, engine.close
