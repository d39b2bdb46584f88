"""The jobs with LangChain: `create_agent` over `ChatOpenAI`."""

from typing import Any

from jobs import HISTORY, Job, compare
from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def asked(history: bool) -> dict[str, Any]:
    """Return the input of the agent."""
    messages = [*(HISTORY if history else []), {"role": "user", "content": "What is 1 + 2?"}]
    return {"messages": messages}


def model_of(url: str) -> Any:
    """Return a model."""
    return ChatOpenAI(model="stub", base_url=url, api_key="test", stream_usage=False)


def ask(url: str, tools: bool, history: bool) -> Job:
    """Return a function that sends a request."""
    agent = create_agent(model_of(url), tools=[add] if tools else [])

    async def answered() -> str:
        result = await agent.ainvoke(asked(history), {"recursion_limit": 100})
        return str(result["messages"][-1].content)

    return answered


def stream(url: str, tools: bool, history: bool) -> Job:
    """Return a function that streams from the model alone, which is cheaper."""
    model = model_of(url)

    async def streamed() -> str:
        return "".join([str(chunk.content) async for chunk in model.astream("What is 1 + 2?")])

    return streamed


if __name__ == "__main__":
    compare("langchain", ask, stream)
