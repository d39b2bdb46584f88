"""An MCP server with elicitation, sampling, roots and logs, made with the SDK.

Run as `python mcp_inquirer.py`.
"""

import asyncio
from typing import Annotated, Any

from mcp.server.elicitation import (
    AcceptedElicitation,
    CancelledElicitation,
    DeclinedElicitation,
)
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.resolve import Elicit, ListRoots, Resolve, Sample
from mcp_types import CreateMessageResult, ListRootsResult, SamplingMessage, TextContent
from pydantic import BaseModel

server = MCPServer("inquirer")


class Table(BaseModel):
    guests: int
    outside: bool = False


Outcome = AcceptedElicitation[Table] | DeclinedElicitation | CancelledElicitation


async def ask_for_table() -> Elicit[Table]:
    return Elicit("How many are you?", Table)


async def ask_model() -> Sample:
    question = SamplingMessage(role="user", content=TextContent(text="Say a word."))
    return Sample([question], max_tokens=50, system_prompt="Be brief.")


@server.tool()
async def book(outcome: Annotated[Outcome, Resolve(ask_for_table)]) -> str:
    """Book a table."""
    match outcome:
        case AcceptedElicitation(data=table):
            return f"for {table.guests}{' outside' if table.outside else ''}"
        case _:
            return outcome.action


@server.tool()
async def say(answer: Annotated[CreateMessageResult, Resolve(ask_model)]) -> str:
    """Sample a text."""
    return f"{answer.model}: {answer.content.text} ({answer.stop_reason})"  # type: ignore[union-attr]


async def ask_for_roots() -> ListRoots:
    return ListRoots()


@server.tool()
async def places(found: Annotated[ListRootsResult, Resolve(ask_for_roots)]) -> str:
    """List the roots."""
    return " ".join(f"{root.name}={root.uri}" for root in found.roots)


@server.tool()
async def grumble(context: Context[Any]) -> str:
    """Write to the log."""
    await context.info("as always", logger_name="mood")
    await context.error({"broken": "stove"})
    return "done"


if __name__ == "__main__":
    asyncio.run(server.run_stdio_async())
