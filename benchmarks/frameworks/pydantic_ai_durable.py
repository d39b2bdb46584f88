"""Durable turns of pydantic-ai, for `durable_peers.py`."""

from collections.abc import Awaitable, Callable
from typing import Any

from dbos import DBOS
from pydantic_ai import Agent, ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.durable_exec.dbos import DBOSDurability
from pydantic_ai.models.function import AgentInfo, FunctionModel

ROUNDS = 20

Turn = Callable[[str], Awaitable[Any]]


def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Call the tool in each round."""
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
    """Run the agent."""
    return (await agent.run(text)).output


def turns(database: str) -> tuple[Turn, Turn, Callable[[], None]]:
    """Return a turn without and with durability, and what ends the engine."""
    DBOS(config={"name": "peer", "system_database_url": database, "log_level": "WARNING"})
    DBOS.launch()
    return agent.run, turn, DBOS.destroy
