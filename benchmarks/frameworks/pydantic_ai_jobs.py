"""The jobs with pydantic-ai: an `Agent` over its Chat Completions model."""

from typing import Any

from jobs import HISTORY, Job, compare
from pydantic_ai import Agent, UsageLimits
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

MESSAGES = [
    ModelRequest([UserPromptPart(m["content"])])
    if m["role"] == "user"
    else ModelResponse([TextPart(m["content"])])
    for m in HISTORY
]
LIMITS = UsageLimits(request_limit=100)


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def agent_of(url: str, tools: bool) -> Any:
    """Return an agent."""
    model = OpenAIChatModel("stub", provider=OpenAIProvider(base_url=url, api_key="test"))
    return Agent(model, tools=[add] if tools else [])


def ask(url: str, tools: bool, history: bool) -> Job:
    """Return a function that sends a request."""
    agent = agent_of(url, tools)

    async def answered() -> str:
        result = await agent.run(
            "What is 1 + 2?", message_history=MESSAGES if history else None, usage_limits=LIMITS
        )
        return str(result.output)

    return answered


def stream(url: str, tools: bool, history: bool) -> Job:
    """Return a function that streams an answer."""
    agent = agent_of(url, tools)

    async def streamed() -> str:
        async with agent.run_stream("What is 1 + 2?") as result:
            pieces = [piece async for piece in result.stream_text(delta=True, debounce_by=None)]
        return "".join(pieces)

    return streamed


if __name__ == "__main__":
    compare("pydantic-ai-slim", ask, stream)
