"""The jobs with Microsoft's Agent Framework: an `Agent` over its Chat Completions client."""

from typing import Any

from agent_framework import Agent, Message, tool
from agent_framework.openai import OpenAIChatCompletionClient
from jobs import HISTORY, Job, compare

MESSAGES = [Message(m["role"], [m["content"]]) for m in HISTORY]


@tool(approval_mode="never_require")
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def agent_of(url: str, tools: bool) -> Any:
    """Return an agent."""
    client = OpenAIChatCompletionClient("stub", base_url=url, api_key="test")
    return Agent(client, tools=[add] if tools else None)


def asked(history: bool) -> list[Message]:
    """Return the input of the agent."""
    return [*(MESSAGES if history else []), Message("user", ["What is 1 + 2?"])]


def ask(url: str, tools: bool, history: bool) -> Job:
    """Return a function that sends a request."""
    agent = agent_of(url, tools)

    async def answered() -> str:
        return str((await agent.run(asked(history))).text)

    return answered


def stream(url: str, tools: bool, history: bool) -> Job:
    """Return a function that streams an answer."""
    agent = agent_of(url, tools)

    async def streamed() -> str:
        updates = agent.run(asked(history), stream=True)
        return "".join([update.text async for update in updates if update.text])

    return streamed


if __name__ == "__main__":
    compare("agent-framework-core", ask, stream)
